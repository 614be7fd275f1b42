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
        self._gathers = not isinstance(opened, ssl.SSLSocket)  # may send pieces by one call
        self._held: tuple[int, Sequence[SentBatch]] | None = None  # a request to be written
        self.polled_events = 0  # what the reader waits for
        self._received = b""

    @property
    def is_sending(self) -> bool:
        """Whether the socket has not taken all of a request."""
        return bool(self.unsent) or self.is_held

    @property
    def is_held(self) -> bool:
        """Whether a request is to be written, or is being written, by who held it."""
        return self._held is not None

    def send(self, batches: Sequence[SentBatch], now: float) -> None:
        """Send a request with these batches, or the part that the socket takes now."""
        self.hold(batches, now)
        self.write_held()
        self.release()

    def hold(self, batches: Sequence[SentBatch], now: float) -> None:
        """Start a request that `write_held` writes; until `release` nobody else may write."""
        self._held = self._start(batches, now), batches

    def write_held(self) -> None:
        """Encode, compress and send the request that is held: needs no lock."""
        assert self._held is not None
        number, batches = self._held
        encoded = [(appends.partition, batch.written) for appends, batch in batches]
        self.unsent.extend(written(number, self._settings, encoded))
        self.continue_sending()

    def release(self) -> None:
        """Let others write."""
        self._held = None

    def continue_sending(self) -> None:
        """Send more of the request that is not sent yet."""
        try:
            while self.unsent:
                # One call: between two, other threads may keep this one waiting for 5 ms.
                sent = self.socket.sendmsg(self.unsent) if self._gathers else 0
                sent = sent or self.socket.send(self.unsent[0])
                while self.unsent and sent >= len(self.unsent[0]):
                    sent -= len(self.unsent.popleft())
                if sent:
                    self.unsent[0] = memoryview(self.unsent[0])[sent:]
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
