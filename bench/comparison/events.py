"""Events of a run: JSON records about each message, which the clients write to Kafka.

The topic is RUN.events. Its partition 0 holds a *description* of each arm, and an *end* when the
arm is over; the other partitions hold the events. All times are nanoseconds of one machine's
monotonic clock, taken by the clients during the measurement; a description gives the offset to the
time since 1970. Events are written between the rounds, so that they do not disturb a measurement.

    every event   run, arm, topology ("tree-4": kind and size), r (the poster's label), role, round,
                  number (the message's index in the round), measured (false in the warm-up),
                  log and offset (the message ID), to (its partitions), size (bytes), intended, sent
    producer      accepted: when its acknowledgement came
    consumer      consumer, instance, sequence (rises by one with each delivery of an instance),
                  ordered (when this consumer had read the order record that names the message;
                  null if it reads no order), delivered (when the poll with the message returned)

Invariant: intended <= sent <= accepted, and sent <= delivered, and ordered <= delivered.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench.baselines.poster import order_of
from bench.comparison.layouts import Layout
from bench.comparison.stamps import DeliveryStamp, unpack
from bench.comparison.workload import Workload
from multicast.control import ControlReader, order_topic
from multicast.drivers.protocol import (
    Appended,
    AppendOutcome,
    Driver,
    Fetched,
    Reader,
    TopicPartition,
)
from multicast.errors import AmcastError, BufferFull, TimedOut
from multicast.order.stream import OrderStream

PARTITIONS = 5  # one for descriptions; four for events, so that Spark reads them in parallel
DESCRIBED = 0  # the Kafka partition of descriptions
_CHUNK_EVENTS = 500  # in a row to one Kafka partition, so that batches are full
_FULL_PAUSE_S = 0.005  # while the driver's buffer is full
_STATEMENT_S = 30.0  # to store a description
_pause = threading.Event()  # never set; used to sleep


class Accepted(NamedTuple):
    """What a producer notes of one append: the payload's stamp, times, and the offset."""

    stamp: bytes
    size: int
    began: int
    acknowledged: int
    offset: int


def events_topic(run: str) -> str:
    """Return the Kafka topic of a run's events."""
    return f"{run}.events"


def describe(run: str, arm: str, workload: Workload, layout: Layout, topic: str) -> dict[str, Any]:
    """Make the description of an arm; it reads this machine's clock offset now."""
    monotonic = time.monotonic_ns()
    return {
        "schema_version": 1,
        **_constants(run, arm, workload),
        "topic": topic,
        "planned": layout.plan is not None,
        "size": workload.message_bytes,
        "clock_offset_ns": time.time_ns() - monotonic,
        "consumers": [
            {
                "name": reading.name,
                "interest": [layout.partitions[number] for number in reading.interest],
            }
            for reading in layout.consumers
        ],
    }


def write_statement(driver: Driver, run: str, key: str, document: Mapping[str, Any]) -> None:
    """Write a description (key "arm") or an end (key "end"); raises `AmcastError`."""
    with_key = {"kind": key, **document}
    _Writer(driver, events_topic(run)).write([(DESCRIBED, _dump(with_key))], timeout_s=_STATEMENT_S)


