"""A client of a benchmark, as a process: the producers of an arm, or one of its consumers.

Commands come in as JSON lines, answers go out as JSON lines; the first line says what to be. All
times are this machine's monotonic clock, in nanoseconds, so they compare across its processes.
Every arm's clients stand on the same driver: what differs is who gives the order.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol, cast

from bench.histogram import Latencies
from bench.layouts import Layout, lay_out
from bench.poster import PosterConsumer
from bench.stamps import Tally, pack, padding
from bench.workload import BACKLOG, Workload, from_document
from multicast.consumer import Consumer
from multicast.drivers import open_driver
from multicast.errors import AmcastError, BufferFull, TimedOut
from multicast.log import (
    Appended,
    Appender,
    AppendOutcome,
    Driver,
    Headers,
    Record,
    TopicPartition,
)
from multicast.producer import Producer, Receipt

_PR_SET_TIMERSLACK = 29
_POLL_S = 0.05
_pause = threading.Event()  # never set: what is waited for is a time


class Stamped:
    """An appender that notes how long each append took."""

    def __init__(self, inner: Appender, took: array[int]) -> None:
        self._inner = inner
        self._took = took
        self.errors = 0

    def append(
        self,
        at: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        done: Callable[[AppendOutcome], None],
    ) -> None:
        """Append, and note the time from here to the acknowledgement."""
        began = time.monotonic_ns()

        def acknowledged(outcome: AppendOutcome) -> None:
            if isinstance(outcome, Appended):
                self._took.append(time.monotonic_ns() - began)
            else:
                self.errors += 1
            done(outcome)

        self._inner.append(at, value, key=key, headers=headers, done=acknowledged)

    def flush(self, timeout_s: float) -> bool:
        """Wait until every append so far has its outcome."""
        return self._inner.flush(timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Close the appender."""
        self._inner.close(timeout_s)


