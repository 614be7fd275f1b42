"""Simulated producers, which multicast, and operators, which begin the next epoch.

Producers repeat a multicast until it is acknowledged, so a message with an unknown outcome may be
stored twice, under two IDs. Operators drain an epoch by the rules of `collectors.epoch_change`;
several run at once, and each may stop at any step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from bench.simulation.judge import Judge
from bench.simulation.schedule import Fate
from bench.simulation.trees import TOPIC
from bench.simulation.world import CONTROL, READ_ALL, World
from collectors.epoch_change import ends_of, logs_to_mark
from collectors.mending import resumed
from multicast.control import (
    ControlState,
    ends_record,
    log_partition,
    markers_record,
    of_version_1,
    order_topic,
    plan_record,
    stream_partition,
)
from multicast.drivers.protocol import Appended, AppendOutcome, Headers, TopicPartition
from multicast.errors import AmcastError, TopicChanged
from multicast.messages import covered_header, epoch_header
from multicast.order import OrderStream
from topology.carry_over import Retained
from topology.tree import Log, Plan

PRODUCERS = 3  # each with its own view of the plan; few, so that each of them meets many faults
_SKIPS_MAX = 10_000  # that an epoch's end may need; more means that a record was accepted wrongly


class Producers:
    """The producers, each with its own, perhaps old, view of the plan."""

    def __init__(self, world: World, judge: Judge) -> None:
        self._world = world
        self._judge = judge
        self._views = [world.view() for _ in range(PRODUCERS)]
        self._again: list[tuple[int, tuple[str, ...]]] = []

    def turn(self, bits: int) -> None:
        """Multicast to a destination set of the schedule; perhaps repeat a failed one first."""
        number = bits % PRODUCERS
        if bits >> 2 & 3 == 0:
            self._views[number].refresh()
        if self._again and bits >> 4 & 1:
            again = self._again.pop(0)
            self._multicast(*again, bits >> 16)
        drawn = self._world.schedule.destinations
        self._world.stats.multicasts += 1
        self._multicast(number, drawn[(bits >> 5 & 0x3FF) % len(drawn)], bits >> 24)

    def calm_turn(self) -> None:
        """Repeat every multicast that was not acknowledged."""
        waiting, self._again = self._again, []
        for number, to in waiting:
            self._views[number].refresh()
            self._multicast(number, to, 0)

    def _multicast(self, number: int, to: tuple[str, ...], bits: int) -> None:
        log = self._views[number].state.plan().cover(to)
        if log is None:  # the set was declared by a newer plan, or by one that lost to its rival
            log = self._views[number].refresh().plan().cover(to)
        if log is None:
            to = to[:1]
            log = self._views[number].state.plan().cover(to)
            assert log is not None
        headers: Headers = () if to == log.to else (covered_header(log.name, to),)
        value = None if bits & 0x3F0000 == 0 else b"%d" % self._world.stats.multicasts
        fate = self._world.append(
            log_partition(log),
            value,
            bits=bits,
            headers=headers,
            done=partial(self._heard, number, log, to),
        )
        if fate is Fate.DOUBLED:
            self._judge.acknowledged(f"p{number}", to, "unknown", None)

    def _heard(self, number: int, log: Log, to: tuple[str, ...], outcome: AppendOutcome) -> None:
        if not self._world.same_topic(log.topic):
            return  # the topic was recreated, so the offset is no message ID of this history
        if isinstance(outcome, Appended):
            message_id = f"{log.name}:{outcome.offset}"
            self._judge.acknowledged(f"p{number}", to, "accepted", message_id)
            self._world.note("accepted", message_id)
            return
        outcome_name = "failed" if outcome.error.definite else "unknown"
        self._judge.acknowledged(f"p{number}", to, outcome_name, None)
        self._again.append((number, to))


class Operator:
    """Begins the next epoch: one small step a turn, each derived from the logs alone."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self._view = world.view()
        self._markers: dict[str, int] = {}
        self._busy = 0
        self._streams: dict[str, OrderStream] = {}
        self._draining = 0

    def turn(self, bits: int) -> None:
        """Take one step towards the last epoch of the schedule."""
        if self._busy and not self._world.calm:
            return
        if self._world.calm or bits & 0x100:
            self._view.refresh()
        state = self._view.state
        plans = self._world.schedule.plans
        epoch = state.epoch
        if epoch > 1 and epoch - 1 not in state.ends:
            self._drain(state, epoch - 1, bits)
        elif epoch < len(plans):
            rivals = plans[epoch]
            proposed = self._place(state, rivals[self._number % len(rivals)], bits >> 10)
            key, value = plan_record(state.previous, proposed, attempt=self._attempt())
            self._append(CONTROL, value, key=key, bits=bits)

    def _place(self, state: ControlState, plan: Plan, bits: int) -> Plan:
        """Set where the streams begin (anywhere up to their ends), and where new logs begin."""
        collectors = []
        for node in plan.collectors:
            end = self._world.end(TopicPartition(order_topic(TOPIC), node.stream))
            first = end if bits & 1 else end - min(end, bits >> 1 & 7)
            begin = self._world.log.log_start_offsets(
                [TopicPartition(order_topic(TOPIC), node.stream)]
            )
            collectors.append(replace(node, stream_first=max(first, *begin.values())))
        known = {log.name for plan in state.plans for log in plan.logs}
        begins = self._world.log.log_start_offsets([log_partition(log) for log in plan.logs])
        logs = [
            log if log.name in known else replace(log, first=begins[log_partition(log)])
            for log in plan.logs
        ]
        return replace(plan, collectors=tuple(collectors), logs=tuple(logs))

    def _drain(self, state: ControlState, epoch: int, bits: int) -> None:
        plan = state.plan(epoch)
        if self._draining != epoch:
            self._draining = epoch
            self._markers = {}
            self._streams = {}
        if epoch not in state.markers:
            self._mark(plan, state.retained(epoch), bits)
            return
        self._read_streams(state, plan, bits >> 12)
        ends = ends_of(plan, self._streams, state.markers[epoch], state.retained(epoch))
        if ends is not None:
            assert not resumed(self._streams, ends), "an epoch without forged records disagrees"
            for name, end in ends.items():
                fill(self._world, plan.log(name), end)
            key, value = ends_record(epoch, ends, attempt=self._attempt())
            self._append(CONTROL, value, key=key, bits=bits)

    def _mark(self, plan: Plan, retained: Retained, bits: int) -> None:
        names = logs_to_mark(plan, retained)
        missing = [name for name in names if name not in self._markers]
        if not missing:
            key, value = markers_record(plan.epoch, self._markers, attempt=self._attempt())
            self._append(CONTROL, value, key=key, bits=bits)
            return
        name = missing[0]

        def heard(outcome: AppendOutcome) -> None:
            if isinstance(outcome, Appended):
                self._markers[name] = outcome.offset + 1

        header = epoch_header(name, plan.epoch + 1)
        partition = log_partition(plan.log(name))
        self._append(partition, b"", headers=(header,), bits=bits, heard=heard)

    def _attempt(self) -> str:
        return f"{self._number}-{self._world.turn}"

    def _read_streams(self, state: ControlState, plan: Plan, bits: int) -> None:
        """Read every stream of the epoch that is not retained; raises as `OrderStream.read`."""
        for node in plan.collectors:
            if node.name in state.retained(plan.epoch).collectors:
                continue
            partition = stream_partition(plan, node.name)
            stream = self._streams.get(node.name)
            if stream is None:
                below = self._world.end(partition) if bits & 1 else 0
                stream = of_version_1(state.stream(plan.epoch, node.name, below=below))
            fetched = self._world.log.read(partition, stream.offset_next, READ_ALL)
            if fetched is not None:
                for record in fetched.records:
                    stream.read(record.offset, record.value)
                stream.passed(fetched.position)
            self._streams[node.name] = stream

    def _append(
        self,
        partition: TopicPartition,
        value: bytes,
        *,
        bits: int,
        key: bytes | None = None,
        headers: Headers = (),
        heard: Callable[[AppendOutcome], None] | None = None,
    ) -> None:
        """Append; no next step is taken before the answer."""
        self._busy += 1

        def done(outcome: AppendOutcome) -> None:
            self._busy -= 1
            if heard is not None:
                heard(outcome)

        self._world.append(partition, value, key=key, headers=headers, bits=bits, done=done)


