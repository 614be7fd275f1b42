"""No call blocks the event loop: not while a cluster in memory or a real broker does not answer.

The first tests show that the heart finds a block: of a synchronous producer that waits for room, in
memory, and of a long computation. The others show that it finds none; no such counterpart is run
for each of their calls.
"""

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from multicast import Producer
from multicast.aio import AsyncConsumer, AsyncProducer
from multicast.drivers.memory.driver import MemoryDriver
from multicast.local.cluster import LocalCluster
from tests.helpers.plans import chain, priced
from tests.helpers.system import System
from tests.helpers.system import until as wait_until
from tests.multicast.aio.worlds import (
    PATIENCE_S,
    HeldAppends,
    HeldDriver,
    producer_of,
    running,
    until,
)

BEAT_S = 0.005
# Turns of the listener in a second of a machine that is not busy: a wait for a frozen broker takes
# many; a healthy loop sleeps for one beat at most, and while others hold the interpreter's lock.
MISSED_MAX = 200
# Switches of threads and turns of the loop stay below this; it is a twentieth of a usual timeout.
COMPUTED_MAX_S = 1.0


class Heart:
    """A task whose heart beats on the loop, and a thread that counts the beats that fail.

    The thread is starved as the loop is. So a busy machine, however slow, is not taken for a block:
    the thread has no turn either, or finds that the loop's thread wants a processor and gets none.
    It counts a turn of its own only if the loop has not beaten since and its thread is asleep: it
    waits for something, and with it every task. A loop that computes for too long is awake; that
    shows in the processor time of its thread between two beats.
    """

    def __init__(self):
        self.beats = 0
        self.missed = 0  # turns of the listener since the last beat, with the loop asleep
        self.missed_most = 0
        self.computed_most_s = 0.0
        self._thread = Path(f"/proc/self/task/{threading.get_native_id()}/stat")
        self._ended = threading.Event()

    @property
    def blocked(self):
        """In words what blocked the loop, or None."""
        if self.missed_most > MISSED_MAX:
            return f"asleep for {self.missed_most} beats"
        if self.computed_most_s > COMPUTED_MAX_S:
            return f"computed for {self.computed_most_s:.1f} s between two beats"
        return None

    async def beat(self):
        last_s = time.thread_time()
        while True:
            await asyncio.sleep(BEAT_S)
            now_s = time.thread_time()
            self.computed_most_s = max(self.computed_most_s, now_s - last_s)
            self.beats += 1
            self.missed = 0
            last_s = now_s

    def listen(self):
        while not self._ended.wait(BEAT_S):
            if self._asleep():
                self.missed += 1
                self.missed_most = max(self.missed_most, self.missed)

    def end(self):
        self._ended.set()

    def _asleep(self):
        """Whether the loop's thread neither runs nor waits for a processor (man 5 proc, "stat")."""
        return self._thread.read_text().rpartition(")")[2].split()[0] in "SD"


@asynccontextmanager
async def watched():
    """Watch the loop for the time of the block."""
    heart = Heart()
    listener = threading.Thread(target=heart.listen, daemon=True)
    listener.start()
    beating = asyncio.create_task(heart.beat())
    try:
        await asyncio.sleep(0)
        yield heart
    finally:
        await asyncio.sleep(2 * BEAT_S)  # a block at the very end shows in the next beat
        beating.cancel()
        heart.end()
        listener.join()


class SlowCluster(MemoryDriver):
    """A driver whose requests to the cluster wait until the test lets them go on."""

    def __init__(self, log):
        super().__init__(log)
        self.answers = threading.Event()
        self.answers.set()
        for name in ("last_stable_offsets", "leader_ends", "topic_ids", "committed", "commit"):
            setattr(self, name, self._waiting(getattr(self, name)))

    def _waiting(self, request):
        def answered(*arguments, **options):
            self.answers.wait(PATIENCE_S)
            return request(*arguments, **options)

        return answered


