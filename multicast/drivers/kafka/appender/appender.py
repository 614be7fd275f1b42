"""Appends records of several Kafka partitions by one Produce request to each leader, idempotently.

librdkafka sends each partition's records by a request of its own. Here a message and what belongs
to it, such as its ticket in an order partition, share a request wherever one broker leads both
partitions: the broker stores both and then completes the waiting fetches once.

    caller   puts records into the queues and writes the request to the socket itself, unless
             `requests_max` requests to that broker have no answer yet; with a linger it never does
    reader   a thread: reads the answers, sends what came meanwhile as the next request, watches the
             time limits, and calls all `done`; it encodes, compresses and writes without the lock
    keeper   a thread that gets the producer ID, leaders and sockets (`keeper.py`)

The constructor blocks, too: it connects. A request is written to a socket that does not block. With
a linger the reader sends all. `multicast/drivers/appender/` has what does not depend on sockets and
threads.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import ceil, inf

from kafka import errors as kafka_errors

from multicast.drivers.appender.appender import JointAppender
from multicast.drivers.appender.dispatcher import (
    BATCH_BYTES_MAX,
    REQUEST_BYTES_MAX,
    Dispatcher,
    Lacking,
    Limits,
)
from multicast.drivers.appender.partition_appends import TOO_LARGE
from multicast.drivers.appender.record_batch import ProducerIdentity
from multicast.drivers.client_settings import WRONG_CLOCK
from multicast.drivers.kafka.appender.keeper import Keeper
from multicast.drivers.kafka.appender.link import SocketLink
from multicast.drivers.kafka.appender.request import settings
from multicast.drivers.kafka.codecs import codec_of
from multicast.drivers.kafka.connection import Connection
from multicast.drivers.protocol import (
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_MAX,
    Beside,
    Settled,
    TopicPartition,
)
from multicast.errors import AmcastError, AppendNotAuthorized, NotAuthorized

_LOG = logging.getLogger("amcast.kafka_python")
# The period of the time limits: little beside a delivery time-out of 30 s, and an idle appender
# needs microseconds for it.
_TICK_S = 0.25
_RECEIVING = select.POLLIN
_SENDING = select.POLLIN | select.POLLOUT
# For the ends of the threads, which take milliseconds unless the process is overloaded.
_END_S = 1.0
# Why brokers refuse a record, by Kafka's error code; other codes go by their names.
_WHY = {
    **dict.fromkeys(TOO_LARGE, "it is larger than the topic's max.message.bytes"),
    kafka_errors.InvalidTimestampError.errno: WRONG_CLOCK,
    kafka_errors.InvalidRecordError.errno: (
        "it is invalid there, as records without a key are in a compacted topic"
    ),
}


class KafkaPythonJointAppender(JointAppender[SocketLink]):
    """A joint appender over sockets of its own; it calls `done` on its reader's thread.

    `timeout_s` bounds a request, `delivery_timeout_s` the time to an outcome, both in seconds.
    `linger_ms`, `compression` and `batch_bytes` are those of `Driver.appender`. Raises
    `ClusterUnreachable` and `AccessDenied` as
    a driver does, and `UsageError` if the codec's package is missing.
    """

    def __init__(
        self,
        open_connection: Callable[[], Connection],
        *,
        timeout_s: float,
        delivery_timeout_s: float,
        beside: Beside | None = None,
        settled: Settled | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
        linger_ms: int = 0,
        compression: str = "none",
        batch_bytes: int | None = None,
    ) -> None:
        codec = codec_of(compression)
        connection = open_connection()
        lock = threading.Lock()
        self._needs = threading.Condition(lock)  # the keeper has work
        self._access = connection.access
        client_id = str(connection.manager.config["client_id"])
        self._settings = settings(client_id, timeout_ms=int(1000 * timeout_s))
        limits = Limits(
            timeout_s,
            delivery_timeout_s,
            batch_bytes_max=min(batch_bytes or BATCH_BYTES_MAX, REQUEST_BYTES_MAX),
            linger_s=linger_ms / 1000,
        )
        dispatcher = Dispatcher[SocketLink](
            limits, beside, codec=codec, wake=self._wake, need=self._needs.notify, why=self._why
        )
        super().__init__(
            dispatcher,
            connection.bootstrap,
            lock=lock,
            changed=threading.Condition(lock),
            in_flight_max=in_flight_max,
            in_flight_bytes_max=in_flight_bytes_max,
            settled=settled,
        )
        self._tick_at = 0.0
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._poll = select.poll()  # only the reader's thread uses it
        self._poll.register(self._woken, select.POLLIN)
        self._polled: dict[int, SocketLink] = {}  # by file descriptor
        self._reader = threading.Thread(target=self._read, name="amcast-joint", daemon=True)
        self._keeper = Keeper(connection, self)
        self._reader.start()
        self._keeper.thread.start()

    def _now(self) -> float:
        return time.monotonic()

    def _wait_for(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        if threading.current_thread() is self._reader:
            timeout_s = 0.0  # nobody else would bring it
        with self._lock:
            return self._changed.wait_for(ready, timeout_s)

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            self._needs.notify_all()
            self._changed.notify_all()
            self._wake()
        if threading.current_thread() is not self._reader:
            self._reader.join(_END_S)
            self._keeper.thread.join(_END_S)

    def _why(self, partition: TopicPartition, code: int) -> str:
        if code == kafka_errors.TopicAuthorizationFailedError.errno:
            return self._access.lacking("Write", "topic", partition.topic).rstrip(".")
        return _WHY.get(code) or str(kafka_errors.for_code(code).__name__)

    def _wake(self) -> None:
        with suppress(OSError):  # enough bytes wait there, or the reader has ended
            self._waker.send(b"\0")

    # -- what the keeper brings -------------------------------------------------------------

    def wanted(self, timeout_s: float | None) -> Lacking | None:
        """Wait until something is wanted, at most `timeout_s`; None once the appender has ended."""
        with self._lock:
            if timeout_s is None:
                self._needs.wait_for(lambda: self._ended or any(self._dispatcher.lacking()))
            elif timeout_s > 0 and not self._ended:
                self._needs.wait(timeout_s)
            return None if self._ended else self._dispatcher.lacking()

    def identified(self, identity: ProducerIdentity) -> None:
        """Take the producer's ID."""
        with self._lock:
            self._dispatcher.identified(identity)
            self._go_on()

    def led(self, leaders: Mapping[TopicPartition, int]) -> None:
        """Take the leaders of partitions."""
        with self._lock:
            self._dispatcher.led(leaders)
            self._go_on()

    def connected(self, node: int, opened: socket.socket) -> None:
        """Take an open socket to a broker."""
        with self._lock:
            if self._ended or node in self._dispatcher.links:
                opened.close()
                return
            self._dispatcher.connected(SocketLink(node, opened, self._settings))
            self._wake()
            self._go_on()

    def failed(self, node: int | None, error: AmcastError) -> None:
        """Take why there is no socket to a broker, or (None) no ID or no leader."""
        with self._lock:
            self._dispatcher.trouble = str(error).rstrip(".")
            if node is not None:
                self._dispatcher.lose_leader(node)
            elif isinstance(error, NotAuthorized) and self._dispatcher.identity is None:
                for partition in self._dispatcher.partitions:
                    self._dispatcher.refuse(partition, AppendNotAuthorized(str(error)))
                self._changed.notify_all()

    def refused(self, partition: TopicPartition, error: AmcastError) -> None:
        """Take why appends to a partition are refused; the next one asks again."""
        with self._lock:
            self._dispatcher.refuse(partition, error)
            self._changed.notify_all()

    def _go_on(self) -> None:
        self._dispatcher.send_all(time.monotonic())
        self._dispatcher.look_for_lingering()
        if self._dispatcher.linger_ends < inf:
            self._wake()
        self._changed.notify_all()

    # -- the reader's thread ----------------------------------------------------------------

    def _read(self) -> None:
        while True:
            wait_s = min(_TICK_S, self._dispatcher.linger_ends - time.monotonic())
            # The next whole millisecond, as poll takes no less; else it would return too early.
            ready = self._poll.poll(ceil(1000 * max(0.0, wait_s)))
            try:
                with self._lock:
                    if self._ended:
                        break
                    held = self._take_events(ready)
                while held:
                    held = self._written(held)
            except Exception:  # noqa: BLE001
                # Only a defect comes here. Every record must get its outcome.
                _LOG.exception("a joint appender ends because of a defect")
                with self._lock:
                    self._closed = self._ended = True
                    self._needs.notify_all()
                break
            with self._lock:
                outcomes = self._taken_outcomes()
            self._report(outcomes)
            del outcomes  # what waits for them may be forgotten meanwhile
        with self._lock:
            self._dispatcher.end("the appender was closed")
            outcomes = self._taken_outcomes()
        self._report(outcomes)
        self._woken.close()
        self._waker.close()

    def _written(self, held: Sequence[SocketLink]) -> list[SocketLink]:
        """Write the requests that links hold, without the lock; return who holds the next ones."""
        for link in held:
            link.write_held()
        with self._lock:
            for link in held:
                link.release()
                if link.broken or link.unsent:
                    self._wake()
            return self._held()

    def _held(self) -> list[SocketLink]:
        """Let links hold what may be sent now, for `_written`."""
        dispatcher = self._dispatcher
        dispatcher.send_all(time.monotonic(), hold=True)
        dispatcher.look_for_lingering()
        return [link for link in dispatcher.links.values() if link.is_held]

    def _take_events(self, ready: Sequence[tuple[int, int]]) -> list[SocketLink]:
        """Take answers and look at the time; return the links that hold a request."""
        dispatcher = self._dispatcher
        for descriptor, _ in ready:
            link = self._polled.get(descriptor)
            if link is None:
                self._woken.recv(1024)
                continue
            if link.unsent:
                link.continue_sending()
            dispatcher.receive(link)
        now = time.monotonic()
        if now >= self._tick_at:
            self._tick_at = now + _TICK_S
            dispatcher.enforce_limits(now)
        for link in list(dispatcher.links.values()):
            if link.broken:
                self._forget(link)
            elif link.polled_events != (events := _SENDING if link.unsent else _RECEIVING):
                # It is ready once an answer comes, or there is room for the rest of a request.
                self._poll.register(link.socket, events)
                self._polled[link.socket.fileno()] = link
                link.polled_events = events
        return self._held()

    def _forget(self, link: SocketLink) -> None:
        if link.polled_events:
            self._poll.unregister(link.socket)
            del self._polled[link.socket.fileno()]
        self._dispatcher.drop(link)
