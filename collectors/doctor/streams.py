"""Reads the control topics and the order streams to their ends, and gives facts for the checks.

The facts are: the foreign records of the control topics; of each collector, what it has ordered of
the offsets that were filled when the inspection began. Writes nothing.
"""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from collectors.doctor.facts import AheadLog, CollectorFacts, Stamp
from collectors.engine.ended_processes import EndedProcesses, place_of
from collectors.reconfiguration.status_pages import acting_first, read_pages
from multicast.control import (
    ControlState,
    StatusPage,
    best_checkpoint,
    collectors_partition,
    control_partition,
    control_topics,
    groups_topic,
    log_partition,
    order_topic,
    plans_alone,
    stream_partition,
)
from multicast.drivers.protocol import Driver, Record, TopicPartition
from multicast.drivers.reading import READ_S, read_upto
from multicast.errors import AccessDenied, AmcastError, ClusterUnreachable, TimedOut, Trimmed
from multicast.order.records import OwnRecord, StreamRecord, Unread, tag_of
from multicast.order.rule import NotCounted
from multicast.order.runs import Run, order_checksum
from multicast.order.stream import OrderStream
from topology.documents import NotReadable, json_object, part
from topology.tree import InvalidPlan, Plan

# For the first unordered or unread records. A log that does not answer in time is left out.
_STAMP_S = 3.0
SPAN_MAX = 1_000  # offsets of a log that are read for that: skips rarely come in such numbers
_FOREIGN = (NotCounted.FOREIGN, NotCounted.MALFORMED, NotCounted.IMPOSSIBLE, NotCounted.FALSE)


