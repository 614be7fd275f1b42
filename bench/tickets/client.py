"""The processes of the ticket probe: a producer, a consumer, a collector. See `probe`.

They answer the commands of `bench.comparison.client`, with other producers and sources:

    tickets         message and ticket as two librdkafka appends, by two producers
    tickets-shared  one Produce request for both partitions, by the joint appender
    push            today's producer and consumer, which also takes pushed records (`pushing`)
    shared-only     the same request without a ticket; the consumer waits for no order

The consumer fetches the logs and the order partition with one client, reads the order by
`TicketStream`, and hands a message out once it has both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

from bench.comparison.client import (
    ProducerThread,
    Receiver,
    main,
)
from bench.comparison.layouts import lay_out
from bench.comparison.stamped import StampedDriver
from bench.comparison.workload import FIRST, from_document
from bench.tickets.delivery import TicketDelivery
from bench.tickets.pushing import PushedDriver
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import KafkaPythonDriver
from multicast.drivers.protocol import (
    Appended,
    Appender,
    AppendOutcome,
    Driver,
    JointRecord,
    Record,
    TopicPartition,
)
from multicast.errors import AmcastError
from multicast.tickets.collector import FillHole, NameCheckpoint, TicketCollector, TicketLimits
from multicast.tickets.encoding import encode
from multicast.tickets.producer import TicketBook
from multicast.tickets.rule import StreamShape, TicketStream

TAG = b"tickets of probe"
_POLL_S = 0.05
# The collector is on nobody's way: it fetches this often, whatever comes.
_COLLECT_MS = 20
_PATIENCE_MS = 60
_CHECKPOINT_MS = 3_600_000
_REST_MS = 20
_LIVELY_MS = 1000
_TICK_MS = 250


def order_of_tickets(topic: str) -> TopicPartition:
    """Give the order partition of an arm's topic."""
    return TopicPartition(f"{topic}.order", 0)


def shape(partitions: int) -> StreamShape:
    """Give the stream of one collector that orders all partitions."""
    return StreamShape(TAG, dict.fromkeys(range(partitions), 0), {})


class TicketAppender:
    """Appends messages to the logs, and tickets beside them, each by a librdkafka producer."""

    def __init__(self, messages: Appender, tickets: Appender, topic: str) -> None:
        self._messages = messages
        self._tickets = tickets
        self._topic = topic
        self._order = order_of_tickets(topic)
        self._book = TicketBook()
        self._lock = threading.RLock()  # an appender may call back inside `append`

    def send(self, log: int, payload: bytes) -> None:
        """Append a message and, if none is in flight, the ticket."""
        with self._lock:
            self._book.started(log)
            self._messages.append(
                TopicPartition(self._topic, log), payload, done=lambda end: self._stored(log, end)
            )
            self._write_ticket()

    def _stored(self, log: int, outcome: AppendOutcome) -> None:
        with self._lock:
            self._book.settled(log, outcome.offset if isinstance(outcome, Appended) else None)

    def _write_ticket(self) -> None:
        record = self._book.record_due()
        if record is not None:
            self._tickets.append(self._order, encode(TAG, record), done=self._ticket_stored)

    def _ticket_stored(self, outcome: AppendOutcome) -> None:
        if not isinstance(outcome, Appended):
            raise outcome.error
        with self._lock:
            self._book.ticket_settled()
            self._write_ticket()


class SharedAppender:
    """Appends messages, and their tickets, by joint requests; as `Stamped` it notes times."""

    def __init__(self, bootstrap: str, topic: str, logs: int, took: Any, *, tickets: bool) -> None:
        self._driver = KafkaPythonDriver(bootstrap)
        self._appender = self._driver.joint_appender(beside=self._tickets if tickets else None)
        self._topic = topic
        self._order = order_of_tickets(topic)
        self._took = took
        self._lock = threading.Lock()  # of the book
        self._book = TicketBook() if tickets else None
        self.errors = 0
        self.flush = self._appender.flush
        # The first ticket, too, must go with its message.
        for log in range(logs):
            self._appender.prepare(TopicPartition(topic, log))
        self._appender.prepare(self._order)

    def send(self, log: int, payload: bytes) -> None:
        """Send a message, or let it wait for the next request."""
        done = partial(self._stored, log, time.monotonic_ns())
        self._appender.append(TopicPartition(self._topic, log), payload, done=done)

    def close(self, timeout_s: float = 5.0) -> None:
        """Flush, and close the connections."""
        self._appender.close(timeout_s)
        self._driver.close()

    def _tickets(self, started: Mapping[TopicPartition, int]) -> Sequence[JointRecord]:
        assert self._book is not None
        with self._lock:
            for partition, count in started.items():
                self._book.started(partition.partition, count)
            record = self._book.record_due()
            assert record is not None
            # Message and ticket are stored by one request, so a second one may overtake nothing.
            self._book.ticket_settled()
        return [JointRecord(self._order, encode(TAG, record), self._ticket_stored)]

    def _stored(self, log: int, began_ns: int, outcome: AppendOutcome) -> None:
        self._took.append(time.monotonic_ns() - began_ns)
        offset = outcome.offset if isinstance(outcome, Appended) else None
        self.errors += offset is None
        if self._book is not None:
            with self._lock:
                self._book.settled(log, offset)

    def _ticket_stored(self, outcome: AppendOutcome) -> None:
        self.errors += not isinstance(outcome, Appended)


