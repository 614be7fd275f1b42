"""A simulated operator that also recovers from wrong order records: one small step a turn.

`collectors.mending` decides what is damaged and which records repair it. Two operators may recover
at once, and each may stop at any step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from bench.simulation.forging import read, take
from bench.simulation.world import CONTROL, READ_ALL, World
from bench.simulation.writers import Operator, fill
from collectors.epoch_change import ends_of, freeze_positions
from collectors.mending import (
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
)
from multicast.control import (
    ControlState,
    ends_record,
    log_partition,
    of_version_1,
    plan_record,
    stream_partition,
)
from multicast.control.documents import Ended
from multicast.order import OrderRecord, OrderStream, Resumed, Run, encode
from topology.tree import Plan

_PATIENCE_TURNS = 6  # in which collectors may freeze by themselves
_EPOCHS_MAX = 20  # that recoveries of one schedule may add; more means that none repairs anything
_LOOK_EVERY_TURNS = 4  # between two looks at rest, so that collectors also run with the damage


class Recoverer(Operator):
    """Begins the schedule's epochs; from the last one on, repairs damaged streams."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self._waited = 0
        self._looks = 0

    def turn(self, bits: int) -> None:
        """Take one step."""
        last = len(self._world.schedule.plans)
        if (self._busy and not self._world.calm) or not self._world.schedule.forges:
            super().turn(bits)
            return
        if self._world.calm or bits & 0x100:
            self._view.refresh()
        state = self._view.state
        if state.epoch < last or state.begun_epoch < last:
            super().turn(bits)
        elif state.begun_epoch == state.epoch:
            assert state.epoch <= last + _EPOCHS_MAX, "recoveries repair nothing"
            self._waited = 0
            self._looks += 1
            if not self._world.calm or self._looks % _LOOK_EVERY_TURNS == 0:
                self._look(state, bits)
        else:
            self._end(state, state.epoch - 1, bits)

    # -- finding damage ---------------------------------------------------------------------

    def _look(self, state: ControlState, bits: int) -> None:
        """Fill logs that were ordered too far; propose the next epoch for any other damage."""
        world, plan = self._world, state.plan()
        streams = [self._read(state, node.name) for node in plan.collectors]
        there = {log.name: world.next_offset(log_partition(log)) for log in plan.logs}
        findings = damage(streams, there, fill_max=world.schedule.limits.fill_max)
        if any(finding.harm is Harm.TOO_FAR for finding in findings):
            world.fault("recovery: logs filled")
            for name, target in ordered_to(stream_read.stream for stream_read in streams).items():
                if target - there[name] > world.schedule.limits.fill_max:
                    fill(world, plan.log(name), target)
        harmed = {finding.collector for finding in findings if finding.harm is not Harm.TOO_FAR}
        for finding in findings:
            world.fault(f"damage: {finding.harm}")
        if harmed:
            world.fault("recovery: epoch proposed")
            following = recovery_plan(plan, sorted(harmed))
            ends = {
                node.name: world.end(stream_partition(following, node.name))
                for node in following.collectors
            }
            following = replace(
                following,
                collectors=tuple(
                    replace(node, stream_first=ends[node.name]) for node in following.collectors
                ),
            )
            key, value = plan_record(state.previous, following, attempt=self._attempt())
            self._append(CONTROL, value, key=key, bits=bits)

    def _read(self, state: ControlState, name: str) -> StreamRead:
        stream = read(self._world, state, state.epoch, name)
        parent = stream.plan.collector(name).parent
        return StreamRead(
            stream,
            unknown_version=stream.stop is not None,
            parent_positions=None
            if parent is None
            else self._positions_at(state, parent, stream.state.parent_next.records),
        )

    def _positions_at(
        self, state: ControlState, parent: str, records: int
    ) -> Mapping[int, int] | None:
        stream = of_version_1(state.opened(state.first_epoch(state.epoch, parent), parent))
        if stream.state.count < records:
            for _ in self._each(stream):
                if stream.state.count == records:
                    break
        return stream.state.positions if stream.state.count == records else None

    def _each(self, stream: OrderStream) -> Iterator[OrderRecord]:
        """Read a stream, and yield its accepted records, up to one of an unknown version."""
        partition = stream_partition(stream.plan, stream.collector)
        fetched = self._world.log.read(partition, stream.offset_next, READ_ALL)
        for record in fetched.records if fetched is not None else ():
            judged = take(stream, record.offset, record.value)
            if isinstance(judged, OrderRecord):
                yield judged

    # -- ending a damaged epoch ---------------------------------------------------------------

    def _end(self, state: ControlState, epoch: int, bits: int) -> None:
        plan, following = state.plan(epoch), state.plan(epoch + 1)
        retained = state.retained(epoch)
        if epoch not in state.markers:
            if self._draining != epoch:
                self._draining = epoch
                self._markers = {}
            self._mark(plan, retained, bits >> 12)
            return
        streams = {
            node.name: read(self._world, state, epoch, node.name)
            for node in plan.collectors
            if node.name not in retained.collectors
        }
        ends = ends_of(plan, streams, state.markers[epoch], retained)
        if ends is None:
            self._freeze(streams, state.markers[epoch], bits >> 12)
            return
        begins = resumed(streams, ends)
        if self._write_missing(state, following, streams, ends, begins):
            return
        for name, target in {**ends, **ordered_to(streams.values())}.items():
            fill(self._world, plan.log(name), target)
        stopped = {name: stream.stop for name, stream in streams.items() if stream.stop is not None}
        key, value = ends_record(epoch, ends, attempt=self._attempt(), ended=Ended(begins, stopped))
        self._append(CONTROL, value, key=key, bits=bits)

    def _freeze(
        self,
        streams: Mapping[str, OrderStream],
        markers: Mapping[str, int],
        bits: int,
    ) -> None:
        """Freeze one stream that has not frozen in time, even if its collector could have."""
        self._waited += 1
        waits = [name for name, stream in streams.items() if not stream.state.frozen]
        if self._waited < _PATIENCE_TURNS and bits & 3:
            return
        name = waits[bits % len(waits)]
        stream = streams[name]
        wanted = freeze_positions(stream.plan, markers)
        positions = stream.state.positions
        if any(log in stream.own and positions[log] < needed for log, needed in wanted.items()):
            self._world.fault("recovery: frozen before its markers")
        self._world.fault("recovery: frozen")
        self._write(stream, freeze_record(stream), bits)

    def _write_missing(
        self,
        state: ControlState,
        following: Plan,
        streams: Mapping[str, OrderStream],
        ends: Mapping[str, int],
        begins: Mapping[str, Mapping[str, Resumed]],
    ) -> bool:
        """Write one record that the next epoch's streams lack; False if none is missing."""
        starts = {**(state.starts(following.epoch - 1) or {}), **ends}
        furthest = ordered_to(streams.values())
        for name, stream in streams.items():
            new = OrderStream(following, name, starts, resumed=begins.get(name))
            for _ in self._each(new):
                pass
            runs = self._left_out(state, stream, following) if name in begins else []
            record = owed_record(new, runs)
            what = "owed"
            if record is None:
                record, what = ahead_record(new, furthest), "ahead"
            if record is not None:
                self._world.fault(f"recovery: {what}")
                self._write(new, record, 0)
                return True
        return False

    def _left_out(self, state: ControlState, child: OrderStream, following: Plan) -> list[Run]:
        name = child.plan.collector(child.collector).parent
        assert name is not None
        parent = of_version_1(state.opened(child.plan.epoch, name))
        every = [run for record in self._each(parent) for run in record.runs]
        return [
            Run(following.number(child.plan.logs[log].name), first, last)
            for log, first, last in left_out(child, every)
        ]

    def _write(self, stream: OrderStream, record: OrderRecord, bits: int) -> None:
        partition = stream_partition(stream.plan, stream.collector)
        self._append(partition, encode(record), bits=bits)
