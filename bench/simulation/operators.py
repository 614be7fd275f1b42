"""Simulated operators: they run the product's drain and recovery, and may be killed at any step.

Each turn runs one command from its beginning: `collectors.reconfiguration` derives every step from
what is in the logs, so a killed command is run again, and several at once do no harm. Where a
command would wait for others, the turn ends, or the operator's own clock jumps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from bench.simulation.appends import FatedAppender, PendingAppend
from bench.simulation.clients import WorldDriver
from bench.simulation.trees import TOPIC
from bench.simulation.world import COLLECTORS, CONTROL, View, World, WorldClock
from collectors.core.mending import Harm, damage, ordered_to, recovery_plan
from collectors.engine.skips import fill_up
from collectors.reconfiguration.drain import Drain, Streams
from collectors.reconfiguration.recovery import recover
from collectors.reconfiguration.survey import read_streams, refuse_damaged
from multicast.control import ControlReader, ControlState, log_partition, order_topic, plan_record
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError, Conflict
from topology.tree import Plan

_TIMEOUT_S = 30.0
_EPOCHS_MAX = 20  # that recoveries of one schedule may add; more means that none repairs anything
_LOOK_EVERY_TURNS = 4  # between two looks at rest, so that collectors also run with the damage
_PATIENT_TURNS = 6  # at rest, in which collectors may freeze by themselves
_JUMP_S = 2.0  # what the clock of an impatient operator shows after a wait
_WAITS_MAX = 20  # of one turn; more means that a command waits for ever


class TurnEnds(Exception):
    """Ends a command wherever it is."""


class OperatorClock(WorldClock):
    """An operator's clock: its waits cost the others no time."""

    def __init__(self, world: World, *, patient: bool) -> None:
        super().__init__(world, waits=True)
        self._patient = patient
        self._turns = 0

    def read_nothing(self, timeout_s: float) -> None:  # noqa: ARG002 - it jumps
        """Wait for others; raises `TurnEnds` if that is the end of the turn."""
        self._turns += 1
        if self._patient or self._turns > _WAITS_MAX:
            raise TurnEnds
        self.wait(_JUMP_S)


class OperatorDriver(WorldDriver):
    """The driver of one command; it is killed at its append number `killed_at`."""

    def __init__(
        self, world: World, bits: Callable[[], int], clock: OperatorClock, *, killed_at: int
    ) -> None:
        super().__init__(world, clock)
        self._bits = bits
        self._left = killed_at

    def appender(self, **settings: object) -> FatedAppender:
        """Open an appender whose `flush` lets time pass."""
        del settings
        return _Appender(self.log, step=self._carry, world=self._world)

    def _carry(self, append: PendingAppend) -> None:
        if self._left == 0:
            raise TurnEnds
        self._left -= 1
        self._world.carry(append, self._bits())


class _Appender(FatedAppender):
    def __init__(self, log: object, *, step: Callable[[PendingAppend], None], world: World) -> None:
        super().__init__(log, step=step)  # type: ignore[arg-type]
        self._world = world

    def flush(self, timeout_s: float) -> bool:
        """Let time pass until all outcomes have come; others do nothing meanwhile.

        Nobody waits here for a leader that is away.
        """
        until = self._world.now + self._world.schedule.delay_max
        while not super().flush(timeout_s):
            event = self._world.next_event
            if event is None or event > until:
                return False
            self._world.pass_time(max(0, event - self._world.now))
        return True


class _Control(ControlReader):
    """The control topics, of which all processes together read the beginning only once."""

    def __init__(self, driver: OperatorDriver, view: View) -> None:
        self.state = view.state.copy()
        self._operators, self._collectors = CONTROL, COLLECTORS
        self._positions = dict(view.positions)
        self._driver = driver
        self._leaders = {}
        self._reader = driver.reader(self._positions)


class _PatientDrain(Drain):
    """A drain whose epoch's collectors need no help: they get turns of their own."""

    def _help(self, names: list[str], streams: Streams, opened: ExitStack) -> float:  # noqa: ARG002
        raise TurnEnds


class _Topics(Admin):
    """Creates the topics that a recovery needs."""

    def __init__(self, world: World) -> None:
        self._world = world

    def create_topics(self, topics: Mapping[str, TopicSpec]) -> list[str]:
        """Add the partitions that are missing."""
        for topic, spec in topics.items():
            self._world.log.create(topic, spec.partitions)
        return []