class TicketProducerThread(ProducerThread):
    """The producers of an arm of the probe."""

    def __init__(self, spec: Mapping[str, Any], driver: StampedDriver) -> None:
        workload = from_document(spec["workload"], name="")
        topic, arm = spec["topic"], spec["arm"]
        layout = lay_out(workload, arm, topic)
        super().__init__(workload, layout, driver, topic, "plain")
        for number in range(workload.producers):
            if arm == "tickets":
                messages = driver.appenders[number]
                tickets = driver._inner.appender()  # noqa: SLF001 - not stamped
                self._stack.callback(tickets.close)
                sender: TicketAppender | SharedAppender = TicketAppender(messages, tickets, topic)
            else:
                sender = SharedAppender(
                    spec["bootstrap"],
                    topic,
                    len(layout.partitions),
                    driver.took,
                    tickets=arm == "tickets-shared",
                )
                self._stack.callback(sender.close)
                driver.appenders.append(cast(Any, sender))
            self._sends[number] = self._sends[number]._replace(single=sender.send)


class TicketSource:
    """Delivers what is ordered by tickets and received."""

    def __init__(self, driver: Driver, topic: str, partitions: Sequence[TopicPartition]) -> None:
        self._order = order_of_tickets(topic)
        logs = [partition.partition for partition in partitions]
        self._delivery = TicketDelivery(TicketStream(shape(len(logs))), logs)
        self._reader = driver.reader(dict.fromkeys([*partitions, self._order], 0))
        self.close = self._reader.close

    def poll(self) -> Iterator[Sequence[Record]]:
        """Yield the records that one poll made deliverable."""
        delivery = self._delivery
        for partition, records, _ in self._reader.poll(_POLL_S):
            if partition == self._order:
                for record in records:
                    delivery.order_read(record.offset, record.value or b"")
            else:
                numbered = [(record.offset, record) for record in records]
                delivery.payload_read(partition.partition, numbered)
        yield [cast(Record, entry.item) for entry in delivery.deliver()]

    def rewind(self) -> None:
        """Refuse: this probe measures no backlog."""
        raise AmcastError("tickets are not measured from a backlog")


class CollectorThread:
    """A ticket collector beside the hot path: it would order what tickets leave out."""

    def __init__(self, driver: Driver, topic: str, partitions: int) -> None:
        self._logs = [TopicPartition(topic, number) for number in range(partitions)]
        self._order = order_of_tickets(topic)
        self._core = TicketCollector(
            TicketStream(shape(partitions)),
            None,
            TicketLimits(_PATIENCE_MS, _REST_MS, _LIVELY_MS, _CHECKPOINT_MS),
            time.monotonic_ns() // 1_000_000,
        )
        self._driver = driver
        self._stop = threading.Event()
        self.wrote = 0
        self._thread = threading.Thread(target=self._run, name="ticket-collector", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        self._thread.join(10.0)

    def _run(self) -> None:
        reader = self._driver.reader({self._order: 0})
        watcher = self._driver.watcher(dict.fromkeys(self._logs, 0))
        watcher.spacing_s = _COLLECT_MS / 1000
        appender = self._driver.appender()
        ticked = 0
        while not self._stop.wait(_COLLECT_MS / 1000):
            now = time.monotonic_ns() // 1_000_000
            for fetched in reader.poll(0.0):
                for record in fetched.records:
                    self._core.own_read(record.offset, record.value or b"", now)
            for log, end in watcher.poll(0.0).items():
                self._core.log_end(log.partition, end, now)
            if now - ticked >= _TICK_MS:
                ticked = now
                self._core.tick(now)
            for action in self._core.step(now):
                self.wrote += 1
                if isinstance(action, FillHole):
                    raise AmcastError(f"a probe without faults has a hole: {action}")
                if not isinstance(action, NameCheckpoint):
                    appender.append(self._order, encode(TAG, action.record), done=self._done)
        reader.close()
        watcher.close()
        appender.close()

    def _done(self, outcome: AppendOutcome) -> None:
        if not isinstance(outcome, Appended):
            self._core.append_failed()


class TicketReceiver(Receiver):
    """The consumer of an arm of the probe."""

    def __init__(self, spec: Mapping[str, Any], driver: Driver) -> None:
        workload = from_document(spec["workload"], name="")
        layout = lay_out(workload, "plain", spec["topic"])
        super().__init__(workload, layout, driver, {**spec, "arm": "plain"})
        if spec["arm"] != "shared-only":
            self._source.close()
            interest = layout.consumers[spec["consumer"]].interest
            partitions = [TopicPartition(spec["topic"], number) for number in interest]
            self._source = TicketSource(driver, spec["topic"], partitions)


def _open_pushed(spec: Mapping[str, Any], driver: Driver) -> ProducerThread | Receiver:
    workload, topic = from_document(spec["workload"], name=""), spec["topic"]
    layout = lay_out(workload, FIRST, topic)
    if spec["role"] == "producer":
        return ProducerThread(workload, layout, StampedDriver(driver), topic, FIRST)
    pushed = PushedDriver(driver, spec["port"], bytes.fromhex(spec["key"]))
    return Receiver(workload, layout, cast(Driver, pushed), {**spec, "arm": FIRST})


def _open(spec: Mapping[str, Any], stack: ExitStack) -> tuple[Any, None]:
    # A collector fetches only when it polls, so that no ticket wakes it.
    name = "kafka-python" if spec["role"] == "collector" else "librdkafka"
    driver = open_driver(name, spec["bootstrap"])
    stack.callback(driver.close)
    role: Any
    if spec["arm"] == "push":
        role = _open_pushed(spec, driver)
    elif spec["role"] == "producer":
        role = TicketProducerThread(spec, StampedDriver(driver))
    elif spec["role"] == "consumer":
        role = TicketReceiver(spec, driver)
    else:
        role = CollectorThread(driver, spec["topic"], spec["partitions"])
    stack.callback(role.close)
    return role, None


if __name__ == "__main__":
    main(_open)
