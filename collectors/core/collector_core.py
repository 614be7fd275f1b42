"""What a collector writes under the ticket rule. No I/O, no clock: time comes as an argument.

Nothing of an own log waits for a collector as long as its producers write tickets. The collector
does what they leave undone: it orders messages without a ticket, fills offsets that a ticket
promised in vain, corrects debts (`balance`), holds logs with an open transaction, relays the
parent's order, writes checkpoints, and ends the epoch.

    end          of a log: its last stable offset, as this instance last saw it
    patience     how long the collector leaves a message to its ticket. A log without tickets, one
                 with a debt, and a held one get none
    handed out   by this instance, perhaps still in flight

Any number of instances may run at once: see `rule`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collectors.core.balance import AMOUNT_MAX, Balance, BalanceLimits, OffBalance
from collectors.core.relay import Relay
from multicast.order.records import (
    COUNT_MAX,
    CheckpointRecord,
    Correction,
    FreezeRecord,
    OwnRecord,
    Position,
    StreamRecord,
    Ticket,
)
from multicast.order.rule import NotCounted, RecordStream
from multicast.order.runs import Run

# In milliseconds. Nobody notices 5; ends are up to 50 old (`_TICKETED_SPACING_S` of the engine).
BALANCE = BalanceLimits(urgent=100, slack=5, stale=60)


@dataclass(frozen=True, slots=True)
class CollectorLimits:
    """Bounds of one collector; times are in the caller's unit.

    `lively`: for so long after a ticket a log counts as one with tickets. Between two checkpoints
    lie at most `checkpoint_records` records and at least one in `checkpoint_time`, so that
    retention always leaves one: it must be far shorter than what the order topic keeps. Where
    records were deleted all the same, checkpoints come at once (`overtaken`).
    """

    patience: int
    lively: int
    checkpoint_time: int
    checkpoint_records: int = 16384
    run_length_max: int = 1000  # offsets: a backlog of one log must not delay the others
    runs_max: int = 512  # of a record
    balance: BalanceLimits = BALANCE
    # Holes are filled up to this many offsets beyond a log's end; more is a wrong record's work.
    # What two hundred producers lose, two requests of 1 MB of small messages each, is below it.
    fill_max: int = 2**22


@dataclass(frozen=True, slots=True)
class FillHole:
    """While the high watermark of log `log` is below `below`, append a skip; then call `filled`."""

    log: int
    below: int


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Append this record to the own stream; call `append_failed` unless it is stored."""

    record: StreamRecord


@dataclass(frozen=True, slots=True)
class NameCheckpoint:
    """Write to the control topic that the checkpoint record at this offset has counted.

    Readers may begin there.
    """

    offset: int


CollectorAction = FillHole | WriteRecord | NameCheckpoint


