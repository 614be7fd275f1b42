"""A local broker with a topic, a plan and a collector, for the small benchmarks.

One consumer's interest spans all partitions, so one collector, in its own process, orders them all.
Leaving the context ends everything.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness.interests import file_of
from bench.harness.processes import CollectorProcesses
from collectors.reconfiguration.apply import apply
from multicast.control import log_partition
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import (
    Appender,
    AppendFailed,
    AppendOutcome,
    DoneAll,
    Driver,
    TopicPartition,
)
from multicast.errors import AmcastError, TimedOut
from multicast.local.cluster import LocalCluster
from topology.planner.solver import plan as solve
from topology.tree import Plan

_PAUSE_S = 0.001  # while the appender's buffer is full: short against the time to drain it


@dataclass(frozen=True, slots=True)
class Rig:
    """The running parts: `partitions` are the logs' partitions, `driver` is this process's."""

    bootstrap: str
    kafka: str
    driver: Driver
    plan: Plan
    partitions: Sequence[TopicPartition]
    folder: Path

    @property
    def topic(self) -> str:
        """The topic of the plan."""
        return self.plan.topic

    def collectors(self, *options: str) -> CollectorProcesses:
        """Return the collectors, not yet started: enter them, then call `wait_healthy`."""
        place = (self.bootstrap, self.topic, "librdkafka")
        return CollectorProcesses(*place, self.plan, self.folder, options=options)


@contextmanager
def standing(partitions: int) -> Iterator[Rig]:
    """Start a broker and apply a plan with one collector; no collector runs yet."""
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(brokers=1))
        driver = open_driver("librdkafka", cluster.bootstrap)
        stack.callback(driver.close)
        names = [f"P{number}" for number in range(1, partitions + 1)]
        plan = solve(file_of({"C1": names}))
        with Admin(cluster.bootstrap) as admin:
            plan = apply(driver, admin, plan).plan
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-bench-")))
        logs = [log_partition(log) for log in plan.logs]
        yield Rig(cluster.bootstrap, cluster.version, driver, plan, logs, folder)


def _nothing(_: int, __: int, ___: AppendOutcome) -> None:
    """Ignore an outcome."""


def append_all(
    appender: Appender, partition: TopicPartition, values: Sequence[bytes], done: DoneAll = _nothing
) -> None:
    """Append all values, waiting for room in the buffer."""
    while values:
        taken = appender.append_all(partition, values, done=done)
        values = values[taken:]
        if not taken:
            pause(_PAUSE_S)


def store(
    driver: Driver, chunks: Iterable[tuple[TopicPartition, Sequence[bytes]]], *, timeout_s: float
) -> None:
    """Append all values, and wait until they are stored; raises `AmcastError` if one is not."""
    failed: list[AmcastError] = []

    def done(_: int, __: int, outcome: AppendOutcome) -> None:
        if isinstance(outcome, AppendFailed):
            failed.append(outcome.error)

    with closing(driver.appender()) as appender:
        for partition, values in chunks:
            append_all(appender, partition, values, done)
        if not appender.flush(timeout_s):
            raise TimedOut(f"some appends were not acknowledged within {timeout_s:g} s")
    if failed:
        raise failed[0]


def pause(seconds: float) -> None:
    """Sleep."""
    threading.Event().wait(max(0.0, seconds))


def ticks(seconds: float, every_s: float) -> Iterator[int]:
    """Yield 0, 1, 2 … at intended times, for `seconds`; late ticks follow at once."""
    began = time.monotonic()
    for tick in range(round(seconds / every_s)):
        wait_s = began + tick * every_s - time.monotonic()
        if wait_s > 0:
            pause(wait_s)
        yield tick