class EventLog:
    """Formats and writes the events of one client."""

    def __init__(
        self, driver: Driver, run: str, arm: str, workload: Workload, layout: Layout
    ) -> None:
        self._writer = _Writer(driver, events_topic(run))
        self._names = layout.partitions
        self._one_partition = arm == "one-partition"
        self._warm_up = workload.warm_up
        # The common fields of a client's events are formatted only once.
        self._lead = _dump(_constants(run, arm, workload))[:-1].decode()
        self._sequence = 0
        self._written = 0

    def write_accepted(self, number: int, accepted: Sequence[Accepted], *, timeout_s: float) -> int:
        """Write the events of the producers' appends of a round; return their number."""
        lead = f'{self._lead},"role":"producer","round":{number},'

        def lines() -> Iterator[str]:
            for append in accepted:
                intended, _, round_, index, log = unpack(append.stamp)
                if round_ == number:
                    yield (
                        f"{lead}{self._message(log, append.offset, index, append.size)},"
                        f'"intended":{intended},"sent":{append.began},'
                        f'"accepted":{append.acknowledged}}}'
                    )

        return self._write(lines(), timeout_s)

    def write_delivered(
        self,
        number: int,
        consumer: str,
        delivered: Sequence[DeliveryStamp],
        ordered: OrderStamps | None,
        *,
        timeout_s: float,
    ) -> int:
        """Write the events of a consumer's deliveries of a round; return their number."""
        named = json.dumps(consumer)
        lead = f'{self._lead},"role":"consumer","round":{number},"consumer":{named},"instance":"a",'
        begin, self._sequence = self._sequence, self._sequence + len(delivered)

        def lines() -> Iterator[str]:
            for sequence, delivery in enumerate(delivered, start=begin):
                stamp = None if ordered is None else ordered.read_ns(delivery.log, delivery.offset)
                yield (
                    f"{lead}{self._message(delivery.log, *delivery.place)},"
                    f'"intended":{delivery.intended},"sent":{delivery.sent},'
                    f'"ordered":{"null" if stamp is None else stamp},'
                    f'"delivered":{delivery.delivered},"sequence":{sequence}}}'
                )

        return self._write(lines(), timeout_s)

    def _message(self, log: int, offset: int, number: int, size: int) -> str:
        stored_in = self._names[0 if self._one_partition else log]
        measured = "true" if number >= self._warm_up else "false"
        return (
            f'"number":{number},"measured":{measured},"log":"{stored_in}","offset":{offset},'
            f'"to":["{self._names[log]}"],"size":{size}'
        )

    def _write(self, lines: Iterable[str], timeout_s: float) -> int:
        placed = (
            (1 + index // _CHUNK_EVENTS % (PARTITIONS - 1), line.encode())
            for index, line in enumerate(lines, start=self._written)
        )
        written = self._writer.write(placed, timeout_s=timeout_s)
        self._written += written
        return written


class OrderStamps:
    """The times at which one consumer read each order record: a driver whose readers note them.

    After a round `settle` resolves the notes by the acceptance rule.
    """

    def __init__(self, inner: Driver, topic: str, arm: str, consumer: str) -> None:
        self._inner = inner
        self._topic = topic
        self._poster = arm == "algorithm1"
        self._consumer = consumer
        self._order = order_of(topic).topic if self._poster else order_topic(topic)
        self._stream: OrderStream | None = None
        self.noted: list[tuple[Fetched, int]] = []
        self._firsts: dict[int, list[int]] = {}
        self._stamps: dict[int, list[tuple[int, int]]] = {}

    def reader(
        self, starts: Mapping[TopicPartition, int], *, wait_s: float | None = None
    ) -> Reader:
        """Open a reader that notes the order records that it reads, with the time."""
        return _NotingReader(self._inner.reader(starts, wait_s=wait_s), self._order, self.noted)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def settle(self) -> None:
        """Resolve and clear the notes."""
        for fetched, now_ns in self.noted:
            for record in fetched.records:
                if self._poster:
                    log, offset = map(int, (record.value or b"").split(b":"))
                    self._name(log, offset, offset + 1, now_ns)
                    continue
                stream = self._open_stream()
                if record.offset < stream.offset_next:
                    continue
                runs = stream.read(record.offset, record.value)
                if isinstance(runs, tuple):
                    for log, first, end in runs:
                        self._name(log, first, end, now_ns)
        self.noted.clear()

    def read_ns(self, log: int, offset: int) -> int | None:
        """Return when the order record that names this offset was read; None if unknown."""
        index = bisect_right(self._firsts.get(log, []), offset) - 1
        if index < 0:
            return None
        end, now_ns = self._stamps[log][index]
        return now_ns if offset < end else None

    def _name(self, log: int, first: int, end: int, now_ns: int) -> None:
        self._firsts.setdefault(log, []).append(first)
        self._stamps.setdefault(log, []).append((end, now_ns))

    def _open_stream(self) -> OrderStream:
        if self._stream is None:
            control = ControlReader(self._inner, self._topic)
            try:
                state = control.refresh()
            finally:
                control.close()
            entry = state.plan().subscription(self._consumer)
            assert entry is not None
            assert entry.collector is not None
            self._stream = state.stream(state.epoch, entry.collector, below=0)
        return self._stream


class _NotingReader:
    """A reader that notes the records of one topic, with the time."""

    def __init__(self, inner: Reader, topic: str, noted: list[tuple[Fetched, int]]) -> None:
        self._inner = inner
        self._topic = topic
        self._noted = noted

    def poll(self, timeout_s: float, records_max: int = 5000) -> list[Fetched]:
        fetched = self._inner.poll(timeout_s, records_max)
        now_ns = time.monotonic_ns()
        self._noted += [
            (batch, now_ns) for batch in fetched if batch.partition.topic == self._topic
        ]
        return fetched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Writer:
    """Appends records, and waits until all are stored."""

    def __init__(self, driver: Driver, topic: str) -> None:
        self._driver = driver
        self._topic = topic
        self._failed: AmcastError | None = None

    def write(self, records: Iterable[tuple[int, bytes]], *, timeout_s: float) -> int:
        """Write (partition, value) pairs; return their number. Raises `AmcastError` on failure."""
        deadline = time.monotonic() + timeout_s
        appender = self._driver.appender()
        count = 0
        try:
            for partition, value in records:
                target = TopicPartition(self._topic, partition)
                while True:
                    try:
                        appender.append(target, value, done=self._done)
                    except BufferFull:
                        if time.monotonic() > deadline:
                            raise
                        _pause.wait(_FULL_PAUSE_S)
                    else:
                        break
                count += 1
            if not appender.flush(max(1.0, deadline - time.monotonic())):
                raise TimedOut(f"the events were not stored within {timeout_s:g} s")
        finally:
            appender.close()
        if self._failed is not None:
            raise self._failed
        return count

    def _done(self, outcome: AppendOutcome) -> None:
        if not isinstance(outcome, Appended):
            self._failed = outcome.error


def _constants(run: str, arm: str, workload: Workload) -> dict[str, Any]:
    return {
        "run": run,
        "arm": arm,
        "topology": f"{workload.kind}-{workload.size}",
        "r": round(workload.label, 3),
    }


def _dump(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
