"""A role of `bench.harness.client`: the producer of an arm, or one of its consumers.

All times are of this machine's monotonic clock, in nanoseconds, so they are comparable across
processes. The clients of all arms use the same driver, except `algorithm1`: the arms differ only in
who orders.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from bench.baselines.poster import PosterConsumer
from bench.comparison.events import EventLog
from bench.comparison.layouts import Layout, lay_out
from bench.comparison.stamped import StampedDriver
from bench.comparison.stamps import DeliveryStamp, RoundTally, pack, padding
from bench.comparison.workload import BACKLOG, Workload, from_document
from bench.harness.client import Talk
from bench.harness.histogram import Latencies
from bench.harness.rig import append_all
from multicast.consuming.consumer import Consumer
from multicast.drivers import open_driver
from multicast.drivers.protocol import Appender, AppendOutcome, Driver, Record, TopicPartition
from multicast.errors import BufferFull, TimedOut
from multicast.producing.producer import Producer
from multicast.producing.receipts import Receipt, Receipts

_PR_SET_TIMERSLACK = 29
_TIMER_SLACK_NS = 1000
_POLL_S = 0.05  # how long a poll waits; it returns at once when records come
_LEAD_NS = 20_000_000  # from the command to the first intended time, so that the first is on time
_FULL_PAUSE_S = 0.001  # while the driver's buffer is full
# Without a rate, every arm sends calls of so many messages and bytes, because a call has a cost.
_BATCH_MAX = 256
_BATCH_BYTES = 1 << 20
_pause = threading.Event()  # never set; used to sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmClient:
    """The producer of an arm, or its consumer number `consumer`; with a `run`, events are kept."""

    workload: Mapping[str, Any]
    arm: str
    topic: str
    bootstrap: str
    driver: str
    run: str | None
    consumer: int | None = None


class _Sends(NamedTuple):
    """How the producer sends to a partition, given by number: one message, or many in one call."""

    single: Callable[[int, bytes], None]
    many: Callable[[int, Sequence[bytes]], None]


class _Batch(NamedTuple):
    """Messages, by their indices in the round, that go to a partition in one call."""

    log: int
    indices: list[int]


class ProducerThread:
    """The producer of an arm: a plain one appends to a partition, ours multicasts to its name."""

    def __init__(
        self, workload: Workload, layout: Layout, driver: StampedDriver, topic: str, arm: str
    ) -> None:
        self._workload = workload
        self._layout = layout
        self._driver = driver
        self._padding = padding(workload.message_bytes, workload.seed)
        self._batch = max(1, min(_BATCH_MAX, _BATCH_BYTES // workload.message_bytes))
        self._receipts: dict[int, Receipt | Receipts] = {}
        self._stack = ExitStack()
        if layout.plan is None or arm == "ordered-plain":
            one_partition = arm == "one-partition"
            self._send = self._plain(driver.appender(), topic, one_partition=one_partition)
        else:
            self._send = self._multicasting(topic)

    def close(self) -> None:
        """Close the producer."""
        self._stack.close()

    def _plain(self, appender: Appender, topic: str, *, one_partition: bool) -> _Sends:
        self._stack.callback(appender.close)
        partitions = [
            TopicPartition(topic, 0 if one_partition else number)
            for number in range(len(self._names))
        ]

        def send(log: int, payload: bytes) -> None:
            while True:
                try:
                    appender.append(partitions[log], payload, done=_nothing)
                except BufferFull:
                    _pause.wait(_FULL_PAUSE_S)
                else:
                    return

        def send_all(log: int, payloads: Sequence[bytes]) -> None:
            append_all(appender, partitions[log], payloads)

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

    def round(self, command: Mapping[str, Any], _: Talk) -> dict[str, Any]:
        """Send a round; return its figures once every message is acknowledged."""
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
            began += _LEAD_NS
            self._send_in_time(command["round"], destinations, began, rate, delays)
        for appender in self._driver.appenders:
            if not appender.flush(command["timeout_s"]):
                raise TimedOut(
                    f"some messages were not acknowledged within {command['timeout_s']:g} s"
                )
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

    def write_events(self, log: EventLog, command: Mapping[str, Any]) -> None:
        """Write the events of the last round's messages."""
        accepted = self._driver.accepted or []
        log.write_accepted(command["round"], accepted, timeout_s=command["timeout_s"])

    def _send_in_time(
        self, number: int, destinations: Sequence[int], began: int, rate: float, delays: array[int]
    ) -> None:
        send, rest = self._send.single, self._padding
        now_ns, wait = time.monotonic_ns, _pause.wait
        step = 1e9 / rate
        for index, log in enumerate(destinations):
            now = now_ns()
            intended = began + int(index * step)
            if intended > now:
                wait((intended - now) / 1e9)
                now = now_ns()
            delays.append(now - intended)
            send(log, pack(intended, now, number, index, log) + rest)

    def _send_in_batches(self, number: int, batches: Sequence[_Batch]) -> None:
        """Send as fast as possible; stamps come before a wait for room, so latency includes it."""
        send, rest = self._send.many, self._padding
        for log, indices in batches:
            now = time.monotonic_ns()
            made = [pack(now, now, number, index, log) + rest for index in indices]
            send(log, made)

    def _batches(self, destinations: Sequence[int]) -> list[_Batch]:
        """Group the messages to a partition, in the order of their last message."""
        full: list[_Batch] = []
        open_: dict[int, list[int]] = {}
        for index, log in enumerate(destinations):
            batch = open_.setdefault(log, [])
            batch.append(index)
            if len(batch) == self._batch:
                full.append(_Batch(log, open_.pop(log)))
        return full + [_Batch(log, batch) for log, batch in open_.items()]


