"""Simulated collectors: instances that read late, write with faults, crash and restart.

Each turn runs the core `collectors.collector.Collector` on the faulty cluster; the turn's bits
choose what it does. Several instances of one collector run at once and do not know of each other.

    instance    one process that runs a collector's core in one epoch; a crash ends it
    fallback    after a protocol error about a checkpoint, a collector starts without one
    older       an instance of an older program, which also orders offsets beyond a log's end

This module contains no rule of the protocol.
"""

from __future__ import annotations

from bench.simulation.older import OlderCollector
from bench.simulation.world import CONTROL, READ_ALL, World
from collectors.collector import Append, Collector, Fill, SaveCheckpoint
from collectors.epoch_change import freeze_positions
from multicast.control import (
    AnyCheckpoint,
    best_checkpoint,
    log_partition,
    of_version_1,
    stream_partition,
)
from multicast.drivers.protocol import Appended, AppendFailed, AppendOutcome
from multicast.errors import AmcastError, ProtocolViolation, TopicChanged
from multicast.order import OrderStream
from topology.tree import Plan

AMOUNTS = (1, 2, 5, READ_ALL)  # records of one read; small ones put faults between records


class SimulatedInstance:
    """One instance of a collector in one epoch."""

    def __init__(
        self, world: World, epoch: int, name: str, writer: int, *, choice: int, older: bool
    ) -> None:
        self.world = world
        self.name = name
        self.epoch = epoch
        self.writer = writer
        self.view = world.view()
        self.plan: Plan = self.view.state.plan(epoch)
        assert self.view.state.first_epoch(epoch, name) == epoch
        self.own_partition = stream_partition(self.plan, name)
        own = of_version_1(self.view.state.opened(epoch, name, self._point(choice)))
        self.spec = self.plan.collector(name)
        parent = None
        if self.spec.parent is not None:
            self.parent_partition = stream_partition(self.plan, self.spec.parent)
            point = best_checkpoint(
                self.view.state.checkpoints(epoch, self.spec.parent) if choice else [],
                epoch,
                self.spec.parent,
                own.state.parent_next.offset,
            )
            parent = of_version_1(self.view.state.opened(epoch, self.spec.parent, point))
        limits, early_max = world.schedule.limits, world.schedule.early_max
        self.core: Collector = (
            OlderCollector(own, parent, writer=writer, limits=limits, early_max=early_max)
            if older
            else Collector(own, parent, writer=writer, limits=limits)
        )
        self.core.own_end(world.end(self.own_partition))
        self.logs = [(number, log_partition(self.plan.logs[number])) for number in sorted(own.own)]
        self._failed = False
        self._marked = False
        self._filled: list[tuple[int, int | None]] = []
        self._learn()
        world.note("starts", name, epoch, writer, own.offset_next)

    def _point(self, choice: int) -> AnyCheckpoint | None:
        """Choose a checkpoint: none, the newest, or an older one; all are equally valid."""
        points = self.view.state.checkpoints(self.epoch, self.name)
        if not points or choice == 0:
            return None
        return points[-1] if choice < 3 else points[self.world.turn % len(points)]

    def _learn(self) -> None:
        last = self.view.state.last_epoch(self.epoch, self.name)
        markers = None if last is None else self.view.state.markers.get(last)
        if markers is not None and not self._marked:
            self._marked = True
            self.core.freeze_after(freeze_positions(self.plan, markers))

    # -- one turn ---------------------------------------------------------------------------

    def turn(self, bits: int) -> bool:
        """Do a part of an instance's work, or all of it once the world is calm.

        Returns False if the instance crashed. Raises the core's errors about what it read.
        """
        calm = self.world.calm
        core = self.core
        if self._failed:
            self._failed = False
            core.append_failed()
        for log, end in self._filled:
            core.filled(log, end)
        self._filled.clear()
        if calm or bits & 0xC0 == 0xC0:
            core.tick(
                {number: self.world.next_offset(partition) for number, partition in self.logs}
            )
        if calm or bits & 1:
            self.view.refresh()
            self._learn()
        amount = READ_ALL if calm else AMOUNTS[bits >> 8 & 3]
        if calm or bits & 2:
            self.read_own(amount)
        if core.parent is not None and (calm or bits & 4) and not core.parent_paused():
            self.read_parent(core.parent, amount)
        if calm or bits & 8:
            self.watch(bits >> 10)
        if isinstance(core, OlderCollector) and not (calm or bits >> 24 & 3):
            core.announced(bits >> 26)
        if calm or bits & 0x30:
            return self.write(bits >> 16)
        return True

    def read_own(self, amount: int) -> None:
        """Read the next records of the own stream."""
        core = self.core
        fetched = self.world.read(self.own_partition, core.own.offset_next, amount)
        if fetched is not None:
            for record in fetched.records:
                core.own_read(record.offset, record.value)
            core.own_passed(fetched.position)
            if core.early:
                self.world.fault("ordered early")

    def read_parent(self, parent: OrderStream, amount: int) -> None:
        """Read the next records of the parent's stream, until the core pauses it."""
        core = self.core
        fetched = self.world.read(self.parent_partition, parent.offset_next, amount)
        if fetched is not None:
            for record in fetched.records:
                core.parent_read(record.offset, record.value)
                if core.parent_paused():
                    return
            core.parent_passed(fetched.position)

    def watch(self, bits: int) -> None:
        """Look up the ends of some of the own logs."""
        calm = self.world.calm
        for number, partition in self.logs:
            bits >>= 1
            if calm or bits & 1:
                self.core.log_end(number, self.world.end(partition))
                self.world.worked(self.name, self.plan.logs[number].name)

    def write(self, bits: int) -> bool:
        """Carry out the core's actions; a crash may come between any two. False: it crashed."""
        world = self.world
        crash_after = None
        if not world.calm and not bits & world.schedule.crash_mask:
            crash_after = bits >> 8 & 3
        for done, action in enumerate(self.core.step(world.turn)):
            if done == crash_after:
                break
            fate_bits = bits * (2 * done + 1) >> 7
            match action:
                case Append(raw):
                    world.append(self.own_partition, raw, bits=fate_bits, done=self._heard)
                case SaveCheckpoint(checkpoint):
                    statement = self.view.state.naming(checkpoint, world.turn)
                    if statement is not None:
                        key, value = statement
                        world.append(CONTROL, value, key=key, bits=fate_bits, done=_ignore)
                case Fill(number, below):
                    self._fill(number, below, fate_bits)
        if crash_after is not None:
            world.fault("collector crashed")
            world.note("crashes", self.name, self.epoch, self.writer)
        return crash_after is None

    def _fill(self, number: int, below: int, bits: int) -> None:
        """Append a skip if the log ends below an offset; a recreated topic is never filled."""
        log = self.plan.logs[number]
        partition = log_partition(log)
        if not self.world.same_topic(partition.topic):
            raise TopicChanged(f"topic {partition.topic} was deleted and recreated")
        end = self.world.next_offset(partition)
        assert below - end <= self.core.limits.fill_max, "a log is filled beyond the bound"
        if end >= below:
            if self.world.end(partition) < below:
                self.world.fault("open transaction over a hole")
            self._filled.append((number, end))
            return

        def done(outcome: AppendOutcome) -> None:
            end = outcome.offset + 1 if isinstance(outcome, Appended) else None
            self._filled.append((number, end))

        self.world.append_skip(log, bits=bits, done=done)

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
        self._writers = 0

    def turn(self, bits: int) -> None:
        """Give a turn to one instance of a collector of an epoch that has begun."""
        state = self._world.view().state
        begun = [epoch for epoch in range(1, state.epoch + 1) if state.starts(epoch) is not None]
        # The newest epoch gets half of the turns, zombies of older epochs the rest.
        epoch = begun[-1] if bits & 1 else begun[(bits >> 1 & 7) % len(begun)]
        collectors = state.plan(epoch).collectors
        if collectors:
            name = collectors[(bits >> 4 & 63) % len(collectors)].name
            epoch = state.first_epoch(epoch, name)
            self._turn(epoch, name, (bits >> 10 & 7) % 3, bits >> 13)

    def calm_turns(self) -> None:
        """Give every running instance a turn; each collector of a begun epoch has at least one."""
        state = self._world.view().state
        for epoch in range(1, state.epoch + 1):
            if state.starts(epoch) is None:
                break
            for collector in state.plan(epoch).collectors:
                if state.first_epoch(epoch, collector.name) < epoch:
                    continue
                for number in range(3):
                    if number == 0 or (epoch, collector.name, number) in self._living:
                        self._turn(epoch, collector.name, number, 0)

    def _turn(self, epoch: int, name: str, number: int, bits: int) -> None:
        key = (epoch, name, number)
        if key in self._retired:
            return
        try:
            instance = self._living.get(key) or self._start(epoch, name, number, bits)
            if not instance.turn(bits):
                del self._living[key]
                self._world.stats.void += sum(instance.core.void.values())
            elif instance.core.frozen and self._world.calm:
                # None of its records can be accepted any more.
                self._retired.add(key)
        except AmcastError as error:
            self._stopped(key, error)

    def _start(self, epoch: int, name: str, number: int, bits: int) -> SimulatedInstance:
        self._writers += 1
        choice = 0 if (epoch, name) in self._fallback else 1 + (bits >> 20 & 3)
        older = self._world.schedule.early_max > 0 and bits >> 22 & 1 == 1
        instance = SimulatedInstance(
            self._world, epoch, name, self._writers, choice=choice % 4, older=older
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
