"""What a consumer may hand out under the ticket rule: ordered and received. No I/O, no clock.

Invariant: what is delivered is a prefix of the order, reduced to the interest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from multicast.order import Run
from multicast.tickets.rule import NotCounted, TicketStream


class TicketDelivered(NamedTuple):
    """One delivered record of a log; `item` is what `payload_read` was given."""

    log: int
    offset: int
    item: object


class TicketCursor(NamedTuple):
    """A consumer's position: before offset `next` of run number `run` of the record at `record`."""

    record: int
    run: int
    next: int


class TicketDelivery:
    """One consumer's delivery in one epoch of the logs in `interest`, from a cursor on.

    The stream must be opened at or before the cursor's record.
    """

    def __init__(
        self, stream: TicketStream, interest: Iterable[int], cursor: TicketCursor | None = None
    ) -> None:
        self.stream = stream
        self._start = cursor or TicketCursor(0, 0, 0)
        self._buffers: dict[int, deque[tuple[int, object]]] = {log: deque() for log in interest}
        self._runs: deque[tuple[TicketCursor, Run]] = deque()

    def order_read(self, offset: int, raw: bytes) -> None:
        """Read the next record of the order stream."""
        judged = self.stream.read(offset, raw)
        if isinstance(judged, NotCounted):
            return
        start = self._start
        for number, (log, first, end) in enumerate(judged):
            place = TicketCursor(offset, number, first)
            if log not in self._buffers or place[:2] < start[:2]:
                continue
            known = start.next if place[:2] == start[:2] else first
            self._runs.append((place, Run(log, max(first, known), end)))

    def payload_read(self, log: int, records: Sequence[tuple[int, object]]) -> None:
        """Take records (offset, item) of a log, in offset order; the offsets have no gaps."""
        self._buffers[log].extend(records)

    @property
    def cursor(self) -> TicketCursor:
        """Everything before it is delivered, nothing after it."""
        if self._runs:
            place, run = self._runs[0]
            return place._replace(next=run.first)
        return max(self._start, TicketCursor(self.stream.offset_next, 0, 0))

    @property
    def ended(self) -> bool:
        """Whether the epoch is delivered to its end."""
        return self.stream.state.frozen and not self._runs

    def deliver(self) -> list[TicketDelivered]:
        """Give what is ordered and received."""
        delivered = []
        while self._runs:
            place, (log, first, end) = self._runs[0]
            buffer = self._buffers[log]
            while buffer and buffer[0][0] < end:
                offset, item = buffer.popleft()
                if offset >= first:
                    delivered.append(TicketDelivered(log, offset, item))
                    first = offset + 1
            if first < end:
                self._runs[0] = place, Run(log, first, end)
                break
            self._runs.popleft()
        return delivered
