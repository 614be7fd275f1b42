"""What a collector writes under the ticket rule. No I/O, no clock: time comes as an argument.

Nothing of an own log waits for a collector as long as its producers write tickets. The collector
does what they leave undone: it orders messages without a ticket, fills offsets that a ticket
promised in vain, corrects debts, relays the parent's order, and ends the epoch.

    end          of a log: its last stable offset, as this instance last saw it
    expected     of a log: the offsets that tickets have counted (position - debt). While each
                 message has one ticket, this equals the end
    patience     how long the collector leaves a message to its ticket. A log without tickets, and
                 one with a debt, gets none
    handed out   by this instance, perhaps still in flight

Debts are judged over SETTLED_TICKS ticks: a message that was stored before that time has a ticket
by now, unless it gets none; a ticket from before that time has its message by now, or never will.
    end then - expected now > 0: nobody pays this part of the debt; correct it
    expected then - end now > 0: no messages come for these tickets. While the log grows, its next
        messages take their offsets, and a negative correction lets as many tickets pass unheard.
        While it rests, skips fill the offsets, and nothing is to be corrected

Any number of instances may run at once: see `rule`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from bench.tickets.rule import (
    Correction,
    FreezeRecord,
    NotCounted,
    OwnRecord,
    RelayEntry,
    RelayRecord,
    StreamRecord,
    Ticket,
    TicketStream,
)

SETTLED_TICKS = 4  # as `multicast.announcements.DEBT_TICKS`: 1 s with ticks of 0.25 s
RELAYS_MAX = 2  # in flight, as `CollectorLimits.pending_max`
ENTRIES_MAX = 512  # of a relay, as `CollectorLimits.runs_max`


@dataclass(frozen=True, slots=True)
class FillHole:
    """While the end of log number `log` is below `below`, append a skip; then call `filled`."""

    log: int
    below: int


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Append this record to the own stream; call `append_failed` unless it is stored."""

    record: StreamRecord


CollectorAction = FillHole | WriteRecord


