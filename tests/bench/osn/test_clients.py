"""The parts of the ordering service's benchmark: what is handed out and asked for."""

import asyncio
import contextlib

from bench.osn import read as osn_read
from bench.osn import send
from bench.osn.send import Supply
from bench.osn.transactions import FOLDER, Made
from tests.ordering_osn.helpers.chains import SmallChannel, SmallChannels, serving

MADE = [("a", Made(f"t{number}", b"")) for number in range(5)]


def supply(rate=None):
    return Supply(iter(MADE), rate)


def name(pending):
    return pending.made.transaction


# -- what is handed out ----------------------------------------------------------------------


def test_what_came_back_is_handed_out_again_before_anything_fresh():
    async def run():
        given = supply()
        first, second = await given.take(), await given.take()
        assert given.give_back([first, second]) == 2
        return [name(await given.take()) for _ in range(5)], given.done

    assert asyncio.run(run()) == (["t0", "t1", "t2", "t3", "t4"], False)


def test_a_stream_that_finds_nothing_waits_for_what_another_may_give_back():
    async def run():
        given = supply()
        taken = [await given.take() for _ in MADE]
        waiting = asyncio.create_task(given.take())
        await asyncio.sleep(0)
        assert not waiting.done()
        for _ in taken[1:]:
            given.settle()
        given.give_back(taken[:1])
        again = await waiting
        given.settle()
        return name(again), await given.take(), given.done

    assert asyncio.run(run()) == ("t0", None, True)


def test_what_a_stream_was_waiting_to_send_when_it_ended_is_not_lost():
    async def run():
        given = supply(rate=0.001)
        first = await given.take()
        waiting = asyncio.create_task(given.take())
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        again = await given.take()
        return name(first), name(again)

    assert asyncio.run(run()) == ("t0", "t1")


# -- what is sent and read -------------------------------------------------------------------


def sending(addresses, transactions):
    order = send.SendOrder(
        addresses=addresses,
        chains=["chain-a"],
        transactions=transactions,
        material=str(FOLDER),
        window=4,
        timeout_s=60.0,
    )
    made = list(send.transactions(order))
    return send.Sending(order, Supply(iter(made), None)), [one.transaction for _, one in made]


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it is a count, and nobody tells of it
            await asyncio.sleep(0.01)


def reading(address, folder, mode, transactions):
    return osn_read.ReaderGroup(
        osn_read.ReadOrder(
            readers=[(address, "chain-a")],
            mode=mode,
            material=str(FOLDER),
            transactions={"chain-a": transactions},
            folder=str(folder),
            timeout_s=60.0,
        )
    )


def test_what_a_node_did_not_answer_before_it_ended_goes_to_another_one(tmp_path):
    async def run():
        silent = SmallChannels(SmallChannel(tmp_path / "silent"))
        silent.stored = asyncio.Event()  # never set: it answers nobody
        channel = SmallChannel(tmp_path / "good")
        async with serving(silent) as mute, serving(SmallChannels(channel)) as good:
            addresses = [f"127.0.0.1:{one.port}" for one in (mute, good)]
            sender, made = sending(addresses, 12)
            running = asyncio.create_task(sender.run())
            await until(lambda: len(silent.submitted) == 4 and sender.result.acknowledged == 8)
            assert not running.done()
            await mute.stop(0.0)
            told = await running
            read = await reading(addresses[1], tmp_path, "times", 12).run()
        return told, made, read

    told, made, read = asyncio.run(run())
    assert (told.acknowledged, told.refused) == (12, {})
    assert told.retried == 4
    assert told.streams_ended > 0
    assert read.blocks == 13  # the genesis block, and one for each
    lines = (tmp_path / "times-0").read_text().splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(made)


def test_what_a_node_is_not_ready_for_is_sent_until_it_is(tmp_path):
    async def run():
        channel = SmallChannel(tmp_path)
        channel.errored = True
        async with serving(SmallChannels(channel)) as server:
            address = f"127.0.0.1:{server.port}"
            sender, made = sending([address], 5)
            running = asyncio.create_task(sender.run())
            await until(lambda: sender.refused)
            channel.errored = False
            told = await running
            await reading(address, tmp_path, "times", 5).run()
        return told, made

    told, made = asyncio.run(run())
    assert told.acknowledged == 5
    assert told.refused.keys() == {"503"}
    times = [line.split() for line in (tmp_path / "times-0").read_text().splitlines()]
    assert [name for name, _ in times] == made
    assert times == sorted(times, key=lambda line: int(line[1]))
