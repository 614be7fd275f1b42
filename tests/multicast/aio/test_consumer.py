"""`AsyncConsumer` on the in-memory log: reading, positions, commits, errors, one loop."""

import asyncio
from itertools import pairwise

import pytest

from multicast.control import log_partition
from multicast.errors import AmcastError, ClusterUnreachable, TimedOut, Trimmed, UsageError
from multicast.messages import MessageID
from tests.multicast.aio.worlds import PATIENCE_S, consumer_of, payloads, running, until


@pytest.fixture
def system():
    with running() as made:
        yield made


@pytest.fixture
def alone():
    """Without collectors: C4 reads a single log."""
    with running(collectors=False) as made:
        yield made


def write(system, count, *, partitions=("P1", "P2"), start=0):
    for number in range(start, start + count):
        name = partitions[number % len(partitions)]
        system.log.write(log_partition(system.plan.log(name)), b"%d" % number)


def test_messages_come_in_the_order_of_the_synchronous_consumer(system):
    async def run():
        async with consumer_of(system, "C1") as consumer:
            assert (consumer.by_collector, consumer.interest) == (True, ("P1", "P2"))
            received = []
            async with asyncio.timeout(PATIENCE_S):
                async for message in consumer:
                    received.append(str(message.message_id))
                    assert consumer.position == message.cursor
                    if len(received) == 500:
                        break
            assert (await consumer.entries()).read == {"P1": 250, "P2": 250}
            return received

    write(system, 500)
    assert asyncio.run(run()) == system.all("C1")


async def test_until_end_stops_at_the_end_and_says_what_is_missing(alone):
    async with consumer_of(alone, "C4") as consumer:
        assert [batch async for batch in consumer.until_end()] == []
        write(alone, 10, partitions=["P4"])
        count = sum([len(batch.records) async for batch in consumer.until_end()])
        assert count == 10
    async with consumer_of(alone, "C1") as consumer:
        write(alone, 1, partitions=["P1"])
        with pytest.raises(TimedOut, match="log P1 is delivered up to 0 of 1"):
            _ = [batch async for batch in consumer.until_end(timeout=0.3)]


async def test_a_commit_stores_the_offsets_of_what_was_handed_out_not_of_what_was_read_ahead(alone):
    partition = log_partition(alone.plan.log("P4"))

    write(alone, 5000, partitions=["P4"])
    async with consumer_of(alone, "C4") as consumer:
        await payloads(consumer, 7)
        await consumer.commit()
    assert alone.driver.committed("amcast.A.C4", [partition])[partition][0] == 7


async def test_a_seek_drops_what_was_read_ahead(alone):
    write(alone, 9000, partitions=["P4"])
    async with consumer_of(alone, "C4") as consumer:
        await payloads(consumer, 10)
        place = consumer.position
        await payloads(consumer, 100)
        await consumer.seek(str(place))
        assert consumer.position == place
        assert await payloads(consumer, 3) == [b"10", b"11", b"12"]
        await consumer.seek("latest")
        write(alone, 1, partitions=["P4"], start=9000)
        assert await payloads(consumer, 1) == [b"9000"]
        await consumer.seek("earliest")
        assert await payloads(consumer, 1) == [b"0"]
        with pytest.raises(UsageError, match="another interest"):
            await consumer.seek("1/K1/0/0/0")
        assert await payloads(consumer, 1) == [b"1"]


def test_a_seek_that_nobody_awaits_any_more_takes_effect_whole_or_not_at_all(alone):
    async def run(turns):
        async with consumer_of(alone, "C4", committed=False) as consumer:
            await payloads(consumer, 4000)
            seeking = asyncio.create_task(consumer.seek("earliest"))
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            seeking.cancel()
            await asyncio.wait([seeking])
            numbers = [int(payload) for payload in await payloads(consumer, 9000 - 4000)]
        jumps = [(one, two) for one, two in pairwise([3999, *numbers]) if two != one + 1]
        assert jumps in ([], *[[(number, 0)] for number in range(3999, 9000)])

    write(alone, 9000, partitions=["P4"])
    for turns in range(12):
        asyncio.run(run(turns))