async def frozen(driver, *calls):
    """Start calls while the cluster is silent; let it answer once the heart could show a block."""
    driver.answers.clear()
    async with watched() as heart:
        started = [asyncio.create_task(call) for call in calls]
        await until(lambda: heart.beats > 20)
        assert not any(task.done() for task in started)
        driver.answers.set()
        results = await asyncio.gather(*started)
    assert heart.blocked is None
    return results


async def test_the_heart_finds_a_synchronous_producer_that_waits_for_room():
    held = HeldAppends(in_flight_max=1)

    with running(collectors=False) as system:
        driver = HeldDriver(system.log, held)
        with Producer(topic="A", driver=driver, block_s=PATIENCE_S) as producer:
            producer.multicast(b"", to={"P1"})
            async with watched() as heart:
                found = threading.Thread(target=released_once_blocked, args=(heart, held))
                found.start()
                producer.multicast(b"", to={"P1"})
                found.join()
            assert "asleep" in heart.blocked


def released_once_blocked(heart, held):
    wait_until(lambda: heart.blocked is not None, "the heart finds the block")
    held.release()


async def test_the_heart_finds_a_turn_that_computes_for_too_long():
    async with watched() as heart:
        began_s = time.thread_time()
        while time.thread_time() - began_s < 1.2 * COMPUTED_MAX_S:
            pass
    assert "computed" in heart.blocked


async def test_waiting_for_room_blocks_no_loop():
    held = HeldAppends(in_flight_max=1)

    with running(collectors=False) as system:
        driver = HeldDriver(system.log, held)
        async with producer_of(system, driver=driver, block_s=PATIENCE_S) as producer:
            async with watched() as heart:
                await producer.multicast(b"", to={"P1"})
                waiting = asyncio.create_task(producer.multicast(b"", to={"P1"}))
                await until(lambda: heart.beats > 20)
                assert not waiting.done()
                held.release()
                await waiting
            assert heart.blocked is None


async def test_opening_reading_plans_committing_and_seeking_block_no_loop():
    with running(collectors=False) as system:
        driver = SlowCluster(system.log)
        producer = producer_of(system, driver=driver)
        consumer = AsyncConsumer(topic="A", name="C4", driver=driver)
        await frozen(driver, producer.open(), consumer.open())
        await frozen(driver, consumer.commit(), consumer.seek("latest"))
        closing = (producer.close(), consumer.close())
        assert await asyncio.gather(*closing) == [None, None]


@pytest.fixture(scope="module")
def one_broker():
    with LocalCluster(brokers=1) as cluster:
        yield cluster


@pytest.mark.campaign
@pytest.mark.kafka
@pytest.mark.parametrize("driver", ["librdkafka", "kafka-python"])
async def test_a_frozen_broker_blocks_no_loop(one_broker, driver, tmp_path):
    with System(one_broker.bootstrap, priced(chain()), tmp_path, driver=driver) as system:
        where = {"bootstrap": system.bootstrap, "topic": system.topic, "driver": driver}
        producer = AsyncProducer(**where, delivery_timeout_s=60.0, block_s=1.0)
        async with (
            producer,
            AsyncConsumer(**where, name="C4", group="frozen") as consumer,
            watched() as heart,
        ):
            await (await producer.multicast(b"0", to={"P4"})).accepted()
            assert (await anext(consumer)).payload == b"0"
            one_broker.pause(1)
            try:
                # P1's log was never appended to, and P1+P2 is not declared: both need an answer.
                receipts = [await producer.multicast(b"1", to={"P4"}) for _ in range(100)]
                calls = [
                    producer.multicast(b"2", to={"P1"}),
                    producer.declares({"P1", "P2"}),
                    consumer.commit(),
                    consumer.poll(0.5),
                    consumer.seek("latest"),
                    producer.flush(0.5),
                ]
                started = [asyncio.create_task(call) for call in calls]
                before = heart.beats
                await until(lambda: heart.beats > before + 400)
            finally:
                one_broker.resume(1)
            await asyncio.gather(*started, return_exceptions=True)
            await asyncio.gather(*(receipt.accepted() for receipt in receipts))
        assert heart.blocked is None
