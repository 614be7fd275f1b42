"""The collector core: ends of logs and order records go in, appends come out.

No I/O, no clock: `instance.py` polls Kafka, calls this, and carries out what it returns. The core
runs ahead of what it knows to count ("speculates"), so that appends are pipelined; when somebody
else's record counts in between, it starts again from there. Whatever happens to an append (lost,
late, doubled, beaten by another instance), the acceptance rule of `multicast.order` makes it
harmless.

    accepted     the state of our own stream as read back: what counts
    speculated   accepted, and then all that is pending
    pending      records handed out for append and not yet read back
    relay        the parent's records that count and are not relayed in `accepted`, filtered
    early        offsets beyond a log's end that are ordered because somebody announced them
    hole         an offset that was ordered early and stays empty; filled with a skip
    too far      a log is ordered further beyond its end than honest instances ever order it: some
                 record is wrong. It is not filled; the other logs go on
    strayed      our positions are not those of the parent where `parent_next` says that we are:
                 some record is wrong. Nothing more is relayed; our own logs go on
    held         a log whose last stable offset stands still below its high watermark

Invariants, for every log l whose top we are:
    accepted.positions[l] <= speculated.positions[l];
    nothing is handed out beyond end of l + what is promised of l, nor beyond end of l + early_max
    (ends never go back, so any number of honest instances together order no further);
    nothing of l is ordered early while l is held;
    at most one fill of l is outstanding;
and:
    pending is empty or its first record extends `accepted`, each other one extends the one before;
    nothing is handed out before the own stream is read to where it ended when we began;
    unless strayed, for every inherited log l: positions[l] = max(parent's positions[l] after
    `parent_next.records` records, where our stream began in l).

Whatever counts in our stream and the parent's, nothing in here fails: `topology recover` mends what
a wrong record has done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from multicast.announcements import Announcement, Promises
from multicast.errors import ProtocolViolation
from multicast.order import (
    ORDERED_MAX,
    Checkpoint,
    OrderRecord,
    OrderStream,
    ParentNext,
    RecordKind,
    Run,
    Void,
    coalesce,
    digest_of,
    encode,
    extend,
    ordered_by,
)


@dataclass(frozen=True, slots=True)
class CollectorLimits:
    """Bounds of one collector. Tiny values must change speed only, never the outcome."""

    run_length_max: int = 1000  # so that a backlog in one log cannot make the others wait
    runs_max: int = 512  # in one record
    pending_max: int = 2  # records in flight; what comes meanwhile goes into the next one
    relay_max: int = 4096  # the parent's records kept
    early_max: int = 1000  # offsets of a log that are ordered ahead of its end; 0: none
    # Holes are filled up to so far beyond a log's end. Honest instances order `early_max` ahead at
    # most; four times that leaves room for instances with other limits.
    fill_max: int = 4096
    checkpoint_every: int = 16384  # records that counted

    def __post_init__(self) -> None:
        """Hold the bounds to each other and to those of the acceptance rule."""
        assert self.run_length_max * self.runs_max <= ORDERED_MAX
        assert self.early_max <= self.fill_max


@dataclass(frozen=True, slots=True)
class Append:
    """Append `raw` to the collector's own stream, AFTER all appends handed out before it."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """Write this to the control topic, at any time: it was read back, so it stays true."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Fill:
    """If log number `log` ends below `below`, append one skip to it; then call `filled`."""

    log: int
    below: int


Action = Append | SaveCheckpoint | Fill


@dataclass(slots=True)
class _Relayed:
    """One record of the parent that counted: where it leaves us, and its runs inside our bag."""

    after: ParentNext
    runs: tuple[Run, ...]


