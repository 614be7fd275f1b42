"""`topology recover`: what a wrong order record has damaged is made good.

Goes in: a driver and a topic whose streams `mending.py` judges. A log that is ordered too far is
filled. For all other damage the epoch ends, and the next begins with the same layout:

    1  the plan of the next epoch (`recovery_plan`) stands in the control topic
    2  markers, as in any change; collectors that can freeze do
    3  whoever does not freeze in time is frozen from here; a stream that nobody can read on is
       taken to end there
    4  logs are filled to where the streams have ordered them
    5  what streams of the epoch disagree about is written into those of the next, which has not
       begun yet, and `ends` says where each of them begins

Every step looks first at what stands in the logs: killed anywhere, it is simply run again, and
several at once do no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

from collectors.collector import CollectorLimits
from collectors.doctor.streams import READ_S, open_near_end
from collectors.engine.skips import fill_up, ignore, missing
from collectors.epoch_change import freeze_positions
from collectors.mending import (
    Damage,
    Harm,
    StreamRead,
    ahead_record,
    damage,
    freeze_record,
    left_out,
    ordered_to,
    owed_record,
    recovery_plan,
    resumed,
    same_trees,
)
from collectors.reconfiguration.drain import Drain, Streams
from multicast.control import (
    ControlReader,
    ControlState,
    control_partition,
    log_partition,
    order_topic,
    plan_record,
    stream_partition,
)
from multicast.control.documents import Ended
from multicast.drivers.kafka_python import Admin, TopicSpec
from multicast.drivers.protocol import AppendOutcome, Driver, Reader, Record, TopicPartition
from multicast.errors import AppendUnknown, Conflict, TimedOut, Trimmed, UnknownVersion
from multicast.order import OrderRecord, OrderStream, Run, encode
from topology.tree import Plan

SKIPS_MAX = 100_000  # that are written without a question
_AGAIN_S = 0.3


# -- looking --------------------------------------------------------------------------------


class _Surveyed(Streams):
    """Streams of which one that nobody here can read on is taken to end there."""

    def take(self, stream: OrderStream, record: Record) -> None:
        """Read a record; one of an unknown version ends the stream."""
        try:
            stream.read(record.offset, record.value)
        except UnknownVersion:
            stream.stop = record.offset
            stream.passed(record.offset)


def read_streams(driver: Driver, state: ControlState) -> dict[str, StreamRead]:
    """Read every stream of the newest epoch that has begun to its end, by collector."""
    plan = state.plan(state.begun_epoch)
    places: dict[TopicPartition, OrderStream] = {}
    for node in plan.collectors:
        began = state.plan(state.first_epoch(plan.epoch, node.name))
        at = stream_partition(began, node.name)
        places[at] = open_near_end(driver, state, began, node.name, look_back=0)
    _read_to_end(driver, places)
    streams = {stream.collector: stream for stream in places.values()}
    found = {}
    for name, stream in streams.items():
        parent = plan.collector(name).parent
        last = state.last_epoch(stream.plan.epoch, name)
        marked = None if last is None else state.markers.get(last)
        found[name] = StreamRead(
            stream,
            unknown_version=stream.stop is not None,
            parent_positions=None
            if parent is None
            else _positions_at(driver, state, streams[parent], stream),
            marked=None if marked is None else freeze_positions(stream.plan, marked),
        )
    return found


def _read_to_end(driver: Driver, places: Mapping[TopicPartition, OrderStream]) -> None:
    with _surveyed(driver, places) as streams:
        ends = driver.last_stable_offsets(list(places))
        while any(stream.offset_next < ends[at] for at, stream in places.items()):
            before = sum(stream.offset_next for stream in places.values())
            streams.read(READ_S)
            if sum(stream.offset_next for stream in places.values()) == before:
                raise TimedOut(f"the order could not be read to its end within {READ_S:g} s")


@contextmanager
def _surveyed(driver: Driver, places: Mapping[TopicPartition, OrderStream]) -> Iterator[_Surveyed]:
    reader = driver.reader({at: stream.offset_next for at, stream in places.items()})
    try:
        yield _Surveyed(reader, places)
    finally:
        reader.close()


def _positions_at(
    driver: Driver, state: ControlState, parent: OrderStream, child: OrderStream
) -> Mapping[int, int] | None:
    """Give a parent's positions after as many records as its child has relayed; None: too few."""
    relayed = child.state.parent_next.records
    at = stream_partition(parent.plan, parent.collector)
    if parent.state.count < relayed:
        _read_to_end(driver, {at: parent})  # the child may have been read to a later moment
    if parent.state.count <= relayed:
        return dict(parent.state.positions) if parent.state.count == relayed else None
    begin = driver.log_start_offsets([at])[at]
    points = [
        point
        for point in state.checkpoints(parent.plan.epoch, parent.collector)
        if point.count <= relayed and point.offset >= begin
    ]
    again = state.opened(parent.plan.epoch, parent.collector, points[-1] if points else None)
    if again.state.count == relayed:
        return dict(again.state.positions)
    try:
        for _ in _records(driver, again, parent.offset_next):
            if again.state.count == relayed:
                return dict(again.state.positions)
    except Trimmed:
        pass  # nobody can tell any longer
    return dict(child.state.positions)


