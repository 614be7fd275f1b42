"""What one instance hosts: a collector of a plan, its Kafka partitions, and the streams it reads.

An assignment never changes. Its plan is the one that the collector began with: a collector that
later plans retain keeps its stream and its digests (`multicast/control/sources.py`).
Nothing here reads or writes Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collectors.core.epoch_change import freeze_positions
from multicast.control import ControlState, log_partition, stream_partition
from multicast.drivers.protocol import TopicPartition
from multicast.errors import Truncated, UsageError
from multicast.order.stream import OrderStream
from topology.tree import Plan


@dataclass(frozen=True, slots=True)
class Assignment:
    """One collector of one plan, with the names of its Kafka partitions."""

    name: str
    plan: Plan
    own: TopicPartition  # the collector's order stream
    parent: TopicPartition | None  # the order stream of its parent; None at a root
    logs: Mapping[TopicPartition, int]  # the logs whose top it is, with their numbers in the plan

    @classmethod
    def of(cls, state: ControlState, name: str, epoch: int | None) -> Assignment:
        """Look up a collector in the plan of an epoch, by default the newest.

        Raises `UsageError` where the epoch's plan has no such collector.
        """
        running = state.plan(epoch)
        if not running.has_collector(name):
            raise UsageError(f"epoch {running.epoch} has no collector {name}")
        plan = state.plan(state.first_epoch(running.epoch, name))
        parent = plan.collector(name).parent
        return cls(
            name=name,
            plan=plan,
            own=stream_partition(plan, name),
            parent=None if parent is None else stream_partition(plan, parent),
            logs={log_partition(plan.log(log)): plan.number(log) for log in plan.own_logs(name)},
        )

    @property
    def topics(self) -> set[str]:
        """Name the Kafka topics of the logs and of the order."""
        return {partition.topic for partition in (*self.logs, self.own)}

    @property
    def parent_name(self) -> str | None:
        """Name the collector above; None at a root."""
        return self.plan.collector(self.name).parent

    @property
    def streams(self) -> tuple[TopicPartition, ...]:
        """Name the streams that the collector reads: its own first."""
        return (self.own,) if self.parent is None else (self.own, self.parent)

    def stream_starts(self) -> dict[TopicPartition, int]:
        """Give the streams that the collector reads, each with its first offset of the epoch."""
        spec = self.plan.collector(self.name)
        starts = {self.own: spec.stream_first}
        if self.parent is not None and spec.parent is not None:
            starts[self.parent] = self.plan.collector(spec.parent).stream_first
        return starts

    def open_streams(
        self, state: ControlState, own_end: int, *, checkpoints: bool, parent_end: int | None = None
    ) -> tuple[OrderStream, OrderStream | None]:
        """Open the collector's own stream, which ends at `own_end`, and its parent's.

        Each begins at the last checkpoint that leaves out nothing the core needs; without
        `checkpoints`, where the epoch starts. Raises `UncoveredInterest` where it has not begun,
        and `Truncated` where a checkpoint is named that lies at an end or above: these ends are
        asked for AFTER `state` was read.
        """
        epoch, parent = self.plan.epoch, self.plan.collector(self.name).parent
        _refuse_lost(state, epoch, self.name, own_end)
        if parent is not None and parent_end is not None:
            _refuse_lost(state, epoch, parent, parent_end)
        own = state.stream(epoch, self.name, below=own_end if checkpoints else 0)
        if parent is None:
            return own, None
        below = own.state.parent_next if checkpoints else 0
        return own, state.stream(epoch, parent, below=below)

    def freeze_positions(self, state: ControlState) -> dict[int, int] | None:
        """Give by log number where the collector's last epoch ends; None while it has no markers.

        A collector that the newest plan retains has no last epoch yet.
        """
        last = state.last_epoch(self.plan.epoch, self.name)
        markers = None if last is None else state.markers.get(last)
        return None if markers is None else freeze_positions(self.plan, markers)


def _refuse_lost(state: ControlState, epoch: int, collector: str, end: int) -> None:
    """Raise `Truncated` if a checkpoint is named at the end of a collector's stream or above."""
    gone = [each.offset for each in state.checkpoints(epoch, collector) if each.offset >= end]
    if gone:
        partition = stream_partition(state.plan(epoch), collector)
        raise Truncated(
            f"the stream of collector {collector}, {partition.topic}/{partition.partition}, has "
            f"lost its end: a checkpoint was at offset {gone[0]}, and it ends at {end}; run "
            f"'amcast topology recover'"
        ).about(partition)
