"""Simulated producers and operators: who multicasts, and who makes the next epoch.

A turn's bits go in; records go to the faulty cluster. Producers try again until their multicast is
acknowledged, so a message whose outcome was unknown may stand there twice, under two IDs. Most
announce their messages to the log's collector; datagrams get lost, doubled, late and to whom they
were not meant for, and a producer may die between an announcement and its message. Operators
carry an epoch over into the next as `collectors.epoch_change` says, any number of them, each
stopping anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from bench.simulation.judge import Judge
from bench.simulation.nodes import SimulatedNodes
from bench.simulation.schedule import Fate
from bench.simulation.trees import TOPIC
from bench.simulation.world import CONTROL, READ_ALL, World
from collectors.epoch_change import ends_of, logs_to_mark
from collectors.mending import resumed
from multicast.announcements import TOKEN_BYTES, Announcement, Count, encode
from multicast.control import (
    ControlState,
    ends_record,
    log_partition,
    markers_record,
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

PRODUCERS = 3
_SKIPS_MAX = 10_000


@dataclass(slots=True)
class Session:
    """One process of a producer, and what it counts of each log."""

    number: int
    sent: dict[str, int] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)


class Producers:
    """A few producers, each with its own, perhaps old, view of the plan."""

    def __init__(self, world: World, judge: Judge, nodes: SimulatedNodes) -> None:
        self._world = world
        self._judge = judge
        self._nodes = nodes
        self._sessions = [Session(number) for number in range(PRODUCERS)]
        self._sessions_begun = PRODUCERS
        self._views = [world.view() for _ in range(PRODUCERS)]
        self._again: list[tuple[int, tuple[str, ...]]] = []

    def turn(self, bits: int) -> None:
        """Multicast to one of the schedule's destination sets; first try again what failed."""
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
        """Try again everything that was not acknowledged."""
        waiting, self._again = self._again, []
        for number, to in waiting:
            self._views[number].refresh()
            self._multicast(number, to, 0)

    def _multicast(self, number: int, to: tuple[str, ...], bits: int) -> None:
        log = self._views[number].state.plan().cover(to)
        if log is None:  # declared by a plan that this producer has not seen, or that lost
            log = self._views[number].refresh().plan().cover(to)
        if log is None:
            to = to[:1]
            log = self._views[number].state.plan().cover(to)
            assert log is not None
        session = self._sessions[number]
        calm = self._world.calm
        announces = self._world.schedule.announces and (calm or bits >> 22 & 7)
        if announces:
            session.sent[log.name] = session.sent.get(log.name, 0) + 1
            self._announce(number, log, bits >> 30)
            if not calm and not bits >> 25 & 31:
                self._die(number)
                return
        headers: Headers = () if to == log.to else (covered_header(log.name, to),)
        value = None if bits & 0x3F0000 == 0 else b"%d" % self._world.stats.multicasts
        fate = self._world.append(
            log_partition(log),
            value,
            bits=bits,
            headers=headers,
            done=partial(self._heard, number, session if announces else None, log, to),
        )
        if fate is Fate.DOUBLED:
            self._judge.acknowledged(f"p{number}", to, "unknown", None)

    def _heard(
        self,
        number: int,
        session: Session | None,
        log: Log,
        to: tuple[str, ...],
        outcome: AppendOutcome,
    ) -> None:
        if session is not None:
            session.settled[log.name] = session.settled.get(log.name, 0) + 1
        if not self._world.same_topic(log.topic):
            return  # its offsets are no IDs of this history any more
        if isinstance(outcome, Appended):
            message_id = f"{log.name}:{outcome.offset}"
            self._judge.acknowledged(f"p{number}", to, "accepted", message_id)
            self._world.note("accepted", message_id)
            return
        told = "failed" if outcome.error.definite else "unknown"
        self._judge.acknowledged(f"p{number}", to, told, None)
        self._again.append((number, to))

    def stray(self, bits: int) -> None:
        """Send a datagram that is old, or that nobody of ours would send."""
        number = bits % PRODUCERS
        plan = self._views[number].state.plan()
        log = plan.logs[(bits >> 4) % len(plan.logs)]
        if bits >> 2 & 1:
            self._announce(number, log, bits >> 16)
            return
        top = plan.top(log.name)
        if top is not None:
            self._world.fault("stranger's datagram")
            plan = self._home(number, top.name)
            count = Count(plan.number(log.name), 1 + (bits >> 16 & 0xFFF), 0)
            raw = encode(b"?" * TOKEN_BYTES, Announcement(bits >> 8, (count,)))
            self._nodes.hear(plan.epoch, top.name, raw[: len(raw) - (bits >> 3 & 1)])

    def _home(self, number: int, collector: str) -> Plan:
        """Give the plan that a collector of a producer's epoch began with."""
        state = self._views[number].state
        return state.plan(state.first_epoch(state.epoch, collector))

    def _announce(self, number: int, log: Log, bits: int) -> None:
        """Send what a producer counts of a log to the log's collector, over a faulty network."""
        plan = self._views[number].state.plan()
        top = plan.top(log.name)
        if top is None:
            return
        plan = self._home(number, top.name)
        token = self._nodes.token(plan.epoch, top.name)
        if token is None:
            return
        session = self._sessions[number]
        sent, settled = session.sent.get(log.name, 0), session.settled.get(log.name, 0)
        count = Count(plan.number(log.name), sent, settled)
        raw = encode(token, Announcement(session.number, (count,)))
        deliver = partial(self._nodes.hear, plan.epoch, top.name, raw)
        fate = 0 if self._world.calm else bits & 7
        if fate == 7:
            self._world.fault("announcement lost")
            return
        if fate < 5:
            deliver()
        if fate > 3:
            self._world.fault("announcement late" if fate > 4 else "announcement doubled")
            self._world.later(1 + (bits >> 3) % self._world.schedule.delay_max, deliver)

    def _die(self, number: int) -> None:
        """End a producer's process between an announcement and its message; another begins."""
        self._world.fault("producer died after its announcement")
        self._sessions[number] = Session(self._sessions_begun)
        self._sessions_begun += 1


