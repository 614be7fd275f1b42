"""Collectors that work in turns on a cluster in memory: the shell of `multicast.testing.system`.

The core (`collectors/core/collector.py`), the streams, checkpoints and the drain are the product's.
This module stands in place of the engine's threads: a turn reads what there is, and carries out
what the core decides. The cluster's random numbers choose who works first, and how much is read.

    instance    one process that runs a collector in the epoch in which it began
    leaving     an instance beside which another one was started; it ends once a record of another
                instance is accepted, as an acting standby does (`collectors/core/standby.py`)
    down        a collector that crashed: no instance of it starts before `restart`

    tick        each 0.25 s of virtual time, as in the engine, the core judges holes and debts: for
                some seconds after the last event, unless each log ends where it is ordered to

Invariant: of each collector of a begun epoch that is not down and not frozen an instance runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from collectors.core.actions import Append, Fill, SaveCheckpoint
from collectors.core.collector import Collector
from collectors.engine.assignment import Assignment
from collectors.engine.questions import ask_leaders, ask_starts, is_whole, unstated_losses
from collectors.engine.skips import fill, ignore
from collectors.reconfiguration.apply import refuse_unfit
from collectors.reconfiguration.drain import Drain, Streams, with_stream_starts
from multicast.control import (
    ControlReader,
    ControlState,
    collectors_partition,
    control_partition,
    log_partition,
    plan_record,
    stream_partition,
)
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import AppendFailed, AppendOutcome, TopicPartition
from multicast.errors import ProtocolViolation
from multicast.order.runs import order_checksum
from multicast.testing.memory_system import MemorySystem
from topology.tree import Plan

# Records that one turn reads of a stream: small ones put other parties' turns between records.
_AMOUNTS = (1, 2, 5, 1000)
_TICK_MS = 250
_ASK_MS = 1000  # as in the engine, leaders are asked so often what their logs have
# Far more than a core needs to believe in a hole or a debt; so a system whose logs are away rests.
_JUDGING_MS = 5000
_EVERY_OTHER = 2  # turns in which a log's end is looked up: then logs are seen in other orders


class SteppedInstance:
    """One instance of a collector, from its start to its end."""

    def __init__(
        self,
        cluster: MemorySystem,
        state: ControlState,
        epoch: int,
        name: str,
        *,
        writer: int,
        checkpoints: bool,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.over = False
        self.leaving = False
        self.wants_starts = True
        self._cluster = cluster
        self.assignment = Assignment.of(state, name, epoch)
        self._plan = self.assignment.plan
        self._partition = self.assignment.own
        end = cluster.log.last_stable_offsets([self._partition])[self._partition]
        own, parent = self.assignment.open_streams(state, end, checkpoints=checkpoints)
        self.core = Collector(own, parent, writer=writer, clock=cluster.now_ms)
        self.core.own_end(end)
        self._logs = {number: log_partition(self._plan.logs[number]) for number in sorted(own.own)}
        self._ends: dict[int, int] = {}
        self.question, self.epochs = self.core.question, self.core.epochs
        self.answered, self.is_judged = self.core.answered, self.core.is_judged
        self._moved_ms = self._ticked_ms = self._asked_ms = cluster.now_ms()
        self._awaits_tick = False
        self._appender = cluster.driver.appender()
        self._failed = False
        self._marked = False
        self._filled: list[tuple[int, int | None]] = []
        self._others = 0

    def turn(self, state: ControlState, *, whole: bool) -> bool:
        """Do a part of the work, or all that is due; return whether anything happened."""
        moved = self._take_outcomes()
        positions = None if self._marked else self.assignment.freeze_positions(state)
        if positions is not None:
            self._marked = moved = True
            self.core.freeze_after(positions)
        reads: list[Callable[[int, bool], bool]] = [self._read_own, self._read_parent, self._look]
        self._cluster.random.shuffle(reads)
        for read in reads:
            amount = _AMOUNTS[-1] if whole else self._cluster.random.choice(_AMOUNTS)
            moved |= read(amount, whole)
        self._pass_time(moved=moved)
        moved |= self._carry_out(state)
        others = self.core.counted
        if self.core.frozen or (self.leaving and others > self._others):
            self.over = True
        self._others = others
        return moved

    def streams_begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """Take where the streams begin that it reads."""
        self.core.streams_begin(*[starts[stream] for stream in self.assignment.streams])

    def leave(self) -> None:
        """End as soon as a record of another instance is accepted."""
        self.leaving = True
        self._others = self.core.counted

    def _take_outcomes(self) -> bool:
        moved = self._failed or bool(self._filled)
        if self._failed:
            self._failed = False
            self.core.append_failed()
        filled, self._filled = self._filled, []
        for log, end in filled:
            self.core.filled(log, end)
        return moved

    def _read_own(self, amount: int, whole: bool) -> bool:  # noqa: ARG002, FBT001
        fetched = self._cluster.log.read(self._partition, self.core.own.offset_next, amount)
        if fetched is None:
            return False
        now_ms = self._cluster.now_ms()
        for record in fetched.records:
            self.core.own_read(record.offset, record.value, now_ms - record.timestamp_ms)
        self.core.own_passed(fetched.position)
        return True

    def _read_parent(self, amount: int, whole: bool) -> bool:  # noqa: ARG002, FBT001
        parent, place = self.core.parent, self.assignment.parent
        if parent is None or place is None or self.core.parent_paused:
            return False
        fetched = self._cluster.log.read(place, parent.offset_next, amount)
        if fetched is None:
            return False
        for record in fetched.records:
            self.core.parent_read(record.offset, record.value, order_checksum(record))
            if self.core.parent_paused:
                return True
        self.core.parent_passed(fetched.position)
        return True

    def _look(self, amount: int, whole: bool) -> bool:  # noqa: ARG002, FBT001
        """Look up the ends of our logs, or of some of them."""
        ends = self._cluster.log.last_stable_offsets(list(self._logs.values()))
        moved = False
        for number, partition in self._logs.items():
            seen = whole or not self._cluster.random.randrange(_EVERY_OTHER)
            if seen and self._ends.get(number) != ends[partition]:
                self._ends[number] = ends[partition]
                self.core.log_end(number, ends[partition])
                moved = True
        return moved

    def _pass_time(self, *, moved: bool) -> None:
        """Tick if it is time, and let time pass while there is something to judge."""
        now = self._cluster.now_ms()
        if moved:
            self._moved_ms = now
        if now - self._ticked_ms >= _TICK_MS:
            self._ticked_ms = now
            self.core.tick(self._highs())
        if now - self._asked_ms >= _ASK_MS:
            self._asked_ms = now
            ask_leaders(self._cluster.driver, [self])
            ask_starts(self._cluster.driver, [self])
        state, ends = self.core.own.state, self._ends.items()
        uneven = any(state.positions[log] != end or state.debts[log] for log, end in ends)
        if uneven and not self._awaits_tick and now - self._moved_ms < _JUDGING_MS:
            self._awaits_tick = True
            self._cluster.later(_TICK_MS / 1000, self._is_time)

    def _is_time(self) -> None:
        self._awaits_tick = False

    def _highs(self) -> dict[int, int]:
        """Give the high watermarks of the logs in which a transaction is open."""
        partitions = list(self._logs.values())
        ends = self._cluster.log.last_stable_offsets(partitions)
        highs = self._cluster.log.high_watermarks(partitions)
        return {number: highs[log] for number, log in self._logs.items() if highs[log] > ends[log]}

    def _carry_out(self, state: ControlState) -> bool:
        actions = self.core.step()
        for action in actions:
            match action:
                case Append(raw):
                    self._appender.append(self._partition, raw, done=self._acknowledged)
                case SaveCheckpoint(checkpoint):
                    statement = state.naming(checkpoint, self._cluster.now_ms())
                    if statement is not None:
                        self._append_statement(*statement)
                case Fill(number, below):
                    self._fill(number, below)
        own = {log: first for log, first in self.core.lost.items() if log in self._logs}
        losses = unstated_losses(self._plan, own, state)
        for key, value in losses:
            self._append_statement(key, value)
        return bool(actions or losses)

    def _append_statement(self, key: bytes, value: bytes) -> None:
        self._appender.append(
            collectors_partition(self._cluster.topic), value, key=key, done=ignore
        )

    def _fill(self, number: int, below: int) -> None:
        fill(
            self._cluster.driver,
            self._appender,
            self._plan,
            number,
            below=below,
            is_whole=lambda: is_whole(self._cluster.driver, self, number),
            filled=lambda end: self._filled.append((number, end)),
        )

    def _acknowledged(self, outcome: AppendOutcome) -> None:
        if isinstance(outcome, AppendFailed):
            self._failed = True


class SteppedCollectors:
    """All collectors of a cluster in memory. They run in turns, in the thread of the test."""

    def __init__(self, cluster: MemorySystem) -> None:
        self._cluster = cluster
        self._control = ControlReader(cluster.driver, cluster.topic)
        self._running: list[SteppedInstance] = []
        self._down: set[str] = set()
        self._helped: set[tuple[int, str]] = set()  # that are down, and that a drain runs
        self._over: set[tuple[int, str]] = set()  # frozen: nothing is accepted any more
        self._distrusted: set[tuple[int, str]] = set()  # whose checkpoints contradict the stream
        self._writers = 0
        self._attempts = 0

    def turn(self) -> bool:
        """Let some instances do a part of their work; if none has any, let all do all of it."""
        state = self._control.refresh()
        moved = self._start_missing(state)
        order = list(self._running)
        self._cluster.random.shuffle(order)
        for instance in order[: 1 + self._cluster.random.randrange(len(order) or 1)]:
            moved |= self._take_turn(instance, state, whole=False)
        if not moved:
            for instance in order:
                moved |= self._take_turn(instance, state, whole=True)
        return moved

    def crash(self, name: str) -> None:
        """End the instances of a collector; appends in flight may still be stored."""
        self._cluster.note(f"crashed collector {name}")
        self._down.add(name)
        self._running = [instance for instance in self._running if instance.name != name]

    def restart(self, name: str) -> None:
        """Let an instance of a collector that is down start with the next turn."""
        self._cluster.note(f"restarted collector {name}")
        self._down.discard(name)

    def fail_over(self, name: str) -> None:
        """Start another instance of a collector; those that run leave."""
        self._cluster.note(f"another instance of collector {name} takes over")
        self._down.discard(name)
        for instance in self._running:
            if instance.name == name:
                instance.leave()
        self._start_missing(self._control.refresh())

    def apply(self, plan: Plan, *, timeout_s: float, uncovered: bool = False) -> None:
        """Make a plan the next epoch: the first one, or by the product's drain.

        Finishes an earlier one first, if that did not end in time. Raises what
        `collectors.reconfiguration.apply` raises for a plan that does not fit, and `TimedOut` if
        the running epoch did not end.
        """
        state = self._control.refresh()
        if state.epoch and state.starts(state.epoch) is None:
            self._drain(state.epoch - 1, timeout_s)
            state = self._control.refresh()
        refuse_unfit(state, plan, uncovered=uncovered)
        self._make_topics(plan)
        self._attempts += 1
        attempt = f"test-{self._attempts}"
        key, value = plan_record(state.previous, self._filled_in(plan), attempt=attempt)
        self._cluster.log.write(control_partition(plan.topic), value, key=key)
        if plan.epoch > 1:
            self._drain(plan.epoch - 1, timeout_s)

    def help(self, epoch: int, names: list[str]) -> None:
        """Run an instance of each of these until it is frozen, even if it is down."""
        self._helped.update((epoch, name) for name in names)

    def _drain(self, epoch: int, timeout_s: float) -> None:
        driver = self._cluster.driver
        with ExitStack() as opened:
            control = ControlReader(driver, self._cluster.topic)
            opened.callback(control.close)
            control.refresh()
            deadline = clock_of(driver).monotonic() + timeout_s
            steps = SteppedDrain(driver, control, epoch, deadline=deadline, say=lambda _: None)
            steps.collectors = self
            opened.callback(steps.appender.close)
            steps.run(opened)

    def _make_topics(self, plan: Plan) -> None:
        partitions = [log_partition(log) for log in plan.logs]
        partitions += [stream_partition(plan, node.name) for node in plan.collectors]
        for topic, number in partitions:
            self._cluster.log.create(topic, number + 1)

    def _filled_in(self, plan: Plan) -> Plan:
        """Fill in the first offsets of the streams and the topics' IDs, as `apply` does."""
        driver = self._cluster.driver
        ids = driver.topic_ids(sorted({log.topic for log in plan.logs}))
        return replace(with_stream_starts(driver, plan), topic_ids=ids)

    def _start_missing(self, state: ControlState) -> bool:
        """Start an instance of each collector that has none that stays."""
        started = False
        staying = {(i.epoch, i.name) for i in self._running if not i.leaving}
        for epoch in range(1, state.epoch + 1):
            if state.starts(epoch) is None:
                break
            for spec in state.plan(epoch).collectors:
                key = (epoch, spec.name)
                may_run = spec.name not in self._down or key in self._helped
                missing = key not in staying and key not in self._over
                if missing and may_run and state.first_epoch(epoch, spec.name) == epoch:
                    self._start(state, *key)
                    started = True
        return started

    def _start(self, state: ControlState, epoch: int, name: str) -> None:
        self._writers += 1
        instance = SteppedInstance(
            self._cluster,
            state,
            epoch,
            name,
            writer=self._writers,
            checkpoints=(epoch, name) not in self._distrusted,
        )
        self._running.append(instance)

    def _take_turn(self, instance: SteppedInstance, state: ControlState, *, whole: bool) -> bool:
        key = (instance.epoch, instance.name)
        try:
            moved = instance.turn(state, whole=whole)
        except ProtocolViolation:
            # The next instance reads its stream from the start; if that fails, too, it is an error.
            if key in self._distrusted:
                raise
            self._distrusted.add(key)
            instance.over = moved = True
        if instance.over:
            self._running.remove(instance)
            if instance.core.frozen:
                self._over.add(key)
        return moved


class SteppedDrain(Drain):
    """The product's drain; the collectors that it has to help are those of the cluster in memory.

    Its keys in the control topic do not differ from run to run.
    """

    collectors: SteppedCollectors

    def _attempt(self) -> str:
        return f"test-drain-{self._plan.epoch}"

    def _wait_for_ready(self) -> None:
        """Do nothing: stepped collectors start with the turn in which their epoch begins."""

    def _help(self, names: list[str], streams: Streams, opened: ExitStack) -> float:  # noqa: ARG002
        began = {name: self._control.state.first_epoch(self._plan.epoch, name) for name in names}
        for name, epoch in began.items():
            self.collectors.help(epoch, [name])
        return float("inf")