class StampedDriver:
    """A driver whose appenders are `Stamped`; all else is the inner one's."""

    def __init__(self, inner: Driver) -> None:
        self._inner = inner
        self.took = array("q")
        self.appenders: list[Stamped] = []

    def appender(self) -> Appender:
        """Open an appender that notes what its appends took."""
        made = Stamped(self._inner.appender(), self.took)
        self.appenders.append(made)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Sender:
    """All producers of an arm, in one thread: message i is sent by producer i modulo their number.

    Plain producers append to a partition; ours multicast to its name.
    """

    def __init__(
        self, workload: Workload, layout: Layout, driver: StampedDriver, topic: str, arm: str
    ) -> None:
        self._workload = workload
        self._layout = layout
        self._driver = driver
        self._padding = padding(workload.message_bytes, workload.seed)
        self._sends: list[Callable[[int, bytes], Any]] = []
        self._producers: list[Producer] = []
        self._receipts: dict[int, Receipt] = {}
        self._stack = ExitStack()
        one = arm == "one-partition"
        for _ in range(workload.producers):
            if layout.plan is None:
                self._sends.append(self._plain(driver.appender(), topic, one=one))
            else:
                self._sends.append(self._multicasting(topic))

    def close(self) -> None:
        """Release what was opened."""
        self._stack.close()

    def _plain(self, appender: Appender, topic: str, *, one: bool) -> Callable[[int, bytes], None]:
        self._stack.callback(appender.close)
        places = [TopicPartition(topic, 0 if one else at) for at in range(len(self._names))]

        def send(log: int, payload: bytes) -> None:
            while True:
                try:
                    appender.append(places[log], payload, done=_nothing)
                except BufferFull:
                    _pause.wait(0.001)
                else:
                    return

        return send

    def _multicasting(self, topic: str) -> Callable[[int, bytes], None]:
        producer = self._stack.enter_context(
            Producer(topic=topic, driver=cast(Driver, self._driver))
        )
        sets = [frozenset((name,)) for name in self._names]
        receipts = self._receipts

        def send(log: int, payload: bytes) -> None:
            receipts[log] = producer.multicast(payload, to=sets[log])

        return send

    @property
    def _names(self) -> Sequence[str]:
        return self._layout.partitions

    def round(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Send a round; answer once every message is acknowledged."""
        destinations = self._workload.destinations(self._layout.targets)[: command["messages"]]
        warm_up = command["warm_up"]
        rate = None if command["full_speed"] else self._workload.rate
        del self._driver.took[:]
        delays = array("q")
        cpu = time.process_time()
        began = time.monotonic_ns() + 20_000_000
        self._send_all(command["round"], destinations, began, rate, delays)
        for appender in self._driver.appenders:
            if not appender.flush(command["timeout_s"]):
                raise TimedOut(f"not all was acknowledged within {command['timeout_s']:g} s")
        if command["ordered"]:
            for receipt in self._receipts.values():
                receipt.ordered(command["timeout_s"])
        ended = time.monotonic_ns()
        publish, delay = Latencies(), Latencies()
        publish.record(self._driver.took[warm_up:])
        delay.record(delays[warm_up:])
        return {
            "sent": len(destinations),
            "errors": sum(appender.errors for appender in self._driver.appenders),
            "rate": len(destinations) * 1e9 / max(1, ended - began),
            "cpu_s": time.process_time() - cpu,
            "publish": publish.encoded(),
            "delay": delay.encoded(),
        }

    def _send_all(
        self,
        number: int,
        destinations: Sequence[int],
        began: int,
        rate: float | None,
        delays: array[int],
    ) -> None:
        sends, count, rest = self._sends, len(self._sends), self._padding
        now_ns, wait = time.monotonic_ns, _pause.wait
        step = 0.0 if rate is None else 1e9 / rate
        for index, log in enumerate(destinations):
            now = now_ns()
            intended = now
            if step:
                intended = began + int(index * step)
                if intended > now:
                    wait((intended - now) / 1e9)
                    now = now_ns()
            delays.append(now - intended)
            sends[index % count](log, pack(intended, now, number, index, log) + rest)


class Source(Protocol):
    """Where a consumer's messages come from."""

    def poll(self) -> Iterator[Sequence[Record]]:
        """Give what one poll brings."""

    def rewind(self) -> None:
        """Read from the start again."""

    def close(self) -> None:
        """Release what was opened."""


class PlainSource:
    """Reads partitions as they come."""

    def __init__(self, driver: Driver, places: Sequence[TopicPartition]) -> None:
        self._starts = dict.fromkeys(places, 0)
        self._reader = driver.reader(self._starts)
        self.close = self._reader.close

    def poll(self) -> Iterator[Sequence[Record]]:
        """Give what one poll brings."""
        for fetched in self._reader.poll(_POLL_S):
            yield fetched.records

    def rewind(self) -> None:
        """Read from the start again."""
        self._reader.add(self._starts)


class OrderedSource:
    """Delivers by our consumer."""

    def __init__(self, driver: Driver, topic: str, name: str) -> None:
        self._consumer = Consumer(topic=topic, name=name, driver=driver, committed=False)
        self.close = self._consumer.close

    def poll(self) -> Iterator[Sequence[Record]]:
        """Give what one poll brings."""
        for batch in self._consumer.poll(_POLL_S):
            yield batch.records

    def rewind(self) -> None:
        """Read from the start again."""
        self._consumer.seek("earliest")


class Receiver:
    """One consumer of an arm."""

    def __init__(
        self, workload: Workload, layout: Layout, driver: Driver, spec: Mapping[str, Any]
    ) -> None:
        topic, arm = spec["topic"], spec["arm"]
        reading = layout.consumers[spec["consumer"]]
        self._backlog = workload.load == BACKLOG
        self._wanted = frozenset(reading.interest) if arm == "one-partition" else None
        self._expected = layout.expected
        self._destinations = workload.destinations(layout.targets)
        self._reading = reading
        self._source: Source
        places = [TopicPartition(topic, number) for number in reading.interest]
        if arm == "one-partition":
            self._source = PlainSource(driver, [TopicPartition(topic, 0)])
        elif arm == "algorithm1":
            self._source = PosterConsumer(driver, topic, places)
        elif layout.plan is None:
            self._source = PlainSource(driver, places)
        else:
            self._source = OrderedSource(driver, topic, reading.name)

    def close(self) -> None:
        """Release what was opened."""
        self._source.close()

    def round(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Say that we read, then read until all that is addressed to us came."""
        expected = self._expected(self._destinations[: command["messages"]], self._reading)
        backlog = self._backlog
        warm_up = command["warm_up"]
        if backlog:  # counted by delivery, so the consumer's own share of it
            warm_up = expected * warm_up // max(1, command["messages"])
            self._source.rewind()
        else:
            _answer({"ready": True})
        tally = Tally(command["round"], warm_up=warm_up, wanted=self._wanted)
        take = tally.count if backlog else tally.take
        deadline = time.monotonic() + command["timeout_s"]
        cpu = 0.0
        while tally.delivered < expected and time.monotonic() < deadline:
            for records in self._source.poll():
                take(records, time.monotonic_ns())
            if not cpu and tally.first_ns:
                cpu = time.process_time()
                measured = tally.measured
        cpu_s = time.process_time() - cpu if cpu else 0.0
        latencies = Latencies()
        latencies.record(tally.latencies)
        return {
            "delivered": tally.delivered,
            "expected": expected,
            "rate": tally.rate,
            "cpu_s": cpu_s,
            "cpu_messages": tally.measured - measured if cpu else 0,
            "latency": latencies.encoded(),
        }


def _nothing(_: AppendOutcome) -> None:
    """Take an outcome that `Stamped` has noted already."""


def _answer(document: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def _open(spec: Mapping[str, Any], stack: ExitStack) -> Sender | Receiver:
    workload = from_document(spec["workload"], name="")
    arm, topic = spec["arm"], spec["topic"]
    layout = lay_out(workload, arm, topic)
    driver = open_driver(spec["driver"], spec["bootstrap"])
    stack.callback(driver.close)
    role: Sender | Receiver
    if spec["role"] == "producer":
        role = Sender(workload, layout, StampedDriver(driver), topic, arm)
    else:
        role = Receiver(workload, layout, driver, spec)
    stack.callback(role.close)
    return role


def main() -> None:
    """Serve commands until the standard input ends."""
    # A wait may last 50 µs longer than asked for unless the kernel is told otherwise.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000)
    with ExitStack() as stack:
        role: Sender | Receiver | None = None
        for line in sys.stdin:
            command = json.loads(line)
            try:
                if role is None:
                    role = _open(command, stack)
                    _answer({"open": True})
                else:
                    _answer(role.round(command))
            except AmcastError as error:
                _answer({"error": str(error)})


if __name__ == "__main__":
    main()
