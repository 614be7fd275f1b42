"""The clients of the ordering service: what they send again, what they note, what they read."""

import asyncio
import json

import pytest

from bench.osn.client import (
    SEPARATE,
    NodeStreams,
    ReadBlocks,
    Submit,
    TransactionRefused,
    _Done,
    _Submitting,
    all_blocks,
)
from bench.osn.clients import Journal
from bench.osn.transactions import Maker
from ordering_osn.chain.transactions import transaction_id
from ordering_osn.protos import Block
from tests.ordering_osn.helpers.chains import SmallChannel, SmallChannels, serving


def made(count):
    maker = Maker.of()
    return [maker.make("chain-a") for _ in range(count)]


def address(server):
    return f"127.0.0.1:{server.port}"


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it is a count, and nobody tells of it
            await asyncio.sleep(0.01)


def reading(server, transactions):
    return ReadBlocks(
        address=address(server), chain="chain-a", transactions=transactions, timeout_s=60.0
    )


def ids(arrived):
    return [transaction_id(one) for _, raw in arrived for one in Block.FromString(raw).data.data]


def test_what_a_node_did_not_answer_before_it_ended_goes_to_another_one(tmp_path):
    async def run():
        silent = SmallChannels(SmallChannel(tmp_path / "silent"))
        silent.stored = asyncio.Event()  # never set: it answers nobody
        channel, sent = SmallChannel(tmp_path / "good"), made(12)
        async with serving(silent) as mute, serving(SmallChannels(channel)) as good:
            addresses = [address(one) for one in (mute, good)]
            async with NodeStreams(addresses, window=4) as streams:
                running = [asyncio.create_task(streams.submit(one.envelope)) for one in sent]
                await until(
                    lambda: len(silent.submitted) == 4 and sum(one.done() for one in running) == 8
                )
                await mute.stop(0.0)
                answered = await asyncio.gather(*running)
                again = streams.again
            read, arrived = await all_blocks(reading(good, 12))
        return sent, answered, again, read, arrived

    sent, answered, again, read, arrived = asyncio.run(run())
    assert set(answered) == {1}
    assert again >= 4
    assert read.blocks == 13  # the genesis block, and one for each
    assert sorted(ids(arrived)) == sorted(one.transaction for one in sent)


def test_what_a_node_is_not_ready_for_is_sent_until_it_is(tmp_path):
    async def run():
        channel = SmallChannel(tmp_path)
        channel.errored = True
        async with serving(SmallChannels(channel)) as server:
            async with NodeStreams([address(server)]) as streams:
                running = [asyncio.create_task(streams.submit(one.envelope)) for one in made(5)]
                await until(lambda: streams.again)
                channel.errored = False
                await asyncio.gather(*running)
            _, arrived = await all_blocks(reading(server, 5))
        return arrived

    arrived = asyncio.run(run())
    assert len(set(ids(arrived))) == 5
    assert [came for came, _ in arrived] == sorted(came for came, _ in arrived)


def test_what_a_node_refuses_for_good_raises(tmp_path):
    async def run():
        async with (
            serving(SmallChannels(SmallChannel(tmp_path))) as server,
            NodeStreams([address(server)]) as streams,
        ):
            await streams.submit(b"no envelope")

    with pytest.raises(TransactionRefused, match="was answered 400"):
        asyncio.run(run())


# -- what is noted ---------------------------------------------------------------------------------


class Memory(list):
    """Notes in memory."""

    def write(self, line):
        self.append(line)


def test_at_most_a_window_of_numbers_has_begun_and_is_not_acknowledged():
    notes, gates = Memory(), [asyncio.Event() for _ in range(5)]

    async def send(number):
        await gates[number].wait()
        return _Done("", number % 2)

    async def run():
        task = Submit(what=SEPARATE, addresses=[], sets=[], count=5, first=1, window=2)
        submitting = _Submitting(task, send, notes)
        running = asyncio.create_task(submitting.run())
        await until(lambda: len(notes) == 2)
        gates[2].set()
        await until(lambda: len(notes) == 4)
        for gate in gates:
            gate.set()
        await running
        return submitting.result

    result = asyncio.run(run())
    kinds = [(word, line[word]) for line in notes for word in ("begun", "call") if word in line]
    assert kinds[:4] == [("begun", 1), ("begun", 2), ("call", 2), ("begun", 3)]
    assert sorted(number for word, number in kinds if word == "call") == [1, 2, 3, 4]
    assert result.acknowledged == 4
    assert result.last.keys() == {"0", "1"}


def test_a_journal_takes_whole_lines_and_the_next_client_goes_on(tmp_path):
    file = tmp_path / "notes"
    journal = Journal(file)
    journal.look()
    assert (journal.begun, journal.ended) == (0, False)
    lines = [{"begun": 0}, {"begun": 1}, {"call": 1, "id": "ab"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"call": 0')
    journal.look()
    assert (journal.begun, journal.acknowledged) == (2, {1: "ab"})
    with file.open("a") as more:
        more.write(', "id": ""}\n{"end": true}\n')
    journal.look()
    assert (journal.acknowledged, journal.ended) == ({1: "ab", 0: ""}, True)