class Operators:
    """Two operators that propose the same plan for an epoch, or rival ones."""

    def __init__(self, world: World, make: Callable[[World, int], Operator]) -> None:
        self._world = world
        self._make = make
        self._two = [make(world, 0), make(world, 1)]

    def turn(self, bits: int) -> None:
        """Give one of them a turn; perhaps it crashes first."""
        number = bits & 1
        if bits >> 1 & 7 == 0 and self._world.schedule.crash_mask != -1:
            self._world.fault("operator crashed")
            self._two[number] = self._make(self._world, number)
        self._turn(number, bits >> 4)

    def calm_turn(self) -> None:
        """Take one step without faults."""
        self._turn(0, 0)

    def _turn(self, number: int, bits: int) -> None:
        try:
            self._two[number].turn(bits)
        except AmcastError as error:
            self._world.fault(f"operator stopped: {type(error).__name__}")
            self._two[number] = self._make(self._world, number)


def fill(world: World, log: Log, end: int) -> None:
    """Fill a log with skips up to an offset that an early run reached."""
    partition = log_partition(log)
    assert end - world.next_offset(partition) <= _SKIPS_MAX, "a record orders too far ahead"
    while world.next_offset(partition) < end:
        if not world.same_topic(partition.topic):
            raise TopicChanged(f"topic {partition.topic} was deleted and recreated")
        world.fault("hole at an epoch's end")
        world.append_skip(log, bits=0, done=None)