async def test_an_error_comes_after_the_messages_before_it_and_reading_can_go_on(alone):
    partition = log_partition(alone.plan.log("P4"))

    write(alone, 3, partitions=["P4"])
    async with consumer_of(alone, "C4") as consumer:
        assert await payloads(consumer, 3) == [b"0", b"1", b"2"]
        start = consumer.position
        write(alone, 1, partitions=["P4"], start=3)
        assert await payloads(consumer, 1) == [b"3"]
        alone.log.trim(partition, 4)
        await consumer.seek(start)
        for _ in range(2):
            with pytest.raises(Trimmed):
                await payloads(consumer, 1)
        await consumer.seek("latest")
        write(alone, 1, partitions=["P4"], start=4)
        assert await payloads(consumer, 1) == [b"4"]


async def test_a_cluster_that_is_away_for_a_moment_raises_once_and_loses_nothing(alone):
    async with consumer_of(alone, "C4") as consumer:
        poll = consumer._consumer.poll
        failing = [ClusterUnreachable("no broker answered"), RuntimeError("a bug")]

        def fail(*arguments, **options):
            if failing:
                raise failing.pop()
            return poll(*arguments, **options)

        await consumer._reader.call(lambda: setattr(consumer._consumer, "poll", fail))
        write(alone, 3, partitions=["P4"])
        raised = []
        received = []
        while len(received) < 3:
            try:
                received += await payloads(consumer, 1)
            except (AmcastError, RuntimeError) as error:
                raised.append(type(error))
        assert raised == [RuntimeError, ClusterUnreachable]
        assert received == [b"0", b"1", b"2"]


async def test_two_tasks_that_wait_for_messages_are_one_clear_error(alone):
    async with consumer_of(alone, "C4") as consumer:
        waiting = asyncio.create_task(payloads(consumer, 1))
        await until(lambda: consumer._waiter is not None)
        with pytest.raises(UsageError, match="another task waits"):
            await consumer.poll(1.0)
        write(alone, 1, partitions=["P4"])
        assert await waiting == [b"0"]


async def test_closing_ends_the_thread_and_wakes_who_waits(alone):
    consumer = await consumer_of(alone, "C4").open()
    waiting = asyncio.create_task(payloads(consumer, 1))
    await until(lambda: consumer._waiter is not None)
    await consumer.close()
    await consumer.close()
    with pytest.raises(UsageError, match="is closed"):
        await waiting
    assert not consumer._reader._thread.is_alive()
    for call in (consumer.seek("latest"), consumer.commit(), consumer.poll(), anext(consumer)):
        with pytest.raises(UsageError, match="is closed"):
            await call


def test_the_use_in_a_wrong_state_or_loop_is_one_clear_error(alone):
    consumer = consumer_of(alone, "C4")

    async def too_early():
        with pytest.raises(UsageError, match="not open"):
            await anext(consumer)
        await consumer.open()

    async def elsewhere():
        with pytest.raises(UsageError, match="another event loop"):
            await anext(consumer)
        with pytest.raises(UsageError, match="another event loop"):
            await consumer.commit()

    with asyncio.Runner() as own:
        own.run(too_early())
        with asyncio.Runner() as other:
            other.run(elsewhere())
        own.run(consumer.close())


async def test_a_task_that_always_has_messages_gives_the_loop_its_turns(alone):
    turns = 0

    async def others():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with consumer_of(alone, "C4") as consumer:
        beside = asyncio.create_task(others())
        while turns < 5:
            write(alone, 5000, partitions=["P4"])
            await payloads(consumer, 5000)
        beside.cancel()
        await consumer.seek("earliest")
        assert (await anext(consumer)).message_id == MessageID("P4", 0)
