"""What the asyncio tests share: a small system in memory whose appends are held back."""

import asyncio
import threading
from contextlib import contextmanager

from multicast.aio import AsyncConsumer, AsyncProducer
from tests.helpers.held import SteppedDriver
from tests.helpers.plans import chain
from tests.helpers.small import Small

PATIENCE_S = 60.0


class HeldAppends:
    """The step of a memory driver: holds appends until the test stores or loses them."""

    def __init__(self, in_flight_max=1000):
        self.appends = []
        self.at_once = False
        self.in_flight_max = in_flight_max
        self._lock = threading.Lock()

    def __call__(self, append):
        with self._lock:
            if not self.at_once:
                self.appends.append(append)
                return
        append.settle(append.store())

    def store(self, count=None):
        """Store the oldest, in their order, in the calling thread."""
        with self._lock:
            chosen, self.appends = self.appends[:count], self.appends[len(self.appends[:count]) :]
        for append in chosen:
            append.settle(append.store())
        return len(chosen)

    def release(self):
        """Store everything, now and from now on."""
        with self._lock:
            self.at_once = True
        self.store()


class HeldDriver(SteppedDriver):
    """A memory driver with a small buffer whose appends are held."""

    def __init__(self, log, held):
        super().__init__(log, step=held)
        self._held = held

    def appender(self, **options):
        return super().appender(**options, in_flight_max=self._held.in_flight_max)


@contextmanager
def running(plan=None, *, collectors=True):
    """A plan in force, with its collectors."""
    with Small(plan or chain()) as system:
        if collectors:
            system.run_all()
        yield system


def producer_of(system, *, driver=None, **options):
    return AsyncProducer(topic=system.plan.topic, driver=driver or system.driver, **options)


def consumer_of(system, name, **options):
    return AsyncConsumer(topic=system.plan.topic, name=name, driver=system.driver, **options)


async def until(condition):
    """Let the loop turn until something is so; the time-out only stops a hang."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - a condition of any kind
            await asyncio.sleep(0.002)


async def payloads(consumer, count):
    """Read so many messages one by one."""
    received = []
    async with asyncio.timeout(PATIENCE_S):
        async for message in consumer:
            received.append(message.payload)
            if len(received) == count:
                return received
    return received
