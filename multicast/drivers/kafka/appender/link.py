"""A socket to one broker, and the requests in flight on it. Not thread-safe.

The socket does not block. What it does not take of a request is kept and sent by `continue_sending`
when the socket has room; until then no other request may be sent. Any error breaks the link.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Sequence

from multicast.drivers.appender.link import AnsweredBatch, Link, SentBatch
from multicast.drivers.kafka.appender.request import answered, written
from multicast.drivers.kafka.fetch_request import frame_size
from multicast.errors import AmcastError

# A plain choice: an answer is some 50 bytes for each partition, so one call reads hundreds.
_CHUNK_BYTES = 16 * 1024


class SocketLink(Link):
    """A socket to broker `node`; `settings` is what all its requests have in common."""

    def __init__(self, node: int, opened: socket.socket, settings: bytes) -> None:
        super().__init__(node)
        self.socket = opened
        self._settings = settings
        # The pieces of a request that the socket did not take yet.
        self.unsent: deque[bytes | memoryview] = deque()
        self.polled_events = 0  # what the reader waits for
        self._received = b""

    @property
    def is_sending(self) -> bool:
        """Whether the socket has not taken all of a request."""
        return bool(self.unsent)

    def send(self, batches: Sequence[SentBatch], now: float) -> None:
        """Send a request with these batches, or the part that the socket takes now."""
        number = self._start(batches, now)
        encoded = [(appends.partition, batch.written) for appends, batch in batches]
        self.unsent.extend(written(number, self._settings, encoded))
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

    def receive(self) -> list[AnsweredBatch]:
        """Return what the answers that have arrived say of each batch, in order."""
        answers: list[AnsweredBatch] = []
        try:
            self._read()
            received = self._received
            while received and (size := frame_size(received)) and size <= len(received):
                if not self._in_flight:
                    raise ConnectionResetError("the broker sent an answer without a request")
                answers += self._answered(answered(received, self._in_flight[0][0]))
                self._received = received = received[size:]
        except KeyError:
            self.broken = "the broker's answer leaves a partition out"
        except (OSError, AmcastError) as error:
            self.broken = str(error) or repr(error)
        return answers

    def close(self) -> list[SentBatch]:
        """Close the socket; the batches without an answer, in order."""
        self.socket.close()
        self.unsent.clear()
        return super().close()

    def _holds_decrypted(self) -> bool:
        """Whether a part of what was received waits where no poll sees it."""
        return isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0

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
            if len(chunk) < _CHUNK_BYTES and not self._holds_decrypted():
                return
