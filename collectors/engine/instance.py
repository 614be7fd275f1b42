"""The life of one instance of one collector: open, begun, over.

    open    stands ready: its logs are followed, and a primary's address is advertised
    begun   the epoch before has ended, and the core works (`core_runner.py`)
    over    it was stopped, it failed, or its epoch is over; it stays so

What is right to do is decided in `collector.py` and `multicast/order/rule.py`. Any number of
instances of a collector may run at once, anywhere: the order stream decides which records are
accepted. Those that stand by (`standby.py`) follow the streams and hold back what they would
append.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict
from typing import Any

from collectors.core.collector import LIMITS, Collector
from collectors.core.collector_core import CollectorLimits
from collectors.core.entry_counts import EntryCounts, entries_of
from collectors.core.standby import PATIENCE_S, Standby
from collectors.engine.assignment import Assignment
from collectors.engine.core_runner import CoreRunner
from collectors.engine.engine import Engine
from multicast.control import ControlState
from multicast.control.topic_identity import refuse_other_topics
from multicast.drivers.protocol import TopicPartition


class CollectorInstance:
    """Runs one collector of one epoch until the epoch is over, it fails, or `stop` is called.

    `epoch` None takes the newest. `plan` is that of the epoch in which the collector began, so an
    earlier one if it was retained. Where the epoch before still runs, the instance stands ready
    until that has ended. Without `checkpoints` it reads its streams from the epoch's start: what to
    do after a `ProtocolViolation` that names a checkpoint. A `standby` begins to append when
    something has waited for `patience_s` seconds. `entries` continues the counts of the
    instances that this process ran before it.

    Raises `UsageError` where the plan has no such collector. Nothing happens before `Engine.add`.
    Once it is over, it calls `on_end`, from any thread, and sets `ended`; `error` then says what
    made it fail (`TopicChanged`: a log's topic was deleted and created again).
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        *,
        epoch: int | None = None,
        limits: CollectorLimits | None = None,
        checkpoints: bool = True,
        standby: bool = False,
        patience_s: float = PATIENCE_S,
        entries: EntryCounts | None = None,
    ) -> None:
        self.assignment = Assignment.of(engine.control, name, epoch)
        self.name = name
        self.plan = self.assignment.plan
        self.role = Standby(primary=not standby, patience_s=patience_s)
        self.is_open = False
        self.error: Exception | None = None
        self.ended = threading.Event()
        self.entries = entries or EntryCounts()
        self.on_end: Callable[[], None] = _nothing
        self._engine = engine
        self._checkpoints = checkpoints
        self._limits = limits or LIMITS
        self._starts: Mapping[int, int] = {}  # of the logs in the epoch
        self._control_seen: tuple[Hashable, ...] | None = None
        self._runner = CoreRunner(engine, self.assignment, self.role, end=self._end)

    @property
    def core(self) -> Collector:
        """The core; there is none before it has `begun`."""
        return self._runner.core

    @property
    def begun(self) -> bool:
        """Whether the core works."""
        return self._runner.begun

    @property
    def over(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self._runner.over

    def open(self, topic_ids: Mapping[str, str]) -> None:
        """Stand ready; begin soon where the epoch has begun."""
        refuse_other_topics(topic_ids, self.plan, self.assignment.topics)
        with self._runner.lock:
            if self.over:
                return
            self._runner.open()
            # Before the look at the control topic: `control_changed` reports what changes later.
            self.is_open = True
            due = self._is_due(self._engine.control)
            if not due:
                self._runner.stand_ready()
        if due:
            self._engine.chores.begin(self)

    def begin(self, state: ControlState, ends: Mapping[TopicPartition, int]) -> None:
        """Make the core: the epoch has begun, and the streams that it reads end at `ends`."""
        with self._runner.lock:
            if self.over or self.begun:
                return
            self._runner.begin(self._make_core(state, ends), ends)
            self._engine.pauses.begun(self.name, self.plan.epoch, time.monotonic())
        self._runner.take_what_came()
        self.control_changed(self._engine.control)  # it may have changed since `state`

    def control_changed(self, state: ControlState) -> None:
        """Take a new state of the control topic: begin when due, freeze, take over."""
        if not self.begun:
            if self.is_open and self._is_due(state):
                self._engine.chores.begin(self)
            elif self.is_open and not self.over:
                with self._runner.lock:
                    self._runner.advertisement.renew()
            return
        offered = state.advertised.offered_by(self.plan.epoch, self.name)
        seen = state.epoch, len(state.markers), offered, state.advertised.pages.get(self.name)
        if seen != self._control_seen:
            self._control_seen = seen
            self._runner.control_changed()

    def play(self, *, primary: bool) -> None:
        """Act as the primary from now on, or stand by."""
        if self.role.primary is primary:
            return
        with self._runner.lock:
            self.role.primary = primary
            advertisement = self._runner.advertisement
            is_new = self.is_open and not self.over and not advertisement.advertised
            if primary and is_new:
                advertisement.advertise()
        self._runner.look()

    def release(self) -> None:
        """Hand the collector over: act on until a standby has taken over, then end.

        Ends at once where it does not act. Without a standby it goes on: stop it after a time. Safe
        from any thread that does not hold the core's lock.
        """
        with self._runner.lock:
            hands_over = not self.over and self._runner.release()
        if not hands_over:
            self.stop()

    def stop(self) -> None:
        """End soon, without an error. Safe from any thread that does not hold the core's lock."""
        self._end(None)

    def fail(self, error: Exception) -> None:
        """End with an error. Safe from any thread that does not hold the core's lock."""
        self._end(error)

    def status(self) -> dict[str, Any]:
        """Describe this instance for `/status`: JSON values, from any thread."""
        begun, epoch = self.begun, self.plan.epoch
        values = {
            "node": self.name,
            "epoch": epoch,
            "begun": begun,
            "role": "primary" if self.role.primary else "standby",
            "entries": asdict(entries_of(self.plan, self.name, self.entries)),
            # from the freeze of its last epoch here to this begin
            "replanning_seconds": self._engine.pauses.seconds(self.name, epoch),
        }
        return values | (self._runner.progress(self._starts) if begun else {})

    def _is_due(self, state: ControlState) -> bool:
        return state.starts(self.plan.epoch) is not None

    def _make_core(self, state: ControlState, ends: Mapping[TopicPartition, int]) -> Collector:
        starts = state.begun(self.plan.epoch)
        self._starts = {self.plan.number(log): start for log, start in starts.items()}
        own_end, above = ends[self.assignment.own], self.assignment.parent
        own, parent = self.assignment.open_streams(
            state,
            own_end,
            checkpoints=self._checkpoints,
            parent_end=None if above is None else ends[above],
        )
        core = Collector(
            own,
            parent,
            writer=int.from_bytes(os.urandom(8), "big"),
            clock=lambda: time.monotonic_ns() // 1_000_000,
            limits=self._limits,
            entries=self.entries,
        )
        core.own_end(own_end)
        positions = self.assignment.freeze_positions(state)
        if positions is not None:
            core.freeze_after(positions)
        return core

    def _end(self, error: Exception | None) -> None:
        with self._runner.lock:
            if self.over:
                return
            self.error = error
            self._runner.over = True
            if self.begun and self.core.frozen:
                last = self._engine.control.last_epoch(self.plan.epoch, self.name)
                if last is not None:
                    self._engine.pauses.frozen(self.name, last + 1, time.monotonic())
        self._runner.close()
        self._engine.leave(self)
        self.on_end()
        self.ended.set()


def _nothing() -> None:
    """Tell nobody of the end."""
