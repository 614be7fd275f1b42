"""`AsyncProducer` on the in-memory log: receipts, back pressure, cancellation, one loop."""

import asyncio
from dataclasses import replace

import pytest

from multicast.aio import AsyncProducer
from multicast.drivers.memory.driver import MemoryDriver
from multicast.drivers.protocol import AppendFailed
from multicast.errors import (
    AppendUnknown,
    BufferFull,
    TimedOut,
    UncoveredInterest,
    UndeclaredDestination,
    UsageError,
)
from multicast.messages import MessageID
from tests.multicast.aio.worlds import HeldAppends, HeldDriver, producer_of, running
from tests.multicast.aio.worlds import until as until_so
from topology.tree import Log


@pytest.fixture
def small():
    with running(collectors=False) as system:
        yield system


@pytest.fixture
def held():
    return HeldAppends()


@pytest.fixture
def slow(small, held):
    """A driver whose appends wait for `held`; what is left is stored in the end."""
    yield HeldDriver(small.log, held)
    held.release()


def stored(system, partition="P1"):
    log = system.plan.log(partition)
    fetched = system.log.read((log.topic, log.partition), 0, 100_000)
    return [record.value for record in fetched.records] if fetched else []


async def test_a_message_is_accepted_and_ordered():
    with running() as system:
        async with producer_of(system) as producer:
            receipt = await producer.multicast(
                b"a", to={"P1"}, key=b"k", headers={"name": b"value"}
            )
            assert await receipt == await receipt.accepted() == MessageID("P1", 0)
            assert await receipt.ordered() == MessageID("P1", 0)
            receipts = await producer.multicast_all([b"b", b"c"], to=["P1"])
            assert await receipts == [MessageID("P1", 1), MessageID("P1", 2)]
            assert await receipts.ordered() == [MessageID("P1", 1), MessageID("P1", 2)]
            assert (len(receipts), receipts.to, receipts.log.name) == (2, ("P1",), "P1")
            assert await (await producer.multicast_all([], to={"P1"})).ordered() == []
            assert producer.plan.epoch == 1
            assert await producer.declares({"P1"})
            await producer.flush()


async def test_without_a_collector_the_order_is_awaited_for_the_time_allowed_and_can_be_again(
    small,
):
    async with producer_of(small, tickets=False) as producer:
        receipt = await producer.multicast(b"a", to={"P1"})
        with pytest.raises(TimedOut, match="accepted, but not ordered"):
            await receipt.ordered(0.01)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await receipt.ordered()
        waiting = [asyncio.create_task(receipt.ordered()) for _ in range(300)]
        await asyncio.sleep(0)
        for task in waiting[:250]:
            task.cancel()
        small.run_all()
        assert await asyncio.gather(*waiting[250:]) == [MessageID("P1", 0)] * 50


async def test_errors_of_the_destination_are_those_of_the_synchronous_producer(small):
    async with producer_of(small) as producer:
        for to, error in (("P1", UsageError), ([], UsageError), (["P9"], UsageError),
                          (["P1", "P2"], UndeclaredDestination)):  # fmt: skip
            with pytest.raises(error):
                await producer.multicast(b"", to=to)
            with pytest.raises(error):
                await producer.multicast_all([b""], to=to)
        with pytest.raises(UsageError, match="reserved"):
            await producer.multicast(b"", to={"P1"}, headers={"amcast.to": b""})
    assert stored(small) == []


async def test_a_set_that_a_newer_plan_declares_is_found(small):
    async with producer_of(small) as producer:
        plan = small.plan
        wider = Log("P1+P2", "A.groups", 0)
        small.propose(replace(plan, epoch=2, base_epoch=1, logs=(*plan.logs, wider)))
        while not await producer.declares({"P1", "P2"}):  # it reads the plan once a second
            pass
        receipt = await producer.multicast(b"both", to={"P1", "P2"})
        assert (await receipt).log == "P1+P2"


async def test_an_outcome_comes_from_another_thread_to_all_who_await_it(small, slow, held):
    async with producer_of(small, driver=slow) as producer:
        receipt = await producer.multicast(b"a", to={"P1"})
        waiting = [asyncio.create_task(receipt.accepted()) for _ in range(3)]
        await asyncio.sleep(0)
        assert receipt.outcome is None
        waiting[1].cancel()
        assert await asyncio.to_thread(held.store) == 1
        assert await waiting[0] == await waiting[2] == MessageID("P1", 0)
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await waiting[1]
        assert "may be stored" in cancelled.value.__notes__[0]


async def test_a_failed_append_raises_its_error(small, slow, held):
    async with producer_of(small, driver=slow) as producer:
        receipt = await producer.multicast(b"a", to={"P1"})
        held.appends.pop().settle(AppendFailed(AppendUnknown("no answer")))
        with pytest.raises(AppendUnknown, match="no answer"):
            await receipt