class CollectorCore:
    """One instance of a collector in one epoch.

    `own` is the collector's stream, opened at a checkpoint or at the epoch's start; `parent` is its
    parent's, opened at or before `own.state.parent_next`.
    """

    def __init__(
        self, own: RecordStream, parent: RecordStream | None, limits: CollectorLimits, now: int = 0
    ) -> None:
        self.own = own
        self.limits = limits
        self.relay = None if parent is None else Relay(own, parent)
        self._ends: dict[int, int] = {}
        # By log that is not ordered exactly to its end: how far beyond it; below 0: how far behind.
        self.ahead: dict[int, int] = {}
        self._hidden: dict[int, int] = {}  # logs with an open transaction: the end at the last tick
        # Logs that `tick` looks at, and whether they have moved since the last one. All others are
        # ordered to their ends, without a debt.
        self._restless: dict[int, bool] = {}
        # Own logs whose end is above their position, by when they were seen so by `step`; None: not
        # yet. All else costs the same however many logs there are.
        self._beyond: dict[int, int | None] = {}
        self._ticket_time: dict[int, int] = {}  # when a ticket of the log last counted
        self._handed_out: dict[int, int] = {}  # own logs: `upto` of the last ticket
        self._balances: dict[int, Balance] = {}
        self._corrections: dict[int, Correction] = {}
        self._uncounted: dict[int, int] = {}  # messages that no ticket will ever count
        self._holes: dict[int, int] = {}
        self._filling: set[int] = set()
        self._fills: list[FillHole] = []
        self._freeze_after: Mapping[int, int] | None = None
        self._freezing = False
        self._mark_time = now  # when what moved the mark was stored
        self._checkpointing = -1  # the mark of the checkpoint that is in flight
        self._saved: int | None = None
        # Where the streams begin now, and what who opens ours at its checkpoint reads the parent's
        # from: the parent's last checkpoint below what that one has relayed.
        self._begins = self._parent_begins = 0
        self._parent_from = 0 if parent is None else parent.read_from

    # -- events -----------------------------------------------------------------------------

    def own_read(
        self, offset: int, raw: bytes | None, now: int, stored: int | None = None
    ) -> tuple[Run, ...] | NotCounted:
        """Read the next record of our own stream, whoever wrote it; give its verdict.

        `stored` is when Kafka stored it, if that is not now.
        """
        mark, is_first = self.own.mark, self.own.last is None
        judged = self.own.read(offset, raw)
        # Retention deletes by the age of records. Reading begins at the mark, so until a checkpoint
        # moves that, the first record that there is behind it is the oldest that readers need.
        if is_first or self.own.mark > mark:
            self._mark_time = now if stored is None else stored
        if self.own.mark > mark:
            self._note_checkpoint()
        if isinstance(judged, NotCounted):
            if judged in (NotCounted.GAP, NotCounted.OTHER):  # perhaps ours, behind a lost one
                self.append_failed()
            return judged
        record = self.own.last
        moved = {run.log for run in judged} & self.own.shape.own.keys()
        if isinstance(record, OwnRecord):
            for log, messages, _ in record.tickets:
                moved.add(log)
                if messages:
                    self._ticket_time[log] = now
            moved.update([correction.log for correction in record.corrections])
        for log in moved & self._ends.keys():
            self._moved(log)
        if self.relay is not None:
            self.relay.own_moved()
        return judged

    def parent_read(
        self, offset: int, raw: bytes | None, checksum: int = 0
    ) -> tuple[Run, ...] | NotCounted:
        """Read the next record of the parent's stream; not while `relay.full`. Give its verdict."""
        assert self.relay is not None
        return self.relay.parent_read(offset, raw, checksum)

    def log_end(self, log: int, end: int, now: int) -> None:
        """Report the end of an own log."""
        self._ends[log] = max(end, self._ends.get(log, 0))
        self._moved(log)
        self._note_balance(log, now)

    def streams_begin(self, own: int, parent: int = 0) -> None:
        """Report where our own stream, and the parent's, begin now that records were deleted."""
        self._begins, self._parent_begins = own, parent

    @property
    def overtaken(self) -> bool:
        """Whether records are deleted that readers of our last checkpoint need; not for ever.

        Two checkpoints end that: readers of the second begin where the first one is.
        """
        if self._begins > self.own.read_from:
            return True
        if self.relay is None or self.relay.strayed:
            return False
        # The parent's own checkpoint comes first.
        return self._parent_from < self._parent_begins <= self.relay.parent.read_from

    def append_failed(self) -> None:
        """Report that an append failed or has an unknown outcome: hand all out again."""
        if self.relay is not None:
            self.relay.restart()
        self._handed_out.clear()
        self._freezing = False
        self._checkpointing = -1

    def tick(self, now: int, watermarks: Mapping[int, int] | None = None) -> None:
        """Report that time has passed: judge holes, debts and transactions.

        `watermarks` are the high watermarks of own logs, where they are known.
        """
        state, watermarks = self.own.state, watermarks or {}
        for log in sorted({*self._restless, *(watermarks.keys() & self._ends), *state.held}):
            end = self._ends.get(log)
            if end is None:
                continue
            self._judge_hole(log, end)
            hidden = watermarks.get(log, end) > end
            rests = self._hidden.get(log) == end
            held = hidden and (log in state.held or rests)
            self._hidden.pop(log, None)
            if hidden:
                self._hidden[log] = end
            if held != (log in state.held):
                number = state.corrections[log] + 1
                self._corrections[log] = Correction(log, number, 0, held)
                self._balances.pop(log, None)
            elif hidden or log in self._filling:
                self._balances.pop(log, None)
            else:
                self._judge_balance(log, end, now)
            if self._restless.get(log) or log in self.ahead or state.debts[log] or hidden or held:
                self._restless[log] = False
            else:
                self._restless.pop(log, None)
                self._balances.pop(log, None)

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
        state = self.own.state
        actions: list[CollectorAction] = [*self._fills]
        self._fills.clear()
        if self.own.checkpoint_at != self._saved:
            self._saved = self.own.checkpoint_at
            assert self._saved is not None
            actions.append(NameCheckpoint(self._saved))
        if state.frozen or state.restored < self.own.shape.owed:
            return actions
        checkpoint_is_due = self._checkpoint_is_due(now)
        while self.relay is not None:
            relay = self.relay.due(even_empty=checkpoint_is_due)
            if relay is None:
                break
            actions.append(WriteRecord(relay))
        tickets = [Ticket(log, count, 0) for log, count in self._uncounted.items()]
        self._uncounted.clear()
        tickets += self._tickets(now)
        if tickets or self._corrections:
            corrections = tuple(self._corrections.values())
            actions.append(WriteRecord(OwnRecord(tuple(tickets), corrections)))
            self._corrections.clear()
        if checkpoint_is_due:
            self._checkpointing = self.own.mark
            actions.append(WriteRecord(self.own.marked))
        freeze = self._freeze()
        if freeze is not None:
            self._freezing = True
            actions.append(WriteRecord(freeze))
        return actions

    # -- inside -----------------------------------------------------------------------------

    def _note_checkpoint(self) -> None:
        """Note where who begins at our last checkpoint begins in the parent's stream."""
        checkpoint, parent = self.own.last, None if self.relay is None else self.relay.parent
        if parent is None or parent.checkpoint_at is None:
            return
        assert isinstance(checkpoint, CheckpointRecord)
        if parent.checkpoint_at < checkpoint.parent_next:
            self._parent_from = parent.read_from

    def _moved(self, log: int) -> None:
        """Note that the end or the state of an own log may have changed."""
        ahead = self.own.state.positions[log] - self._ends[log]
        if ahead:
            self.ahead[log] = ahead
        else:
            self.ahead.pop(log, None)
        self._restless[log] = True
        if ahead >= 0:
            self._beyond.pop(log, None)
        else:
            self._beyond.setdefault(log, None)

    def _note_balance(self, log: int, now: int) -> Balance:
        """Note how an own log stands, now that its end is known afresh."""
        state, end = self.own.state, self._ends[log]
        late, number = end - state.positions[log], state.corrections[log]
        present = OffBalance(-late, late + state.debts[log], late)
        balance = self._balances.get(log)
        if balance is None or balance.number != number:
            balance = self._balances[log] = Balance(number, now, end, present, now)
        balance.note(present, now)
        return balance

    def _judge_balance(self, log: int, end: int, now: int) -> None:
        """Fill, count or correct what is out of balance and stays so."""
        state, balance = self.own.state, self._balances.get(log)
        if balance is None or not balance.is_fresh:
            balance = self._note_balance(log, now)
        off, debt = balance.judge(end, self.limits.balance), state.debts[log]
        if 0 < off.hole <= self.limits.fill_max:
            self._fill(log, min(end + off.hole, state.positions[log]))
        elif off.late and self._is_lively(log, now):
            self._uncounted[log] = min(off.late + debt, COUNT_MAX)
        elif off.unpaid and debt:
            amount = min(off.unpaid, debt, AMOUNT_MAX)
            self._corrections[log] = Correction(log, state.corrections[log] + 1, amount)

    def _judge_hole(self, log: int, end: int) -> None:
        """Fill a hole at once in a log that stands still."""
        hole = self.own.state.positions[log] - end
        if not 0 < hole <= self.limits.fill_max:
            self._holes.pop(log, None)
        elif self._holes.get(log) != end:
            self._holes[log] = end
        else:
            self._fill(log, end + hole)

    def _fill(self, log: int, below: int) -> None:
        state = self.own.state
        seen = state.seen.get(log)
        if log in state.lost or (seen and self._ends[log] < seen[-1].end):
            return  # messages were there, and a skip would take the place of one for good
        if log not in self._filling:
            self._filling.add(log)
            self._fills.append(FillHole(log, below))

    def _tickets(self, now: int) -> list[Ticket]:
        """Give tickets for what is due, the logs in turn."""
        state, limits = self.own.state, self.limits
        ahead: dict[int, int] = {}
        for log, seen in list(self._beyond.items()):
            first = max(state.positions[log], self._handed_out.get(log, 0))
            if self._ends[log] <= first:
                self._beyond[log] = None
                continue
            if first - state.positions[log] > 2 * limits.run_length_max * limits.runs_max:
                continue  # enough is in flight
            self._beyond[log] = since = now if seen is None else seen
            waits = self._is_lively(log, now) and not state.debts[log] and log not in state.held
            if not (waits and self._freeze_after is None) or now - since >= limits.patience:
                ahead[log] = first
        tickets: list[Ticket] = []
        while ahead and len(tickets) < limits.runs_max:
            for log, first in list(ahead.items())[: limits.runs_max - len(tickets)]:
                upto = min(self._ends[log], first + limits.run_length_max)
                tickets.append(Ticket(log, 0, upto))
                self._handed_out[log] = ahead[log] = upto
                if upto == self._ends[log]:
                    del ahead[log]
        return tickets

    def _is_lively(self, log: int, now: int) -> bool:
        return now - self._ticket_time.get(log, -self.limits.lively) < self.limits.lively

    def _checkpoint_is_due(self, now: int) -> bool:
        own, limits = self.own, self.limits
        if own.mark == self._checkpointing:
            return False
        late = self.overtaken or now - self._mark_time >= limits.checkpoint_time
        return late or own.offset_next - own.mark >= limits.checkpoint_records

    def _freeze(self) -> FreezeRecord | None:
        if self._freeze_after is None or self._freezing:
            return None
        state = self.own.state
        if self.relay is not None and not (self.relay.done or self.relay.strayed):
            return None
        if any(state.positions[log] < end for log, end in self._freeze_after.items()):
            return None
        ends = [Position(log, end) for log, end in sorted(self._freeze_after.items())]
        return FreezeRecord(state.parent_next, tuple(ends))
