"""A collector of version 2 as the engine runs it: `multicast.tickets.collector` behind `core`.

The engine tells neither the time nor who wrote a record, and it asks a standby what it would do.

    pending   records that were handed out for append and were not read back; one that equals a
              record read back is taken for it, whoever wrote that (two instances write the same
              bytes where they relay the same)
    counted   records of this collector's other instances: those that no producer writes, and that
              are not pending; or one of ours that says what another one's has said before
    peeked    actions that `due` has found and `step` has not given yet. A standby that does not act
              finds new ones every time, and drops the records among the old ones

`clock` gives milliseconds of a monotonic clock; `entries` counts what the process handles. No other
I/O.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from collectors.collector import Action, Append, Fill, SaveCheckpoint
from collectors.entry_counts import EntryCounts
from collectors.log_lags import LogLags
from multicast.tickets.collector import (
    CollectorAction,
    FillHole,
    NameCheckpoint,
    TicketCollector,
    TicketLimits,
    WriteRecord,
)
from multicast.tickets.encoding import CheckpointRecord, OwnRecord, StreamRecord, encode
from multicast.tickets.rule import NotCounted
from multicast.tickets.stream import TicketCheckpoint, TicketOrder

# Times are in milliseconds. A message without a ticket waits for `patience` in a log whose other
# messages have tickets; a message and its ticket are stored within milliseconds of each other. Ten
# times more would be seen by users of producers without tickets, ten times less would order
# messages twice on a busy machine, as debt. `rest` is longer, because a wrong correction costs a
# skip. The order topic keeps a day more than messages live, and `checkpoint_time` is a quarter.
LIMITS = TicketLimits(patience=60, rest=250, lively=2000, checkpoint_time=6 * 3600 * 1000)


class TicketCore(LogLags[TicketOrder]):
    """The core of one instance of a collector in one epoch of version 2.

    `own` is opened at a checkpoint or at the epoch's start, `parent` at or before
    `own.state.parent_next`. It raises `ProtocolViolation` if a checkpoint is wrong.
    """

    def __init__(
        self,
        own: TicketOrder,
        parent: TicketOrder | None,
        *,
        writer: int,
        clock: Callable[[], int],
        limits: TicketLimits = LIMITS,
        entries: EntryCounts | None = None,
    ) -> None:
        super().__init__(own, limits.fill_max)
        self.parent = parent
        self.writer = writer
        self.counted = 0
        self.ours = 0  # stays so: the stream must be read back, as producers write it, too
        self.last_writer = 0  # no record says who wrote it
        self.void: Counter[enum.Enum] = Counter()
        self._clock = clock
        self._limits = limits
        self._core = TicketCollector(own, parent, limits, clock())
        self._tag = own.shape.tag
        self._pending: deque[bytes] = deque()
        self.entries = entries or EntryCounts()
        self.entries.begin(own, parent, writer)
        self._own_end: int | None = None
        self._peeked: list[CollectorAction] = []
        self._refill: list[int] = []
        self._ticket_times: dict[int, int] = {}  # when a log's last ticket of a producer was read
        self._checkpoint: TicketCheckpoint | None = None

    # -- events -----------------------------------------------------------------------------

    def own_end(self, offset: int) -> None:
        """Report the end of our own stream at our start."""
        self._own_end = offset
        self._count_from_here()

    def own_read(self, offset: int, raw: bytes | None, age_ms: int = 0) -> None:
        """Read the next record of our own stream, whoever wrote it.

        How old it is counts only up to the end at our start: later no clock but ours is asked, so
        one that is wrong costs a checkpoint at each start, and not one after the other.
        """
        now, raw = self._clock(), raw or b""
        stored = now if self.caught_up() else now - max(0, age_ms)
        judged = self._core.own_read(offset, raw, now, stored)
        ours = raw in self._pending
        if ours:
            self._pending.remove(raw)
        if isinstance(judged, NotCounted):
            self.void[judged] += 1
            self.counted += ours and judged is NotCounted.KNOWN
            return
        self.entries.own_ticketed(offset + 1, judged, ours=ours)
        record = self.own.last
        if isinstance(record, OwnRecord) and not record.corrections:
            times = {ticket.log: now for ticket in record.tickets if ticket.messages}
            self._ticket_times.update(times)
            if times:
                return
        if isinstance(record, CheckpointRecord):
            plan, name = self.own.plan, self.own.collector
            self._checkpoint = TicketCheckpoint(plan.epoch, name, offset, raw)
        self.counted += not ours

    def own_passed(self, position: int) -> None:
        """Note that our own stream is read up to `position`."""
        self.own.passed(position)
        self._count_from_here()

    def _count_from_here(self) -> None:
        """Once our own stream is read, know which entries of the parent are new to it."""
        if self.caught_up():
            self.entries.caught_up(self.own.state.parent_next)

    def parent_read(self, offset: int, raw: bytes | None) -> None:
        """Read the next record of the parent's stream."""
        judged = self._core.parent_read(offset, raw)
        if not isinstance(judged, NotCounted):
            relayed = self.own.state.parent_next
            self.entries.parent_record(offset + 1, judged, relayed=relayed)

    def parent_passed(self, position: int) -> None:
        """Note that the parent's stream is read up to `position`."""
        assert self.parent is not None
        self.parent.passed(position)

    def log_end(self, log: int, end: int) -> None:
        """Report the last stable offset of a log."""
        if log in self.own.own:
            self._ends[log] = max(end, self._ends.get(log, 0))
            self._core.log_end(log, end, self._clock())

    def tick(self, highs: Mapping[int, int] | None = None) -> None:
        """Report that time has passed."""
        self._core.tick(self._clock(), highs)

    def filled(self, log: int, end: int | None) -> None:
        """Report the high watermark of a log after a `Fill`; None: it failed, or is unknown."""
        if end is not None and end < self.own.state.positions[log]:
            self._refill.append(log)
        else:
            self._core.filled(log)

    def append_failed(self) -> None:
        """Report that an append failed or has an unknown outcome: all is handed out again."""
        self._pending.clear()
        self._core.append_failed()

    def freeze_after(self, positions: Mapping[int, int]) -> None:
        """Freeze as soon as each own log is ordered up to its position."""
        self._core.freeze_after(positions)

    # -- actions and state ------------------------------------------------------------------

    def step(self, now_ms: int) -> Sequence[Action]:
        """Give the actions that are due."""
        del now_ms  # Kafka's times serve people
        if not self.caught_up():
            return ()
        found, self._peeked = self._peeked, []
        actions: list[Action] = []
        for action in [*found, *self._core.step(self._clock())]:
            match action:
                case WriteRecord(record):
                    raw = encode(self._tag, record)
                    self._pending.append(raw)
                    actions.append(Append(raw))
                case FillHole(log, below):
                    actions.append(Fill(log, below))
                case NameCheckpoint():
                    assert self._checkpoint is not None
                    actions.append(SaveCheckpoint(self._checkpoint))
        positions = self.own.state.positions
        actions += [Fill(log, positions[log]) for log in self._refill]
        self._refill.clear()
        return actions

    @property
    def due(self) -> bool:
        """Whether there is a record to append; only where nothing is pending.

        Corrections alone do not count: each instance finds them at a time of its own, so a standby
        would often find them before the instance that acts, and take over from it.
        """
        if not self.caught_up():
            return False
        kept = [action for action in self._peeked if not isinstance(action, WriteRecord)]
        if len(kept) < len(self._peeked):
            self._core.append_failed()
        self._peeked = [*kept, *self._core.step(self._clock())]
        return any(
            isinstance(action, WriteRecord) and not _corrects_only(action.record)
            for action in self._peeked
        )

    def caught_up(self) -> bool:
        """Whether our own stream is read up to its end at our start."""
        return (
            self._own_end is not None and self.own.offset_next >= self._own_end and self.own.proven
        )

    def parent_paused(self, *, paused: bool = False) -> bool:
        """Whether to pause reading of the parent's stream; also where it is paused."""
        del paused
        return self._core.relay is not None and self._core.relay.full

    def unordered(self, log: int, end: int) -> int:
        """Count the offsets below `end` that wait for a collector, not for a ticket."""
        since = self._clock() - self._ticket_times.get(log, -self._limits.lively)
        if since < self._limits.lively and not self.own.state.debts[log]:
            return 0
        return max(0, end - self.own.state.positions[log])

    @property
    def held(self) -> set[int]:
        """The logs with an open transaction at rest."""
        return self.own.state.held

    @property
    def strayed(self) -> bool:
        """Whether our own stream contradicts the parent's."""
        return self._core.relay is not None and self._core.relay.strayed

    @property
    def waits(self) -> bool:
        """Whether a message has waited for its ticket, but not long enough."""
        return self.lag > 0

    @property
    def pending(self) -> int:
        """The number of our records in flight."""
        return len(self._pending)


def _corrects_only(record: StreamRecord) -> bool:
    return isinstance(record, OwnRecord) and not record.tickets
