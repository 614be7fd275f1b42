"""Appends records of several Kafka partitions by one Produce request to each leader, idempotently.

librdkafka sends each partition's records by a request of its own. Here a message and what belongs
to it, such as its ticket in an order partition, share a request wherever one broker leads both
partitions: the broker stores both and then completes the waiting fetches once.

    caller   puts records into the queues and writes the request to the socket itself, unless
             `requests_max` requests to that broker have no answer yet
    reader   a thread: reads the answers, sends what came meanwhile as the next request, watches the
             time limits, and calls all `done`
    keeper   a thread that gets the producer ID, leaders and sockets (`keeper.py`)

What blocks: the constructor (it connects), `prepare`, `flush` and `close`, all with a time limit.
An append blocks only for the lock, which nobody holds while waiting; a record is copied two or
three times (a single one of 64 kB or more once) and written to a socket that does not block. With a
linger the reader sends what nothing else has sent by then. A codec compresses under the lock.

`partition_appends.py` says what is sent again, and when an outcome is unknown.

Invariant: each record has exactly one outcome. `done` is called in the order of the appends to a
partition, on the reader's thread; only for a record above the limit at once.
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

from multicast.drivers.appender.entries import (
    Done,
    QueuedEntry,
    prepared,
    queued,
    queued_run,
)
from multicast.drivers.appender.partition_appends import REQUESTS_MAX, Settled
from multicast.drivers.appender.record_batch import BATCH_BYTES, ProducerIdentity
from multicast.drivers.client_settings import MESSAGE_BYTES_MAX, UNKNOWN_TOPIC_S
from multicast.drivers.home_process import HomeProcess
from multicast.drivers.kafka_python.codecs import codec_of
from multicast.drivers.kafka_python.connection import Connection
from multicast.drivers.kafka_python.joint.dispatcher import Dispatcher, Entries, Limits
from multicast.drivers.kafka_python.joint.keeper import Keeper, Lacking
from multicast.drivers.kafka_python.joint.link import Link
from multicast.drivers.protocol import (
    CLOSE_TIMEOUT_S,
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_MAX,
    AppendFailed,
    Beside,
    DoneAll,
    Headers,
    JointRecord,
    TopicPartition,
)
from multicast.errors import (
    AmcastError,
    AppendNotAuthorized,
    AppendRefused,
    BufferFull,
    ClusterUnreachable,
    NotAuthorized,
    UsageError,
)

_LOG = logging.getLogger("amcast.kafka_python")
# Two keep a broker busy while an answer is on its way; with one, each round trip is idle time, and
# with more, records are divided among more and smaller requests.
_REQUESTS_MAX = 2
# Of a batch: just below Kafka's default of max.message.bytes. A larger record goes alone.
_BATCH_BYTES_MAX = 1_000_000
# Of a request with several records: a plain choice, so that a broker answers the first ones soon.
_REQUEST_BYTES_MAX = 32 * 1024 * 1024
# With what goes beside it, it stays below socket.request.max.bytes, above which a broker closes the
# connection. Its default is this driver's limit of a message.
_RECORD_BYTES_MAX = MESSAGE_BYTES_MAX - 1024 * 1024
# The period of the time limits: little beside a delivery time-out of 30 s, and an idle appender
# needs microseconds for it.
_TICK_S = 0.25
_RECEIVING = select.POLLIN
_SENDING = select.POLLIN | select.POLLOUT
# For what goes beside the last records when an appender closes: brokers answer in milliseconds, and
# who needs a ticket that is lost waits less than this.
_BESIDE_S = 0.5
# For the ends of the threads, which take milliseconds unless the process is overloaded.
_END_S = 1.0


class KafkaPythonJointAppender:
    """An idempotent producer (acks=all), for any thread, over sockets of its own.

    `beside` is what `Driver.joint_appender` describes. Its own records cause no further call, take
    no room in the buffer, and hold up neither `flush` nor `close`. A record is counted once, also
    if it is sent again.

    `timeout_s` bounds a request, `delivery_timeout_s` the time to an outcome, both in seconds.
    `requests_max` (1 to 5) bounds the requests in flight to each broker, `request_bytes_max` their
    size (max.request.size), but for a single record of up to 99 MiB. `linger_ms`, `compression` and
    `batch_bytes` are those of `Driver.appender`. Raises `ClusterUnreachable` and `AccessDenied` as
    a driver does, and `UsageError` if the codec's package is missing.
    """

    def __init__(
        self,
        open_connection: Callable[[], Connection],
        *,
        timeout_s: float,
        delivery_timeout_s: float,
        beside: Beside | None = None,
        requests_max: int = _REQUESTS_MAX,
        request_bytes_max: int = _REQUEST_BYTES_MAX,
        in_flight_max: int = IN_FLIGHT_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
        linger_ms: int = 0,
        compression: str = "none",
        batch_bytes: int | None = None,
    ) -> None:
        self._home = HomeProcess("producer")
        codec = codec_of(compression)
        if not 1 <= requests_max <= REQUESTS_MAX:
            raise UsageError(f"requests_max is {requests_max}; give 1 to {REQUESTS_MAX}.")
        connection = open_connection()
        self._bootstrap = connection.bootstrap
        self._timeout_s = timeout_s
        self._request_bytes_max = request_bytes_max
        self._batch_bytes_max = min(batch_bytes or _BATCH_BYTES_MAX, request_bytes_max)
        self._in_flight_max = in_flight_max
        self._in_flight_bytes_max = in_flight_bytes_max
        self._lock = threading.Lock()  # of what follows
        self._idle = threading.Condition(self._lock)  # nothing is unsettled, or `ready` changed
        self._needs = threading.Condition(self._lock)  # the keeper has work
        self._dispatcher = Dispatcher(
            str(connection.manager.config["client_id"]),
            connection.access,
            Limits(
                timeout_s,
                delivery_timeout_s,
                requests_max,
                request_bytes_max,
                self._batch_bytes_max,
                linger_ms / 1000,
            ),
            beside,
            codec=codec,
            wake=self._wake,
            need=self._needs.notify,
        )
        self._refusals: dict[TopicPartition, AmcastError] = {}
        self._closed = False
        self._ended = False
        self._tick_at = 0.0
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._poll = select.poll()  # only the reader's thread uses it
        self._poll.register(self._woken, select.POLLIN)
        self._polled: dict[int, Link] = {}  # by file descriptor
        self._reader = threading.Thread(target=self._read, name="amcast-joint", daemon=True)
        self._keeper = Keeper(connection, self)
        self._reader.start()
        self._keeper.thread.start()

    def append(
        self,
        partition: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        done: Done,
    ) -> None:
        """Start an append and return without waiting for its outcome; see `append_together`."""
        self._start_one(partition, queued(value, key, headers, done))

    def append_all(
        self,
        partition: TopicPartition,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        done: DoneAll,
    ) -> int:
        """Start appends of these values, without an object for each.

        Values of one size without key and headers cost least. Raises `UsageError` as `append` does
        if nothing was started.
        """
        started = 0
        rest = [queued_run(values, keys, headers, done)] if values else []
        while rest:
            run = rest.pop()
            try:
                if run.count == 1 or run.size <= self._batch_bytes_max - BATCH_BYTES:
                    self._start_one(partition, run)
                    started += run.count
                    continue
            except UsageError:
                if not started:
                    raise
                break
            except BufferFull:
                if run.count == 1:
                    break
            rest += reversed(run.divided())
        return started

    def append_together(self, records: Sequence[JointRecord]) -> None:
        """Start appends; those whose partitions have the same leader go in one request.

        They are not atomic: each record has its own outcome, and `done` gets it within about the
        delivery time-out. Records for one partition that do not fit in its batch (1 MB) go on in
        the next request. Raises, and starts nothing: `BufferFull` if there is no room, `UsageError`
        if the appender is closed, or if the records together are too large for a request.
        """
        entries = prepared(records)
        if len(entries) == 1:
            self._start_one(*entries[0])
            return
        size = sum(entry.size for _, entry in entries)
        if size > self._request_bytes_max:
            raise UsageError(
                f"Records of {size} bytes for {entries[0][0].topic} do not fit in a request of "
                f"{self._request_bytes_max} bytes (max.request.size); send smaller ones."
            )
        self._start(entries)

    def ready(self, partition: TopicPartition) -> bool:
        """Return whether an append to this Kafka partition would be sent now without any wait."""
        with self._lock:
            return self._dispatcher.is_ready(self._dispatcher.appends(partition))

    def prepare(self, partition: TopicPartition) -> None:
        """Wait until `ready`, for some seconds at most; raises why an append would fail."""
        self._home.check()
        with self._lock:
            dispatcher = self._dispatcher
            appends = dispatcher.appends(partition)
            self._refusals.pop(partition, None)
            dispatcher.mark(appends)
            self._idle.wait_for(
                lambda: dispatcher.is_ready(appends) or partition in self._refusals or self._ended,
                min(2 * UNKNOWN_TOPIC_S, self._timeout_s),
            )
            if partition in self._refusals:
                raise self._refusals[partition]
            if not dispatcher.is_ready(appends):
                why = f" ({dispatcher.trouble})" if dispatcher.trouble else ""
                raise ClusterUnreachable(
                    f"No leader of {appends.name} at {self._bootstrap} can be reached{why}."
                )

    def flush(self, timeout_s: float) -> bool:
        """Wait until every append so far has its outcome; return False if time ran out.

        From within `done` it does not wait.
        """
        self._home.check()
        with self._lock:
            if threading.current_thread() is self._reader:
                timeout_s = 0.0
            self._dispatcher.flushes += 1
            try:
                self._go_on()
                return self._idle.wait_for(lambda: not self._dispatcher.unsettled, timeout_s)
            finally:
                self._dispatcher.flushes -= 1

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush for at most `timeout_s`, then settle the remaining appends, and end the threads.

        Those that were sent have an unknown outcome then; the others are certainly not stored. What
        goes beside has at most half a second more.
        """
        if self._home.is_left:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.flush(timeout_s)
        with self._lock:
            if threading.current_thread() is not self._reader:
                self._idle.wait_for(self._dispatcher.has_no_beside, min(timeout_s, _BESIDE_S))
            self._ended = True
            self._needs.notify_all()
            self._idle.notify_all()
            self._wake()
        if threading.current_thread() is not self._reader:
            self._reader.join(_END_S)
            self._keeper.thread.join(_END_S)

    def _start(self, entries: Entries) -> None:
        self._home.check()
        size = count = 0
        for _, entry in entries:
            size += entry.size
            count += entry.count
        with self._lock:
            self._check_room(count, size)
            self._dispatcher.add(entries, size, time.monotonic())

    def _start_one(self, partition: TopicPartition, entry: QueuedEntry) -> None:
        """Start an entry that goes in a request of its own if it is too large for others."""
        if entry.size <= _RECORD_BYTES_MAX:
            self._start(((partition, entry),))
            return
        with self._lock:
            self._check_room(entry.count, 0)
        entry.done(
            AppendFailed(
                AppendRefused(
                    f"A record of {entry.size} bytes for {partition.topic}/{partition.partition} "
                    f"was not sent: the most is {_RECORD_BYTES_MAX} bytes."
                ),
                sent=False,
            )
        )

    def _check_room(self, count: int, size: int) -> None:
        if self._closed:
            raise UsageError("This appender is closed; open another one.")
        unsettled, taken = self._dispatcher.unsettled, self._dispatcher.unsettled_bytes
        full = unsettled and taken + size > self._in_flight_bytes_max
        if full or unsettled + count > self._in_flight_max:
            raise BufferFull(
                f"{unsettled} appends ({taken} bytes) to {self._bootstrap} are in flight; wait for "
                f"some outcomes, then append again."
            )

    def _wake(self) -> None:
        with suppress(OSError):  # enough bytes wait there, or the reader has ended
            self._waker.send(b"\0")

    # -- what the keeper brings -------------------------------------------------------------

    def wanted(self, timeout_s: float | None) -> Lacking | None:
        """Wait until something is wanted, at most `timeout_s`; None once the appender has ended."""
        with self._lock:
            if timeout_s is None:
                self._needs.wait_for(lambda: self._ended or any(self._lacking()))
            elif timeout_s > 0 and not self._ended:
                self._needs.wait(timeout_s)
            return None if self._ended else self._lacking()

    def identified(self, identity: ProducerIdentity) -> None:
        """Take the producer's ID."""
        with self._lock:
            self._dispatcher.identity = identity
            for appends in self._dispatcher.partitions.values():
                appends.identity = appends.identity or identity
                self._dispatcher.mark(appends)
            self._go_on()

    def led(self, leaders: Mapping[TopicPartition, int]) -> None:
        """Take the leaders of partitions."""
        with self._lock:
            for partition, leader in leaders.items():
                appends = self._dispatcher.partitions[partition]
                self._dispatcher.leaderless.pop(appends, None)
                self._refusals.pop(partition, None)
                if appends.leader is None:
                    appends.leader = leader
                self._dispatcher.mark(appends)
            self._go_on()

    def connected(self, node: int, opened: socket.socket) -> None:
        """Take an open socket to a broker."""
        with self._lock:
            if self._ended or node in self._dispatcher.links:
                opened.close()
                return
            self._dispatcher.links[node] = Link(node, opened)
            for appends in self._dispatcher.partitions.values():
                if appends.leader == node:
                    self._dispatcher.mark(appends)
            self._wake()
            self._go_on()

    def failed(self, node: int | None, error: AmcastError) -> None:
        """Take why there is no socket to a broker, or (None) no ID or no leader."""
        with self._lock:
            self._dispatcher.trouble = str(error).rstrip(".")
            if node is not None:
                self._dispatcher.lose_leader(node)
            elif isinstance(error, NotAuthorized) and self._dispatcher.identity is None:
                for appends in self._dispatcher.partitions.values():
                    self._refuse(appends.partition, AppendNotAuthorized(str(error)))

    def refused(self, partition: TopicPartition, error: AmcastError) -> None:
        """Take why appends to a partition are refused; the next one asks again."""
        with self._lock:
            self._refuse(partition, error)

    def _refuse(self, partition: TopicPartition, error: AmcastError) -> None:
        self._refusals[partition] = error
        self._dispatcher.refuse(self._dispatcher.partitions[partition], error)
        self._idle.notify_all()

    def _lacking(self) -> Lacking:
        dispatcher = self._dispatcher
        nodes = {appends.leader: None for appends in dispatcher.partitions.values()}
        return Lacking(
            dispatcher.identity is None and bool(dispatcher.partitions),
            [appends.partition for appends in dispatcher.leaderless],
            [node for node in nodes if node is not None and node not in dispatcher.links],
        )

    def _go_on(self) -> None:
        self._dispatcher.send_all(time.monotonic())
        self._dispatcher.look_for_lingering()
        if self._dispatcher.linger_ends < inf:
            self._wake()
        self._idle.notify_all()

    # -- the reader's thread ----------------------------------------------------------------

    def _read(self) -> None:
        while True:
            wait_s = min(_TICK_S, self._dispatcher.linger_ends - time.monotonic())
            # The next whole millisecond, as poll takes no less; else it would return too early.
            ready = self._poll.poll(ceil(1000 * max(0.0, wait_s)))
            with self._lock:
                if self._ended:
                    break
                try:
                    self._take_events(ready)
                except Exception:  # noqa: BLE001
                    # Only a defect comes here. Every record must get its outcome.
                    _LOG.exception("a joint appender ends because of a defect")
                    self._closed = self._ended = True
                    self._needs.notify_all()
                    break
                outcomes = self._taken_outcomes()
            self._report(outcomes)
            del outcomes  # what waits for them may be forgotten meanwhile
        with self._lock:
            self._dispatcher.end("the appender was closed")
            outcomes = self._taken_outcomes()
        self._report(outcomes)
        self._woken.close()
        self._waker.close()

    def _take_events(self, ready: Sequence[tuple[int, int]]) -> None:
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
        dispatcher.send_all(now)
        dispatcher.look_for_lingering()
        for link in list(dispatcher.links.values()):
            if link.broken:
                self._forget(link)
            elif link.polled_events != (events := _SENDING if link.unsent else _RECEIVING):
                # It is ready once an answer comes, or there is room for the rest of a request.
                self._poll.register(link.socket, events)
                self._polled[link.socket.fileno()] = link
                link.polled_events = events

    def _forget(self, link: Link) -> None:
        if link.polled_events:
            self._poll.unregister(link.socket)
            del self._polled[link.socket.fileno()]
        self._dispatcher.drop(link)

    def _taken_outcomes(self) -> list[Settled]:
        outcomes, self._dispatcher.outcomes = self._dispatcher.outcomes, []
        return outcomes

    def _report(self, outcomes: Sequence[Settled]) -> None:
        """Call each `done`, without the lock."""
        if not outcomes:
            return
        for entry, outcome in outcomes:
            try:
                entry.done(outcome)
            except Exception:  # noqa: BLE001
                # The exception would end the reader.
                _LOG.exception("the callback for an append's outcome failed")
        with self._lock:
            self._dispatcher.reported(outcomes)
            if not self._dispatcher.unsettled:
                self._idle.notify_all()
