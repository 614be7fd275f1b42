"""Appends to Kafka partitions over its own sockets, from the caller's thread.

A client's producer hands each record to its own thread and each answer back: it wakes two threads,
which on a virtual machine takes longer than the broker does. Here the caller's thread writes to a
socket, and the thread that waits on all sockets reads the answers.

    in flight   sent and not answered; at most `_IN_FLIGHT_MAX` on each socket
    sockets     at most `_SOCKETS_MAX` to each broker, shared by the partitions that it leads. (A
                broker answers the requests of a socket in order: on a single one, each append
                would wait until all earlier ones are replicated.)
    placed      a partition with a socket to its leader; only such a partition accepts appends

Any error of a socket closes it, and the outcome of all appends in flight on it is unknown. So
nothing is ever sent twice; the caller decides what to do about an unknown outcome. A record that
the brokers refuse for good is certainly not stored.

Invariant: `done` is called exactly once for each accepted append.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kafka import errors as kafka_errors

from multicast.drivers.appender.partition_appends import REFUSED
from multicast.drivers.kafka_python.connection import Connection
from multicast.drivers.kafka_python.fetch_request import frame_size
from multicast.drivers.kafka_python.produce_request import (
    PRODUCE_KEY,
    PRODUCE_VERSION,
    ProduceRequest,
    answered,
    why_refused,
)
from multicast.drivers.kafka_python.sockets import open_socket
from multicast.drivers.protocol import Appended, AppendFailed, AppendOutcome, TopicPartition
from multicast.errors import AmcastError, AppendRefused, AppendUnknown

# A plain choice: appends that wait behind 64 others are better merged by the caller, and `append`
# returns False then. A tenth would refuse appends during one slow replication.
_IN_FLIGHT_MAX = 64
# Appends on different sockets are replicated side by side. With one socket each append waits for
# the one before; ten times more would be 80 sockets to each broker from every process.
_SOCKETS_MAX = 8
# `reconnect` blocks at most this long; a socket that takes longer is taken up by the next call.
_OPENING_S = 2.0
# The pause after a failed attempt: leaders are elected within seconds.
_RETRY_S = 1.0
# A plain choice: an answer is some 50 bytes, so one call reads hundreds of them.
_CHUNK_BYTES = 16 * 1024

Done = Callable[[AppendOutcome], None]
_Key = tuple[int, int]  # a broker, and which of its sockets


class _Sent(NamedTuple):
    number: int
    since: float
    partition: TopicPartition
    done: Done


class _Socket:
    """One socket to one broker, and the appends in flight on it."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.lock = threading.Lock()
        self.broken = False
        self.in_flight: deque[_Sent] = deque()
        self._number = 0
        self._received = bytearray()

    def append(
        self, request: ProduceRequest, partition: TopicPartition, value: bytes, done: Done
    ) -> bool:
        """Send a request; return False if it was not sent. Half a request breaks the socket."""
        with self.lock:
            if self.broken or len(self.in_flight) >= _IN_FLIGHT_MAX:
                return False
            number = self._number + 1
            frame = request.written(number, value, time.time_ns() // 1_000_000)
            try:
                sent = self.socket.send(frame)
            except (BlockingIOError, ssl.SSLWantWriteError):
                return False
            except OSError:
                sent = 0
            if sent == len(frame):
                self._number = number
                self.in_flight.append(_Sent(number, time.monotonic(), partition, done))
                return True
            self.broken = True
            return False

    def receive(self, outcomes: list[tuple[_Sent, AppendOutcome]]) -> None:
        """Add the outcomes of the answers that have arrived; any error breaks the socket."""
        with self.lock:
            if self.broken:
                return
            try:
                self._read()
                self._decode(outcomes)
            except (OSError, AmcastError, struct.error):
                self.broken = True

    def overdue(self, since: float) -> bool:
        """Return whether the socket is broken, as it is if its oldest request is from before."""
        with self.lock:
            if self.in_flight and self.in_flight[0].since < since:
                self.broken = True
            return self.broken

    def lost(self) -> list[_Sent]:
        """Remove and return what was in flight on a broken socket."""
        with self.lock:
            lost, self.in_flight = list(self.in_flight), deque()
        return lost

    def _read(self) -> None:
        while True:
            try:
                chunk = self.socket.recv(_CHUNK_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            if not chunk:
                raise ConnectionResetError("The broker closed the connection.")
            self._received += chunk
            if len(chunk) < _CHUNK_BYTES and not isinstance(self.socket, ssl.SSLSocket):
                return

    def _decode(self, outcomes: list[tuple[_Sent, AppendOutcome]]) -> None:
        while (size := frame_size(self._received)) is not None and size <= len(self._received):
            if not self.in_flight:
                raise ConnectionResetError("The broker sent an answer without a request.")
            stored = answered(self._received, self.in_flight[0].number)
            del self._received[:size]
            sent = self.in_flight.popleft()
            outcome: AppendOutcome = Appended(stored.offset)
            if stored.error:
                outcome = AppendFailed(_failure(sent.partition, stored.error))
            outcomes.append((sent, outcome))


def _failure(partition: TopicPartition, code: int) -> AmcastError:
    name = f"{partition.topic}/{partition.partition}"
    why = why_refused(code)
    if code in REFUSED:
        return AppendRefused(f"The brokers refused a record for {name}: {why}.")
    return AppendUnknown(f"It is unknown whether {name} holds the record: {why}.")


class _Place(NamedTuple):
    socket: _Socket
    request: ProduceRequest


class KafkaPythonDirectAppender:
    """Appends to the Kafka partitions that were added; `reconnect` opens the first sockets."""

    def __init__(self, open_connection: Callable[[], Connection], *, timeout_s: float) -> None:
        self._open_connection = open_connection
        self._connection: Connection | None = None
        self._timeout_s = timeout_s
        self._lock = threading.Lock()  # of what follows
        self._wanted: dict[TopicPartition, None] = {}
        self._places: dict[TopicPartition, _Place] = {}
        self._sockets: dict[_Key, _Socket] = {}
        self._selector = selectors.DefaultSelector()
        self._closed = False
        # Used only by the thread that calls `reconnect`:
        self._finding: Any = None  # the package's future for the leaders
        self._openings: dict[_Key, Any] = {}  # the package's futures for sockets
        self._retry_at = 0.0

    def add(self, partitions: Sequence[TopicPartition]) -> None:
        """Keep a socket for these."""
        with self._lock:
            self._wanted.update(dict.fromkeys(partitions))

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Refuse appends to these from now on."""
        with self._lock:
            for partition in partitions:
                self._wanted.pop(partition, None)
                self._places.pop(partition, None)

    def append(self, partition: TopicPartition, value: bytes, *, done: Done) -> bool:
        """Send a record; return False if no socket is open for it, or too much is in flight."""
        place = self._places.get(partition)
        return place is not None and place.socket.append(place.request, partition, value, done)

    def fileno(self) -> int:
        """Return a file descriptor that is readable while any socket is."""
        return self._selector.fileno()

    def receive(self) -> None:
        """Settle the appends whose answers have arrived, without waiting."""
        if self._closed:
            return
        outcomes: list[tuple[_Sent, AppendOutcome]] = []
        for key, _ in self._selector.select(0):
            key.data.receive(outcomes)
        for sent, outcome in outcomes:
            if isinstance(outcome, AppendFailed):  # another broker may lead the partition now
                with self._lock:
                    self._places.pop(sent.partition, None)
            sent.done(outcome)
        self._drop_broken()

    def reconnect(self) -> None:
        """Close sockets that do not answer, and open missing ones."""
        now = time.monotonic()
        for connected in list(self._sockets.values()):
            connected.overdue(now - self._timeout_s)
        self._drop_broken()
        with self._lock:
            missing = [partition for partition in self._wanted if partition not in self._places]
            if not missing or self._closed or now < self._retry_at:
                return
        try:
            self._open(missing, now + _OPENING_S)
        except (kafka_errors.KafkaError, AmcastError, OSError):
            self._retry_at = time.monotonic() + _RETRY_S

    def close(self) -> None:
        """Close the sockets; appends without an answer have an unknown outcome."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for connected in self._sockets.values():
                connected.broken = True
        self._drop_broken()
        self._selector.close()
        if self._connection is not None:
            self._connection.close()
        # The loop may have finished opening a socket in its last run.
        for opening in self._openings.values():
            if opening.is_done and opening.exception is None:
                opening.value.close()

    # -- sockets ----------------------------------------------------------------------------

    def _drop_broken(self) -> None:
        """Close broken sockets, and settle what was in flight on them as unknown."""
        with self._lock:
            broken = {key: used for key, used in self._sockets.items() if used.broken}
            for key, used in broken.items():
                del self._sockets[key]
                self._selector.unregister(used.socket)
                used.socket.close()
            for lost in [log for log, place in self._places.items() if place.socket.broken]:
                del self._places[lost]
        for used in broken.values():
            for sent in used.lost():
                name = f"{sent.partition.topic}/{sent.partition.partition}"
                unknown = AppendUnknown(
                    f"It is unknown whether {name} holds the record: the connection broke before "
                    f"the answer arrived."
                )
                sent.done(AppendFailed(unknown))

    def _open(self, missing: Sequence[TopicPartition], deadline: float) -> None:
        """Find leaders and open sockets, or continue what an earlier call did not finish."""
        if self._connection is None:
            self._connection = self._open_connection()
        net = self._connection.net
        if self._finding is None:
            self._finding = net.call_soon_with_future(self._find, missing)
        self._drive([self._finding], deadline)
        if not self._finding.is_done:
            return
        finding, self._finding = self._finding, None
        if finding.exception is not None:
            raise finding.exception
        keys: dict[TopicPartition, _Key] = {}
        for leader, led in finding.value.items():
            keys.update((log, (leader, log.partition % _SOCKETS_MAX)) for log in led)
        for key in dict.fromkeys(keys.values()):
            if key not in self._sockets and key not in self._openings:
                self._openings[key] = net.call_soon_with_future(
                    open_socket, self._connection, key[0], PRODUCE_KEY, PRODUCE_VERSION
                )
        self._drive(self._openings.values(), deadline)
        self._take_opened()
        self._place(keys)
        if not self._places.keys() >= set(missing):
            self._retry_at = time.monotonic() + _RETRY_S

    def _drive(self, futures: Iterable[Any], deadline: float) -> None:
        assert self._connection is not None
        for future in list(futures):
            left_s = max(0.0, deadline - time.monotonic())
            self._connection.net.poll(timeout_ms=1000 * left_s, future=future)

    def _take_opened(self) -> None:
        """Register the sockets that are open; a later call retries those that failed."""
        for key, opening in list(self._openings.items()):
            if not opening.is_done:
                continue
            del self._openings[key]
            if opening.exception is not None:
                continue
            with self._lock:
                opened = self._sockets[key] = _Socket(opening.value)
                self._selector.register(opened.socket, selectors.EVENT_READ, opened)

    def _place(self, keys: dict[TopicPartition, _Key]) -> None:
        assert self._connection is not None
        client_id = self._connection.manager.config["client_id"]
        timeout_ms = int(1000 * self._timeout_s)
        with self._lock:
            for partition, key in keys.items():
                if partition in self._wanted and key in self._sockets:
                    request = ProduceRequest(client_id, partition, timeout_ms=timeout_ms)
                    self._places[partition] = _Place(self._sockets[key], request)

    async def _find(self, missing: Sequence[TopicPartition]) -> dict[int, list[TopicPartition]]:
        connection = self._connection
        assert connection is not None
        connection.follow(missing)
        await connection.cluster.refresh_metadata()
        leaders = await connection.leaders(missing)
        if not leaders:
            raise kafka_errors.LeaderNotAvailableError(missing[0].topic)
        return leaders