def now_ms() -> int:
    """Give the time of this machine's clock, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass
class Control:
    """The control topics: their state, and the offsets of their foreign records.

    `lost` counts plans that lost to an earlier plan for the same epoch; that is not a fault. Plans
    are read first.
    """

    state: ControlState
    foreign: list[int] = field(default_factory=list)
    lost: int = 0
    _void: list[int] = field(default_factory=list)  # of what collectors state

    def read(self, record: Record) -> None:
        """Read the next record that operators wrote."""
        before = self.state.void
        self.state.read(record)
        if self.state.void > before:
            if _is_plan(record):
                self.lost += 1
            else:
                self.foreign.append(record.offset)

    def read_collectors(self, record: Record) -> None:
        """Read the next record that collectors wrote."""
        before = self.state.void
        self.state.read_collectors(record)
        if self.state.void > before:
            self._void.append(record.offset)

    @property
    def collectors_foreign(self) -> tuple[int, ...]:
        """The foreign records that stand where collectors write; those of no plan are, too."""
        early = (each.offset for each in self.state.early.values())
        return tuple(sorted({*self._void, *early}))


def _is_plan(record: Record) -> bool:
    try:
        Plan.from_json(part(json_object(record.value or b""), "plan"))
    except (NotReadable, InvalidPlan):
        return False
    return (record.key or b"").startswith(b"plan/")


def read_control(driver: Driver, topic: str) -> Control:
    """Read the control topics to their ends; raises `TopicMissing` if one does not exist.

    If that is the collectors', it raises `UnknownVersion` for a plan of another version.
    """
    control = Control(ControlState(topic))
    operators, collectors = control_partition(topic), collectors_partition(topic)
    plans_alone(driver, topic)
    # This end first: what collectors state of a plan comes after the plan.
    end = driver.last_stable_offsets([collectors])[collectors]
    _read_control(driver, operators, None, control.read)
    _read_control(driver, collectors, end, control.read_collectors)
    return control


def _read_control(
    driver: Driver, partition: TopicPartition, end: int | None, read: Callable[[Record], None]
) -> None:
    """Read a topic from its start to an offset; None: to its present end."""
    if end is None:
        end = driver.last_stable_offsets([partition])[partition]
    begin = driver.log_start_offsets([partition])[partition]
    for fetched in read_upto(driver, partition, begin, end):
        for record in fetched.records:
            read(record)


def stream_records(
    driver: Driver, stream: OrderStream, end: int
) -> Iterator[tuple[Record, tuple[Run, ...] | NotCounted]]:
    """Read a stream to an offset; give each record, just read, and what it orders.

    Raises what the stream raises, and `TimedOut` if no record comes.
    """
    partition = stream_partition(stream.plan, stream.collector)
    for fetched in read_upto(driver, partition, stream.offset_next, end, error=TimedOut):
        for record in fetched.records:
            if record.offset >= end:
                return
            yield record, stream.read(record.offset, record.value, order_checksum(record))
        stream.passed(fetched.position)


@dataclass(frozen=True)
class InspectionStart:
    """The ends of logs and streams when the inspection began, and the time of that."""

    now_ms: int
    ends: Mapping[TopicPartition, int]
    deadline: float  # of `time.monotonic`: until then collectors may catch up
    streams: dict[str, KnownStream] = field(default_factory=dict)  # by collector, as they are read


class RelayedPlace(NamedTuple):
    """The state of a stream at the offset up to which a child has relayed it."""

    positions: Mapping[int, int]
    checksum: int  # of the record before that offset; 0: unknown
    restores: bool  # whether the stream still restores runs there


class KnownStream(NamedTuple):
    """A stream that was read to its end, and its places by the offsets that children relayed to."""

    stream: OrderStream
    places: Mapping[int, RelayedPlace]


def place_at(stream: OrderStream) -> RelayedPlace:
    """Give the place of a stream at its present offset."""
    restores = stream.state.restored < stream.shape.owed
    return RelayedPlace(dict(stream.state.positions), stream.checksum, restores)


class _StreamInspection:
    """One stream while it is read, with its void and foreign records."""

    def __init__(
        self,
        stream: OrderStream,
        tags: Collection[bytes],
        ends: Mapping[TopicPartition, int],
        relayed: Collection[int] = (),
    ) -> None:
        self.stream = stream
        self.places: dict[int, RelayedPlace] = {}
        self._relayed = sorted({each for each in relayed if each > stream.offset_next})
        self._before: Record | None = None
        self._ends = ends
        self._own_ends = {log: ends[self._partition(log)] for log in stream.own}
        # By own log: records that ordered it beyond its end at the start, as (next, what, time).
        self.beyond: dict[int, list[tuple[int, str, int]]] = {}
        self._tags = tags
        self.read_from = stream.offset_next
        self.void: Counter[str] = Counter()
        self.foreign: list[int] = []
        self.newest: tuple[int, int] | None = None  # offset and time

    def read(self, record: Record) -> None:
        self.pass_children(record.offset)
        self._before = record
        judged = self.stream.read(record.offset, record.value)
        if isinstance(judged, enum.Enum):
            is_late = judged is NotCounted.FOREIGN and tag_of(record.value or b"") in self._tags
            self.void["other_epoch" if is_late else judged.name.lower()] += 1
            if judged in _FOREIGN and not is_late:
                self.foreign.append(record.offset)
            return
        self.newest = record.offset, record.timestamp_ms
        if judged:
            for log, _, after in judged:
                if after > self._own_ends.get(log, after):
                    what = f"{_writer(self.stream.last, log)} at offset {record.offset}"
                    noted = self.beyond.setdefault(log, [])
                    noted.append((after, what, record.timestamp_ms))

    def pass_children(self, offset: int) -> None:
        """Note the places that children have relayed up to, before the record at `offset`."""
        while self._relayed and self._relayed[0] <= offset:
            at = self._relayed.pop(0)
            if not self.stream.state.frozen:
                known = 0 if self._before is None else order_checksum(self._before)
                self.places[at] = place_at(self.stream)._replace(checksum=known)

    def _partition(self, log: int) -> TopicPartition:
        return log_partition(self.stream.plan.logs[log])

    def ahead(self, driver: Driver) -> tuple[AheadLog, ...]:
        """List the own logs that are ordered ahead of their ends as they are now."""
        stream = self.stream
        if stream.state.frozen:
            return ()
        positions = {self._partition(log): stream.state.positions[log] for log in stream.own}
        may = [partition for partition, at in positions.items() if at > self._ends[partition]]
        # Not the last stable offsets: what an open transaction hides is stored.
        highs = driver.high_watermarks(may) if may else {}
        now, found = now_ms(), []
        for log in sorted(stream.own):
            end = highs.get(self._partition(log), stream.state.positions[log])
            if stream.state.positions[log] > end:
                first = next((each for each in self.beyond.get(log, ()) if each[0] > end), None)
                by, for_ms = ("", None) if first is None else (first[1], now - first[2])
                name, ordered = stream.plan.logs[log].name, stream.state.positions[log]
                found.append(AheadLog(name, stream.collector, ordered, end, by, for_ms))
        return tuple(found)


def _writer(record: StreamRecord | Unread | None, log: int) -> str:
    """Say who writes such records, as far as they tell."""
    if not isinstance(record, OwnRecord):
        return "a recovery"
    is_producers = any(each.log == log and each.messages for each in record.tickets)
    return "a producer's ticket" if is_producers else "a collector's ticket"


def inspect_collector(
    driver: Driver, state: ControlState, plan: Plan, name: str, start: InspectionStart
) -> tuple[CollectorFacts, list[Stamp]]:
    """Read a collector's stream until it has ordered all of `start.ends`, or to the deadline.

    The streams of its children are to be read before, so that none has to be read again. Raises
    `ClusterUnreachable` and `AccessDenied`; any other error of the stream is the `problem` of the
    facts.
    """
    plan = state.plan(state.first_epoch(plan.epoch, name))
    node = plan.collector(name)
    bare = CollectorFacts(
        name,
        node.parent,
        is_open=name in state.advertised.collectors_open(plan.epoch),
        records=0,
        ended_at=_ended_at(state.advertised.pages.get(name)),
    )
    try:
        opened = open_near_end(driver, state, plan, name)
        tags = state.tags_in(stream_partition(plan, name))
        below = [each.name for each in plan.collectors if each.parent == name]
        known = [start.streams[each].stream for each in below if each in start.streams]
        relayed = [each.state.parent_next for each in known]
        inspection = _StreamInspection(opened, tags, start.ends, relayed)
        _read(driver, inspection, start)
        start.streams[name] = KnownStream(opened, inspection.places)
        ahead, behind = inspection.ahead(driver), _behind(opened, start)
        late = {log_partition(plan.log(log)): opened.state.positions[opened.plan.number(log)]
                for log in behind}  # fmt: skip
        waits = first_records(driver, {each: (at, start.ends[each]) for each, at in late.items()})
    except (AccessDenied, ClusterUnreachable):
        raise
    except AmcastError as error:
        sentence = f"the stream of collector {name} cannot be read: {error}"
        return replace(bare, problem=sentence), []
    stamps = []
    if inspection.newest is not None:
        offset, stamp = inspection.newest
        fresh = offset >= start.ends[stream_partition(plan, name)]
        writer = f"the broker of collector {name}'s stream"
        stamps = [Stamp(writer, stamp, now_ms(), start.now_ms if fresh else None)]
    facts = replace(
        bare,
        records=inspection.stream.count,
        frozen=inspection.stream.state.frozen,
        void=dict(inspection.void),
        foreign=tuple(inspection.foreign),
        read_from=inspection.read_from,
        behind=behind,
        oldest_ms=min((each.timestamp_ms for each in waits.values()), default=None),
        last_ms=inspection.newest[1] if inspection.newest else None,
        ahead=ahead,
    )
    return facts, stamps


def _ended_at(page: StatusPage | None) -> str:
    """Say where the process that last acted for a collector listened, if it has ended; else ""."""
    place = None if page is None else place_of(page)
    if place is None or not EndedProcesses().has_ended(place):
        return ""
    return f"{place.host}:{place.port}"


def _gone(state: ControlState, plan: Plan, name: str, begin: int) -> str:
    """Say what to do about a stream without a checkpoint; asks the processes for who knows it."""
    topic, partition = plan.topic, stream_partition(plan, name)
    what = (
        f"what the stream of collector {name} ({partition.topic}/{partition.partition}) held "
        f"before offset {begin} is deleted, and there is no later checkpoint"
    )
    answers = read_pages({page: None for page in state.advertised.pages.values() if page})
    knowing = [
        page
        for page, node in acting_first(answers, answers, name, plan.epoch)
        if node.get("begun") is True
    ]
    if knowing:
        return (
            f"{what} yet, but the process at {knowing[0].host}:{knowing[0].port} has read it: "
            f"leave it running; it writes a checkpoint within a minute, then run this again"
        )
    derived = groups_topic(topic), order_topic(topic), *control_topics(topic)
    return (
        f"{what}, as after an outage longer than {partition.topic} keeps records. No process that "
        f"answers here has read it; if one runs elsewhere, leave it running, for it writes a "
        f"checkpoint within a minute. If none does, nobody knows what was ordered. To begin anew, "
        f"delete the topics {', '.join(derived)} (the messages in the first one and the order of "
        f"all collectors are lost; topic {topic} stays), plan again from the interest file, and "
        f"apply that"
    )


def open_near_end(
    driver: Driver, state: ControlState, plan: Plan, name: str, *, gone: int | None = None
) -> OrderStream:
    """Open a stream at its newest checkpoint.

    Without a checkpoint it opens the stream at the epoch's start, or at the oldest checkpoint
    if retention has deleted that start. Raises `Trimmed` where it has, and no checkpoint is left.
    Checkpoints from offset `gone` on are not used: the stream has lost them.
    """
    partition = stream_partition(plan, name)
    begin = driver.log_start_offsets([partition])[partition]
    end = driver.last_stable_offsets([partition])[partition]
    points = [
        point
        for point in state.checkpoints(plan.epoch, name)
        if begin <= point.read_from and point.offset < (end if gone is None else min(end, gone))
    ]
    chosen = best_checkpoint(points, plan.epoch, name, end)
    if chosen is None and plan.collector(name).stream_first < begin:
        if not points:
            raise Trimmed(_gone(state, plan, name, begin))
        chosen = points[0]
    return state.opened(plan.epoch, name, chosen)


def _behind(stream: OrderStream, start: InspectionStart) -> dict[str, int]:
    """Count by log the offsets below `start.ends` that the stream has not ordered."""
    behind = {}
    for number, position in stream.state.positions.items():
        log = stream.plan.logs[number]
        waits = start.ends[log_partition(log)] - position
        if waits > 0 and not stream.state.frozen:
            behind[log.name] = waits
    return behind


def _read(driver: Driver, inspection: _StreamInspection, start: InspectionStart) -> None:
    """Read the stream to its end at the start; then on to the deadline, while it is behind."""
    stream = inspection.stream
    partition = stream_partition(stream.plan, stream.collector)
    end = start.ends[partition]
    with closing(driver.reader({partition: stream.offset_next})) as reader:
        while True:
            reads = stream.offset_next < end
            left_s = READ_S if reads else start.deadline - time.monotonic()
            if not reads and (left_s <= 0 or not _behind(stream, start)):
                return
            moved = reader.poll(left_s)
            if reads and not moved:
                raise TimedOut(
                    f"no record came for {READ_S:g} s after offset {stream.offset_next} of {end}"
                )
            for fetched in moved:
                for record in fetched.records:
                    inspection.read(record)
                inspection.pass_children(fetched.position)
                stream.passed(fetched.position)


def first_records(
    driver: Driver,
    spans: Mapping[TopicPartition, tuple[int, int]],
    counts: Callable[[TopicPartition, Record], bool] = lambda _partition, _record: True,
) -> dict[TopicPartition, Record]:
    """Read the first record that `counts` between two offsets of each partition.

    A partition is left out if none comes in time, or among the first `SPAN_MAX` offsets.
    """
    first: dict[TopicPartition, Record] = {}
    kept = driver.log_start_offsets(list(spans)) if spans else {}
    begins = {each: max(begin, kept[each]) for each, (begin, _) in spans.items()}
    wanted = {each: min(spans[each][1], begin + SPAN_MAX) for each, begin in begins.items()
              if begin < spans[each][1]}  # fmt: skip
    if not wanted:
        return first
    with closing(driver.reader({each: begins[each] for each in wanted})) as reader:
        while wanted and (moved := reader.poll(_STAMP_S, SPAN_MAX)):
            for fetched in moved:
                partition = fetched.partition
                end = wanted.get(partition, 0)
                for record in fetched.records:
                    if record.offset < end and counts(partition, record):
                        first.setdefault(partition, record)
                        break
                if (partition in first or fetched.position >= end) and wanted.pop(partition, 0):
                    reader.remove([partition])
    return first
