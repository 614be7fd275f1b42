"""Schedules of the second kind: steady traffic, one incident, and how long messages wait.

Two collectors (K1 orders P1 and P2, K2 takes P2 from it and adds P3), two consumers, and producers
that multicast without a pause. The busy log P2 has 8 to 2,000 messages a second, evenly, at random
or in bursts; the others have 20. Then something happens that leaves tickets without messages, or
messages without tickets, in P2. Messages and tickets go through the product's joint appender to
brokers in memory; those of P2, of the other logs and of the order have one leader each.

    wait     of a message: from the time when it is stored to its delivery
    bound    no message waits longer than `BOUND_MS`, once brokers and collectors run again
    settled  from `SETTLED_MS` after the incident on, p50 and p99 of the waits are at most
             `TOLERANCE_MS` above what they were before it

One seed decides everything.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import NamedTuple

from bench.simulation.clients import WorldDriver
from bench.simulation.collectors import TICK_MS, SimulatedInstance
from bench.simulation.consumers import Seat, SimulatedConsumer
from bench.simulation.judge import Judge, Label, Violation
from bench.simulation.operators import place
from bench.simulation.schedule import ConsumerSeat, Schedule
from bench.simulation.trees import TOPIC, Scene
from bench.simulation.world import CONTROL, READ_ALL, World
from multicast.consuming.batches import Batch
from multicast.consuming.cursor import Cursor
from multicast.consuming.subscription import Bounds, SubscriptionRequest
from multicast.control import ControlState, genesis, log_partition, order_topic, plan_record
from multicast.drivers.appender.dispatcher import Limits
from multicast.drivers.memory.brokers import MemoryBrokers, MemoryRequest
from multicast.drivers.memory.driver import MemoryDriver
from multicast.drivers.protocol import TopicPartition
from multicast.producing.ticketing import TicketingAppender
from topology.tree import CollectorSpec, Log, Objective, Plan, Subscription

BOUND_MS = 2000
SETTLED_MS = 30_000
TOLERANCE_MS = 10
BEFORE_MS = 10_000  # of ordinary traffic
AFTER_MS = 12_000  # of what is compared with it
WATCH_MS = 50  # between two questions for the ends of logs, as in the engine
FROZEN_MS = 33_000  # longer than the producers' delivery time-out
DELIVERY_S = 30.0
LOGS_AT, ORDER_AT, BUSY_AT = 0, 1, 2  # the brokers
BUSY = "P2"
_ALL = -1  # bits with which a process does all its work, and does not crash
_REFUSED = 29  # Kafka: no right on the topic


class Incident(enum.Enum):
    """What happens to messages for the busy log."""

    NOTHING = "nothing"
    TICKETS = "a producer dies, and only its tickets are stored"
    MESSAGES = "a producer dies, and only its messages are stored"
    REFUSED = "messages are refused whose tickets are stored"
    REFUSED_OFTEN = "so are those of a producer that goes on"
    FROZEN = "the log's leader is frozen for longer than the delivery time-out"
    ORDER_FROZEN = "the leader of the order is frozen for as long"
    STALLED = "the acting collectors stand still for two seconds"


@dataclass(frozen=True, slots=True)
class WaitSchedule:
    """All that a seed decides."""

    seed: int
    incident: Incident
    count: int  # of messages
    rate: int  # of the busy log, in messages a second
    shape: str  # even, random or bursts
    producers: int
    lag_ms: int  # that a request, an answer and a read usually take, each


def draw_waits(seed: int) -> WaitSchedule:
    """Draw the schedule of a seed."""
    rng = Random(f"waits {seed}")  # noqa: S311 - repeatable, not secret
    return WaitSchedule(
        seed,
        list(Incident)[seed % len(Incident)],
        rng.choice((1, 1, 2, 30, 134, 700, 3000)),
        rng.choice((8, 8, 30, 60, 160, 160, 300)),
        rng.choice(("even", "even", "random", "random", "bursts")),
        rng.choice((1, 2, 3)),
        rng.choice((1, 1, 2, 5)),
    )


class Figures(NamedTuple):
    """Of waits, in ms."""

    p50: int
    p99: int
    longest: int


@dataclass(frozen=True, slots=True)
class WaitOutcome:
    """The waits before the incident and after it, the longest, the skips, and the verdict."""

    before: Figures
    longest: int
    after: Figures
    skips: int
    violation: Violation | None


class _Waits(Judge):
    """Collects when messages were stored and delivered."""

    def __init__(self, world: World) -> None:
        super().__init__(world.schedule.scene)
        self.stored: dict[str, int] = {}
        self.waits: list[tuple[int, int]] = []  # when it was stored, and for how long it waited
        self._world = world

    def delivered(self, label: Label, batch: Batch, index: int, *, before: Cursor) -> str:
        """Note how long a message has waited."""
        del label, before
        message_id = f"{batch.log.label}:{batch.records[index].offset}"
        stored = self.stored[message_id]
        self.waits.append((stored, self._world.now - stored))
        self.deliveries += 1
        return message_id


_Process = SimulatedInstance | SimulatedConsumer


class WaitSimulation:
    """One schedule."""

    def __init__(self, schedule: WaitSchedule) -> None:
        self.schedule = schedule
        self._rng = Random(schedule.seed)  # noqa: S311 - repeatable, not secret
        self.plan = _plan()
        self.world = world = World(_calm(self.plan))
        world.driver = WorldDriver(world)
        self.judge = _Waits(world)
        self.brokers = MemoryBrokers(world.log, carry=self._carry)
        self.producing = MemoryDriver(brokers=self.brokers, limits=Limits(10.0, DELIVERY_S))
        self.brokers.leaders = {
            TopicPartition(order_topic(TOPIC), node.stream): ORDER_AT
            for node in self.plan.collectors
        }
        self.busy = log_partition(self.plan.log(BUSY))
        self.brokers.leaders[self.busy] = BUSY_AT
        first = place(world, ControlState(TOPIC), self.plan, 1)
        key, value = plan_record(genesis(TOPIC), first, attempt="0")
        world.log.write(CONTROL, value, key=key)
        self.collectors = [
            SimulatedInstance(world, 1, node.name, writer, choice=0, primary=writer < 2)
            for writer, node in enumerate((*first.collectors, *first.collectors))
        ]
        self.consumers = [self._consumer(entry) for entry in first.consumers]
        self.stalled_until = 0
        self._newest = 0  # the ID of the producer that came last
        self._victim: int | None = None  # the producer whose requests the incident strikes
        self._frozen: list[MemoryRequest] = []
        self._busy_until: dict[tuple[int, int], int] = {}  # by producer and broker
        self._due: set[_Process] = set()
        self._ends: dict[tuple[_Process, int], int] = {}  # that instances know

    def _consumer(self, entry: Subscription) -> SimulatedConsumer:
        request = SubscriptionRequest.of(entry.name, entry.interest)
        seat = Seat(ConsumerSeat(entry.name, "a", late=False, bounds=Bounds()), request)
        return SimulatedConsumer(self.world, seat, self.judge, where="earliest")

    # -- the cluster --------------------------------------------------------------------------

    def _lag(self) -> int:
        """Draw how long something is on its way: mostly as usual, now and then far longer."""
        usual = self.schedule.lag_ms
        return self._rng.choice((0, 1, 1, 2, 2, 3, 4, 8)) * usual // 2

    def _carry(self, request: MemoryRequest) -> None:
        """Let a request arrive; those of one connection keep their order."""
        self._newest = max(self._newest, request.producer)
        line = (request.producer, request.node)
        at = max(self._busy_until.get(line, 0), self.world.now + self._lag())
        self._busy_until[line] = at
        self.world.later(at - self.world.now, partial(self._arrive, request))

    def _arrive(self, request: MemoryRequest) -> None:
        incident = self.schedule.incident
        if request.producer == self._victim:
            spared = ORDER_AT if incident is not Incident.MESSAGES else BUSY_AT
            if incident in (Incident.TICKETS, Incident.MESSAGES) and request.node != spared:
                return
            if request.node == BUSY_AT and incident in _REFUSALS:
                request.store(dict.fromkeys(request.batches, _REFUSED))
                self.world.later(self._lag(), request.answer)
                return
        if any(map(self.world.is_away, request.batches)):
            self._frozen.append(request)
            return
        request.store()
        for partition, batch in request.batches.items():
            code, offset = request.answers[partition]
            if not code and partition.topic == TOPIC:
                name = self.plan.logs[partition.partition].name
                for number in range(len(batch.records)):
                    self.judge.stored.setdefault(f"{name}:{offset + number}", self.world.now)
        self.world.later(self._lag(), request.answer)
        self._wake_readers()

    def _freeze(self, node: int) -> None:
        for partition, leader in self.brokers.leaders.items():
            if leader == node:
                self.world.send_away(partition, FROZEN_MS)
        self.world.later(FROZEN_MS, self._thaw)

    def _thaw(self) -> None:
        waiting, self._frozen = self._frozen, []
        for request in waiting:
            self._arrive(request)
        self.brokers.turn()

    # -- processes ----------------------------------------------------------------------------

    @property
    def processes(self) -> list[_Process]:
        """All that read: collectors' instances and consumers."""
        return [*self.collectors, *self.consumers]

    def _wake_readers(self) -> None:
        for process in self.processes:
            if process not in self._due:
                self._due.add(process)
                self.world.later(self._lag(), partial(self._read, process))

    def _read(self, process: _Process) -> None:
        self._due.discard(process)
        if isinstance(process, SimulatedConsumer):
            process.read_order(READ_ALL)
            process.read_payloads(_ALL, READ_ALL)
            process.deliver(_ALL)
            return
        if self.world.now < self.stalled_until and process.role.primary:
            return
        process.read_own(READ_ALL)
        if process.core.parent is not None:
            process.read_parent(process.core.parent, READ_ALL)
        self._act(process)

    def _act(self, process: SimulatedInstance) -> None:
        if self.world.is_away(process.assignment.own):
            return  # its appends would wait
        moved = self.world.moves
        process.take_outcomes()
        process.write(_ALL)
        if self.world.moves > moved:
            self._wake_readers()

    def _watch(self, process: SimulatedInstance) -> None:
        """Look up ends, tick when it is time, and come again."""
        if self.world.now >= self.stalled_until or not process.role.primary:
            for partition, number in process.assignment.logs.items():
                if not self.world.is_away(partition):
                    end = self.world.end(partition)
                    if self._ends.get((process, number)) != end:
                        self._ends[process, number] = end
                        process.core.log_end(number, end)
            if self.world.now >= process.ticked + TICK_MS:
                process.tick()
            self._act(process)
        self.world.later(WATCH_MS + self._rng.randrange(4), partial(self._watch, process))

    # -- traffic ------------------------------------------------------------------------------

    def _producer(self) -> TicketingAppender:
        state = self.world.view().state
        return TicketingAppender(state, self.producing.appender, writer=self.world.writer())

    def _send(self, appender: TicketingAppender, name: str, count: int = 1) -> None:
        partition = log_partition(self.plan.log(name))
        appender.append_all(partition, [b"m"] * count, done=_ignore)

    def _traffic(
        self, producers: list[TicketingAppender], name: str, gap: Callable[[], float]
    ) -> None:
        """Multicast to a log for ever."""

        def send(due: float) -> None:
            self._send(self._rng.choice(producers), name)
            later(due + gap())

        def later(due: float) -> None:
            self.world.later(max(0, round(due) - self.world.now), partial(send, due))

        later(self.world.now + gap())

    def _gap(self, rate: int, shape: str) -> Callable[[], float]:
        rng, sent = self._rng, 0

        def bursts() -> float:
            nonlocal sent
            sent += 1
            return 0.0 if sent % rate else 1000.0

        match shape:
            case "even":
                return lambda: 1000 / rate
            case "random":
                return lambda: rng.expovariate(rate) * 1000
            case _:
                return bursts

    def _strike(self) -> None:
        """Let the incident begin."""
        match self.schedule.incident:
            case Incident.NOTHING:
                pass
            case Incident.FROZEN:
                self._freeze(BUSY_AT)
            case Incident.ORDER_FROZEN:
                self._freeze(ORDER_AT)
            case Incident.STALLED:
                self.stalled_until = self.world.now + 2000
            case _:
                victim = self._producer()
                self._send(victim, "P3")  # it gets its ID, and brokers get to know it
                self.world.later(50, partial(self._strike_at, victim))

    def _strike_at(self, victim: TicketingAppender) -> None:
        # Nobody else has begun to send meanwhile.
        self._victim = self._newest
        self._send(victim, BUSY, self.schedule.count)
        if self.schedule.incident is Incident.REFUSED_OFTEN:
            self._traffic([victim], "P3", self._gap(5, "random"))

    # -- the run ------------------------------------------------------------------------------

    def run(self) -> WaitOutcome:
        """Run, and judge."""
        schedule, world = self.schedule, self.world
        for process in self.collectors:
            world.later(self._rng.randrange(WATCH_MS), partial(self._watch, process))
        producers = [self._producer() for _ in range(schedule.producers)]
        self._traffic(producers, BUSY, self._gap(schedule.rate, schedule.shape))
        for name in ("P1", "P3"):
            self._traffic(producers, name, self._gap(20, "random"))
        for ms in range(1000, BEFORE_MS + FROZEN_MS + SETTLED_MS + AFTER_MS, 1000):
            world.later(ms, self.brokers.turn)
        world.pass_time(BEFORE_MS)
        self._strike()
        runs_again = world.now + _LASTS_MS.get(schedule.incident, 0)
        end = runs_again + SETTLED_MS + AFTER_MS
        world.pass_time(end - world.now)
        stats, outcome = world.stats, self._outcome(runs_again, end)
        stats.multicasts, stats.deliveries = len(self.judge.stored), self.judge.deliveries
        stats.faults[f"waits: {schedule.incident.value}"] += 1
        stats.faults["skips after it"] += outcome.skips
        return outcome

    def _outcome(self, runs_again: int, end: int) -> WaitOutcome:
        waits = self.judge.waits

        def figures(begin: int, end: int) -> Figures:
            found = sorted(wait for stored, wait in waits if begin <= stored < end)
            assert found, "nothing was delivered"
            return Figures(found[len(found) // 2], found[len(found) * 99 // 100], found[-1])

        before = figures(BEFORE_MS // 5, BEFORE_MS)
        after = figures(runs_again + SETTLED_MS, end - BOUND_MS)
        # What was stored earlier waits at least for the brokers and collectors.
        longest = max(stored + wait - max(stored, runs_again) for stored, wait in waits)
        left = self._undelivered(end - BOUND_MS)
        violation = None
        if longest > BOUND_MS or left:
            witness = f"a message waited {longest} ms, and {left} are not delivered"
            violation = Violation("bound on waiting", witness)
        elif max(after.p50 - before.p50, after.p99 - before.p99) > TOLERANCE_MS:
            violation = Violation("settled", f"waits were {before}, and are {after}")
        skips = sum(self.world.next_offset(log_partition(log)) for log in self.plan.logs)
        return WaitOutcome(before, longest, after, skips - len(self.judge.stored), violation)

    def _undelivered(self, before: int) -> int:
        """Count deliveries that are missing of what was stored before a time."""
        wanted = sum(
            message_id.split(":")[0] in entry.interest
            for entry in self.plan.consumers
            for message_id, stored in self.judge.stored.items()
            if stored < before
        )
        return wanted - sum(stored < before for stored, _ in self.judge.waits)


_LASTS_MS = {Incident.FROZEN: FROZEN_MS, Incident.ORDER_FROZEN: FROZEN_MS, Incident.STALLED: 2000}
_REFUSALS = (Incident.REFUSED, Incident.REFUSED_OFTEN)


def _ignore(first: int, count: int, outcome: object) -> None:
    """Ignore an outcome."""


def _plan() -> Plan:
    names = ("P1", "P2", "P3")
    return Plan(
        topic=TOPIC,
        epoch=1,
        base_epoch=0,
        cluster_id="simulated",
        input_hash="",
        partitions=names,
        logs=tuple(Log(name, TOPIC, number) for number, name in enumerate(names)),
        collectors=(
            CollectorSpec("K1", ("P1", "P2"), None, 0),
            CollectorSpec("K2", ("P2", "P3"), "K1", 1),
        ),
        consumers=(Subscription("C1", ("P1", "P2"), "K1"), Subscription("C2", ("P2", "P3"), "K2")),
        objective=Objective(0.0, 0.0, 0.0, 0.0),
    )


def _calm(plan: Plan) -> Schedule:
    """Give what a world needs to know: nothing is drawn."""
    return Schedule(
        seed=0,
        scene=Scene(
            plan.partitions,
            (plan.partitions,),
            tuple((entry.name, entry.interest) for entry in plan.consumers),
            (True, True),
        ),
        plans=((plan,),),
    )
