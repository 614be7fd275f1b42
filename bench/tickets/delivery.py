"""What a consumer may hand out under the ticket rule: ordered and received. No I/O, no clock.

Invariant: what is delivered is a prefix of the order, reduced to the interest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bench.tickets.rule import NotCounted, TicketStream
from multicast.order import Run


class TicketDelivered(NamedTuple):
    """One delivered record of a log; `item` is what `payload_read` was given."""

    log: int
    offset: int
    item: object


class TicketDelivery:
    """One consumer's delivery in one epoch of the logs in `interest`."""

    def __init__(self, stream: TicketStream, interest: Iterable[int]) -> None:
        self.stream = stream
        self._buffers: dict[int, deque[tuple[int, object]]] = {log: deque() for log in interest}
        self._runs: deque[Run] = deque()

    def order_read(self, offset: int, raw: bytes) -> None:
        """Read the next record of the order stream."""
        judged = self.stream.read(offset, raw)
        if not isinstance(judged, NotCounted):
            self._runs.extend([run for run in judged if run.log in self._buffers])

    def payload_read(self, log: int, records: Sequence[tuple[int, object]]) -> None:
        """Take records (offset, item) of a log, in offset order; the offsets have no gaps."""
        self._buffers[log].extend(records)

    @property
    def ended(self) -> bool:
        """Whether the epoch is delivered to its end."""
        return self.stream.state.frozen and not self._runs

    def deliver(self) -> list[TicketDelivered]:
        """Give what is ordered and received."""
        delivered = []
        while self._runs:
            log, first, end = self._runs[0]
            buffer = self._buffers[log]
            while buffer and buffer[0][0] < end:
                offset, item = buffer.popleft()
                if offset >= first:
                    delivered.append(TicketDelivered(log, offset, item))
                    first = offset + 1
            if first < end:
                self._runs[0] = Run(log, first, end)
                break
            self._runs.popleft()
        return delivered
