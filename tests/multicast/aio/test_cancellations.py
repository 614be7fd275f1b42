"""Random cancellations at random moments: no message is lost, doubled, or reordered."""

import asyncio
import random
import threading

import pytest

from multicast.control import log_partition
from multicast.drivers.memory.driver import MemoryDriver
from tests.helpers.system import until
from tests.multicast.aio.worlds import (
    PATIENCE_S,
    HeldAppends,
    HeldDriver,
    consumer_of,
    producer_of,
    running,
)
from tests.running.parts import sample

SEEDS = sample(range(6), of=2)
MESSAGES = 600


async def cancelled_sometimes(rng, coroutine):
    """Await a coroutine in a task that is cancelled after a few turns; (done, its result)."""
    task = asyncio.create_task(coroutine)
    for _ in range(rng.choice([0, 1, 1, 2, 3, 5, 50])):
        await asyncio.sleep(rng.choice([0, 0, 0.0003]))
    task.cancel()
    await asyncio.wait([task])
    return (False, None) if task.cancelled() else (True, task.result())


@pytest.mark.parametrize("seed", SEEDS)
def test_cancelled_sends_have_sent_nothing_and_others_are_stored_once(seed):
    rng = random.Random(seed)
    held = HeldAppends(in_flight_max=4)
    ending = threading.Event()

    def settle():
        pace = random.Random(seed)
        while not ending.wait(pace.choice([0, 0.0002, 0.001])):
            held.store(pace.randint(1, 4))
        held.release()

    async def run(system):
        returned = []
        async with producer_of(system, driver=HeldDriver(system.log, held)) as producer:

            async def sender(name):
                for number in range(MESSAGES // 4):
                    payload = f"{name}:{number}".encode()
                    to = {rng.choice(["P1", "P2"])}
                    done, receipt = await cancelled_sometimes(
                        rng, producer.multicast(payload, to=to)
                    )
                    if done:
                        returned.append((payload, receipt))
                        await cancelled_sometimes(rng, receipt.accepted())

            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*map(sender, "abcd"))
            return [(payload, await receipt) for payload, receipt in returned]

    with running(collectors=False) as system:
        settling = threading.Thread(target=settle)
        settling.start()
        try:
            places = asyncio.run(run(system))
        finally:
            ending.set()
            settling.join()
        logged = {}
        for name in ("P1", "P2"):
            fetched = system.log.read(log_partition(system.plan.log(name)), 0, 100_000)
            for record in fetched.records:
                logged[name, record.offset] = record.value
    assert 0 < len(places) < MESSAGES
    assert {tuple(message[:2]): payload for payload, message in places} == logged


@pytest.mark.parametrize("seed", SEEDS)
def test_cancelled_reads_and_commits_lose_and_double_nothing(seed):
    rng = random.Random(seed)

    async def read(consumer, received):
        kind = rng.randrange(4)
        if kind == 0:
            batches = await consumer.poll(0.01, messages_max=rng.choice([1, 3, 50]))
            received += [record.value for batch in batches for record in batch.records]
        elif kind == 1:
            async for batch in consumer.batches(messages_max=rng.choice([1, 7])):
                received += [record.value for record in batch.records]
                if rng.random() < 0.3:
                    return
        else:
            async for message in consumer:
                received.append(message.payload)
                await asyncio.sleep(0)
                if rng.random() < 0.02:
                    return

    async def run(system):
        received = []
        written = 0
        async with asyncio.timeout(PATIENCE_S):
            while len(received) < MESSAGES:
                async with consumer_of(system, "C1") as consumer:
                    for _ in range(rng.randint(5, 40)):
                        while written < MESSAGES and rng.random() < 0.9:
                            name = rng.choice(["P1", "P2"])
                            partition = log_partition(system.plan.log(name))
                            system.log.write(partition, b"%d" % written)
                            written += 1
                        await cancelled_sometimes(rng, read(consumer, received))
                        if rng.random() < 0.2:
                            await cancelled_sometimes(rng, consumer.commit())
                    if received:
                        await consumer.commit()
        return received

    with running() as system:
        received = asyncio.run(run(system))
        with system.consumer("C1", committed=False) as consumer:
            whole = [
                record.value
                for batch in consumer.until_end(timeout=PATIENCE_S)
                for record in batch.records
            ]
    assert received == whole
    assert len(set(whole)) == MESSAGES


@pytest.mark.parametrize("seed", SEEDS)
def test_cancelled_openings_leave_no_thread(seed):
    rng = random.Random(seed)

    async def run(system):
        for _ in range(10):
            producer = producer_of(system, driver=MemoryDriver(system.log))
            if (await cancelled_sometimes(rng, producer.open()))[0]:
                await producer.close()
            consumer = consumer_of(system, "C4")
            if (await cancelled_sometimes(rng, consumer.open()))[0]:
                await consumer.close()

    with running(collectors=False) as system:
        before = set(threading.enumerate())
        asyncio.run(run(system))
        # A listed thread may not have begun yet, and then cannot be joined.
        until(lambda: set(threading.enumerate()) <= before, "the end of the threads")
