"""The collector core: takes the ends of logs and the records of order streams, gives appends.

No I/O, no clock: loops poll Kafka, and `engine/core_runner.py` calls this core and carries out the
actions that `step` returns. The words log, bag and top are explained in `topology/tree.py`.

To pipeline appends, the core speculates that its pending records will be accepted. If
another instance's record is accepted in between, it starts again from there. An append may be lost,
late, doubled, or beaten by another instance: the acceptance rule of `multicast.order` makes all of
these harmless.

    accepted     the state of our own stream as read so far (`own.state`); an ack counts as reading
    inherited    of a log in our bag: the parent's bag has it too, so the parent's stream orders it
    speculated   the state after all pending records
    pending      records that were handed out for append and are not read yet
    relay        the parent's accepted records that `accepted` has not relayed, reduced to our bag
    early        offsets beyond a log's end that are ordered: programs before version 2 of the order
                 records did so for messages that producers had announced
    hole         an early offset that stays empty; it is filled with a skip
    too far      a log is ordered further beyond its end than correct instances ever order it, so
                 some record is wrong. It is not filled; the other logs go on
    strayed      our positions contradict the parent's at `parent_next`, so some record is wrong.
                 Nothing more is relayed; our own logs go on
    held         a log whose last stable offset does not advance to its high watermark

Invariants, for each log l whose top is this collector:
    accepted.positions[l] <= speculated.positions[l];
    what is handed out of l is <= end of l;
    at most one fill of l is outstanding;
and:
    the first pending record extends `accepted`, each other one extends the one before it;
    nothing is handed out before our own stream is read up to its end at our start;
    unless strayed, for each inherited log l: positions[l] = max(parent's positions[l] after
    `parent_next.records` records, where our stream began in l).

No accepted record, in our stream or the parent's, makes this code fail: `amcast topology recover`
repairs what a wrong record has damaged.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from collectors.entry_counts import EntryCounts
from collectors.log_lags import LogLags
from multicast.control import AnyCheckpoint
from multicast.errors import ProtocolViolation
from multicast.order import (
    ORDERED_MAX,
    Checkpoint,
    OrderRecord,
    OrderStream,
    ParentNext,
    RecordKind,
    Run,
    coalesce,
    digest_of,
    encode,
    extend,
    ordered_by,
)


@dataclass(frozen=True, slots=True)
class CollectorLimits:
    """Bounds of one collector. Tiny values must change only the speed, never the outcome."""

    run_length_max: int = 1000  # offsets of a run: a backlog of one log must not delay the others
    # Runs of a record. With `run_length_max` a record orders at most 512,000 offsets, within the
    # acceptance rule's `ORDERED_MAX`.
    runs_max: int = 512
    pending_max: int = 2  # records in flight; later events are gathered into the next record
    relay_max: int = 4096  # records of the parent that are kept; bounds memory
    # Holes are filled up to this many offsets beyond a log's end. Older programs ordered at most
    # 1,000 ahead; four times that leaves room for their instances with other limits.
    fill_max: int = 4096
    # Accepted records between two checkpoints, so about the most that a restart reads. Ten times
    # fewer would write ten times more checkpoints to the control topic.
    checkpoint_every: int = 16384
    # As long after a checkpoint the next record has one, too. A topic with few messages must have
    # one before the order topic, which keeps a day more than messages live, deletes its begin.
    checkpoint_ms: int = 6 * 3600 * 1000
    # The first one of an instance: soon, as one that runs for an hour a day needs some, too.
    first_checkpoint_ms: int = 10 * 60 * 1000

    def __post_init__(self) -> None:
        """Assert that the bounds fit each other and the acceptance rule."""
        assert self.run_length_max * self.runs_max <= ORDERED_MAX


@dataclass(frozen=True, slots=True)
class Append:
    """Append `raw` to the collector's own stream, AFTER all earlier appends of this core."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """Write this to the control topic, at any time: its record was read back, so it stays true."""

    checkpoint: AnyCheckpoint


@dataclass(frozen=True, slots=True)
class Fill:
    """If the end of log number `log` is below `below`, append skips; THEN call `filled`."""

    log: int
    below: int


Action = Append | SaveCheckpoint | Fill


@dataclass(slots=True)
class _Relayed:
    """One accepted record of the parent: our `parent_next` after it, and its runs in our bag."""

    after: ParentNext
    runs: tuple[Run, ...]


