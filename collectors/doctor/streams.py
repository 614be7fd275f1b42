"""Reads the control topic and order streams to their ends, for people: facts, no judgement.

Goes in: a driver, where the logs ended when the look began. Comes out: what stands in the control
topic that is foreign, and of each collector what it ordered, and what it left. Nothing is written.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from collectors.doctor.facts import CollectorFacts, Stamp
from multicast.control import (
    ControlState,
    best_checkpoint,
    control_partition,
    log_partition,
    stream_partition,
)
from multicast.drivers.protocol import Driver, Record, TopicPartition
from multicast.errors import AccessDenied, AmcastError, ClusterUnreachable, TimedOut
from multicast.order import OrderRecord, OrderStream, Void, decode
from topology.documents import NotReadable, json_object, part
from topology.tree import InvalidPlan, Plan

READ_S = 10.0
LOOK_BACK = 20_000  # offsets of a stream that are looked at, at least
_FOREIGN = (Void.FOREIGN, Void.MALFORMED, Void.IMPOSSIBLE)


def now_ms() -> int:
    """Give our clock's time."""
    return time.time_ns() // 1_000_000


@dataclass
class Control:
    """The control topic: what it says, and the offsets of its foreign records.

    `lost` counts plans that came second; that is no fault.
    """

    state: ControlState
    foreign: list[int] = field(default_factory=list)
    lost: int = 0

    def read(self, record: Record) -> None:
        """Take the next record."""
        before = self.state.void
        self.state.read(record)
        if self.state.void > before:
            if _is_plan(record):
                self.lost += 1
            else:
                self.foreign.append(record.offset)


def _is_plan(record: Record) -> bool:
    try:
        Plan.from_json(part(json_object(record.value or b""), "plan"))
    except (NotReadable, InvalidPlan):
        return False
    return (record.key or b"").startswith(b"plan/")


def read_control(driver: Driver, topic: str) -> Control:
    """Read a control topic to its end; raises `TopicMissing` where there is none."""
    at = control_partition(topic)
    control = Control(ControlState(topic))
    position, end = driver.log_start_offsets([at])[at], driver.last_stable_offsets([at])[at]
    reader = driver.reader({at: position})
    try:
        while position < end:
            moved = reader.poll(READ_S)
            if not moved:
                raise ClusterUnreachable(
                    f"the control topic {at.topic} could not be read to its end within {READ_S:g} s"
                )
            for fetched in moved:
                for record in fetched.records:
                    control.read(record)
                position = fetched.position
    finally:
        reader.close()
    return control


@dataclass(frozen=True)
class Began:
    """Where logs and streams ended when the look began, and when that was."""

    at_ms: int
    ends: Mapping[TopicPartition, int]
    deadline: float  # of `time.monotonic`: until then collectors may catch up


class _Look:
    """What one stream shows while it is read."""

    def __init__(self, stream: OrderStream) -> None:
        self.stream = stream
        self.read_from = stream.offset_next
        self.void: Counter[str] = Counter()
        self.foreign: list[int] = []
        self.newest: tuple[int, int] | None = None  # offset and the writer's time

    def read(self, record: Record) -> None:
        judged = self.stream.read(record.offset, record.value)
        if isinstance(judged, Void):
            self.void[judged.name.lower()] += 1
            if judged in _FOREIGN:
                self.foreign.append(record.offset)
            return
        counted = judged if isinstance(judged, OrderRecord) else decode(record.value or b"")
        self.newest = record.offset, counted.time_ms


def look_at_collector(
    driver: Driver, state: ControlState, plan: Plan, name: str, began: Began
) -> tuple[CollectorFacts, list[Stamp]]:
    """Read a collector's stream until it has ordered what stood in its logs, or time is up.

    Raises `ClusterUnreachable` and `AccessDenied`; what is wrong with the stream itself stands in
    the facts.
    """
    plan = state.plan(state.first_epoch(plan.epoch, name))
    node = plan.collector(name)
    told = state.addresses.get(name)
    bare = CollectorFacts(
        name,
        node.parent,
        advertised_address=told is not None and told[0] >= plan.epoch,
        records=0,
    )
    try:
        look = _Look(open_near_end(driver, state, plan, name))
        _read(driver, look, began)
    except (AccessDenied, ClusterUnreachable):
        raise
    except AmcastError as error:
        sentence = f"the stream of collector {name} cannot be read: {error}"
        return replace(bare, problem=sentence), []
    stamps = []
    if look.newest is not None:
        offset, stamp = look.newest
        fresh = offset >= began.ends[stream_partition(plan, name)]
        stamps = [Stamp(f"collector {name}", stamp, now_ms(), began.at_ms if fresh else None)]
    facts = replace(
        bare,
        records=look.stream.state.count,
        frozen=look.stream.state.frozen,
        void=dict(look.void),
        foreign=tuple(look.foreign),
        read_from=look.read_from,
        behind=_behind(look.stream, began),
        waited_s=(now_ms() - began.at_ms) / 1000,
        last_ms=look.newest[1] if look.newest else None,
    )
    return facts, stamps


def open_near_end(
    driver: Driver, state: ControlState, plan: Plan, name: str, *, look_back: int = LOOK_BACK
) -> OrderStream:
    """Open a stream somewhat before its end, at a checkpoint that can still be proven."""
    at = stream_partition(plan, name)
    begin, end = driver.log_start_offsets([at])[at], driver.last_stable_offsets([at])[at]
    points = [one for one in state.checkpoints(plan.epoch, name) if begin <= one.offset < end]
    chosen = best_checkpoint(points, plan.epoch, name, max(0, end - look_back))
    if chosen is None and points and plan.collector(name).stream_first < begin:
        chosen = points[0]  # retention took the epoch's start
    return state.opened(plan.epoch, name, chosen)


def _behind(stream: OrderStream, began: Began) -> dict[str, int]:
    """Count what stood in the logs when the look began, and has no place in the stream."""
    found = {}
    for number, position in stream.state.positions.items():
        log = stream.plan.logs[number]
        waits = began.ends[log_partition(log)] - position
        if waits > 0 and not stream.state.frozen:
            found[log.name] = waits
    return found


def _read(driver: Driver, look: _Look, began: Began) -> None:
    """Read what stood there when the look began; then on, as long as something is left to order."""
    stream = look.stream
    at = stream_partition(stream.plan, stream.collector)
    end = began.ends[at]
    reader = driver.reader({at: stream.offset_next})
    try:
        while True:
            reads = stream.offset_next < end
            left_s = READ_S if reads else began.deadline - time.monotonic()
            if not reads and (left_s <= 0 or not _behind(stream, began)):
                return
            moved = reader.poll(left_s)
            if reads and not moved:
                raise TimedOut(f"nothing came beyond offset {stream.offset_next} of {end}")
            for fetched in moved:
                for record in fetched.records:
                    look.read(record)
                stream.passed(fetched.position)
    finally:
        reader.close()
