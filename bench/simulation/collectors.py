"""Simulated collectors: instances that read late, write with faults, crash and restart.

Each turn runs the core `collectors.core.collector.Collector` on the faulty cluster; the turn's bits
choose what it does. Several instances of one collector run at once. Each decides as in the engine
(`collectors.core.standby`) whether it acts; several may be primaries.

    instance    one process that runs a collector's core in one epoch; a crash ends it
    fallback    after a protocol error about a checkpoint, a collector starts without one
    away        a collector whose instances do nothing for a while
    leaves      an instance that has offered its collector to another one, as one that is asked to
                end does; it acts until that has taken over, `LEAVES_MS` at most

This module contains no rule of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from bench.simulation.world import COLLECTORS, READ_ALL, World
from collectors.core.actions import Append, Fill, SaveCheckpoint
from collectors.core.collector import Collector
from collectors.core.standby import Standby
from collectors.engine.advertisement import Advertisement
from collectors.engine.assignment import Assignment
from collectors.engine.last_records import LastRecords
from collectors.engine.questions import (
    ask_leaders,
    ask_starts,
    is_whole,
    unstated_losses,
    unstated_stream,
)
from collectors.engine.skips import fill
from multicast.control import ControlState, StatusPage
from multicast.control.topic_identity import refuse_changed_topics
from multicast.drivers.protocol import AppendFailed, AppendOutcome, Fetched, Record, TopicPartition
from multicast.errors import AmcastError, ProtocolViolation, Trimmed
from multicast.order.runs import order_checksum
from multicast.order.stream import OrderStream, StreamCheckpoint

if TYPE_CHECKING:
    from collectors.engine.engine import Engine

AMOUNTS = (1, 2, 5, READ_ALL)  # records of one read; small ones put faults between records
TICK_MS = 250  # as in the engine
ASK_MS = 1000
LEAVES_MS = 2000
# What an instance that is called again and again does in one calm turn of about a tick. One that
# fills holes one by one needs some milliseconds for each.
_STEPS_MAX = 40
INSTANCES = 3  # of a collector, at most


class _LastRecords(LastRecords):
    """Compares without a wait: here an end is never too low for a moment."""

    def _short(self, known: Mapping[TopicPartition, Record]) -> list[TopicPartition]:
        ends = self._driver.last_stable_offsets(list(known))
        return [each for each, last in known.items() if ends[each] <= last.offset]


class SimulatedInstance:
    """One instance of a collector in one epoch."""

    def __init__(
        self, world: World, epoch: int, name: str, writer: int, *, choice: int, primary: bool
    ) -> None:
        self.world = world
        self.name = name
        self.epoch = epoch
        self.writer = writer
        self.view = world.view()
        state = self.view.state
        assert state.first_epoch(epoch, name) == epoch
        self.assignment = Assignment.of(state, name, epoch)
        self.plan = self.assignment.plan
        own, parent = self._open(choice)
        self.page = StatusPage("simulated", 1 + writer, writer.to_bytes(8, "big"))
        self.advertisement = Advertisement(cast("Engine", self), self.assignment)
        self._last_offer: int | None = None  # the newest that another one has made
        self._offer: int | None = None  # the same; None once it is taken
        self._counted = 0  # records of others, at our last decision
        self._leaves_at: int | None = None
        self.core = Collector(
            own, parent, writer=writer, clock=world.now_ms, limits=world.schedule.limits
        )
        self.core.own_end(self._end)
        self.last = _LastRecords(world.driver)
        self.role = Standby(primary=primary)
        self.role.begin(self.core)
        self.skips = world.appender(self._fate_bits)
        self._bits = 0
        self._failed = False
        self._filled: list[tuple[int, int | None]] = []
        self.ticked = self.asked_at = world.now
        self.question, self.epochs = self.core.question, self.core.epochs
        self.answered, self.is_judged = self.core.answered, self.core.is_judged
        self.wants_starts = True
        if primary:
            self.advertisement.advertise()
        self._learn()
        world.note("starts", name, epoch, writer, own.offset_next)

    def _open(self, choice: int) -> tuple[OrderStream, OrderStream | None]:
        """Open the streams at no checkpoint, at the newest, or at an older one: all are valid."""
        state, above = self.view.state, self.assignment.parent
        ends = self.world.driver.last_stable_offsets(self.assignment.streams)
        self._end = ends[self.assignment.own]
        own, parent = self.assignment.open_streams(
            state,
            self._end,
            checkpoints=choice > 0,
            parent_end=None if above is None else ends[above],
        )
        points = state.checkpoints(self.epoch, self.name)
        if points and choice == INSTANCES:
            own = state.opened(self.epoch, self.name, points[self.world.now % len(points)])
            node = self.plan.collector(self.name).parent
            if node is not None:
                parent = state.stream(self.epoch, node, below=own.state.parent_next)
        assert isinstance(own, OrderStream)
        assert parent is None or isinstance(parent, OrderStream)
        return own, parent

    def _fate_bits(self) -> int:
        self._bits = self._bits * 5 + 1 & 0xFFFFFFFF
        return self._bits >> 3

    def _learn(self) -> None:
        """Take the newest state of the control topic that this instance has read."""
        state = self.view.state
        positions = self.assignment.freeze_positions(state)
        if positions is not None:
            self.core.freeze_after(positions)
        writer = state.advertised.offered_by(self.epoch, self.name)
        writer = None if writer == self.writer else writer
        self.role.offer(writer)
        if writer is None:
            self._offer = None
        elif writer != self._last_offer:
            self._last_offer = self._offer = writer
        if writer is not None and self.role.acting:
            self.advertisement.advertise()
        elif self.advertisement.is_overtaken():
            self.role.step_back()

    @property
    def control(self) -> ControlState:
        """What this instance has read of the control topics."""
        return self.view.state

    def write_control(self, key: bytes, value: bytes) -> None:
        """Write a statement, whose loss does no harm."""
        self.world.append(COLLECTORS, value, key=key, bits=self._fate_bits(), done=_ignore)

    def release(self) -> bool:
        """Offer the collector to another instance; False: there is nothing to hand over."""
        if self._leaves_at is not None:
            return True
        if not self.role.primary and self.advertisement.is_superseded():
            return False
        self.advertisement.offer(self.writer)
        self.role.primary = False
        self._leaves_at = self.world.now + LEAVES_MS
        return True

    @property
    def is_relieved(self) -> bool:
        """Whether another one has taken over what this one has offered, or never will."""
        if self._leaves_at is None:
            return False
        is_taken = not self.role.acting or self.advertisement.is_taken(self.writer)
        return is_taken or self.world.now >= self._leaves_at

    # -- one turn ---------------------------------------------------------------------------

    def turn(self, bits: int) -> bool:
        """Do a part of an instance's work, or all of it once the world is calm.

        Returns False if the instance crashed. Raises the core's errors about what it read.
        """
        if not self.world.calm:
            return self._part(bits)
        for _ in range(_STEPS_MAX):
            moved = self.world.moves
            self._part(bits)
            if self.world.moves == moved and not self._filled:
                break
        return True

    def _part(self, bits: int) -> bool:
        calm = self.world.calm
        core, world = self.core, self.world
        self.take_outcomes()
        if calm or bits & 1:
            self.view.refresh()
            self._learn()
        amount = READ_ALL if calm else AMOUNTS[bits >> 8 & 3]
        if calm or bits & 2:
            self.read_own(amount)
        if core.parent is not None and (calm or bits & 4) and not core.parent_paused:
            self.read_parent(core.parent, amount)
        if calm or bits & 8:
            self.watch(bits >> 10)
        if world.now - self.ticked >= TICK_MS and (calm or bits & 0xC0):
            self.tick()
        if calm or bits & 0x30:
            return self.write(bits >> 16)
        return True

    def take_outcomes(self) -> None:
        """Tell the core what became of its appends and fills."""
        if self._failed:
            self._failed = False
            self.core.append_failed()
        filled, self._filled = self._filled, []
        for log, end in filled:
            self.core.filled(log, end)

    def tick(self) -> None:
        """Tell the core that time has passed, what transactions are open, and what leaders have."""
        world = self.world
        self.ticked = world.now
        self.core.tick(
            {
                number: world.next_offset(log)
                for log, number in self.assignment.logs.items()
                if world.next_offset(log) > world.end(log) and not world.is_away(log)
            }
        )
        if self.role.acting and world.now - self.asked_at >= ASK_MS:
            self.asked_at = world.now
            topics = {log.topic for log in self.assignment.logs}
            refuse_changed_topics(world.driver, self.plan, topics)
            ask_leaders(world.driver, [self])
            ask_starts(world.driver, [self])

    def streams_begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """Take where the streams begin that it reads."""
        self.core.streams_begin(*[starts[stream] for stream in self.assignment.streams])

    def read_own(self, amount: int) -> None:
        """Read the next records of the own stream."""
        core = self.core
        fetched = self._read(self.assignment.own, core.own.offset_next, amount)
        if fetched is not None:
            for record in fetched.records:
                core.own_read(record.offset, record.value, self.world.now - record.timestamp_ms)
            core.own_passed(fetched.position)

    def read_parent(self, parent: OrderStream, amount: int) -> None:
        """Read the next records of the parent's stream, until the core pauses it."""
        core = self.core
        assert self.assignment.parent is not None
        fetched = self._read(self.assignment.parent, parent.offset_next, amount)
        if fetched is not None:
            for record in fetched.records:
                core.parent_read(record.offset, record.value, order_checksum(record))
                if core.parent_paused:
                    return
            core.parent_passed(fetched.position)

    def _read(self, partition: TopicPartition, position: int, amount: int) -> Fetched | None:
        """Read a stream as the engine does; raises `Truncated` if it has lost what was read."""
        try:
            fetched = self.world.read(partition, position, amount)
        except Trimmed:
            lost = self.last.lost([partition])
            if not lost:
                raise
            fetched = None
        else:
            lost = self.last.note([] if fetched is None else [fetched])
        if lost:
            self._state(unstated_stream(self.assignment, partition, self.view.state))
            raise lost[partition]
        return fetched

    def watch(self, bits: int) -> None:
        """Look up the ends of some of the own logs."""
        calm = self.world.calm
        for partition, number in self.assignment.logs.items():
            bits >>= 1
            if (calm or bits & 1) and not self.world.is_away(partition):
                self.core.log_end(number, self.world.end(partition))
                self.world.worked(self.name, self.plan.logs[number].name)

    def write(self, bits: int) -> bool:
        """Carry out the core's actions; a crash may come between any two. False: it crashed."""
        world = self.world
        acted, counted = self.role.acting, self._counted
        self._counted = self.core.counted
        if not self.role.decide(self.core, world.now / 1000):
            is_ready = self.core.caught_up() and counted == self._counted
            assert not is_ready or self._offer is None, "nobody takes what is offered over"
            return True
        self._offer = None
        if not acted:
            world.fault("standby took over")
            self.advertisement.advertise()
        crash_after = None
        if not world.calm and not bits & world.schedule.crash_mask:
            crash_after = bits >> 8 & 3
        self._bits = bits
        for done, action in enumerate(self.core.step()):
            if done == crash_after:
                break
            fate_bits = bits * (2 * done + 1) >> 7
            match action:
                case Append(raw):
                    world.append(self.assignment.own, raw, bits=fate_bits, done=self._heard)
                case SaveCheckpoint(checkpoint):
                    self._name(checkpoint, fate_bits)
                case Fill(number, below):
                    self._fill(number, below)
        self._state_losses()
        if crash_after is not None:
            world.fault("collector crashed")
            world.note("crashes", self.name, self.epoch, self.writer)
        return crash_after is None

    def _name(self, checkpoint: StreamCheckpoint, bits: int) -> None:
        """Name a checkpoint on the control topics, unless it has newer ones enough."""
        statement = self.view.state.naming(checkpoint, self.world.stated_ms)
        if statement is not None:
            key, value = statement
            self.world.append(COLLECTORS, value, key=key, bits=bits, done=_ignore)

    def _state_losses(self) -> None:
        own = {log: first for log, first in self.core.lost.items() if log in self.core.own.own}
        statements = unstated_losses(self.plan, own, self.view.state)
        if self.core.parent_lost:
            statements += unstated_stream(self.assignment, self.assignment.parent, self.view.state)
        self._state(statements)

    def _state(self, statements: Sequence[tuple[bytes, bytes]]) -> None:
        for key, value in statements:
            self.world.fault("loss stated")
            self.world.append(COLLECTORS, value, key=key, done=_ignore)

    def _fill(self, number: int, below: int) -> None:
        """Append a skip if the log ends below an offset, as the engine does."""

        def filled(end: int | None) -> None:
            self._filled.append((number, end))

        driver = self.world.driver
        if fill(
            driver,
            self.skips,
            self.plan,
            number,
            below=below,
            is_whole=lambda: is_whole(driver, self, number),
            filled=filled,
        ):
            self.world.fault("hole filled")

    def _heard(self, outcome: AppendOutcome) -> None:
        if isinstance(outcome, AppendFailed):
            self._failed = True


