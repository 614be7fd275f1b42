"""The state of the control topics: plans by epoch, the ends of epochs, and checkpoints.

`ControlState` takes the records of two compacted topics, each in offset order. It is the same for
all readers that have read both as far, whatever they read first. A malformed statement, and one in
the other's topic, is skipped, whatever its bytes are.

What operators state, in `A.topology`: plans, markers and ends form a digest chain; each names the
accepted one before it. Markers and ends of an epoch come after the next plan. Each has its own key,
so compaction removes none that is still needed. A repeated statement has another ATTEMPT in its
key: with the same key compaction would keep the later copy only, and a rival statement between the
two would become the first.

    plan/EPOCH/DIGEST/ATTEMPT      {"previous": hex, "plan": {…}}; accepted iff `previous` is the
                                   digest of what was accepted last, and EPOCH is the next
    markers/EPOCH/DIGEST/ATTEMPT   {"previous": hex, "positions": {log: offset}}: the collectors of
                                   this epoch freeze once each log is ordered up to there
    ends/EPOCH/DIGEST/ATTEMPT      {"previous": hex, "positions": {log: offset}}: where each log
                                   ends this epoch, except those retained by the next
                                   (`topology/carry_over.py`), and what `Ended` has

What collectors state, in `A.collectors`: the newest statement of a key replaces the others. One
that names an epoch that has not begun is *early*: it is kept until that has.

    checkpoint/NAME/LEVEL/SLOT     a copy of a checkpoint record of a collector's stream, and where
                                   it is (`checkpoints.py`). An empty value deletes it
    running/NAME                   {"epoch": e}: an instance has opened this epoch's collector; may
                                   say where its web pages are, and that it hands over (`released`)
    loss/LOG/LIFE/FIRST            {}: the log has lost what was at FIRST, and all behind it
    lost-stream/NAME/EPOCH         {}: the stream that began in this epoch has lost its end

Invariants: plans[i].epoch = i + 1; early statements name epochs that have not begun, and no key is
both early and among the checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple

from multicast.control.advertised import Advertised
from multicast.control.checkpoints import LEVELS, SLOTS, best_checkpoint, slot_of
from multicast.control.codecs import named_record, slot_key
from multicast.control.documents import Ended, ended_of, named_checkpoint_of, positions_of
from multicast.control.losses import Losses, is_cut, life_end
from multicast.control.sources import (
    first_epoch,
    last_epoch,
    log_sights,
    log_starts,
    retained_whole,
    single_log_end,
    single_log_start,
)
from multicast.control.topics import collectors_partition, stream_partition
from multicast.drivers.protocol import Record, TopicPartition
from multicast.errors import UncoveredInterest, UnknownVersion
from multicast.order.records import Loss, SeenEnd, SightRecord
from multicast.order.runs import anchor, digest_of
from multicast.order.stream import OrderStream, StreamCheckpoint
from topology.carry_over import Retained, retained
from topology.documents import NotReadable, json_object, part, whole, whole_text
from topology.tree import EPOCH_MAX, ORDER_VERSION, InvalidPlan, Plan

_ORDINARY = Ended()
# Who reads the operators' topic first meets an early statement only where a plan came meanwhile:
# one of each new collector at the most. So it bounds what foreign ones cost; the oldest go.
EARLY_MAX = 1000
EARLY_BYTES_MAX = 64_000_000


class _Named(NamedTuple):
    """A checkpoint, the offset of its statement, and the time that this gives."""

    point: StreamCheckpoint
    offset: int
    time_ms: int


class _Early(NamedTuple):
    """A checkpoint of an epoch that has no plan yet."""

    epoch: int
    offset: int
    value: bytes


def _slot(rest: str) -> tuple[str, int, int]:
    name, _, number = rest.rpartition("/")
    name, _, level = name.rpartition("/")
    return name, whole_text(level, LEVELS), whole_text(number, SLOTS - 1)


def genesis(topic: str) -> bytes:
    """Give the `previous` of a topic's first plan."""
    return digest_of(b"amcast genesis\0" + topic.encode())


