"""The clients of the ordering service send again what a node did not answer."""

import asyncio

from bench.osn.client import NodeStreams, ReadBlocks, all_blocks
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