def _ignore(_: AppendOutcome) -> None:
    """Ignore the outcome: a lost checkpoint does no harm."""


class SimulatedCollectors:
    """All instances of all collectors; an instance that does not run starts with its turn."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._living: dict[tuple[int, str, int], SimulatedInstance] = {}
        self._retired: set[tuple[int, str, int]] = set()
        self._fallback: set[tuple[int, str]] = set()
        self._away: dict[str, int] = {}  # by collector: until when
        self._writers = 0

    def turn(self, bits: int) -> None:
        """Give a turn to one instance of a collector of an epoch that has begun."""
        state = self._world.view().state
        begun = [epoch for epoch in range(1, state.epoch + 1) if state.starts(epoch) is not None]
        # The newest epoch gets three quarters of the turns, zombies of older epochs the rest.
        epoch = begun[-1] if bits & 1 else begun[(bits >> 1 & 7) % len(begun)]
        collectors = state.plan(epoch).collectors
        if collectors:
            name = collectors[(bits >> 4 & 63) % len(collectors)].name
            epoch = state.first_epoch(epoch, name)
            number = 0 if self._world.schedule.alone else (0, 0, 1, 2)[bits >> 10 & 3]
            if self._away.get(name, 0) <= self._world.now:
                self._turn(epoch, name, number, bits >> 13)

    def release(self, bits: int) -> None:
        """End an instance that acts in order: another one takes over."""
        acting = [key for key, instance in self._living.items() if instance.role.acting]
        if acting:
            key = acting[bits % len(acting)]
            self._world.fault("collector released")
            if not self._living[key].release():
                self._end(key)

    def send_away(self, name: str, *, ms: int) -> None:
        """Let the instances of a collector do nothing for a while."""
        self._away[name] = self._world.now + ms

    def end_all(self) -> None:
        """End all processes, as a power cut does."""
        self._world.stats.void += self.void()
        self._living.clear()

    def calm_turns(self) -> None:
        """Give every running instance a turn; each collector of a begun epoch has at least one."""
        state = self._world.view().state
        for epoch in range(1, state.epoch + 1):
            if state.starts(epoch) is None:
                break
            for collector in state.plan(epoch).collectors:
                if state.first_epoch(epoch, collector.name) < epoch:
                    continue
                for number in range(INSTANCES):
                    if number == 0 or (epoch, collector.name, number) in self._living:
                        self._turn(epoch, collector.name, number, 0)

    def _turn(self, epoch: int, name: str, number: int, bits: int) -> None:
        key = (epoch, name, number)
        if key in self._retired:
            return
        try:
            instance = self._living.get(key) or self._start(epoch, name, number, bits)
            if not instance.turn(bits):
                self._end(key)
            elif instance.is_relieved:
                self._world.fault("collector relieved")
                self._end(key)
            elif instance.core.frozen and self._world.calm:
                # None of its records can be accepted any more.
                self._retired.add(key)
        except AmcastError as error:
            self._stopped(key, error)

    def _end(self, key: tuple[int, str, int]) -> None:
        self._world.stats.void += sum(self._living.pop(key).core.void.values())

    def _start(self, epoch: int, name: str, number: int, bits: int) -> SimulatedInstance:
        self._writers += 1
        choice = 0 if (epoch, name) in self._fallback else 1 + (bits >> 20 & 3)
        primary = not self._world.schedule.pinned and (number == 0 or bits >> 22 & 3 == 0)
        instance = SimulatedInstance(
            self._world, epoch, name, self._writers, choice=choice % 4, primary=primary
        )
        self._living[epoch, name, number] = instance
        return instance

    def _stopped(self, key: tuple[int, str, int], error: AmcastError) -> None:
        """End an instance at an error; if a checkpoint was wrong, the next starts without one."""
        self._living.pop(key, None)
        self._world.fault(f"collector stopped: {type(error).__name__}")
        self._world.note("stops", *key, type(error).__name__)
        if isinstance(error, ProtocolViolation):
            self._fallback.add(key[:2])

    def void(self) -> int:
        """Count the void records that running instances have read."""
        return sum(sum(instance.core.void.values()) for instance in self._living.values())
