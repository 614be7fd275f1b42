"""What is measured again and again during the year, and how its end compares to its beginning."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from statistics import median

from bench.harness.hosts import resident_bytes
from bench.harness.rig import pause
from bench.year.system import CONSUMER, Year
from collectors.engine.engine import Engine
from collectors.engine.instance import CollectorInstance
from multicast.consumer import Consumer
from multicast.drivers import open_driver
from multicast.producer import Producer

_MIB = 2**20
_WORK = 200_000  # additions: 4 ms
_LOOK_S = 0.01  # short against what an opening takes
_PATIENCE_S = 600.0  # longer than an instance is opened for: it must never act
CONSUMES, PRODUCES, COLLECTS = "consumer", "producer", "collector's instance"
OPENS = {what: f"{what} opens, ms" for what in (CONSUMES, PRODUCES, COLLECTS)}
WORKS = {what: f"{what} opens, ms of processor" for what in OPENS}
HOST, CLIENT = "memory of a collectors' process, MiB", "memory of a consumer's process, MiB"
RECORDS, BYTES = "control topic, records", "control topic, bytes"
CPU = "processor time of collectors, us a message"
MEASURES = (*OPENS.values(), *WORKS.values(), HOST, CLIENT, RECORDS, BYTES, CPU)
# What tells whether the machine was the same: a client without amcast, and Python alone.
PLAIN, FIXED = "plain client opens, ms", "fixed piece of work, ms of processor"


class Samples:
    """Values by measure, each with its time since the start, in seconds."""

    def __init__(self) -> None:
        self._values: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """The time since the start."""
        return time.monotonic() - self._began

    def note(self, measure: str, value: float) -> None:
        """Take a value."""
        self._values[measure].append((self.seconds, value))

    def median(self, measure: str, first_s: float, next_s: float) -> float:
        """Give the median of the values from one time to another; 0 if there are none."""
        values = [value for at, value in self._values[measure] if first_s <= at < next_s]
        return median(values) if values else 0.0

    def ratio(self, measure: str, early: tuple[float, float], late: tuple[float, float]) -> float:
        """Divide the late median by the early one; 0 if there is none."""
        return self.median(measure, *late) / (self.median(measure, *early) or float("inf"))


def look(year: Year, samples: Samples, consumer: int) -> None:
    """Measure once all but what a process of collectors shows at its end."""
    topic, bootstrap = year.plan.topic, year.bootstrap
    name = year.plan.collectors[-1].name

    def plain() -> None:
        with (
            closing(open_driver("librdkafka", bootstrap)) as driver,
            closing(driver.reader({year.control: 0})) as reader,
        ):
            reader.poll(1.0, 1)

    def consume() -> None:
        Consumer(bootstrap, topic=topic, name=CONSUMER, start="latest", committed=False).close()

    def produce() -> None:
        Producer(bootstrap, topic=topic).close()

    def collect() -> None:
        with (
            closing(open_driver("librdkafka", bootstrap)) as driver,
            Engine(driver, topic) as engine,
        ):
            instance = CollectorInstance(engine, name, standby=True, patience_s=_PATIENCE_S)
            engine.add(instance)
            while not (instance.begun and instance.core.caught_up()):
                if instance.over:
                    raise instance.error or RuntimeError("the instance has ended")
                pause(_LOOK_S)

    samples.note(PLAIN, _cost(plain)[0])
    for what, call in ((CONSUMES, consume), (PRODUCES, produce), (COLLECTS, collect)):
        took_ms, worked_ms = _cost(call)
        samples.note(OPENS[what], took_ms)
        samples.note(WORKS[what], worked_ms)
    samples.note(FIXED, _cost(lambda: sum(range(_WORK)))[1])
    samples.note(CLIENT, resident_bytes([consumer]) / _MIB)
    samples.note(RECORDS, year.control_records())
    samples.note(BYTES, year.control_bytes())


def _cost(call: Callable[[], object]) -> tuple[float, float]:
    """Give the milliseconds that a call takes, and those of this thread on a processor.

    Other threads of this process work for the year meanwhile, the more the longer the call takes.
    """
    began, worked = time.monotonic(), time.thread_time()
    call()
    return (time.monotonic() - began) * 1e3, (time.thread_time() - worked) * 1e3
