"""A client of a benchmark, as a process: the producers of an arm, or one of its consumers.

Commands come in as JSON lines, answers go out as JSON lines; the first line says what to be. All
times are this machine's monotonic clock, in nanoseconds, so they compare across its processes.
Every arm's clients stand on the same driver: what differs is who gives the order.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol, cast

from bench.baselines.poster import PosterConsumer
from bench.comparison.events import Accepted, EventLog, OrderStamps
from bench.comparison.layouts import Layout, lay_out
from bench.comparison.stamps import DeliveryStamp, RoundTally, pack, padding
from bench.comparison.workload import BACKLOG, STAMP_BYTES, Workload, from_document
from bench.harness.histogram import Latencies
from multicast.consumer import Consumer
from multicast.drivers import open_driver
from multicast.drivers.protocol import (
    Appended,
    Appender,
    AppendOutcome,
    Driver,
    Headers,
    Record,
    TopicPartition,
)
from multicast.errors import AmcastError, BufferFull, TimedOut
from multicast.producer import Producer, Receipt, Receipts

_PR_SET_TIMERSLACK = 29
_POLL_S = 0.05
# Where the clients' own speed is the rate, every arm sends in calls of so many messages.
_BATCH = 256
_BATCH_BYTES = 1 << 20
_pause = threading.Event()  # never set: what is waited for is a time


class Stamped:
    """An appender that notes how long each append took, and with `accepted` all of each."""

    def __init__(
        self, inner: Appender, took: array[int], accepted: list[Accepted] | None = None
    ) -> None:
        self._inner = inner
        self._took = took
        self._accepted = accepted
        self.errors = 0

    def append(
        self,
        partition: TopicPartition,
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
                self._note(value, began, outcome.offset)
            else:
                self.errors += 1
            done(outcome)

        self._inner.append(partition, value, key=key, headers=headers, done=acknowledged)

    def _note(self, value: bytes | None, began: int, offset: int) -> None:
        now = time.monotonic_ns()
        self._took.append(now - began)
        if self._accepted is not None and value:
            stamp = value[:STAMP_BYTES]
            self._accepted.append(Accepted(stamp, len(value), began, now, offset))

    def append_all(
        self,
        partition: TopicPartition,
        values: Sequence[bytes | None],
        *,
        done: Callable[[int, AppendOutcome], None],
    ) -> int:
        """Append these, and note the time of each from here to its acknowledgement."""
        began = time.monotonic_ns()

        def acknowledged(index: int, outcome: AppendOutcome) -> None:
            if isinstance(outcome, Appended):
                self._note(values[index], began, outcome.offset)
            else:
                self.errors += 1
            done(index, outcome)

        return self._inner.append_all(partition, values, done=acknowledged)

    def flush(self, timeout_s: float) -> bool:
        """Wait until every append so far has its outcome."""
        return self._inner.flush(timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Close the appender."""
        self._inner.close(timeout_s)


class StampedDriver:
    """A driver whose appenders are `Stamped`; all else is the inner one's."""

    def __init__(self, inner: Driver, accepted: list[Accepted] | None = None) -> None:
        self._inner = inner
        self.took = array("q")
        self.accepted = accepted
        self.appenders: list[Stamped] = []

    def appender(self, *, linger_ms: int = 0) -> Appender:
        """Open an appender that notes what its appends took."""
        made = Stamped(self._inner.appender(linger_ms=linger_ms), self.took, self.accepted)
        self.appenders.append(made)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Sends(NamedTuple):
    """How a producer sends to the partition of a number: one message, or many in one call."""

    one: Callable[[int, bytes], None]
    many: Callable[[int, Sequence[bytes]], None]


class _Batch(NamedTuple):
    """Messages, by their places in the round, that a producer sends to one partition in a call."""

    producer: int
    log: int
    indices: list[int]