class TicketCollector:
    """One instance of a collector in one epoch. Times are in the caller's unit."""

    def __init__(
        self, own: TicketStream, parent: TicketStream | None, *, patience: int, lively: int
    ) -> None:
        self.own = own
        self.parent = parent
        self._patience = patience
        self._lively = lively  # for so long after a ticket a log counts as one with tickets
        self._ends: dict[int, int] = {}
        self._beyond_since: dict[int, int] = {}  # since when a log's end is above its position
        self._ticket_time: dict[int, int] = {}  # when a ticket of the log last counted
        self._handed_out: dict[int, int] = {}  # own logs: `upto` of the last ticket
        self._relay_next = own.state.parent_next  # handed out up to here
        self._relay: deque[RelayEntry] = deque()  # of the parent, from own.state.parent_next on
        self._relays: deque[int] = deque()  # the `next` of each relay in flight
        self._history: dict[int, deque[tuple[int, int]]] = {}  # of ticks: (end, expected)
        self._corrected: dict[int, int] = {}  # the last correction's number, as of the history
        self._corrections: list[Correction] = []
        self._holes: dict[int, int] = {}
        self._filling: set[int] = set()
        self._fills: list[int] = []
        self._freeze_after: Mapping[int, int] | None = None
        self._freezing = False

    # -- events -----------------------------------------------------------------------------

    def own_read(self, offset: int, raw: bytes, now: int) -> None:
        """Read the next record of our own stream, whoever wrote it."""
        counted = dict(self.own.counted)
        judged = self.own.read(offset, raw)
        for log, count in self.own.counted.items():
            if count > counted[log]:
                self._ticket_time[log] = now
        state = self.own.state
        if judged is NotCounted.GAP:  # perhaps ours, behind one that was lost
            self.append_failed()
        while self._relays and self._relays[0] <= state.parent_next:
            self._relays.popleft()
        while self._relay and self._relay[0].offset < state.parent_next:
            self._relay.popleft()
        self._relay_next = max(self._relay_next, state.parent_next)

    def parent_read(self, offset: int, raw: bytes) -> None:
        """Read the next record of the parent's stream."""
        assert self.parent is not None
        judged = self.parent.read(offset, raw)
        if isinstance(judged, NotCounted) or offset < self.own.state.parent_next:
            return
        for log, _, end in judged:
            if log in self.own.shape.inherited:
                self._relay.append(RelayEntry(offset, log, end))

    def log_end(self, log: int, end: int) -> None:
        """Report the end of an own log."""
        self._ends[log] = max(end, self._ends.get(log, 0))

    def append_failed(self) -> None:
        """Report that an append failed or has an unknown outcome: hand all out again."""
        self._relays.clear()
        self._relay_next = self.own.state.parent_next
        self._handed_out.clear()
        self._freezing = False

    def tick(self) -> None:
        """Report that time has passed: judge holes and debts."""
        state = self.own.state
        for log, end in self._ends.items():
            position = state.positions[log]
            if position <= end:
                self._holes.pop(log, None)
            elif self._holes.get(log) != end:
                self._holes[log] = end
            elif log not in self._filling:
                self._filling.add(log)
                self._fills.append(log)
            self._judge_debt(log, end, position - state.debts[log])

    def filled(self, log: int) -> None:
        """Report that a fill has ended, whether or not it was successful."""
        self._filling.discard(log)
        self._holes.pop(log, None)

    def freeze_after(self, positions: Mapping[int, int]) -> None:
        """Freeze once each own log is ordered up to its position."""
        self._freeze_after = {
            log: end for log, end in positions.items() if log in self.own.shape.own
        }

    # -- actions ----------------------------------------------------------------------------

    def step(self, now: int) -> list[CollectorAction]:
        """Give the actions that are due."""
        actions: list[CollectorAction] = []
        state = self.own.state
        actions += [FillHole(log, state.positions[log]) for log in self._fills]
        self._fills.clear()
        if state.frozen:
            return actions
        while len(self._relays) < RELAYS_MAX and (relay := self._next_relay()) is not None:
            self._relays.append(relay.next)
            self._relay_next = relay.next
            actions.append(WriteRecord(relay))
        tickets = self._tickets(now)
        if tickets or self._corrections:
            actions.append(WriteRecord(OwnRecord(tuple(tickets), tuple(self._corrections))))
            self._corrections.clear()
        freeze = self._freeze()
        if freeze is not None:
            self._freezing = True
            actions.append(WriteRecord(freeze))
        return actions

    # -- inside -----------------------------------------------------------------------------

    def _judge_debt(self, log: int, end: int, expected: int) -> None:
        number = self.own.state.corrections[log]
        history = self._history.setdefault(log, deque())
        if self._corrected.get(log, number) != number:  # what was expected before is out of date
            history.clear()
        self._corrected[log] = number
        history.append((end, expected))
        if len(history) <= SETTLED_TICKS:
            return
        end_then, expected_then = history.popleft()
        unpaid, unheard = end_then - expected, expected_then - end
        if unpaid > 0:
            self._corrections.append(Correction(log, number + 1, unpaid))
        elif unheard > 0 and end > end_then:
            self._corrections.append(Correction(log, number + 1, -unheard))

    def _tickets(self, now: int) -> list[Ticket]:
        tickets = []
        state = self.own.state
        for log, end in self._ends.items():
            if end <= max(state.positions[log], self._handed_out.get(log, 0)):
                self._beyond_since.pop(log, None)
                continue
            since = self._beyond_since.setdefault(log, now)
            lively = now - self._ticket_time.get(log, -self._lively) < self._lively
            waits = lively and not state.debts[log] and self._freeze_after is None
            if not waits or now - since >= self._patience:
                self._handed_out[log] = end
                tickets.append(Ticket(log, 0, end))
        return tickets

    def _next_relay(self) -> RelayRecord | None:
        if self.parent is None or self.parent.offset_next <= self._relay_next:
            return None
        first = self._relay_next
        entries = [entry for entry in self._relay if entry.offset >= first]
        end = self.parent.offset_next
        if len(entries) > ENTRIES_MAX and entries[0].offset < entries[ENTRIES_MAX].offset:
            end = entries[ENTRIES_MAX].offset
            entries = [entry for entry in entries if entry.offset < end]
        if not entries and not self.parent.state.frozen:
            return None  # nothing of our bag; the next relay covers it
        return RelayRecord(first, end, tuple(entries))

    def _freeze(self) -> FreezeRecord | None:
        if self._freeze_after is None or self._freezing:
            return None
        state = self.own.state
        if self.parent is not None and not (
            self.parent.state.frozen and state.parent_next >= self.parent.offset_next
        ):
            return None
        if any(state.positions[log] < end for log, end in self._freeze_after.items()):
            return None
        return FreezeRecord(state.parent_next, tuple(sorted(self._freeze_after.items())))
