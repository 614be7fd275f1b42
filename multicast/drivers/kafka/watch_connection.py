"""A connection to one broker over which a watcher keeps requesting the ends of logs.

A long poll that waits for one byte of any log returns the moment a log grows, but with a whole
batch of it, however large (KIP-74). Therefore each request first names a *sentinel record*: a
small record in a Kafka partition on the same broker, which is fetched again each time.

    B           the bytes of the sentinel's batch, as the broker sends it
    bytes_min   B + 1: the sentinel alone is too little, so the broker waits; a log that has grown
                adds one byte (its own limit), and the broker answers
    bytes_max   B + 1, because a broker lowers bytes_min to bytes_max; after the sentinel's batch
                the one byte that is left admits no other batch

So an answer has B bytes and a few numbers for each log, whatever the size of the messages. If the
broker leads no sentinel, or the sentinel does not work (below), bytes_min is 1 and an answer holds
one batch of messages.

    wrong       an answer that reports growth only after its full wait, or that comes early and
                reports nothing; after several wrong answers the sentinel is dropped

Invariant: outstanding requests <= 1.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections import Counter
from dataclasses import dataclass

from multicast.drivers.kafka.fetch_request import (
    EndsRequest,
    FetchAnswer,
    FetchPartition,
    frame_size,
)
from multicast.drivers.protocol import TopicPartition

# More than any sentinel record takes. The broker returns a first batch whole in any case (KIP-74).
_SENTINEL_BYTES_MAX = 1024 * 1024
# A plain choice: one call reads the numbers (30 bytes each) of about a thousand logs.
_CHUNK_BYTES = 32 * 1024
# Consecutive wrong answers before the sentinel is dropped: a slow broker or a paused process can
# cause a single one. With ten times more, ends would be reported late for 15 s.
_WRONG_MAX = 3
_JUDGED_WAIT_S = 0.1  # after a shorter wait, an answer in time may seem late


@dataclass(slots=True)
class SentinelRecord:
    """The record that a broker sends in place of messages; `size` is 0 until it is measured."""

    partition: TopicPartition
    offset: int
    size: int = 0


class WatchConnection:
    """A socket to one broker and the logs that are watched over it.

    Times in s come as arguments (`now`), of any monotonic clock.
    """

    def __init__(
        self,
        sock: socket.socket,
        client_id: str,
        sentinel: SentinelRecord | None,
        counts: Counter[str],
    ) -> None:
        self.sentinel, self._counts = sentinel, counts
        self.logs: dict[TopicPartition, int] = {}  # to the last known end
        self._highs: dict[TopicPartition, int] = {}  # high watermarks above the end
        self.due = False  # an answer is outstanding
        self.requested_at = 0.0
        self.pause_until = 0.0  # the broker's throttle time
        self._wait_s = 0.0
        self._wrong = 0
        self._socket = sock
        self._client_id = client_id
        self._received = bytearray()
        self._request: EndsRequest | None = None
        self._stale = True

    def fileno(self) -> int:
        """Return the file descriptor to wait on while an answer is due."""
        return self._socket.fileno()

    def add(self, partition: TopicPartition, end: int) -> None:
        """Watch this log from its end on."""
        self.logs[partition] = end
        self._stale = True

    def remove(self, partition: TopicPartition) -> None:
        """Stop watching this log."""
        del self.logs[partition]
        self._highs.pop(partition, None)
        self._stale = True

    def request(self, now: float, *, wait_s: float, timeout_s: float) -> None:
        """Send the request; raises OSError if the socket does not accept it in `timeout_s`."""
        assert not self.due
        sentinel = self.sentinel
        if self._stale or self._request is None:
            wanted = [FetchPartition(log, end, 1) for log, end in self.logs.items()]
            if sentinel is not None:
                first = FetchPartition(sentinel.partition, sentinel.offset, _SENTINEL_BYTES_MAX)
                wanted.insert(0, first)
            self._request = EndsRequest(self._client_id, wanted)
            self._stale = False
        enough = sentinel.size + 1 if sentinel is not None and sentinel.size else 1
        written = self._request.written(
            wait_ms=int(wait_s * 1000), bytes_min=enough, bytes_max=enough
        )
        self.due, self.requested_at, self._wait_s = True, now, wait_s
        self._counts["requests"] += 1
        self._send(memoryview(written), timeout_s)

    def receive(self, now: float) -> list[FetchAnswer] | None:
        """Read the answer; return the logs whose end moved or that failed; None if incomplete.

        A moved end is stored and not returned again. Raises OSError if the connection is broken.
        """
        assert self.due
        assert self._request is not None
        size = None
        while size is None or len(self._received) < size:
            try:
                chunk = self._socket.recv(_CHUNK_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                return None
            if not chunk:
                raise ConnectionResetError("The broker closed the connection.")
            self._received += chunk
            size = frame_size(self._received)
        self._counts["bytes"] += size
        throttle_ms, answers = self._request.answered(self._received)
        self._received = bytearray()
        self.due = False
        self.pause_until = now + throttle_ms / 1000
        return self._events(answers, now)

    def highs(self) -> list[tuple[TopicPartition, int]]:
        """List the high watermarks above the end, as last reported."""
        return list(self._highs.items())

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _events(self, answers: list[FetchAnswer], now: float) -> list[FetchAnswer]:
        """Store the numbers of an answer; return the parts with a moved end or an error."""
        events = []
        used = self.sentinel is not None and self.sentinel.size > 0
        for answer in answers:
            known = self.logs.get(answer.partition)
            if known is None:
                if self.sentinel is not None and answer.partition == self.sentinel.partition:
                    used = self._check_sentinel(self.sentinel, answer) and used
                continue
            if answer.error:
                events.append(answer)
                continue
            if answer.high > answer.end:
                self._highs[answer.partition] = answer.high
            else:
                self._highs.pop(answer.partition, None)
            if answer.end > known:
                self.logs[answer.partition] = answer.end
                if not self._stale and self._request is not None:
                    self._request.move(answer.partition, answer.end)
                events.append(answer)
        if used:
            self._judge(bool(events), now - self.requested_at)
        return events

    def _check_sentinel(self, sentinel: SentinelRecord, answer: FetchAnswer) -> bool:
        """Read the sentinel's part of an answer; return whether it was as expected."""
        if answer.error or answer.end == 0 or answer.record_bytes <= 0:
            self._drop_sentinel()
        elif answer.end - 1 != sentinel.offset:
            # Its partition got another record; the last one is the sentinel from now on.
            sentinel.offset, sentinel.size, self._stale = answer.end - 1, 0, True
        elif answer.record_bytes != sentinel.size:
            sentinel.size = answer.record_bytes
        else:
            return True
        return False

    def _judge(self, moved: bool, took_s: float) -> None:  # noqa: FBT001
        """Count wrong answers; drop the sentinel after several."""
        if took_s >= self._wait_s:
            self._wrong += moved and self._wait_s >= _JUDGED_WAIT_S
        elif moved:
            self._wrong = 0
        elif took_s < self._wait_s / 2:
            self._wrong += 1
        if self._wrong == _WRONG_MAX:
            self._drop_sentinel()

    def _drop_sentinel(self) -> None:
        self.sentinel = None
        self._stale = True

    def _send(self, data: memoryview, timeout_s: float) -> None:
        while data:
            try:
                data = data[self._socket.send(data) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                poll = select.poll()
                poll.register(self._socket, select.POLLOUT)
                if not poll.poll(timeout_s * 1000):
                    raise TimeoutError("The broker does not read from the connection.") from None