class ProducerThread:
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
        self._batch = max(1, min(_BATCH, _BATCH_BYTES // workload.message_bytes))
        self._sends: list[_Sends] = []
        self._receipts: dict[int, Receipt | Receipts] = {}
        self._stack = ExitStack()
        one = arm == "one-partition"
        for _ in range(workload.producers):
            if layout.plan is None or arm == "ordered-plain":
                self._sends.append(self._plain(driver.appender(), topic, one=one))
            else:
                self._sends.append(self._multicasting(topic))

    def close(self) -> None:
        """Release what was opened."""
        self._stack.close()

    def _plain(self, appender: Appender, topic: str, *, one: bool) -> _Sends:
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

        def send_all(log: int, payloads: Sequence[bytes]) -> None:
            while payloads:
                taken = appender.append_all(places[log], payloads, done=_nothing_at)
                payloads = payloads[taken:]
                if not taken:
                    _pause.wait(0.001)

        return _Sends(send, send_all)

    def _multicasting(self, topic: str) -> _Sends:
        producer = self._stack.enter_context(
            Producer(topic=topic, driver=cast(Driver, self._driver))
        )
        sets = [frozenset((name,)) for name in self._names]
        receipts = self._receipts

        def send(log: int, payload: bytes) -> None:
            receipts[log] = producer.multicast(payload, to=sets[log])

        def send_all(log: int, payloads: Sequence[bytes]) -> None:
            receipts[log] = producer.multicast_all(payloads, to=sets[log])

        return _Sends(send, send_all)

    @property
    def _names(self) -> Sequence[str]:
        return self._layout.partitions

    def round(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Send a round; answer once every message is acknowledged."""
        destinations = self._workload.destinations(self._layout.targets)[: command["messages"]]
        warm_up = command["warm_up"]
        rate = None if command["full_speed"] else self._workload.rate
        del self._driver.took[:]
        if self._driver.accepted is not None:
            self._driver.accepted.clear()
        delays = array("q")
        batches = [] if rate else self._batches(destinations)
        cpu = time.process_time()
        began = time.monotonic_ns()
        if rate is None:
            self._send_in_batches(command["round"], batches)
            delays.extend([0] * len(destinations))
        else:
            began += 20_000_000
            self._send_in_time(command["round"], destinations, began, rate, delays)
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

    def write_events(self, log: EventLog, command: Mapping[str, Any]) -> int:
        """Tell what became of each message of the last round."""
        accepted = self._driver.accepted or []
        return log.write_accepted(command["round"], accepted, timeout_s=command["timeout_s"])

    def _send_in_time(
        self,
        number: int,
        destinations: Sequence[int],
        began: int,
        rate: float,
        delays: array[int],
    ) -> None:
        sends, count, rest = self._sends, len(self._sends), self._padding
        now_ns, wait = time.monotonic_ns, _pause.wait
        step = 1e9 / rate
        for index, log in enumerate(destinations):
            now = now_ns()
            intended = began + int(index * step)
            if intended > now:
                wait((intended - now) / 1e9)
                now = now_ns()
            delays.append(now - intended)
            sends[index % count].one(log, pack(intended, now, number, index, log) + rest)

    def _send_in_batches(self, number: int, batches: Sequence[_Batch]) -> None:
        """Send as fast as it goes; stamped before there is room: a wait for it counts."""
        sends, rest = self._sends, self._padding
        for producer, log, indices in batches:
            now = time.monotonic_ns()
            made = [pack(now, now, number, index, log) + rest for index in indices]
            sends[producer].many(log, made)

    def _batches(self, destinations: Sequence[int]) -> list[_Batch]:
        """Put messages of one producer to one partition together, in the order of their last."""
        count, size = len(self._sends), self._batch
        full: list[_Batch] = []
        open_: dict[tuple[int, int], list[int]] = {}
        for index, log in enumerate(destinations):
            place = index % count, log
            batch = open_.setdefault(place, [])
            batch.append(index)
            if len(batch) == size:
                full.append(_Batch(*place, open_.pop(place)))
        return full + [_Batch(*place, batch) for place, batch in open_.items()]


class MessageSource(Protocol):
    """Where a consumer's messages come from."""

    def poll(self) -> Iterator[Sequence[Record]]:
        """Yield what one poll brings."""

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
        """Yield what one poll brings."""
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
        """Yield what one poll brings."""
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
        self._noted: list[DeliveryStamp] | None = [] if spec.get("run") else None
        self._stamps: OrderStamps | None = None
        if spec.get("run") and (layout.plan is not None or arm == "algorithm1"):
            self._stamps = OrderStamps(driver, topic, arm, reading.name)
            driver = cast(Driver, self._stamps)
        self._source: MessageSource
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
        if self._noted is not None:
            self._noted.clear()
        tally = RoundTally(
            command["round"], warm_up=warm_up, wanted=self._wanted, noted=self._noted
        )
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

    def write_events(self, log: EventLog, command: Mapping[str, Any]) -> int:
        """Tell of each delivery of the last round."""
        if self._stamps is not None:
            self._stamps.settle()
        return log.write_delivered(
            command["round"],
            self._reading.name,
            self._noted or [],
            self._stamps,
            timeout_s=command["timeout_s"],
        )


def _nothing(_: AppendOutcome) -> None:
    """Take an outcome that `Stamped` has noted already."""


def _nothing_at(_: int, __: AppendOutcome) -> None:
    """Take the outcome of one of many."""


def _answer(document: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def _open(
    spec: Mapping[str, Any], stack: ExitStack
) -> tuple[ProducerThread | Receiver, EventLog | None]:
    workload = from_document(spec["workload"], name="")
    arm, topic = spec["arm"], spec["topic"]
    layout = lay_out(workload, arm, topic)
    driver = open_driver(spec["driver"], spec["bootstrap"])
    stack.callback(driver.close)
    role: ProducerThread | Receiver
    run = spec.get("run")
    if spec["role"] == "producer":
        stamped = StampedDriver(driver, [] if run else None)
        role = ProducerThread(workload, layout, stamped, topic, arm)
    else:
        role = Receiver(workload, layout, driver, spec)
    stack.callback(role.close)
    return role, EventLog(driver, run, arm, workload, layout) if run else None


def main() -> None:
    """Serve commands until the standard input ends."""
    # A wait may last 50 µs longer than asked for unless the kernel is told otherwise.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000)
    with ExitStack() as stack:
        role: ProducerThread | Receiver | None = None
        for line in sys.stdin:
            command = json.loads(line)
            try:
                if role is None:
                    role, log = _open(command, stack)
                    _answer({"open": True})
                elif command.get("events"):
                    assert log is not None, "a run without a name has no events"
                    _answer({"events": role.write_events(log, command)})
                else:
                    gc.collect()
                    gc.freeze()  # as a service would: what was set up is not looked through again
                    _answer(role.round(command))
            except AmcastError as error:
                _answer({"error": str(error)})


if __name__ == "__main__":
    main()