async def test_a_full_buffer_makes_calls_wait_and_keeps_their_order(small, slow, held):
    held.in_flight_max = 2

    async with producer_of(small, driver=slow) as producer:
        sending = [
            asyncio.create_task(producer.multicast(b"%d" % number, to={"P1"}))
            for number in range(9)
        ]
        await until_so(lambda: len(held.appends) == 2)
        assert [task.done() for task in sending] == [True] * 2 + [False] * 7
        while not all(task.done() for task in sending):
            await asyncio.to_thread(held.store, 1)
            await asyncio.sleep(0)
        held.release()
        assert [(await task.result()).offset for task in sending] == list(range(9))
    assert stored(small) == [b"%d" % number for number in range(9)]


async def test_a_buffer_that_stays_full_raises_for_each_that_waits(small, slow, held):
    held.in_flight_max = 1

    async with producer_of(small, driver=slow, block_s=0.05) as producer:
        await producer.multicast(b"in", to={"P1"})
        results = await asyncio.gather(
            *(producer.multicast(b"out", to={"P1"}) for _ in range(3)), return_exceptions=True
        )
        assert [type(result) for result in results] == [BufferFull] * 3
        receipts = await producer.multicast_all([b"out", b"out"], to={"P1"})
        with pytest.raises(BufferFull):
            await receipts
        assert {type(outcome.error) for outcome in receipts.outcomes} == {BufferFull}
        held.release()
    assert stored(small) == [b"in"]


async def test_a_cancelled_multicast_all_says_how_much_was_sent(small, slow, held):
    held.in_flight_max = 3

    async with producer_of(small, driver=slow) as producer:
        sending = asyncio.create_task(
            producer.multicast_all([b"%d" % number for number in range(10)], to={"P1"})
        )
        await until_so(lambda: len(held.appends) == 3)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await sending
        assert cancelled.value.__notes__ == ["3 of 10 messages were sent, and may be stored"]
        held.release()
        await producer.multicast(b"next", to={"P1"})
    assert stored(small) == [b"0", b"1", b"2", b"next"]


async def test_closing_settles_what_has_no_outcome_within_its_time(small, slow):
    producer = await producer_of(small, driver=slow).open()
    receipt = await producer.multicast(b"a", to={"P1"})
    waiting = asyncio.create_task(receipt.accepted())
    await asyncio.sleep(0)
    await asyncio.gather(producer.close(0.01), producer.close(0.01))
    await producer.close()
    with pytest.raises(AppendUnknown):
        await waiting
    with pytest.raises(UsageError, match="is closed"):
        await producer.multicast(b"b", to={"P1"})


async def test_a_cancelled_close_goes_on(small, slow, held):
    producer = await producer_of(small, driver=slow).open()
    receipt = await producer.multicast(b"a", to={"P1"})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await producer.close()
    await asyncio.to_thread(held.store)
    await producer.close()
    assert await receipt == MessageID("P1", 0)


def test_the_use_in_a_wrong_state_or_loop_is_one_clear_error(small):
    producer = producer_of(small)

    async def too_early():
        with pytest.raises(UsageError, match="not open"):
            await producer.multicast(b"", to={"P1"})
        with pytest.raises(UsageError, match="not open"):
            _ = producer.plan
        await producer.open()
        with pytest.raises(UsageError, match="opened before"):
            await producer.open()

    async def elsewhere():
        with pytest.raises(UsageError, match="another event loop"):
            await producer.multicast(b"", to={"P1"})
        with pytest.raises(UsageError, match="another event loop"):
            await producer.close()

    with asyncio.Runner() as own:
        own.run(too_early())
        with asyncio.Runner() as other:
            other.run(elsewhere())
        own.run(producer.close())


async def test_a_producer_that_cannot_be_opened_leaves_nothing_behind():
    producer = AsyncProducer(topic="none", driver=MemoryDriver())
    with pytest.raises(UncoveredInterest):
        await producer.open()
    with pytest.raises(UsageError, match="is closed"):
        await producer.multicast(b"", to={"P1"})
    await producer.close()
    never_opened = AsyncProducer(topic="none", driver=MemoryDriver())
    await never_opened.close()


async def test_a_task_that_always_finds_room_gives_the_loop_its_turns(small):
    async with producer_of(small) as producer:
        turns = 0

        async def others():
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        beside = asyncio.create_task(others())
        sent = 0
        while turns < 5:  # without its turns the other task would never begin
            await producer.multicast(b"", to={"P1"})
            sent += 1
            assert sent < 10_000_000
        beside.cancel()