class PlainSource:
    """Reads partitions without an order between them."""

    def __init__(self, driver: Driver, partitions: Sequence[TopicPartition]) -> None:
        self._starts = dict.fromkeys(partitions, 0)
        self._reader = driver.reader(self._starts)
        self.close = self._reader.close

    def poll(self) -> Iterator[Sequence[Record]]:
        """Yield the records of one poll."""
        for fetched in self._reader.poll(_POLL_S):
            yield fetched.records

    def rewind(self) -> None:
        """Read from the start again."""
        self._reader.add(self._starts)


class OrderedSource:
    """Delivers in order, by this project's consumer."""

    def __init__(self, driver: Driver, topic: str, name: str) -> None:
        self._consumer = Consumer(topic=topic, name=name, driver=driver, committed=False)
        self.close = self._consumer.close

    def poll(self) -> Iterator[Sequence[Record]]:
        """Yield the records of one poll."""
        for batch in self._consumer.poll(_POLL_S):
            yield batch.records

    def rewind(self) -> None:
        """Read from the start again."""
        self._consumer.seek("earliest")


class Receiver:
    """One consumer of an arm."""

    def __init__(
        self, workload: Workload, layout: Layout, driver: Driver, task: ArmClient, number: int
    ) -> None:
        topic, arm = task.topic, task.arm
        reading = layout.consumers[number]
        self._backlog = workload.load == BACKLOG
        self._wanted = frozenset(reading.interest) if arm == "one-partition" else None
        self._expected = layout.expected
        self._destinations = workload.destinations(layout.targets)
        self._reading = reading
        self._noted: list[DeliveryStamp] | None = [] if task.run else None
        self._source: PlainSource | OrderedSource | PosterConsumer
        partitions = [TopicPartition(topic, number) for number in reading.interest]
        if arm == "one-partition":
            self._source = PlainSource(driver, [TopicPartition(topic, 0)])
        elif arm == "algorithm1":
            self._source = PosterConsumer(driver, topic, partitions)
        elif layout.plan is None:
            self._source = PlainSource(driver, partitions)
        else:
            self._source = OrderedSource(driver, topic, reading.name)

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def round(self, command: Mapping[str, Any], talk: Talk) -> dict[str, Any]:
        """Answer that the consumer is ready, then read until all its messages have come."""
        expected = self._expected(self._destinations[: command["messages"]], self._reading)
        backlog = self._backlog
        warm_up = command["warm_up"]
        if backlog:  # counted by deliveries, so take this consumer's share of the warm-up
            warm_up = expected * warm_up // max(1, command["messages"])
            self._source.rewind()
        else:
            talk.answer({"ready": True})
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

    def write_events(self, log: EventLog, command: Mapping[str, Any]) -> None:
        """Write the events of the last round's deliveries."""
        named, noted = self._reading.name, self._noted or []
        log.write_delivered(command["round"], named, noted, timeout_s=command["timeout_s"])


def _nothing(_: AppendOutcome) -> None:
    """Ignore an outcome: `Stamped` has noted it."""


def _open(task: ArmClient, stack: ExitStack) -> tuple[ProducerThread | Receiver, EventLog | None]:
    workload = from_document(task.workload, name="")
    layout = lay_out(workload, task.arm, task.topic)
    driver = open_driver(task.driver, task.bootstrap)
    stack.callback(driver.close)
    client: ProducerThread | Receiver
    if task.consumer is None:
        stamped = StampedDriver(driver, [] if task.run else None)
        client = ProducerThread(workload, layout, stamped, task.topic, task.arm)
    else:
        client = Receiver(workload, layout, driver, task, task.consumer)
    stack.callback(client.close)
    log = EventLog(driver, task.run, task.arm, workload, layout) if task.run else None
    return client, log


def serve(task: ArmClient, talk: Talk) -> None:
    """Answer once the client is open, then to each command: a round, or a round's events."""
    # By default the kernel may end a wait up to 50 µs late.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _TIMER_SLACK_NS)
    with ExitStack() as stack:
        client, log = _open(task, stack)
        talk.answer({"open": True})
        for command in talk.commands():
            if command.get("events"):
                assert log is not None, "a run without a name has no events"
                client.write_events(log, command)
                talk.answer({"events": True})
            else:
                gc.collect()
                gc.freeze()  # as a service would: the set-up objects are not scanned again
                talk.answer(client.round(command, talk))