def _records(driver: Driver, stream: OrderStream, end: int) -> Iterator[OrderRecord]:
    """Read a stream to an offset; give what counts."""
    at = stream_partition(stream.plan, stream.collector)
    reader = driver.reader({at: stream.offset_next})
    try:
        while stream.offset_next < end and not stream.state.frozen:
            moved = reader.poll(READ_S)
            if not moved:
                raise TimedOut(f"nothing came beyond offset {stream.offset_next} of {end}")
            for fetched in moved:
                for record in fetched.records:
                    if record.offset >= end:
                        return
                    judged = stream.read(record.offset, record.value)
                    if isinstance(judged, OrderRecord):
                        yield judged
                stream.passed(fetched.position)
    finally:
        reader.close()


def find_damage(driver: Driver, state: ControlState) -> tuple[Damage, ...]:
    """Name what is damaged in the newest epoch that has begun."""
    return _judged(driver, state, read_streams(driver, state))


def _judged(
    driver: Driver, state: ControlState, streams: Mapping[str, StreamRead]
) -> tuple[Damage, ...]:
    plan = state.plan(state.begun_epoch)
    at = {log.name: log_partition(log) for log in plan.logs}
    there = driver.high_watermarks(list(at.values()))
    return damage(streams.values(), {name: there[place] for name, place in at.items()})


def refuse_damaged(driver: Driver, state: ControlState) -> None:
    """Raise `Conflict` where something is damaged: an ordinary change could not make it good."""
    found = find_damage(driver, state)
    if found:
        raise Conflict(f"{found[0].says}; run 'amcast topology recover' first")


# -- ending a damaged epoch -----------------------------------------------------------------