class Collector:
    """One instance of one node in one epoch.

    `own` is its stream (from a checkpoint or the epoch's start), `parent` its parent's, begun at or
    before `own.state.parent_next`. `writer` tells instances apart, for people.
    """

    def __init__(
        self,
        own: OrderStream,
        parent: OrderStream | None,
        *,
        writer: int,
        limits: CollectorLimits | None = None,
    ) -> None:
        self.own = own
        self.parent = parent
        self.limits = limits or CollectorLimits()
        self.counted = 0
        self.ours = 0  # of these
        self.void: dict[Void, int] = {}
        self._writer = writer
        self._ends: dict[int, int] = {}
        self._logs: list[int] = []  # whose ends are known, sorted
        self._promises = {log: Promises(self.limits.early_max) for log in own.own}
        self._holes: dict[int, int] = {}  # where the log ended at the last tick
        self._fills: list[int] = []  # to be handed out
        self._filling: set[int] = set()
        self._wary: set[int] = set()  # a fill of these failed: nothing is ordered early there
        self._relay: deque[_Relayed] = deque()
        # The parent's positions after its first `_parent_count` records.
        self._parent_count = 0 if parent is None else parent.state.count
        self._parent_at: dict[int, int] = {}
        if parent is not None:
            self._parent_at = {log: parent.state.positions[log] for log in own.inherited}
        self.strayed = False
        self._stood: dict[int, int] = {}  # where the end of a log stood at the last tick
        self.held: set[int] = set()
        self._pending: deque[bytes] = deque()
        self._speculated = own.state.copy()
        self._own_end: int | None = None
        self._freeze_after: Mapping[int, int] | None = None
        self._turn = 0
        self._checkpoint: Checkpoint | None = None
        self._compare()

    # -- what goes in -----------------------------------------------------------------------

    def own_end(self, offset: int) -> None:
        """Say where our own stream ends; nothing is handed out before it is read to there.

        Raises `ProtocolViolation` for a checkpoint of a record that does not stand there.
        """
        if not self.own.proven and self.own.offset_next >= offset:
            raise ProtocolViolation(
                f"the checkpoint of collector {self.own.collector} is of offset "
                f"{self.own.offset_next}, and its stream ends at {offset}"
            )
        self._own_end = offset

    def own_read(self, offset: int, raw: bytes | None) -> None:
        """Take the next record of our own stream, whoever wrote it."""
        judged = self.own.read(offset, raw)
        if judged is None:
            self._restart()
            return
        digest = digest_of(raw or b"")
        ours = bool(self._pending) and self._pending[0] == digest
        if isinstance(judged, OrderRecord):
            self._accepted(ours=ours)
        else:
            self.void[judged] = self.void.get(judged, 0) + 1
            if digest in self._pending:
                self._restart()

    def own_passed(self, position: int) -> None:
        """Note that our own stream holds nothing more below `position`."""
        self.own.passed(position)

    def parent_read(self, offset: int, raw: bytes | None) -> None:
        """Take the next record of the parent's stream."""
        assert self.parent is not None
        judged = self.parent.read(offset, raw)
        after = ParentNext(self.parent.state.count, self.parent.offset_next)
        if not isinstance(judged, OrderRecord):
            return
        runs = tuple([run for run in judged.runs if run.log in self.own.inherited])
        if after.records > self._relayed().records:
            self._relay.append(_Relayed(after, runs))
        else:
            self._parent_moved(_Relayed(after, runs))
            self._compare()

    def parent_passed(self, position: int) -> None:
        """Note that the parent's stream holds nothing more below `position`."""
        assert self.parent is not None
        self.parent.passed(position)

    def log_end(self, log: int, end: int) -> None:
        """Say that the offsets of a log below `end` are filled."""
        if log in self.own.own:
            known = self._ends.get(log)
            if known is None:
                self._ends[log] = end
                self._logs = sorted(self._ends)
            elif end > known:
                self._ends[log] = end
                self._promises[log].grown(end - known)
                self.held.discard(log)

    def announced(self, announcement: Announcement) -> None:
        """Take what a producer says of messages on their way; other collectors' logs are ignored.

        Before the end of a log is known its announcements are, too.
        """
        for log, sent, settled in announcement.counts:
            if log in self._ends:
                self._promises[log].announced(announcement.producer, sent, settled)

    def tick(self, highs: Mapping[int, int] | None = None) -> None:
        """Say that a while has passed: an offset that was empty at the last tick is a hole now.

        `highs` are the high watermarks of logs that have messages of open transactions.
        """
        highs = highs or {}
        for log, end in self._ends.items():
            self._promises[log].tick()
            if self._stood.get(log) == end < highs.get(log, end):
                self.held.add(log)
            self._stood[log] = end
            if not end < self.own.state.positions[log] <= end + self.limits.fill_max:
                self._holes.pop(log, None)
            elif self._holes.get(log) != end:
                self._holes[log] = end
            elif log not in self._filling:
                self._filling.add(log)
                self._fills.append(log)

    def filled(self, log: int, end: int | None) -> None:
        """Say where a log ends after a `Fill` of it, open transactions included.

        None says that the fill failed or that nobody knows.
        """
        self._filling.discard(log)
        if end is None:
            self._wary.add(log)
        elif end < self.own.state.positions[log]:
            self._filling.add(log)
            self._fills.append(log)

    def append_failed(self) -> None:
        """Say that an append failed or has an unknown outcome: all pending ones are in doubt."""
        self._restart()

    def freeze_after(self, positions: Mapping[int, int]) -> None:
        """End the epoch as soon as each of these logs is ordered up to its position.

        Positions of logs whose top is another collector do not matter here. A collector with a
        parent also waits for the parent's own freeze and relays all before it.
        """
        self._freeze_after = {
            log: position for log, position in positions.items() if log in self.own.own
        }

    # -- what comes out ---------------------------------------------------------------------

    def step(self, now_ms: int) -> tuple[Action, ...]:
        """Hand out what is to be done now. `now_ms` is written into records for people."""
        actions: list[Action] = []
        if self._checkpoint is not None:
            actions.append(SaveCheckpoint(self._checkpoint))
            self._checkpoint = None
        positions = self.own.state.positions
        actions += [Fill(log, positions[log]) for log in self._fills]
        self._fills.clear()
        if self._own_end is None or self.own.offset_next < self._own_end or not self.own.proven:
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

    @property
    def frozen(self) -> bool:
        """Whether our epoch is over: nothing more will count."""
        return self.own.state.frozen

    @property
    def lag(self) -> int:
        """How many filled offsets of our own logs are not ordered yet."""
        positions = self.own.state.positions
        return sum(max(0, end - positions[log]) for log, end in self._ends.items())

    def unordered(self, log: int, end: int) -> int:
        """Count the offsets of a log below `end` for which no record was handed out yet."""
        return max(0, end - self._speculated.positions[log])

    @property
    def too_far(self) -> dict[int, int]:
        """By how much our own logs are ordered beyond their ends, where they are not filled."""
        positions = self.own.state.positions
        beyond = {log: positions[log] - end for log, end in self._ends.items()}
        return {log: count for log, count in beyond.items() if count > self.limits.fill_max}

    @property
    def early(self) -> int:
        """How many offsets of our own logs are ordered ahead of their log's end."""
        positions = self.own.state.positions
        return sum(max(0, positions[log] - end) for log, end in self._ends.items())

    @property
    def due(self) -> bool:
        """Whether something waits to be appended that was not handed out yet."""
        return self._next(0) is not None

    @property
    def pending(self) -> int:
        """How many of our records are in flight."""
        return len(self._pending)

    def parent_paused(self, *, paused: bool = False) -> bool:
        """Whether to read no more of the parent's stream for now.

        Who has `paused` goes on once half of the relay is free: to begin again costs something.
        """
        most = self.limits.relay_max
        return len(self._relay) > most // 2 if paused else len(self._relay) >= most

    # -- inside -----------------------------------------------------------------------------

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
        if self.own.state.count % self.limits.checkpoint_every == 0 and not self.frozen:
            self._checkpoint = self.own.checkpoint()

    def _restart(self) -> None:
        """Forget what was speculated: what counts stands in our own stream alone."""
        self._pending.clear()
        self._speculated = self.own.state.copy()

    def _parent_moved(self, by: _Relayed) -> None:
        self._parent_count = by.after.records
        for log, _, end in by.runs:
            self._parent_at[log] = end

    def _compare(self) -> None:
        """Hold our positions to the parent's, where both are known at the same record."""
        relayed = self._relayed().records
        if self.parent is None or relayed > self._parent_count:
            return
        own = self.own
        self.strayed = relayed < self._parent_count or any(
            own.state.positions[log] != max(position, own.starts[log])
            for log, position in self._parent_at.items()
        )

    def _relayed(self) -> ParentNext:
        return self.own.state.parent_next

    def _next(self, now_ms: int) -> OrderRecord | None:
        """Make the record that extends what is speculated; None where there is nothing to say."""
        state = self._speculated
        if state.frozen:
            return None
        relayed, runs = self._from_parent()
        emptied = relayed.records - state.parent_next.records
        if runs or emptied >= max(1, self.limits.relay_max // 2):
            return OrderRecord(
                RecordKind.PARENT, state.digest, relayed, coalesce(runs), self._writer, now_ms
            )
        # Before our own logs: under load these always have more, and an epoch must end.
        if self._may_freeze(relayed):
            return OrderRecord(RecordKind.FREEZE, state.digest, relayed, (), self._writer, now_ms)
        own = self._from_logs()
        if own:
            return OrderRecord(
                RecordKind.OWN, state.digest, state.parent_next, own, self._writer, now_ms
            )
        return None

    def _from_parent(self) -> tuple[ParentNext, list[Run]]:
        """Gather the parent's runs that are not relayed yet, as many as fit into one record."""
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
        """Give what of the parent's runs is not ordered here; `ahead` is where we are by then."""
        left = []
        for log, first, end in runs:
            position = ahead.get(log, self._speculated.positions[log])
            if end > position:
                left.append(Run(log, max(first, position), end))
                ahead[log] = end
        return left

    def _from_logs(self) -> tuple[Run, ...]:
        """Gather the growth of our own logs, capped; take turns at who comes first."""
        runs: list[Run] = []
        positions, ends, promises = self._speculated.positions, self._ends, self._promises
        length_max, early = self.limits.run_length_max, self._freeze_after is None
        logs = self._logs
        for log in logs[self._turn :] + logs[: self._turn] if self._turn else logs:
            first, end = positions[log], ends[log]
            promised = promises[log].promised
            if promised > 0 and early and log not in self._wary and log not in self.held:
                end += promised
            if first < end:
                runs.append(Run(log, first, min(end, first + length_max)))
                if len(runs) == self.limits.runs_max:
                    self._turn = (logs.index(log) + 1) % len(logs)
                    break
        return tuple(runs)

    def _may_freeze(self, relayed: ParentNext) -> bool:
        if self._freeze_after is None:
            return False
        # One that has strayed relays nothing more; who ends the epoch sees to what is missing.
        if (
            self.parent is not None
            and not self.strayed
            and not (self.parent.state.frozen and relayed.records >= self.parent.state.count)
        ):
            return False
        positions = self._speculated.positions
        return all(positions[log] >= end for log, end in self._freeze_after.items())