class SimulatedOperator:
    """Begins the schedule's epochs; from the last one on, repairs damaged streams."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self._view = world.view(is_told=False)  # by which it proposes plans: perhaps an old one
        self._turns = 0
        self._bits = 0
        self._gives_up = False  # its drain was refused: a recovery has to end the epoch

    def turn(self, bits: int) -> None:
        """Run one command, until it ends, is killed, or waits."""
        world = self._world
        self._turns += 1
        self._bits = bits >> 12
        calm = world.calm
        if calm or bits >> 8 & 1:
            self._view.refresh()
        patient = self._turns % _PATIENT_TURNS > 0 if calm else bits & 3 > 0
        clock = OperatorClock(world, patient=patient)
        killed_at = -1
        if not calm and world.schedule.crash_mask != -1 and bits >> 2 & 7 == 0:
            world.fault("operator killed")
            killed_at = bits >> 5 & 7
        driver = OperatorDriver(world, self._fate_bits, clock, killed_at=killed_at)
        try:
            self._command(driver)
        except TurnEnds:
            pass
        except AmcastError as error:
            world.fault(f"operator stopped: {type(error).__name__}")

    def _fate_bits(self) -> int:
        """Give the bits of the next append: half of the turns have no faults."""
        if self._bits & 1:
            return 0
        self._bits = (self._bits * 0x9E3779B1 >> 3 | 1) & 0xFFFFFFFF
        return self._bits >> 4

    def _command(self, driver: OperatorDriver) -> None:
        world = self._world
        control = _Control(driver, world.view())
        state = control.state
        plans = world.schedule.plans
        last = len(plans)
        assert state.epoch <= last + _EPOCHS_MAX, "recoveries repair nothing"
        seen = self._view.state
        if seen.begun_epoch == seen.epoch < last:
            rivals = plans[seen.epoch]
            self._propose(driver, seen, rivals[self._number % len(rivals)])
        elif state.begun_epoch < state.epoch:
            if self._gives_up or state.epoch > last:
                self._recover(driver, state)
            else:
                self._drain(driver, control)
        elif world.overtaken:
            self._propose_again(driver, state)
        elif world.schedule.forges and (not world.calm or self._turns % _LOOK_EVERY_TURNS == 0):
            self._recover(driver, state)

    def _drain(self, driver: OperatorDriver, control: ControlReader) -> None:
        epoch = control.state.begun_epoch
        deadline = driver.clock.monotonic() + _TIMEOUT_S
        with ExitStack() as opened:
            steps = _PatientDrain(driver, control, epoch, deadline=deadline, say=_silent)
            opened.callback(steps.appender.close)
            try:
                steps.run(opened)
            except Conflict:
                self._gives_up = True
                raise

    def _propose(self, driver: OperatorDriver, state: ControlState, plan: Plan) -> None:
        """Append a plan, as `collectors.reconfiguration.apply` does."""
        refuse_damaged(driver, state)
        filled = place(self._world, state, plan, self._bits)
        attempt = f"{self._number}-{self._world.now}-{self._turns}"
        key, value = plan_record(state.previous, filled, attempt=attempt)
        appender = driver.appender()
        appender.append(CONTROL, value, key=key, done=_ignore)
        appender.close()

    def _propose_again(self, driver: OperatorDriver, state: ControlState) -> None:
        """Propose the same layout, so that a recovery ends an epoch that cannot go on."""
        world = self._world
        plan = recovery_plan(state.plan(), world.overtaken)
        for node in plan.collectors:
            world.log.create(order_topic(TOPIC), node.stream + 1)
        self._propose(driver, state, plan)
        if world.view().state.epoch == plan.epoch:
            world.overtaken.clear()

    def _recover(self, driver: OperatorDriver, state: ControlState) -> None:
        """Fill logs that are ordered too far; repair all other damage."""
        world, plan = self._world, state.plan(state.begun_epoch)
        streams = read_streams(driver, state)
        there = {log.name: world.next_offset(log_partition(log)) for log in plan.logs}
        fill_max = world.schedule.limits.fill_max
        findings = damage(streams.values(), there, fill_max=fill_max)
        for finding in findings:
            world.fault(f"damage: {finding.harm}")
        if any(finding.harm is Harm.TOO_FAR for finding in findings):
            targets = ordered_to(read.stream for read in streams.values())
            appender = driver.appender()
            fill_up(
                driver,
                appender,
                plan,
                {name: end for name, end in targets.items() if end - there[name] > fill_max},
                deadline=driver.clock.monotonic() + _TIMEOUT_S,
            )
            appender.close()
        done = recover(driver, _Topics(world), TOPIC, timeout_s=_TIMEOUT_S, yes=True)
        if done.changed:
            self._gives_up = False
            world.fault("recovery")


class Operators:
    """Two operators that propose the same plan for an epoch, or rival ones."""

    def __init__(self, world: World) -> None:
        self._two = [SimulatedOperator(world, 0), SimulatedOperator(world, 1)]

    def turn(self, bits: int) -> None:
        """Give one of them a turn."""
        self._two[bits & 1].turn(bits >> 1)

    def calm_turn(self) -> None:
        """Run a command without faults."""
        self._two[0].turn(0)


def place(world: World, state: ControlState, plan: Plan, bits: int) -> Plan:
    """Fill in the topics' IDs, and where the streams (up to their ends) and new logs begin."""
    collectors = []
    for node in plan.collectors:
        partition = TopicPartition(order_topic(TOPIC), node.stream)
        end, begin = world.end(partition), world.log.log_start_offsets([partition])[partition]
        first = end if bits & 1 else end - min(end, bits >> 1 & 7)
        collectors.append(replace(node, stream_first=max(first, begin)))
    known = {log.name for before in state.plans for log in before.logs}
    begins = world.log.log_start_offsets([log_partition(log) for log in plan.logs])
    logs = [
        log if log.name in known else replace(log, first=begins[log_partition(log)])
        for log in plan.logs
    ]
    return replace(
        plan, collectors=tuple(collectors), logs=tuple(logs), topic_ids=dict(world.topic_ids)
    )


def _silent(_: str) -> None:
    """Report no steps."""


def _ignore(_: object) -> None:
    """Ignore the outcome: the next turn reads what was stored."""