class RecoveringDrain(Drain):
    """A drain that copes with every state of the streams."""

    lossy = False

    def _streams(self, reader: Reader, places: Mapping[TopicPartition, OrderStream]) -> Streams:
        self._skips_max = 2**62  # somebody said yes to them
        return _Surveyed(reader, places)

    def _help(self, names: list[str], streams: Streams, opened: ExitStack) -> float:  # noqa: ARG002
        """Freeze what did not freeze in time."""
        for name in names:
            self._say(f"{name} did not freeze in time; it is frozen from here")
            stream = streams.named[name]
            self._append_order(stream.plan, name, freeze_record(stream))
        self._flush()
        return _AGAIN_S

    def _append_order(self, plan: Plan, name: str, record: OrderRecord) -> None:
        stamped = replace(record, time_ms=time.time_ns() // 1_000_000)
        at = stream_partition(plan, name)
        self.appender.append(at, encode(stamped), done=ignore)

    def _settle(self, streams: Streams, ends: Mapping[str, int]) -> Ended | None:
        """Write into the next epoch's streams what those of this one disagree about."""
        named = streams.named
        stopped = {name: one.stop for name, one in named.items() if one.stop is not None}
        begins = resumed(named, ends)
        furthest = ordered_to(named.values())
        if not same_trees(self._plan, self._next):
            torn = [f"collector {name} has strayed" for name in begins] + self._frozen_early(ends)
            if torn and not self.lossy:
                raise Conflict(
                    f"{torn[0]}, and epoch {self._next.epoch}, which was applied meanwhile, has "
                    f"another layout, so some consumers would miss messages or get them twice; "
                    f"say --accept-loss where that may be"
                )
            return Ended(stopped=stopped)
        starts = {**(self._control.state.starts(self._plan.epoch) or {}), **ends}
        for name, stream in named.items():
            runs = self._runs_left_out(named, stream) if name in begins else []
            following = OrderStream(self._next, name, starts, resumed=begins.get(name))
            self._write_order(following, runs, furthest)
        return Ended(begins, stopped)

    def _runs_left_out(self, named: Mapping[str, OrderStream], child: OrderStream) -> list[Run]:
        """Give what a parent's stream ordered and its child's did not, in the parent's order."""
        above = child.plan.collector(child.collector).parent
        assert above is not None
        parent, state = named[above], self._control.state
        at = stream_partition(parent.plan, above)
        begin = self._driver.log_start_offsets([at])[at]
        points = [
            point
            for point in state.checkpoints(parent.plan.epoch, above)
            if begin <= point.offset < parent.offset_next
            and all(point.positions[log] <= child.state.positions[log] for log in child.inherited)
        ]
        again = state.opened(parent.plan.epoch, above, points[-1] if points else None)
        end = parent.offset_next if parent.stop is None else parent.stop
        every = (run for one in _records(self._driver, again, end) for run in one.runs)
        number = {
            log: self._next.number(child.plan.logs[log].name) for log in child.state.positions
        }
        return [Run(number[log], first, last) for log, first, last in left_out(child, every)]

    def _write_order(
        self, stream: OrderStream, runs: list[Run], furthest: Mapping[str, int]
    ) -> None:
        """Bring a stream of the next epoch to where it must stand when that begins."""
        at = stream_partition(stream.plan, stream.collector)
        while True:
            _read_to_end(self._driver, {at: stream})
            record = owed_record(stream, runs) or ahead_record(stream, furthest)
            if record is None:
                return
            if time.monotonic() >= self._deadline:
                raise TimedOut(f"the stream of {stream.collector} could not be mended in time")
            self._append_order(stream.plan, stream.collector, record)
            self._flush()


# -- the whole ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found and done: `epoch` is the newest, `skips` were appended."""

    epoch: int
    found: tuple[Damage, ...]
    skips: int
    changed: bool


def recover(
    driver: Driver,
    admin: Admin,
    topic: str,
    *,
    timeout_s: float = 30.0,
    yes: bool = False,
    lossy: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Recovered:
    """Make good what is damaged in the newest epoch; return once that is done.

    More than `SKIPS_MAX` skips are written only where `yes`; an epoch whose next one has another
    layout by now is ended with a loss only where `lossy`. Raises `Conflict` where that was not
    said, or another operator was quicker; `TimedOut`: run it again. `say` hears of each step.
    """
    deadline = time.monotonic() + timeout_s
    control = ControlReader(driver, topic)
    try:
        state = control.refresh()
        begun = state.begun_epoch
        streams = read_streams(driver, state)
        found = _judged(driver, state, streams)
        for one in found:
            say(one.says)
        skips = _fill(driver, state, streams, deadline=deadline, yes=yes, say=say)
        harmed = tuple(
            dict.fromkeys(one.collector for one in found if one.harm is not Harm.TOO_FAR)
        )
        if begun == state.epoch and not harmed:
            return Recovered(begun, found, skips, changed=skips > 0)
        if begun == state.epoch:
            _propose(driver, admin, control, harmed, timeout_s)
            say(f"epoch {control.state.epoch} stands in the control topic")
        _end(driver, control, begun, deadline=deadline, lossy=lossy, say=say)
    finally:
        control.close()
    return Recovered(control.state.epoch, found, skips, changed=True)


def _propose(
    driver: Driver,
    admin: Admin,
    control: ControlReader,
    harmed: Collection[str],
    timeout_s: float,
) -> None:
    """Append the plan of the next epoch."""
    state = control.state
    plan = recovery_plan(state.plan(), harmed)
    partitions = 1 + max(node.stream for node in plan.collectors)
    admin.create_topics({order_topic(plan.topic): TopicSpec(partitions)})
    at = {node.name: stream_partition(plan, node.name) for node in plan.collectors}
    ends = driver.last_stable_offsets(list(at.values()))
    plan = replace(
        plan,
        collectors=tuple(
            replace(node, stream_first=ends[at[node.name]]) for node in plan.collectors
        ),
    )
    key, value = plan_record(state.previous, plan, attempt=uuid4().hex)
    outcomes: list[AppendOutcome] = []
    appender = driver.appender()
    try:
        appender.append(control_partition(plan.topic), value, key=key, done=outcomes.append)
        appender.flush(timeout_s)
    finally:
        appender.close()
    control.refresh()
    if control.state.epoch < plan.epoch:
        raise AppendUnknown(f"the plan of epoch {plan.epoch} was not stored in time; run it again")
    if control.state.plan(plan.epoch).digest != plan.digest:
        raise Conflict(f"another operator applied a plan for epoch {plan.epoch} first")


def _fill(
    driver: Driver,
    state: ControlState,
    streams: Mapping[str, StreamRead],
    *,
    deadline: float,
    yes: bool,
    say: Callable[[str], None],
) -> int:
    """Fill the logs to where they are ordered, where that is more than collectors fill."""
    plan = state.plan(state.begun_epoch)
    targets = ordered_to(read.stream for read in streams.values())
    short = missing(driver, plan, targets)
    short = {name: count for name, count in short.items() if count > CollectorLimits().fill_max}
    targets = {name: targets[name] for name in short}
    needed = sum(short.values())
    if needed > SKIPS_MAX and not yes:
        raise Conflict(
            f"log {max(short, key=short.__getitem__)} is ordered {max(short.values())} offsets "
            f"beyond its end, and {needed} empty messages have to be appended; say --yes to do so"
        )
    if not needed:
        return 0
    appender = driver.appender()
    try:
        return fill_up(driver, appender, plan, targets, deadline=deadline, say=say)
    finally:
        appender.close()


def _end(
    driver: Driver,
    control: ControlReader,
    epoch: int,
    *,
    deadline: float,
    lossy: bool,
    say: Callable[[str], None],
) -> None:
    with ExitStack() as opened:
        steps = RecoveringDrain(driver, control, epoch, deadline=deadline, say=say)
        steps.lossy = lossy
        opened.callback(steps.appender.close)
        steps.run(opened)
    control.refresh()