class Collector(LogLags[OrderStream]):
    """The core of one instance of a collector in one epoch.

    `own` is the collector's stream, opened at a checkpoint or at the epoch's start; `parent` is its
    parent's, opened at or before `own.state.parent_next`. `writer` is the instance's number in its
    records; no rule depends on it. `entries` counts what it handles.
    """

    def __init__(
        self,
        own: OrderStream,
        parent: OrderStream | None,
        *,
        writer: int,
        limits: CollectorLimits | None = None,
        entries: EntryCounts | None = None,
    ) -> None:
        self.limits = limits or CollectorLimits()
        super().__init__(own, self.limits.fill_max)
        self.parent = parent
        self.entries = entries or EntryCounts()
        self.entries.begin(own, parent, writer)
        self.counted = 0  # accepted records
        self.ours = 0  # of these, how many this instance wrote
        self.last_writer = 0  # of the last accepted record
        self.void: dict[enum.Enum, int] = {}
        self.writer = writer
        self._logs: list[int] = []  # the keys of `_ends`, sorted
        self._holes: dict[int, int] = {}  # of logs with a hole: their ends at the last tick
        self._fills: list[int] = []  # the next `step` hands out a `Fill` of these
        self._filling: set[int] = set()  # a fill of these is outstanding
        self._relay: deque[_Relayed] = deque()
        # The parent's positions after its first `_parent_count` records.
        self._parent_count = 0 if parent is None else parent.state.count
        positions = {} if parent is None else parent.state.positions
        self._parent_positions = {log: positions[log] for log in own.inherited}
        self.strayed = False
        self._ends_at_tick: dict[int, int] = {}  # `_ends` at the last tick
        self.held: set[int] = set()
        self._pending: deque[bytes] = deque()
        self._speculated = own.state.copy()
        self._own_end: int | None = None
        self._freeze_after: Mapping[int, int] | None = None
        self._turn = 0  # index in `_logs` of the log whose growth comes first in the next record
        self._checkpoint: Checkpoint | None = None
        self._checkpointed_ms: int | None = None
        self._checkpoint_due = False  # by time
        self._compare()

    # -- events -----------------------------------------------------------------------------

    def own_end(self, offset: int) -> None:
        """Report the end of our own stream; nothing is handed out before it is read up to there.

        Raises `ProtocolViolation` if the checkpoint that opened it names a record beyond its end.
        """
        if not self.own.proven and self.own.offset_next >= offset:
            raise ProtocolViolation(
                f"the checkpoint of collector {self.own.collector} is for offset "
                f"{self.own.offset_next}, but its stream ends at {offset}"
            )
        self._own_end = offset
        self.caught_up()

    def own_read(self, offset: int, raw: bytes | None, age_ms: int = 0) -> None:
        """Read the next record of our own stream, whichever instance wrote it."""
        del age_ms  # this version knows no time
        judged = self.own.read(offset, raw)
        if judged is None:
            self._restart()
            return
        digest = digest_of(raw or b"")
        ours = bool(self._pending) and self._pending[0] == digest
        if isinstance(judged, OrderRecord):
            self.last_writer = judged.writer
            self.entries.own_record(self.own.state.count, judged)
            self._accepted(ours=ours)
        else:
            self.void[judged] = self.void.get(judged, 0) + 1
            if digest in self._pending:
                self._restart()

    def own_passed(self, position: int) -> None:
        """Note that our own stream is read up to `position`."""
        self.own.passed(position)
        self.caught_up()

    def parent_read(self, offset: int, raw: bytes | None) -> None:
        """Read the next record of the parent's stream."""
        assert self.parent is not None
        judged = self.parent.read(offset, raw)
        after = ParentNext(self.parent.state.count, self.parent.offset_next)
        if not isinstance(judged, OrderRecord):
            return
        self.entries.parent_record(after.records, judged.runs, relayed=self._relayed().records)
        runs = tuple([run for run in judged.runs if run.log in self.own.inherited])
        if after.records > self._relayed().records:
            self._relay.append(_Relayed(after, runs))
        else:
            self._parent_moved(_Relayed(after, runs))
            self._compare()

    def parent_passed(self, position: int) -> None:
        """Note that the parent's stream is read up to `position`."""
        assert self.parent is not None
        self.parent.passed(position)

    def log_end(self, log: int, end: int) -> None:
        """Report the end of a log: its last stable offset."""
        if log in self.own.own:
            known = self._ends.get(log)
            if known is None:
                self._ends[log] = end
                self._logs = sorted(self._ends)
            elif end > known:
                self._ends[log] = end
                self.held.discard(log)

    def tick(self, highs: Mapping[int, int] | None = None) -> None:
        """Report that time has passed: an early offset, empty at the last tick too, is a hole.

        `highs` are the high watermarks of logs with messages of open transactions.
        """
        highs = highs or {}
        for log, end in self._ends.items():
            if self._ends_at_tick.get(log) == end < highs.get(log, end):
                self.held.add(log)
            self._ends_at_tick[log] = end
            if not end < self.own.state.positions[log] <= end + self.limits.fill_max:
                self._holes.pop(log, None)
            elif self._holes.get(log) != end:
                self._holes[log] = end
            elif log not in self._filling:
                self._filling.add(log)
                self._fills.append(log)

    def filled(self, log: int, end: int | None) -> None:
        """Report the high watermark of a log after a `Fill` of it.

        None: the fill failed, or the high watermark is unknown; the next ticks find the hole again.
        """
        self._filling.discard(log)
        if end is not None and end < self.own.state.positions[log]:
            self._filling.add(log)
            self._fills.append(log)

    def append_failed(self) -> None:
        """Report that an append failed or has an unknown outcome: all pending ones are in doubt."""
        self._restart()

    def freeze_after(self, positions: Mapping[int, int]) -> None:
        """Freeze as soon as each of these logs is ordered up to its position.

        Positions of logs with another top are ignored. A collector with a parent also waits for the
        parent's freeze, and first relays all records before it.
        """
        self._freeze_after = {
            log: position for log, position in positions.items() if log in self.own.own
        }

    # -- actions and state ------------------------------------------------------------------

    def step(self, now_ms: int) -> tuple[Action, ...]:
        """Give the actions that are due now.

        `now_ms` goes into order records, for people only, and says when a checkpoint is due.
        """
        actions: list[Action] = []
        if self._checkpointed_ms is None:
            limits = self.limits
            self._checkpointed_ms = now_ms - limits.checkpoint_ms + limits.first_checkpoint_ms
        if self._checkpoint is not None:
            actions.append(SaveCheckpoint(self._checkpoint))
            self._checkpoint = None
            self._checkpointed_ms = now_ms
        # A clock that was put back must not delay it.
        self._checkpoint_due = not 0 <= now_ms - self._checkpointed_ms < self.limits.checkpoint_ms
        actions += self._due_fills()
        if not self.caught_up():
            return tuple(actions)
        while len(self._pending) < self.limits.pending_max:
            record = self._next(now_ms)
            if record is None:
                break
            assert self.own.possible(self._speculated, record)
            raw = encode(record)
            digest = digest_of(raw)
            extend(self._speculated, record, digest)
            self._pending.append(digest)
            actions.append(Append(raw))
        return tuple(actions)

    def caught_up(self) -> bool:
        """Whether our own stream is read up to its end at our start; only then `step` appends."""
        if self._own_end is None or self.own.offset_next < self._own_end or not self.own.proven:
            return False
        self.entries.caught_up(self._relayed().records)
        return True

    def unordered(self, log: int, end: int) -> int:
        """Count the offsets of a log below `end` that are in no record handed out so far."""
        return max(0, end - self._speculated.positions[log])

    @property
    def due(self) -> bool:
        """Whether there is a record to append that was not handed out yet."""
        return self._next(0) is not None

    @property
    def waits(self) -> bool:
        """Whether something becomes due soon, although no event comes: never."""
        return False

    @property
    def pending(self) -> int:
        """The number of our records in flight."""
        return len(self._pending)

    def parent_paused(self, *, paused: bool = False) -> bool:
        """Whether to pause reading of the parent's stream.

        With `paused`, whether to stay paused: until half of the relay is free, because to resume
        costs a request.
        """
        most = self.limits.relay_max
        return len(self._relay) > most // 2 if paused else len(self._relay) >= most

    # -- inside -----------------------------------------------------------------------------

    def _due_fills(self) -> list[Fill]:
        """Give the fills that are due, except of logs that have become too far since they were."""
        positions, too_far = self.own.state.positions, self.too_far if self._fills else {}
        self._filling.difference_update(too_far.keys() & self._fills)
        fills = [Fill(log, positions[log]) for log in self._fills if log not in too_far]
        self._fills.clear()
        return fills

    def _accepted(self, *, ours: bool) -> None:
        self.counted += 1
        if ours:
            self.ours += 1
            self._pending.popleft()
        else:
            self._restart()
        relayed = self.own.state.parent_next.records
        while self._relay and self._relay[0].after.records <= relayed:
            self._parent_moved(self._relay.popleft())
        if not ours:
            self._compare()
        is_due = self._checkpoint_due or self.own.state.count % self.limits.checkpoint_every == 0
        if is_due and not self.frozen:
            self._checkpoint = self.own.checkpoint()
            self._checkpoint_due = False

    def _restart(self) -> None:
        """Drop all pending records, and speculate again from the accepted state."""
        self._pending.clear()
        self._speculated = self.own.state.copy()

    def _parent_moved(self, by: _Relayed) -> None:
        self._parent_count = by.after.records
        for log, _, end in by.runs:
            self._parent_positions[log] = end

    def _compare(self) -> None:
        """Compare our positions with the parent's, if both are known after the same record."""
        relayed = self._relayed().records
        if self.parent is None or relayed > self._parent_count:
            return
        own = self.own
        self.strayed = relayed < self._parent_count or any(
            own.state.positions[log] != max(position, own.starts[log])
            for log, position in self._parent_positions.items()
        )

    def _relayed(self) -> ParentNext:
        return self.own.state.parent_next

    def _next(self, now_ms: int) -> OrderRecord | None:
        """Make the record that extends `speculated`; None if there is nothing to append."""
        state = self._speculated
        if state.frozen:
            return None
        relayed, runs = self._from_parent()
        emptied = relayed.records - state.parent_next.records
        # With a checkpoint also what is empty: a restart there needs nothing that is older.
        emptied_max = 1 if self._checkpoint_due else max(1, self.limits.relay_max // 2)
        if runs or emptied >= emptied_max:
            return OrderRecord(
                RecordKind.PARENT, state.digest, relayed, coalesce(runs), self.writer, now_ms
            )
        # Before our own logs: under load these always grow, and the epoch would never end.
        if self._may_freeze(relayed):
            return OrderRecord(RecordKind.FREEZE, state.digest, relayed, (), self.writer, now_ms)
        own = self._from_logs()
        if own:
            return OrderRecord(
                RecordKind.OWN, state.digest, state.parent_next, own, self.writer, now_ms
            )
        return None

    def _from_parent(self) -> tuple[ParentNext, list[Run]]:
        """Gather the parent's runs that are not relayed yet, up to one record's bounds."""
        relayed = self._speculated.parent_next
        runs: list[Run] = []
        if not self._relay or self.strayed:
            return relayed, runs
        # The parent's records count one by one, so the first one still to relay has this index.
        index = relayed.records + 1 - self._relay[0].after.records
        ahead: dict[int, int] = {}
        ordered = 0
        for entry in islice(self._relay, max(index, 0), None):
            more = self._left(entry.runs, ahead)
            ordered += ordered_by(more)
            if runs and (len(runs) + len(more) > self.limits.runs_max or ordered > ORDERED_MAX):
                break
            runs.extend(more)
            relayed = entry.after
        return relayed, runs

    def _left(self, runs: Sequence[Run], ahead: dict[int, int]) -> list[Run]:
        """Give the parts of the parent's runs that are not ordered here.

        `ahead` are the positions after the runs gathered so far; this call moves them on.
        """
        left = []
        for log, first, end in runs:
            position = ahead.get(log, self._speculated.positions[log])
            if end > position:
                left.append(Run(log, max(first, position), end))
                ahead[log] = end
        return left

    def _from_logs(self) -> tuple[Run, ...]:
        """Gather runs of our own logs up to one record's bounds; the logs take turns."""
        runs: list[Run] = []
        positions, ends = self._speculated.positions, self._ends
        length_max = self.limits.run_length_max
        logs = self._logs
        for log in logs[self._turn :] + logs[: self._turn] if self._turn else logs:
            first, end = positions[log], ends[log]
            if first < end:
                runs.append(Run(log, first, min(end, first + length_max)))
                if len(runs) == self.limits.runs_max:
                    self._turn = (logs.index(log) + 1) % len(logs)
                    break
        return tuple(runs)

    def _may_freeze(self, relayed: ParentNext) -> bool:
        if self._freeze_after is None:
            return False
        # A strayed collector relays nothing more; the recovery writes what is missing.
        parent = None if self.strayed else self.parent
        if parent and not (parent.state.frozen and relayed.records >= parent.state.count):
            return False
        positions = self._speculated.positions
        return all(positions[log] >= end for log, end in self._freeze_after.items())
