"""When a producer owes tickets, and what they say. No I/O; time comes as an argument, in seconds.

A message and its ticket are sent together; neither waits for the other. Of each stream at most one
ticket record is in flight: what is multicast meanwhile goes into the next one.

    uncounted   messages that were started and stand in no ticket that was sent
    unsettled   messages whose outcome is not known yet
    stored      the end of the log as far as this producer knows it: after its last stored message

`upto` = stored + unsettled is never too high if no append fails, because an unsettled message lies
behind all that are settled. It makes a lost ticket harmless: the next one covers it, up to
`PROMISE_MAX` messages. With several producers on a log it is often too low, and `count` says what
is missing.

A ticket whose outcome is unknown is not sent again: as a lost one it costs its message the patience
of a collector, as a doubled one it would make consumers wait for a fill. A message that certainly
was not stored keeps its ticket for the next message, for `REFUSED_S`: later a collector fills its
place with a skip, and a message without a ticket would wait for a collector.

Messages inside a Kafka transaction get no tickets, and no ticket is written inside one: others
would wait for the transaction. Their collector orders them once it is committed.
"""

from __future__ import annotations

from dataclasses import dataclass

from multicast.order.records import COUNT_MAX, OwnRecord, Ticket

# Messages that one record counts, over all logs: far below what a record may order.
RECORD_COUNT_MAX = 2**20
# Half the time for which a collector leaves a hole to messages that are on their way.
REFUSED_S = 0.5


@dataclass(slots=True)
class _LogTickets:
    uncounted: int = 0
    unsettled: int = 0
    stored: int = 0
    refused_at: float = 0.0


class TicketBook:
    """One producer's tickets for the logs of one stream."""

    def __init__(self) -> None:
        self._logs: dict[int, _LogTickets] = {}
        self._in_flight: OwnRecord | None = None

    def started(self, log: int, count: int = 1, *, now: float = 0.0) -> None:
        """Report that appends of messages were started."""
        entry = self._logs.setdefault(log, _LogTickets())
        if now - entry.refused_at > REFUSED_S:
            entry.uncounted = max(0, entry.uncounted)
        entry.uncounted += count
        entry.unsettled += count

    def settled(
        self,
        log: int,
        offset: int | None,
        count: int = 1,
        *,
        refused: bool = False,
        now: float = 0.0,
    ) -> None:
        """Report the outcome of messages: the offset of the last one, or None.

        `refused` if they are certainly not stored. Outcomes of one log come in the order of the
        appends.
        """
        entry = self._logs[log]
        entry.unsettled -= count
        if offset is not None:
            entry.stored = max(entry.stored, offset + 1)
        if refused:
            entry.uncounted -= count
            entry.refused_at = now

    def record_due(self) -> OwnRecord | None:
        """Give the record to append now, if any; then report it by `ticket_settled`."""
        if self._in_flight is not None:
            return None
        tickets = []
        room = RECORD_COUNT_MAX
        for log, entry in self._logs.items():
            if entry.uncounted > 0 and room:
                count = min(entry.uncounted, COUNT_MAX, room)
                room -= count
                tickets.append(Ticket(log, count, entry.stored + entry.unsettled))
                entry.uncounted -= count
        if not tickets:
            return None
        self._in_flight = OwnRecord(tuple(tickets))
        return self._in_flight

    def ticket_settled(self, *, refused: bool = False) -> None:
        """Report the outcome of the record in flight; one that is certainly not stored is owed."""
        assert self._in_flight is not None
        if refused:
            for log, count, _ in self._in_flight.tickets:
                self._logs[log].uncounted += count
        self._in_flight = None