class Operator:
    """Makes the next epoch: one small step a turn, everything found again in the logs."""

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
        """Say where streams begin (anywhere up to where they end), and where new logs do."""
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
            assert not resumed(self._streams, ends), "an honest epoch ends in disagreement"
            for name, end in ends.items():
                fill(self._world, plan.log(name), end)
            key, value = ends_record(epoch, ends, attempt=self._attempt())
            self._append(CONTROL, value, key=key, bits=bits)

    def _mark(self, plan: Plan, carried: Retained, bits: int) -> None:
        names = logs_to_mark(plan, carried)
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
        at = log_partition(plan.log(name))
        self._append(at, b"", headers=(header,), bits=bits, heard=heard)

    def _attempt(self) -> str:
        return f"{self._number}-{self._world.turn}"

    def _read_streams(self, state: ControlState, plan: Plan, bits: int) -> None:
        """Read every stream that ends to its end; raises as `OrderStream.read` does."""
        for node in plan.collectors:
            if node.name in state.retained(plan.epoch).collectors:
                continue
            at = stream_partition(plan, node.name)
            stream = self._streams.get(node.name)
            if stream is None:
                below = self._world.end(at) if bits & 1 else 0
                stream = state.stream(plan.epoch, node.name, below=below)
            fetched = self._world.log.read(at, stream.offset_next, READ_ALL)
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
        """Append, and wait for the answer before the next step."""
        self._busy += 1

        def done(outcome: AppendOutcome) -> None:
            self._busy -= 1
            if heard is not None:
                heard(outcome)

        self._world.append(partition, value, key=key, headers=headers, bits=bits, done=done)


class Operators:
    """Two operators that want the same, or rival, next epochs."""

    def __init__(self, world: World, make: Callable[[World, int], Operator]) -> None:
        self._world = world
        self._make = make
        self._two = [make(world, 0), make(world, 1)]

    def turn(self, bits: int) -> None:
        """Give one of them its turn; perhaps it crashes first."""
        number = bits & 1
        if bits >> 1 & 7 == 0 and self._world.schedule.crash_mask != -1:
            self._world.fault("operator crashed")
            self._two[number] = self._make(self._world, number)
        self._turn(number, bits >> 4)

    def calm_turn(self) -> None:
        """Go on until the schedule's last epoch has begun."""
        self._turn(0, 0)

    def _turn(self, number: int, bits: int) -> None:
        try:
            self._two[number].turn(bits)
        except AmcastError as error:
            self._world.fault(f"operator stopped: {type(error).__name__}")
            self._two[number] = self._make(self._world, number)


def fill(world: World, log: Log, end: int) -> None:
    """Fill a log with skips up to an offset that an early run went to."""
    at = log_partition(log)
    assert end - world.next_offset(at) <= _SKIPS_MAX, "a record orders more than it may"
    while world.next_offset(at) < end:
        if not world.same_topic(at.topic):
            raise TopicChanged(f"topic {at.topic} was deleted and made again")
        world.fault("hole at an epoch's end")
        world.append_skip(log, bits=0, done=None)
