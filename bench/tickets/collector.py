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

    imbalance    of a log: end - expected. Messages whose tickets have not come yet raise it,
                 tickets whose messages have not come yet lower it; both pass
    settled      an imbalance that nothing has changed for `rest`, in which tickets and messages
                 that are on their way arrive. It stays for ever, unless it is corrected

All settled imbalances of a window of WINDOW_TICKS are judged together:
    never below n > 0: nobody pays so much of the debt; it is corrected by n
    never above -n < 0: no messages come for n tickets. If the log has grown meanwhile, each message
        is ordered before it comes, and others wait for it: a negative correction makes n tickets
        count for nothing. If it has not grown, skips fill the hole, and the balance is right again
In a log that never rests nothing is settled and nothing corrected. There an imbalance costs little:
the next message fills the hole, and the `upto` of the next ticket orders what a debt delays. A
correction of what is only on its way would leave a hole when the log does rest. (A comparison of
the end before a window with the tickets after it fails: while the log grows by more than the debt
in that time, it never sees the debt. The simulation showed that, and that the least imbalance over
all events is too low: a ticket may be read before the end that its message has moved.)

Any number of instances may run at once: see `rule`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

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

WINDOW_TICKS = 4  # as `multicast.announcements.DEBT_TICKS`: 1 s with ticks of 0.25 s
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


@dataclass(slots=True)
class _Balance:
    """A log's imbalance since the time `since`, and the settled ones of the window."""

    imbalance: int
    since: int
    correction: int  # the number of the last correction when the window began
    end: int  # of the log, when the window began
    ticks: int = 0
    settled: list[int] = field(default_factory=list)  # the least and the greatest


class TicketCollector:
    """One instance of a collector in one epoch. Times are in the caller's unit."""

    def __init__(
        self,
        own: TicketStream,
        parent: TicketStream | None,
        *,
        patience: int,
        rest: int,
        lively: int,
    ) -> None:
        self.own = own
        self.parent = parent
        self._patience = patience
        self._rest = rest
        self._lively = lively  # for so long after a ticket a log counts as one with tickets
        self._ends: dict[int, int] = {}
        self._beyond_since: dict[int, int] = {}  # since when a log's end is above its position
        self._ticket_time: dict[int, int] = {}  # when a ticket of the log last counted
        self._handed_out: dict[int, int] = {}  # own logs: `upto` of the last ticket
        self._relay_next = own.state.parent_next  # handed out up to here
        # Of the parent, from own.state.parent_next on: the record's offset, and what it ordered.
        self._relay: deque[tuple[int, RelayEntry]] = deque()
        self._relays: deque[int] = deque()  # the `next` of each relay in flight
        self._balances: dict[int, _Balance] = {}
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
        if not isinstance(judged, NotCounted):
            for log in self._ends:
                self._note_imbalance(log, now)
        state = self.own.state
        if judged is NotCounted.GAP:  # perhaps ours, behind one that was lost
            self.append_failed()
        while self._relays and self._relays[0] <= state.parent_next:
            self._relays.popleft()
        while self._relay and self._relay[0][0] < state.parent_next:
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
                self._relay.append((offset, RelayEntry(log, end)))

    def log_end(self, log: int, end: int, now: int) -> None:
        """Report the end of an own log."""
        self._ends[log] = max(end, self._ends.get(log, 0))
        self._note_imbalance(log, now)

    def append_failed(self) -> None:
        """Report that an append failed or has an unknown outcome: hand all out again."""
        self._relays.clear()
        self._relay_next = self.own.state.parent_next
        self._handed_out.clear()
        self._freezing = False

    def tick(self, now: int) -> None:
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
            self._judge_balance(log, end, now)

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

    def _note_imbalance(self, log: int, now: int) -> _Balance:
        state, end = self.own.state, self._ends[log]
        imbalance = end - (state.positions[log] - state.debts[log])
        number = state.corrections[log]
        balance = self._balances.get(log)
        if balance is None or balance.correction != number:
            balance = self._balances[log] = _Balance(imbalance, now, number, end)
        if now - balance.since >= self._rest:
            seen = [*balance.settled, balance.imbalance]
            balance.settled = [min(seen), max(seen)]
        if balance.imbalance != imbalance:
            balance.imbalance, balance.since = imbalance, now
        return balance

    def _judge_balance(self, log: int, end: int, now: int) -> None:
        balance = self._note_imbalance(log, now)
        balance.ticks += 1
        if balance.ticks < WINDOW_TICKS:
            return
        grown = end > balance.end
        least, most = balance.settled or (0, 0)
        balance.ticks, balance.end, balance.settled = 0, end, []
        amount = least if least > 0 else min(0, most)
        if amount > 0 or (amount < 0 and grown):
            self._corrections.append(Correction(log, balance.correction + 1, amount))

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
        if self.parent is None or self.parent.relevant_next <= self._relay_next:
            return None
        first = self._relay_next
        waiting = [(offset, entry) for offset, entry in self._relay if offset >= first]
        end = self.parent.relevant_next
        if len(waiting) > ENTRIES_MAX and waiting[0][0] < waiting[ENTRIES_MAX][0]:
            end = waiting[ENTRIES_MAX][0]
        entries = [entry for offset, entry in waiting if offset < end]
        if not entries and not self.parent.state.frozen:
            return None  # nothing of our bag; the next relay covers it
        return RelayRecord(first, end, tuple(entries))

    def _freeze(self) -> FreezeRecord | None:
        if self._freeze_after is None or self._freezing:
            return None
        state = self.own.state
        if self.parent is not None and not (
            self.parent.state.frozen and state.parent_next >= self.parent.relevant_next
        ):
            return None
        if any(state.positions[log] < end for log, end in self._freeze_after.items()):
            return None
        return FreezeRecord(state.parent_next, tuple(sorted(self._freeze_after.items())))
