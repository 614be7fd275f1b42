"""Appends to one Kafka partition over a socket of its own, from the caller's thread.

A client's producer hands each record to a thread of its own, and each answer back: two threads to
wake, which on a virtual machine costs more than the broker takes. Here the caller's thread writes
to the socket, and whoever waits on it reads the answer.

    in flight   sent, and not answered yet; at most `_IN_FLIGHT_MAX`
    line        a socket to the leader; None while there is none: then nothing is taken

A line is given up on any error, and with it all that is in flight: outcome unknown. So nothing is
ever sent twice, and what the caller makes of a doubt is its own business.

Invariant: `done` is called once for each append that was taken.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from kafka import errors as kafka_errors

from multicast.errors import AmcastError, AppendUnknown
from multicast.kafka_python.connection import Connection
from multicast.kafka_python.ends_request import frame_size
from multicast.kafka_python.produce_request import PRODUCE_KEY, PRODUCE_VERSION, ProduceRequest
from multicast.kafka_python.sockets import open_socket
from multicast.log import Appended, AppendFailed, AppendOutcome, TopicPartition

_IN_FLIGHT_MAX = 64
_OPENING_S = 2.0
_AGAIN_S = 1.0
_CHUNK_BYTES = 16 * 1024


class _Sent(NamedTuple):
    number: int
    at: float
    done: Callable[[AppendOutcome], None]


class KafkaPythonDirect:
    """Appends to one Kafka partition; begins without a line, `mend` opens it."""

    def __init__(
        self, open_connection: Callable[[], Connection], at: TopicPartition, *, timeout_s: float
    ) -> None:
        self._open_connection = open_connection
        self._connection: Connection | None = None
        self._at = at
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._request: ProduceRequest | None = None
        self._in_flight: list[_Sent] = []
        self._begun = bytearray()
        self._opening: Any = None  # the package's future of a socket
        self._again_at = 0.0
        self._closed = False

    def append(self, value: bytes, *, done: Callable[[AppendOutcome], None]) -> bool:
        """Send a record; False where there is no line now, or no room."""
        with self._lock:
            if self._socket is None or len(self._in_flight) >= _IN_FLIGHT_MAX:
                return False
            assert self._request is not None
            frame = self._request.written(value, time.time_ns() // 1_000_000)
            try:
                sent = self._socket.send(frame)
            except (BlockingIOError, ssl.SSLWantWriteError):
                return False
            except OSError:
                sent = 0
            if sent == len(frame):
                self._in_flight.append(_Sent(self._request.number, time.monotonic(), done))
                return True
            # Half a request makes the line useless; who receives or mends tells those in flight.
            self._break()
            return False

    def fileno(self) -> int:
        """Give the socket to wait on; -1 while there is none."""
        opened = self._socket
        return -1 if opened is None else opened.fileno()

    def receive(self) -> None:
        """Take the answers that have come, without waiting."""
        told: list[tuple[Callable[[AppendOutcome], None], AppendOutcome]] = []
        with self._lock:
            opened, request = self._socket, self._request
            if opened is not None and request is not None:
                try:
                    self._read(opened)
                    self._answers(request, told)
                except (OSError, AmcastError):
                    self._break()
        for done, outcome in told:
            done(outcome)
        self._tell_broken()

    def mend(self) -> None:
        """Give up a line that does not answer, and open one where there is none."""
        now = time.monotonic()
        with self._lock:
            if self._in_flight and now - self._in_flight[0].at > self._timeout_s:
                self._break()
            wanted = self._socket is None and now >= self._again_at and not self._closed
        self._tell_broken()
        if not wanted:
            return
        try:
            self._open()
        except (kafka_errors.KafkaError, AmcastError, OSError):
            self._again_at = time.monotonic() + _AGAIN_S

    def close(self) -> None:
        """Close the line; what has no answer yet has an unknown outcome."""
        with self._lock:
            self._closed = True
            self._break()
        self._tell_broken()
        if self._connection is not None:
            self._connection.close()
        # The loop's last turn may have brought a socket that was being opened.
        opening, self._opening = self._opening, None
        if opening is not None and opening.is_done and opening.exception is None:
            opening.value.close()

    # -- inside -----------------------------------------------------------------------------

    def _read(self, opened: socket.socket) -> None:
        while True:
            try:
                chunk = opened.recv(_CHUNK_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            if not chunk:
                raise ConnectionResetError("The broker closed the connection.")
            self._begun += chunk
            if len(chunk) < _CHUNK_BYTES and not isinstance(opened, ssl.SSLSocket):
                return

    def _answers(
        self,
        request: ProduceRequest,
        told: list[tuple[Callable[[AppendOutcome], None], AppendOutcome]],
    ) -> None:
        while (size := frame_size(self._begun)) is not None and size <= len(self._begun):
            stored = request.answered(self._begun)
            del self._begun[:size]
            if not self._in_flight or self._in_flight[0].number != stored.number:
                raise ConnectionResetError("The broker answered out of order.")
            if stored.error:
                raise ConnectionResetError(str(kafka_errors.for_code(stored.error)))
            told.append((self._in_flight.pop(0).done, Appended(stored.offset)))

    def _break(self) -> None:
        """Have no line any longer; the lock is held."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _tell_broken(self) -> None:
        """Say of what was in flight on a line that broke that nobody knows."""
        with self._lock:
            if self._socket is not None or not self._in_flight:
                return
            lost, self._in_flight = self._in_flight, []
        for one in lost:
            one.done(AppendFailed(AppendUnknown("The connection broke before the answer came.")))

    def _open(self) -> None:
        """Open a line, or go on with an opening that took too long the last time."""
        if self._connection is None:
            self._connection = self._open_connection()
        net = self._connection.net
        if self._opening is None:
            self._opening = net.call_soon_with_future(self._open_at_leader)
        net.poll(timeout_ms=1000 * _OPENING_S, future=self._opening)
        if not self._opening.is_done:
            return
        opening, self._opening = self._opening, None
        if opening.exception is not None:
            raise opening.exception
        client_id = self._connection.manager.config["client_id"]
        with self._lock:
            self._request = ProduceRequest(
                client_id, self._at, timeout_ms=int(1000 * self._timeout_s)
            )
            self._begun.clear()
            self._socket = opening.value

    async def _open_at_leader(self) -> socket.socket:
        connection = self._connection
        assert connection is not None
        connection.follow([self._at])
        await connection.cluster.refresh_metadata()
        leader = connection.leader(self._at)
        if leader is None:
            raise kafka_errors.LeaderNotAvailableError(self._at.topic)
        return await open_socket(connection, leader, PRODUCE_KEY, PRODUCE_VERSION)
