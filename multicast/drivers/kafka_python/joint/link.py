"""A socket to one broker, and the requests in flight on it. Not thread-safe.

The socket does not block. What it does not take of a request is kept and sent by `continue_sending`
when the socket has room; until then no other request may be sent. Any error breaks the link.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Sequence

from multicast.drivers.appender.partition_appends import NumberedBatch, PartitionAppends
from multicast.drivers.kafka_python.fetch_request import frame_size
from multicast.drivers.kafka_python.joint.request import answered, written
from multicast.errors import AmcastError

# A plain choice: an answer is some 50 bytes for each partition, so one call reads hundreds.
_CHUNK_BYTES = 16 * 1024


SentBatch = tuple[PartitionAppends, NumberedBatch]
# Its number, when it was sent (seconds of a monotonic clock), and its batches.
_Request = tuple[int, float, Sequence[SentBatch]]


class Link:
    """A socket to broker `node`; `broken` says why it is of no use any more."""

    def __init__(self, node: int, opened: socket.socket) -> None:
        self.node = node
        self.socket = opened
        self.broken = ""
        self.ready: dict[PartitionAppends, None] = {}  # that may have something to send here
        self._in_flight: deque[_Request] = deque()
        # The pieces of a request that the socket did not take yet.
        self.unsent: deque[bytes | memoryview] = deque()
        self.polled_events = 0  # what the reader waits for
        self._number = 0
        self._received = b""

    def may_send(self, requests_max: int) -> bool:
        """Return whether one more request may be sent, if at most so many are in flight."""
        return not self.broken and not self.unsent and len(self._in_flight) < requests_max

    def send(self, batches: Sequence[SentBatch], settings: bytes, now: float) -> None:
        """Send a request with these batches, or the part that the socket takes now."""
        self._number = (self._number + 1) & 0x7FFFFFFF
        encoded = [(appends.partition, batch.written) for appends, batch in batches]
        self._in_flight.append((self._number, now, batches))
        self.unsent.extend(written(self._number, settings, encoded))
        self.continue_sending()

    def continue_sending(self) -> None:
        """Send more of the request that is not sent yet."""
        try:
            while self.unsent:
                piece = self.unsent[0]
                sent = self.socket.send(piece)
                if sent < len(piece):
                    self.unsent[0] = memoryview(piece)[sent:]
                else:
                    self.unsent.popleft()
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            self.broken = str(error) or repr(error)

    def receive(self) -> list[tuple[PartitionAppends, NumberedBatch, int, int]]:
        """Return what the answers that have arrived say of each batch, in order.

        That is Kafka's error code (0: none), and the offset of the batch's first record.
        """
        answers: list[tuple[PartitionAppends, NumberedBatch, int, int]] = []
        try:
            self._read()
            received = self._received
            while received and (size := frame_size(received)) and size <= len(received):
                if not self._in_flight:
                    raise ConnectionResetError("the broker sent an answer without a request")
                number, _, batches = self._in_flight[0]
                said = answered(received, number)
                for appends, batch in batches:
                    code, offset = said[appends.partition]
                    answers.append((appends, batch, code, offset))
                self._received = received = received[size:]
                self._in_flight.popleft()
        except KeyError:
            self.broken = "the broker's answer leaves a partition out"
        except (OSError, AmcastError) as error:
            self.broken = str(error) or repr(error)
        return answers

    def overdue(self, since: float) -> bool:
        """Return whether the oldest request was sent before that time."""
        return bool(self._in_flight) and self._in_flight[0][1] < since

    def close(self) -> list[SentBatch]:
        """Close the socket; the batches without an answer, in order."""
        self.broken = self.broken or "closed"
        self.socket.close()
        unanswered = [sent for _, _, batches in self._in_flight for sent in batches]
        self._in_flight.clear()
        self.unsent.clear()
        return unanswered

    def _read(self) -> None:
        while True:
            try:
                chunk = self.socket.recv(_CHUNK_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if not chunk:
                if not self.broken:
                    self.broken = "the broker closed the connection"
                return
            self._received += chunk
            if len(chunk) < _CHUNK_BYTES and not isinstance(self.socket, ssl.SSLSocket):
                return