@dataclass
class ControlState:
    """The content of the control topics as far as they were read: `read_from` adds a record."""

    topic: str
    plans: list[Plan] = field(default_factory=list)
    markers: dict[int, dict[str, int]] = field(default_factory=dict)
    ends: dict[int, dict[str, int]] = field(default_factory=dict)
    ended_ms: dict[int, int] = field(default_factory=dict)  # by epoch: when its `ends` were written
    void: int = 0
    previous: bytes = b""
    advertised: Advertised = field(default_factory=Advertised)
    losses: Losses = field(default_factory=Losses)
    ended: dict[int, Ended] = field(default_factory=dict)  # by epoch: what else its `ends` say
    lives: dict[str, int] = field(default_factory=dict)  # by log, also those that no plan has now
    began: dict[int, bytes] = field(default_factory=dict)  # by epoch: what the tags in it contain
    early: dict[bytes, _Early] = field(default_factory=dict)  # by key, in the order of reading
    _checkpoints: dict[bytes, _Named] = field(default_factory=dict)
    _retained: list[Retained] = field(default_factory=list)  # [e - 1]: what epoch e + 1 keeps of e

    def __post_init__(self) -> None:
        """Begin before the first plan."""
        self.previous = genesis(self.topic)

    def copy(self) -> ControlState:
        """Give a copy, which can read more without changing this state."""
        mutable = {name: held for name, held in vars(self).items() if hasattr(held, "copy")}
        other = replace(self, **{name: held.copy() for name, held in mutable.items()})
        other.previous = self.previous
        return other

    def continues(self, earlier: ControlState) -> bool:
        """Whether this state may be read later from the same topic; not if it was recreated."""
        return self.plans[: len(earlier.plans)] == earlier.plans

    def read_from(self, partition: TopicPartition, record: Record) -> None:
        """Process the next record of one of the two topics."""
        if partition == collectors_partition(self.topic):
            self.read_collectors(record)
        else:
            self.read(record)

    def read(self, record: Record) -> None:
        """Process the operators' next record; a malformed or untimely one is void, and counted.

        Never raises: anybody may write anything to a topic by mistake.
        """
        try:
            self._take(record.key or b"", record.value, record.timestamp_ms)
        except (NotReadable, InvalidPlan, UnicodeDecodeError):
            self.void += 1

    def read_collectors(self, record: Record) -> None:
        """Process the collectors' next record, as `read` does."""
        try:
            self._take_collectors(record.key or b"", record.value, record.offset)
        except (NotReadable, InvalidPlan, UnicodeDecodeError):
            self.void += 1

    def _take(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        kind, _, rest = key.decode().partition("/")
        document = json_object(value or b"")
        if kind == "plan":
            self._read_plan(value or b"", document)
        elif kind in ("markers", "ends"):
            epoch = whole_text(rest.partition("/")[0], EPOCH_MAX)
            positions = self._timely(kind, epoch, positions_of(part(document, "positions")))
            facts = self.markers if kind == "markers" else self.ends
            if epoch in facts:
                return
            self._refuse_other_chain(document)
            if kind == "ends":
                self.ended[epoch] = ended_of(document, self._plan(epoch + 1))
                self.ended_ms[epoch] = timestamp_ms
                self.began[epoch + 1] = digest_of(value or b"")
            facts[epoch] = positions
            self.previous = digest_of(value or b"")
        else:
            raise NotReadable(f"its kind {kind!r} is unknown")
        self._take_early()

    def _take_collectors(self, key: bytes, value: bytes | None, offset: int) -> None:
        kind, _, rest = key.decode().partition("/")
        if kind == "checkpoint":
            # Compaction removes it, so it does not count, whatever replaces it.
            self._checkpoints.pop(key, None)
            self.early.pop(key, None)
            if value is not None:
                self._take_checkpoint(key, value, offset)
        elif kind == "running":
            self.advertised.take(rest, json_object(value or b""))
        elif kind == "loss":
            self.losses.take(rest, value)
        elif kind == "lost-stream":
            self.losses.take_stream(rest, value)
        else:
            raise NotReadable(f"its kind {kind!r} is unknown")

    def _read_plan(self, value: bytes, document: Mapping[str, Any]) -> None:
        # A plan of an unknown version counts, so that its epoch stops this program by name.
        plan = Plan.from_json(part(document, "plan"), any_order=True)
        self._refuse_other_chain(document)
        if plan.epoch != len(self.plans) + 1:
            raise InvalidPlan("its epoch is not the next one")
        if plan.topic != self.topic:
            raise InvalidPlan("it is for another topic")
        if any(log.life < self.lives.get(log.name, 0) for log in plan.logs):
            raise InvalidPlan("a log has an earlier life than it had")
        self.lives.update({log.name: log.life for log in plan.logs})
        if self.plans:
            self._retained.append(retained(self.plans[-1], plan))
        self.plans.append(plan)
        self.previous = digest_of(value)
        self.began.setdefault(1, self.previous)

    def _refuse_other_chain(self, document: Mapping[str, Any]) -> None:
        if part(document, "previous") != self.previous.hex():
            raise NotReadable("it does not follow the last accepted plan, markers or ends")

    def _timely(self, kind: str, epoch: int, positions: Mapping[str, int]) -> dict[str, int]:
        """Give the positions of logs that end; raise `NotReadable` if one is missing, or early.

        The next plan precedes the markers of an epoch, and these precede its ends; an epoch begins
        before it ends, and no log ends below its start.
        """
        if not 1 <= epoch < self.epoch or (kind == "ends" and epoch not in self.markers):
            raise NotReadable(f"epoch {epoch} cannot end yet")
        starts = self.starts(epoch)
        if starts is None:
            raise NotReadable(f"epoch {epoch} has not begun")
        plan, kept = self._plan(epoch), self.retained(epoch).logs
        for log in plan.logs:
            is_due = kind == "ends" or plan.top(log.name) is None
            least = 0 if self._is_cut(epoch, log.name) else starts[log.name]
            if is_due and log.name not in kept and positions.get(log.name, -1) < least:
                raise NotReadable(f"it omits log {log.name}, or ends it below its start")
        names = {log.name for log in plan.logs} - kept
        return {name: position for name, position in positions.items() if name in names}

    def _take_checkpoint(self, key: bytes, value: bytes, offset: int) -> None:
        """Take a checkpoint, which must name a collector of a plan, and a slot."""
        name, level, number = _slot(key.decode().partition("/")[2])
        if key != slot_key(name, level, number):
            raise NotReadable("it names no slot")
        document = json_object(value)
        epoch = whole(part(document, "epoch"), EPOCH_MAX)
        if epoch > self.begun_epoch:
            self._keep_early(key, _Early(epoch, offset, value))
            return
        time_ms = whole(part(document, "time_ms"))
        if not (1 <= epoch <= self.epoch and self._plan(epoch).has_collector(name)):
            raise NotReadable("it names no stream of any plan")
        plan = self._plan(epoch)
        point = named_checkpoint_of(document, plan, name, self._tag(epoch, name))
        self._checkpoints[key] = _Named(point, offset, time_ms)

    def _keep_early(self, key: bytes, early: _Early) -> None:
        self.early[key] = early
        while (
            len(self.early) > EARLY_MAX
            or sum([len(each.value) for each in self.early.values()]) > EARLY_BYTES_MAX
        ):
            del self.early[next(iter(self.early))]
            self.void += 1

    def _take_early(self) -> None:
        """Take what was stated of the newest epoch before it was known to have begun."""
        begun = self.begun_epoch if self.early else 0
        for key, (epoch, offset, value) in list(self.early.items()):
            if epoch <= begun:
                del self.early[key]
                try:
                    self._take_checkpoint(key, value, offset)
                except (NotReadable, InvalidPlan):
                    self.void += 1

    # -- look-ups ---------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch of the newest plan; 0 if no plan was applied."""
        return len(self.plans)

    @property
    def begun_epoch(self) -> int:
        """The newest epoch that has begun; it is `epoch - 1` while that one is drained."""
        return len(self.began)

    def epoch_at(self, timestamp_ms: int) -> int:
        """Give the newest epoch that had begun at a time: those before it had ended earlier."""
        epoch = self.begun_epoch
        while epoch > 1 and timestamp_ms <= self.ended_ms[epoch - 1]:
            epoch -= 1
        return epoch

    def tag(self, epoch: int, collector: str) -> bytes:
        """Give the tag of a collector's stream in an epoch: that of the epoch in which it began.

        Raises `UncoveredInterest` if that has not begun.
        """
        epoch = self.first_epoch(epoch, collector)
        self.begun(epoch)
        return self._tag(epoch, collector)

    def tags_in(self, stream: TopicPartition) -> set[bytes]:
        """Give the tags of all streams of epochs that have begun in a partition of the order."""
        return {
            self._tag(plan.epoch, node.name)
            for plan in self.plans[: self.begun_epoch]
            for node in plan.collectors
            if stream_partition(plan, node.name) == stream
        }

    def _tag(self, epoch: int, collector: str) -> bytes:
        return anchor(epoch, collector, self.began[epoch])

    def plan(self, epoch: int | None = None) -> Plan:
        """Give the plan of an epoch, by default the newest.

        Raises `UncoveredInterest` if there is none, and `UnknownVersion` if this program does not
        read the records of its epoch.
        """
        plan = self._plan(self.epoch if epoch is None else epoch)
        if plan.order_version != ORDER_VERSION:
            raise UnknownVersion(
                f"epoch {plan.epoch} of topic {plan.topic} has order records of version "
                f"{plan.order_version}, and this program reads version {ORDER_VERSION}: use the "
                f"program that its collectors run, or begin anew with another topic"
            )
        return plan

    def _plan(self, number: int) -> Plan:
        if not 1 <= number <= self.epoch:
            raise UncoveredInterest(
                f"topic {self.topic} has no plan"
                + (f" of epoch {number}" if number else "")
                + "; make one with 'amcast topology plan FILE --out plan.json' and "
                "'amcast topology apply plan.json'"
            )
        return self.plans[number - 1]

    def retained(self, epoch: int) -> Retained:
        """Give what the next epoch retains of this one: everything, while there is no next."""
        if epoch < self.epoch:
            return self._retained[epoch - 1]
        return retained_whole(self._plan(epoch))

    def first_epoch(self, epoch: int, source: str) -> int:
        """Give the epoch in which a source of this epoch began; its stream is of that epoch.

        A source is a collector's name, or "@" and a log's.
        """
        return first_epoch(self.retained, epoch, source)

    def last_epoch(self, epoch: int, source: str) -> int | None:
        """Give the last epoch of a source of this one; None: the newest plan has it still."""
        return last_epoch(self.retained, epoch, source, newest=self.epoch)

    def starts(self, epoch: int) -> dict[str, int] | None:
        """Give, by log name, the first offset of an epoch; None while the epoch has not begun.

        A log begins where its last epoch ended, and a new log at its `first` in the plan. A
        retained log has its start in the epoch in which it began.
        """
        return log_starts(self._plan(epoch), self.ends)

    def begun(self, epoch: int) -> dict[str, int]:
        """Give what `starts` gives; raises `UncoveredInterest` while the epoch has not begun."""
        starts = self.starts(epoch)
        if starts is None:
            raise UncoveredInterest(f"epoch {epoch} of topic {self.topic} has not begun yet")
        return starts

    def stream(self, epoch: int, collector: str, *, below: int) -> OrderStream:
        """Open a collector's stream at its last checkpoint below an offset; 0: at its start.

        A stream that is retained from earlier epochs opens under the plan in which it began. Raises
        `UncoveredInterest` if the epoch has not begun, and `UnknownVersion`.
        """
        epoch = self.first_epoch(epoch, collector)
        points = [named.point for named in self._checkpoints.values()]
        point = best_checkpoint(points, epoch, collector, below)
        return self.opened(epoch, collector, point)

    def opened(
        self, epoch: int, collector: str, point: StreamCheckpoint | None = None
    ) -> OrderStream:
        """Open a stream in the epoch in which it began, at one of its checkpoints or its start.

        Raises `UncoveredInterest` if the epoch has not begun, and `UnknownVersion`.
        """
        plan = self.plan(epoch)
        starts, before = self.begun(epoch), self.ended.get(epoch - 1, _ORDINARY)
        return OrderStream(
            plan,
            collector,
            starts,
            point,
            began=self.began[epoch],
            resumed=before.resumed.get(collector),
            owed=before.restored.get(collector, 0),
            sight=self._sight(plan, collector),
        )

    def _sight(self, plan: Plan, collector: str) -> SightRecord:
        """Give what was seen and lost of a collector's logs before the plan's epoch."""
        seen, lost = log_sights(plan.epoch, self.ends, self.ended, self._is_cut)
        bag = [(name, plan.number(name)) for name in plan.collector(collector).bag]
        return SightRecord(
            tuple(SeenEnd(log, *end) for name, log in bag for end in seen.get(name, ())),
            tuple(Loss(log, lost[name]) for name, log in bag if name in lost),
        )

    def single_log_end(self, epoch: int, log: str) -> int | None:
        """Give the offset at which an epoch ends for single-log subscriptions; None if unknown.

        They read up to the marker. The log's own end is lower only if a stream was frozen too
        early; other consumers then deliver the messages between the two in the next epoch.
        """
        return single_log_end(self.ends, self.markers, self._is_cut, epoch, log)

    def _is_cut(self, epoch: int, log: str) -> bool:
        """Whether the next plan accepts that a log has lost its end: it has another life."""
        return is_cut(self.plans, epoch, log)

    def cut_of(self, epoch: int, log: str) -> int | None:
        """Give where the life of a log ends that it has in this epoch; None: it goes on.

        An operator has accepted that the log has lost what was there. Nobody delivers it from there
        on in any epoch of this life. A later life may lose what this one held: then it ends there.
        """
        return life_end(self.plans, self.ends, epoch, log)

    def loss_of(self, epoch: int, log: str) -> int | None:
        """Give the first offset of a log that is lost in this epoch; None: nobody has stated one.

        Nobody delivers the log from there on until an operator accepts the loss (`cut_of`).
        """
        first = self.losses.first_in(self.plans, epoch, log)
        cut = self.cut_of(epoch, log)
        return first if cut is None or first is None or first < cut else None

    def stream_is_lost(self, epoch: int, collector: str) -> bool:
        """Whether a stream has lost its end, and goes on: readers of both tails would differ."""
        began, last = self.first_epoch(epoch, collector), self.last_epoch(epoch, collector)
        has_ended = last is not None and last in self.ends
        return (collector, began) in self.losses.streams and not has_ended

    def single_log_start(self, epoch: int, log: str) -> int:
        """Say where an epoch begins for those who read a log alone."""
        start = single_log_start(self.ends, self.markers, self._is_cut, epoch, log)
        return self.begun(epoch)[log] if start is None else start

    def naming(self, point: StreamCheckpoint, now_ms: int) -> tuple[bytes, bytes] | None:
        """Make the statement of a checkpoint that counts; None if it was made before."""
        named = self._checkpoints.values()
        if any(each.point == point for each in named):
            return None
        mine = [each for each in named if each.point.collector == point.collector]
        last_ms = max(mine, key=attrgetter("offset")).time_ms if mine else 0
        return named_record(point, now_ms, slot_of(now_ms, last_ms))

    @property
    def checkpoint_keys(self) -> Mapping[bytes, StreamCheckpoint]:
        """All checkpoints, by the keys of their statements."""
        return {key: named.point for key, named in self._checkpoints.items()}

    def checkpoints(self, epoch: int, collector: str) -> list[StreamCheckpoint]:
        """List the checkpoints of a stream by offset."""
        points = [
            point
            for point, _, _ in self._checkpoints.values()
            if (point.epoch, point.collector) == (epoch, collector)
        ]
        return sorted(points, key=lambda point: point.offset)
