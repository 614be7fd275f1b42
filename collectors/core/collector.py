"""A collector as the engine runs it: `collectors.core.collector_core`, told of events.

The engine tells neither the time nor who wrote a record, and it asks a standby what it would do.

    pending   records that were handed out for append and were not read back; one that equals a
              record read back is taken for it, whoever wrote that (two instances write the same
              bytes where they relay the same)
    counted   records of this collector's other instances: those that no producer writes, and that
              are not pending; or one of ours that says what another one's has said before
    peeked    actions that `due` has found and `step` has not given yet. A standby that does not act
              finds new ones every time. Of the old ones it keeps holes that are not filled, and
              the newest checkpoint
    left      of what `due` has found lately: holes and corrections, by kind and log

`clock` gives milliseconds of a monotonic clock; `entries` counts what the process handles. No other
I/O.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from collectors.core.actions import Action, Append, Fill, SaveCheckpoint
from collectors.core.collector_core import (
    CollectorAction,
    CollectorCore,
    CollectorLimits,
    FillHole,
    NameCheckpoint,
    WriteRecord,
)
from collectors.core.entry_counts import EntryCounts
from collectors.core.relay import CHECKSUMS_MAX
from collectors.core.sights import EpochEnd, Question, Sights
from multicast.drivers.protocol import LeaderEnd
from multicast.order.records import (
    CheckpointRecord,
    Correction,
    OwnRecord,
    SightRecord,
    StreamRecord,
    encode,
)
from multicast.order.rule import NotCounted
from multicast.order.stream import OrderStream, StreamCheckpoint

# Times are in milliseconds. A message without a ticket waits for `patience` in a log whose other
# messages have tickets; a message and its ticket are stored within milliseconds of each other. Ten
# times more would be seen by users of producers without tickets, ten times less would order
# messages twice on a busy machine, as debt. The order topic keeps a day more than messages live,
# and `checkpoint_time` is a quarter.
LIMITS = CollectorLimits(patience=60, lively=2000, checkpoint_time=6 * 3600 * 1000)
# An instance that acts ends what it finds within 1.5 s. Ten times less, standbys would take over
# from it meanwhile; ten times more, messages behind a hole would wait for as long.
_OVERDUE_MS = 3000
# What was not found again for so long is gone: less than `_OVERDUE_MS`. It is judged once a second;
# what costs others less than 0.1 s is judged more seldom, and no standby acts for it.
_GONE_MS = 2500
# Without it, standbys would take over in turn, all the time, while a broker is away.
_AWAY_MS = 60_000


@dataclass(slots=True)
class _Left:
    amount: int
    since: int  # when it was found to be so little
    seen: int


class Collector:
    """The core of one instance of a collector in one epoch; `writer` is the instance's number.

    `own` is opened at a checkpoint or at the epoch's start, `parent` at or before
    `own.state.parent_next`. It raises `ProtocolViolation` if a checkpoint is wrong.
    """

    def __init__(
        self,
        own: OrderStream,
        parent: OrderStream | None,
        *,
        writer: int,
        clock: Callable[[], int],
        limits: CollectorLimits = LIMITS,
        entries: EntryCounts | None = None,
    ) -> None:
        self.own = own
        self.parent = parent
        self.writer = writer
        self.counted = 0
        self.void: Counter[enum.Enum] = Counter()
        self._clock = clock
        self._limits = limits
        self._core = CollectorCore(own, parent, limits, clock())
        self._sights = Sights(own, parent)
        self._tag = own.shape.tag
        self._pending: deque[bytes] = deque()
        self.entries = entries or EntryCounts()
        self.entries.begin(own, parent)
        self._own_end: int | None = None
        self._peeked: list[CollectorAction] = []
        self._filling: dict[int, int] = {}  # by log, the offset below which skips are appended
        self._refill: list[int] = []
        self._left: dict[tuple[type, int], _Left] = {}
        self._ticket_times: dict[int, int] = {}  # when a log's last ticket of a producer was read
        self._checkpoint: StreamCheckpoint | None = None

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
            self.counted += ours and judged in (NotCounted.KNOWN, NotCounted.OVERLAP)
            return
        self.entries.own_record(offset + 1, judged, ours=ours)
        record = self.own.last
        if isinstance(record, OwnRecord) and not record.corrections:
            times = {ticket.log: now for ticket in record.tickets if ticket.messages}
            self._ticket_times.update(times)
            if times:
                return
        if isinstance(record, CheckpointRecord):
            plan, name = self.own.plan, self.own.collector
            self._checkpoint = StreamCheckpoint(plan.epoch, name, offset, raw)
        self.counted += not ours

    def own_passed(self, position: int) -> None:
        """Note that our own stream is read up to `position`."""
        self.own.passed(position)
        self._count_from_here()

    def _count_from_here(self) -> None:
        """Once our own stream is read, know which entries of the parent are new to it."""
        if self.caught_up():
            self.entries.caught_up(self.own.state.parent_next)

    def parent_read(self, offset: int, raw: bytes | None, checksum: int) -> None:
        """Read the next record of the parent's stream."""
        judged = self._core.parent_read(offset, raw, checksum)
        if not isinstance(judged, NotCounted):
            if self.parent is not None and isinstance(self.parent.last, SightRecord):
                self._sights.parent_read()
            relayed = self.own.state.parent_next
            self.entries.parent_record(offset + 1, judged, relayed=relayed)

    def parent_passed(self, position: int) -> None:
        """Note that the parent's stream is read up to `position`."""
        assert self.parent is not None
        self.parent.passed(position)

    def log_end(self, log: int, end: int) -> None:
        """Report the last stable offset of a log."""
        if log in self.own.own:
            self._core.log_end(log, end, self._clock())
            self._sights.log_end(log, end)

    def streams_begin(self, own: int, parent: int = 0) -> None:
        """Report where our own stream, and the parent's, begin now that records were deleted."""
        self._core.streams_begin(own, parent)

    def question(self, logs: Collection[int] | None = None) -> Question | None:
        """Give the question for the leaders of these own logs; by default of those that have moved.

        An instance that does not act has nothing to ask.
        """
        return self._sights.question(logs) if self.caught_up() and not self.frozen else None

    def epochs(self, question: Question, ends: Mapping[int, LeaderEnd]) -> dict[int, int]:
        """Give by log the leader epoch whose end to ask for, after the answers to a question."""
        return self._sights.epochs(question, ends)

    def answered(
        self, question: Question, ends: Mapping[int, LeaderEnd], epoch_ends: Mapping[int, EpochEnd]
    ) -> None:
        """Take the answers to a question and to what `epochs` gave; logs may be missing in both."""
        self._sights.answered(question, ends, epoch_ends, self._clock())

    @property
    def to_ask(self) -> bool:
        """Whether something of an own log is perhaps not stated yet."""
        return self._sights.to_ask

    def is_judged(self, log: int) -> bool:
        """Whether nothing of an own log is missing as of the last answer: holes may be filled."""
        return self._sights.is_judged(log)

    def tick(self, highs: Mapping[int, int] | None = None) -> None:
        """Report that time has passed."""
        self._core.tick(self._clock(), highs)

    def filled(self, log: int, end: int | None) -> None:
        """Report the high watermark of a log after a `Fill`; None: it failed, or is unknown."""
        if end is not None and end < self._filling.get(log, 0):
            self._refill.append(log)
            return
        self._core.filled(log)
        if end is None:  # its leader is away, so another instance could not fill it either
            later = self._clock() + _AWAY_MS
            self._left[FillHole, log] = _Left(self._hole(log), later, later)

    def append_failed(self) -> None:
        """Report that an append failed or has an unknown outcome: all is handed out again."""
        self._pending.clear()
        self._core.append_failed()
        self._sights.append_failed()

    def freeze_after(self, positions: Mapping[int, int]) -> None:
        """Freeze as soon as each own log is ordered up to its position."""
        self._core.freeze_after(positions)

    # -- actions and state ------------------------------------------------------------------

    def step(self) -> Sequence[Action]:
        """Give the actions that are due."""
        if not self.caught_up():
            return ()
        found, self._peeked = self._peeked, []
        actions: list[Action] = []
        sight = self._sights.due(self._clock())
        if sight is not None:
            found.append(WriteRecord(sight))
        for action in [*found, *self._core.step(self._clock())]:
            match action:
                case WriteRecord(record):
                    raw = encode(self._tag, record)
                    self._pending.append(raw)
                    actions.append(Append(raw))
                case FillHole(log, below):
                    self._filling[log] = below
                    actions.append(Fill(log, below))
                case NameCheckpoint():
                    assert self._checkpoint is not None
                    actions.append(SaveCheckpoint(self._checkpoint))
        actions += [Fill(log, self._filling[log]) for log in self._refill]
        self._refill.clear()
        return actions

    @property
    def due(self) -> bool:
        """Whether there is a record to append; only where nothing is pending.

        Corrections and holes count once they have stayed for seconds: each instance finds them at a
        time of its own, so a standby would often find them before the instance that acts, and take
        over from it.
        """
        if not self.caught_up():
            return False
        now = self._clock()
        kept: list[CollectorAction] = [
            action for action in self._peeked if not isinstance(action, WriteRecord)
        ]
        if len(kept) < len(self._peeked):
            self._core.append_failed()
        holes = [action for action in kept if isinstance(action, FillHole)]
        positions = self.own.state.positions
        full = [hole for hole in holes if positions[hole.log] - self._hole(hole.log) >= hole.below]
        for hole in full:
            self._core.filled(hole.log)
        kept += self._core.step(now)
        names = [action for action in kept if isinstance(action, NameCheckpoint)]
        dropped = (*full, *names[:-1])
        self._peeked = [action for action in kept if action not in dropped]
        self._note_left(now)
        return any(now - left.since >= _OVERDUE_MS for left in self._left.values()) or any(
            isinstance(action, WriteRecord) and not _corrects_only(action.record)
            for action in self._peeked
        )

    def _hole(self, log: int) -> int:
        return self.ahead.get(log, 0)

    def _note_left(self, now: int) -> None:
        """Note what was found that only an instance that acts ends; forget what has gone."""
        amounts: dict[tuple[type, int], int] = {}
        for action in self._peeked:
            match action:
                case FillHole(log):
                    amounts[FillHole, log] = self._hole(log)
                case WriteRecord(OwnRecord(corrections=corrections)):
                    # Behind one that counts, the next has a higher number.
                    amounts.update({(Correction, each.log): -each.number for each in corrections})
        for key, amount in amounts.items():
            left = self._left.get(key)
            if left is None or amount < left.amount:
                self._left[key] = left = _Left(amount, now, now)
            left.seen = now
        self._left = {key: left for key, left in self._left.items() if now - left.seen <= _GONE_MS}

    def caught_up(self) -> bool:
        """Whether our own stream is read up to its end at our start."""
        return (
            self._own_end is not None and self.own.offset_next >= self._own_end and self.own.proven
        )

    @property
    def parent_paused(self) -> bool:
        """Whether to pause reading of the parent's stream.

        Until our own stream is read, what it has relayed must still be compared with the parent's
        records: few of these are known by their checksums.
        """
        relay = self._core.relay
        if relay is None or relay.full or self.caught_up():
            return relay is not None and relay.full
        return relay.parent.offset_next >= self.own.state.parent_next + CHECKSUMS_MAX

    def unordered(self, log: int, end: int) -> int:
        """Count the offsets below `end` that wait for a collector, not for a ticket."""
        since = self._clock() - self._ticket_times.get(log, -self._limits.lively)
        if since < self._limits.lively and not self.own.state.debts[log]:
            return 0
        return max(0, end - self.own.state.positions[log])

    @property
    def ahead(self) -> dict[int, int]:
        """By own log, how many offsets it is ordered ahead of its end; below 0, what it lags."""
        return self._core.ahead

    @property
    def lag(self) -> int:
        """The number of offsets below the ends of our own logs that are not ordered yet."""
        return sum(max(0, -count) for count in self.ahead.values())

    @property
    def early(self) -> int:
        """The number of offsets of our own logs that are ordered ahead of their log's end."""
        return sum(max(0, count) for count in self.ahead.values())

    @property
    def too_far(self) -> dict[int, int]:
        """By how much own logs are ordered beyond their ends, if further than holes are filled."""
        return {log: count for log, count in self.ahead.items() if count > self._limits.fill_max}

    @property
    def frozen(self) -> bool:
        """Whether our stream is frozen: no later record counts."""
        return self.own.state.frozen

    @property
    def lost(self) -> Mapping[int, int]:
        """By log of the bag, the first offset that it has lost."""
        return self.own.state.lost

    @property
    def held(self) -> set[int]:
        """The logs with an open transaction at rest."""
        return self.own.state.held

    @property
    def overtaken(self) -> bool:
        """Whether records are deleted that readers of our last checkpoint need."""
        return self.caught_up() and self._core.overtaken

    @property
    def strayed(self) -> bool:
        """Whether our own stream contradicts the parent's."""
        return self._core.relay is not None and self._core.relay.strayed

    @property
    def parent_lost(self) -> bool:
        """Whether the parent's stream has lost what our own has relayed.

        Not by a checkpoint's word that our own stream has not proven: a false one may say so.
        """
        return self._core.relay is not None and self._core.relay.parent_lost and self.own.proven

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
