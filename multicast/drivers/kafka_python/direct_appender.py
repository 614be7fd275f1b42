"""Appends to Kafka partitions over sockets of its own, from the caller's thread.

A client's producer hands each record to a thread of its own, and each answer back: two threads to
wake, which on a virtual machine costs more than the broker takes. Here the caller's thread writes
to a socket, and whoever waits on all of them reads the answers.

    in flight   sent, and not answered yet; at most `_IN_FLIGHT_MAX` on a socket
    sockets     at most `_SOCKETS_MAX` to each broker, shared by the partitions that it leads. (A
                broker answers a socket's requests one after the other: with a single one, each
                append would wait for all those before it to be replicated.)
    placed      a partition that has a socket to its leader; nothing is taken for any other

A socket is closed on any error, and the outcome of all that is in flight on it is unknown. So
nothing is ever sent twice, and what the caller makes of a doubt is its own business.

Invariant: `done` is called once for each append that was taken.
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

from multicast.drivers.kafka_python.connection import Connection
from multicast.drivers.kafka_python.fetch_request import frame_size
from multicast.drivers.kafka_python.produce_request import (
    PRODUCE_KEY,
    PRODUCE_VERSION,
    ProduceRequest,
    answered,
)
from multicast.drivers.kafka_python.sockets import open_socket
from multicast.drivers.protocol import Appended, AppendFailed, AppendOutcome, TopicPartition
from multicast.errors import AmcastError, AppendUnknown

_IN_FLIGHT_MAX = 64
_SOCKETS_MAX = 8
_OPENING_S = 2.0
_AGAIN_S = 1.0
_CHUNK_BYTES = 16 * 1024

Done = Callable[[AppendOutcome], None]
_Key = tuple[int, int]  # a broker, and which of its sockets


class _Sent(NamedTuple):
    number: int
    since: float
    partition: TopicPartition
    done: Done


class _Socket:
    """One socket to one broker, and what is in flight on it."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.lock = threading.Lock()
        self.broken = False
        self.in_flight: deque[_Sent] = deque()
        self._number = 0
        self._begun = bytearray()

    def append(
        self, request: ProduceRequest, partition: TopicPartition, value: bytes, done: Done
    ) -> bool:
        """Send a request; False where it was not taken. Half a request breaks the socket."""
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
        """Take the answers that have come; any error breaks the socket."""
        with self.lock:
            if self.broken:
                return
            try:
                self._read()
                self._take(outcomes)
            except (OSError, AmcastError, struct.error):
                self.broken = True

    def overdue(self, since: float) -> bool:
        """Whether the oldest request was sent before that time; its socket is broken then."""
        with self.lock:
            if self.in_flight and self.in_flight[0].since < since:
                self.broken = True
            return self.broken

    def lost(self) -> list[_Sent]:
        """Give what was in flight on a broken socket, once."""
        with self.lock:
            gone, self.in_flight = list(self.in_flight), deque()
        return gone

    def _read(self) -> None:
        while True:
            try:
                chunk = self.socket.recv(_CHUNK_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            if not chunk:
                raise ConnectionResetError("The broker closed the connection.")
            self._begun += chunk
            if len(chunk) < _CHUNK_BYTES and not isinstance(self.socket, ssl.SSLSocket):
                return

    def _take(self, outcomes: list[tuple[_Sent, AppendOutcome]]) -> None:
        while (size := frame_size(self._begun)) is not None and size <= len(self._begun):
            if not self.in_flight:
                raise ConnectionResetError("The broker answered what was not asked.")
            stored = answered(self._begun, self.in_flight[0].number)
            del self._begun[:size]
            sent = self.in_flight.popleft()
            outcome: AppendOutcome = Appended(stored.offset)
            if stored.error:
                error = kafka_errors.for_code(stored.error)
                name = f"{sent.partition.topic}/{sent.partition.partition}"
                unknown = AppendUnknown(f"Whether {name} holds the record is unknown: {error}.")
                outcome = AppendFailed(unknown)
            outcomes.append((sent, outcome))


class _Place(NamedTuple):
    socket: _Socket
    request: ProduceRequest


class KafkaPythonDirectAppender:
    """Appends to any Kafka partitions that were added; begins without a socket: `mend` opens."""

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
        # Of the thread that mends:
        self._finding: Any = None  # the package's future of leaders
        self._openings: dict[_Key, Any] = {}  # the package's futures of sockets
        self._again_at = 0.0

    def add(self, partitions: Sequence[TopicPartition]) -> None:
        """Keep a socket for these, too."""
        with self._lock:
            self._wanted.update(dict.fromkeys(partitions))

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Append to these no longer."""
        with self._lock:
            for one in partitions:
                self._wanted.pop(one, None)
                self._places.pop(one, None)

    def append(self, partition: TopicPartition, value: bytes, *, done: Done) -> bool:
        """Send a record; False where no socket is open for it now, or no room."""
        place = self._places.get(partition)
        return place is not None and place.socket.append(place.request, partition, value, done)

    def fileno(self) -> int:
        """Give what to wait on: it is readable while any socket is."""
        return self._selector.fileno()

    def receive(self) -> None:
        """Take the answers that have come, without waiting."""
        if self._closed:
            return
        told: list[tuple[_Sent, AppendOutcome]] = []
        for key, _ in self._selector.select(0):
            key.data.receive(told)
        for sent, outcome in told:
            if isinstance(outcome, AppendFailed):  # perhaps somebody else leads it by now
                with self._lock:
                    self._places.pop(sent.partition, None)
            sent.done(outcome)
        self._drop_broken()

    def reconnect(self) -> None:
        """Close sockets that do not answer, and open those that are missing."""
        now = time.monotonic()
        for one in list(self._sockets.values()):
            one.overdue(now - self._timeout_s)
        self._drop_broken()
        with self._lock:
            missing = [at for at in self._wanted if at not in self._places]
            if not missing or self._closed or now < self._again_at:
                return
        try:
            self._open(missing, now + _OPENING_S)
        except (kafka_errors.KafkaError, AmcastError, OSError):
            self._again_at = time.monotonic() + _AGAIN_S

    def close(self) -> None:
        """Close the sockets; what has no answer yet has an unknown outcome."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for one in self._sockets.values():
                one.broken = True
        self._drop_broken()
        self._selector.close()
        if self._connection is not None:
            self._connection.close()
        # The loop's last turn may have brought a socket that was being opened.
        for opening in self._openings.values():
            if opening.is_done and opening.exception is None:
                opening.value.close()

    # -- inside -----------------------------------------------------------------------------

    def _drop_broken(self) -> None:
        """Close broken sockets, and report what was in flight on them: nobody knows."""
        with self._lock:
            broken = {key: one for key, one in self._sockets.items() if one.broken}
            for key, one in broken.items():
                del self._sockets[key]
                self._selector.unregister(one.socket)
                one.socket.close()
            for at in [at for at, place in self._places.items() if place.socket.broken]:
                del self._places[at]
        for one in broken.values():
            for sent in one.lost():
                unknown = AppendUnknown("The connection broke before the answer came.")
                sent.done(AppendFailed(unknown))

    def _open(self, missing: Sequence[TopicPartition], deadline: float) -> None:
        """Find leaders and open sockets, or go on with what took too long the last time."""
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
            keys.update((at, (leader, at.partition % _SOCKETS_MAX)) for at in led)
        for key in dict.fromkeys(keys.values()):
            if key not in self._sockets and key not in self._openings:
                self._openings[key] = net.call_soon_with_future(
                    open_socket, self._connection, key[0], PRODUCE_KEY, PRODUCE_VERSION
                )
        self._drive(self._openings.values(), deadline)
        self._take_opened()
        self._place(keys)
        if not self._places.keys() >= set(missing):
            self._again_at = time.monotonic() + _AGAIN_S

    def _drive(self, futures: Iterable[Any], deadline: float) -> None:
        assert self._connection is not None
        for future in list(futures):
            left_s = max(0.0, deadline - time.monotonic())
            self._connection.net.poll(timeout_ms=1000 * left_s, future=future)

    def _take_opened(self) -> None:
        """Keep the sockets that are open; what could not be opened is tried again later."""
        for key, opening in list(self._openings.items()):
            if not opening.is_done:
                continue
            del self._openings[key]
            if opening.exception is not None:
                continue
            with self._lock:
                made = self._sockets[key] = _Socket(opening.value)
                self._selector.register(made.socket, selectors.EVENT_READ, made)

    def _place(self, keys: dict[TopicPartition, _Key]) -> None:
        assert self._connection is not None
        client_id = self._connection.manager.config["client_id"]
        timeout_ms = int(1000 * self._timeout_s)
        with self._lock:
            for at, key in keys.items():
                if at in self._wanted and key in self._sockets:
                    request = ProduceRequest(client_id, at, timeout_ms=timeout_ms)
                    self._places[at] = _Place(self._sockets[key], request)

    async def _find(self, missing: Sequence[TopicPartition]) -> dict[int, list[TopicPartition]]:
        connection = self._connection
        assert connection is not None
        connection.follow(missing)
        await connection.cluster.refresh_metadata()
        found = await connection.leaders(missing)
        if not found:
            raise kafka_errors.LeaderNotAvailableError(missing[0].topic)
        return found
