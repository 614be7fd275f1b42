"""The requests in flight to one broker, whatever carries them. Not thread-safe, no clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TypeVar

from multicast.drivers.appender.partition_appends import NumberedBatch, PartitionAppends

SentBatch = tuple[PartitionAppends, NumberedBatch]
# What an answer says of a batch: Kafka's error code (0: none), and the offset of its first record.
AnsweredBatch = tuple[PartitionAppends, NumberedBatch, int, int]
# Its number, when it was sent (seconds of a monotonic clock), and its batches.
_Request = tuple[int, float, Sequence[SentBatch]]


class Link(ABC):
    """A way to broker `node`; `broken` says why it is of no use any more.

    A broker answers the requests in their order.
    """

    def __init__(self, node: int) -> None:
        self.node = node
        self.broken = ""
        self.ready: dict[PartitionAppends, None] = {}  # that may have something to send here
        self._in_flight: deque[_Request] = deque()
        self._number = 0

    @property
    def is_sending(self) -> bool:
        """Whether a part of a request still waits to be sent; no other may be sent then."""
        return False

    @abstractmethod
    def send(self, batches: Sequence[SentBatch], now: float) -> None:
        """Send a request with these batches, or the part that can be sent now."""

    def hold(self, batches: Sequence[SentBatch], now: float) -> None:
        """Start a request that a link over a socket writes later; until then it is sending."""
        self.send(batches, now)

    @abstractmethod
    def receive(self) -> list[AnsweredBatch]:
        """Return what the answers that have arrived say of each batch, in order."""

    def may_send(self, requests_max: int) -> bool:
        """Return whether one more request may be sent, if at most so many are in flight."""
        return len(self._in_flight) < requests_max and not self.broken and not self.is_sending

    def overdue(self, since: float) -> bool:
        """Return whether the oldest request was sent before that time."""
        return bool(self._in_flight) and self._in_flight[0][1] < since

    def close(self) -> list[SentBatch]:
        """End the link; the batches without an answer, in order."""
        self.broken = self.broken or "closed"
        unanswered = [sent for _, _, batches in self._in_flight for sent in batches]
        self._in_flight.clear()
        return unanswered

    def _start(self, batches: Sequence[SentBatch], now: float) -> int:
        """Note a request that is sent now; return its number."""
        self._number = (self._number + 1) & 0x7FFFFFFF
        self._in_flight.append((self._number, now, batches))
        return self._number

    def _answered(self, answer: Mapping[tuple[str, int], tuple[int, int]]) -> list[AnsweredBatch]:
        """Take the answer to the oldest request; `KeyError` if it leaves a partition out."""
        answers = [
            (appends, batch, *answer[appends.partition]) for appends, batch in self._in_flight[0][2]
        ]
        self._in_flight.popleft()
        return answers


L = TypeVar("L", bound=Link)
