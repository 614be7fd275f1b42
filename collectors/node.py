"""One instance of one collector, on a driver: poll, give to the core, carry out.

The loop below is the whole shell; what is right to do is decided in `collector.py` and
`multicast.order`. Two feeders, a thread each, turn the two things that block (the ends of our logs;
our own, the parent's and the control stream) into one queue, so that whichever comes first wakes
the loop.

Any number of instances of a node may run at once, anywhere: the log decides which records count.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from collectors.collector import Append, Collector, Limits
from collectors.replan import freeze_positions
from multicast.control import (
    ControlReader,
    ControlState,
    checkpoint_record,
    control_partition,
    log_partition,
    stream_partition,
)
from multicast.delivery import best_checkpoint
from multicast.errors import AmcastError, BufferFull, UsageError
from multicast.log import Appender, AppendFailed, AppendOutcome, Driver, Fetched, TopicPartition
from multicast.order import OrderStream

_QUEUE_MAX = 256
_TICK_S = 0.5


@dataclass(frozen=True, slots=True)
class _Ends:
    ends: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class _Read:
    fetched: list[Fetched]


@dataclass(frozen=True, slots=True)
class _Broken:
    error: AmcastError


@dataclass(slots=True)
class _Feed:
    """The queue between the feeders and the loop; bounded, and given up when the node stops."""

    stopped: threading.Event = field(default_factory=threading.Event)
    events: queue.Queue[_Ends | _Read | _Broken] = field(
        default_factory=lambda: queue.Queue(_QUEUE_MAX)
    )

    def put(self, event: _Ends | _Read | _Broken) -> None:
        while not self.stopped.is_set():
            try:
                self.events.put(event, timeout=_TICK_S)
            except queue.Full:
                continue
            return

    def start(self, name: str, poll: Callable[[], _Ends | _Read | None]) -> threading.Thread:
        """Start a feeder: what `poll` gives goes into the queue, until it fails or we stop."""

        def feed() -> None:
            try:
                while not self.stopped.is_set():
                    event = poll()
                    if event is not None:
                        self.put(event)
            except AmcastError as error:
                self.put(_Broken(error))

        thread = threading.Thread(target=feed, name=name, daemon=True)
        thread.start()
        return thread


class Node:
    """Runs one collector of one epoch until the epoch is over or `stop` is called.

    `epoch` None takes the newest. Without `checkpoints` the streams are read from the epoch's
    start: what to do after `ProtocolViolation` has named one that the log belies. Raises
    `UsageError` where the plan has no such collector.
    """

    def __init__(
        self,
        driver: Driver,
        topic: str,
        name: str,
        *,
        epoch: int | None = None,
        limits: Limits | None = None,
        checkpoints: bool = True,
    ) -> None:
        self.name = name
        self._driver = driver
        self._control = ControlReader(driver, topic)
        state = self._control.refresh()
        self.plan = state.plan(epoch)
        starts = state.starts(self.plan.epoch)
        assert starts is not None, "a node runs an epoch that has begun"
        if not self.plan.has_collector(name):
            raise UsageError(f"epoch {self.plan.epoch} has no collector {name}")
        self.starts = {self.plan.number(log): at for log, at in starts.items()}
        node = self.plan.collector(name)
        own_at = stream_partition(self.plan, name)
        end = driver.ends([own_at])[own_at]
        own = _open(state, self, starts, name, below=end if checkpoints else 0)
        parent = None
        self._streams = {own_at: own}
        if node.parent is not None:
            below = own.state.parent_next.offset if checkpoints else 0
            parent = _open(state, self, starts, node.parent, below=below)
            self._streams[stream_partition(self.plan, node.parent)] = parent
        self._own_at = own_at
        self.core = Collector(
            own, parent, writer=int.from_bytes(os.urandom(8), "big"), limits=limits
        )
        self.core.own_end(end)
        self._logs = {log_partition(self.plan.logs[number]): number for number in sorted(own.own)}
        self._feed = _Feed()
        self._failed = threading.Event()
        self.ended = threading.Event()
        self._wakes: tuple[Callable[[], None], ...] = ()
        self.records_appended = 0

    def stop(self) -> None:
        """Make `run` return soon. Safe from any thread."""
        self._feed.stopped.set()
        for wake in self._wakes:
            wake()

    def run(self) -> None:
        """Follow, order, append: until stopped or frozen.

        Raises `AmcastError` on what it cannot mend; a new instance then goes on from the log.
        """
        control_at = control_partition(self.plan.topic)
        starts = {at: stream.offset_next for at, stream in self._streams.items()}
        starts[control_at] = self._driver.begins([control_at])[control_at]
        reader = self._driver.reader(starts)
        watcher = self._driver.watcher(
            {at: self.core.own.state.positions[number] for at, number in self._logs.items()}
        )
        appender = self._driver.appender()
        control = ControlState(self.plan.topic)

        def read() -> _Read | None:
            if self.core.parent is not None:
                places = [at for at in self._streams if at != self._own_at]
                (reader.pause if self.core.parent_paused() else reader.resume)(places)
            fetched = reader.poll(_TICK_S)
            return _Read(fetched) if fetched else None

        def watch() -> _Ends | None:
            ends = watcher.poll(_TICK_S)
            return _Ends(ends) if ends else None

        self._wakes = (reader.wake, watcher.wake)
        feeders = [
            self._feed.start(f"amcast-{self.name}-read", read),
            self._feed.start(f"amcast-{self.name}-watch", watch),
        ]
        try:
            while not self._feed.stopped.is_set() and not self.core.frozen:
                self._take_events(control)
                if self._failed.is_set():
                    self._failed.clear()
                    self.core.append_failed()
                for action in self.core.step(time.time_ns() // 1_000_000):
                    if isinstance(action, Append):
                        self._append(appender, action.raw)
                    else:
                        key, value = checkpoint_record(action.checkpoint)
                        appender.append(control_at, value, key=key, done=lambda _: None)
        finally:
            self.stop()
            for thread in feeders:
                thread.join(5 * _TICK_S)
            appender.close(1.0)
            reader.close()
            watcher.close()
            self._control.close()
            self.ended.set()

    def _take_events(self, control: ControlState) -> None:
        """Wait for one event, then take all that are there."""
        try:
            event = self._feed.events.get(timeout=_TICK_S)
        except queue.Empty:
            return
        while True:
            match event:
                case _Broken(error):
                    raise error
                case _Ends(ends):
                    for at, end in ends.items():
                        self.core.log_end(self._logs[at], end)
                case _Read(fetched):
                    for one in fetched:
                        self._take_records(one, control)
            try:
                event = self._feed.events.get_nowait()
            except queue.Empty:
                return

    def _take_records(self, fetched: Fetched, control: ControlState) -> None:
        if fetched.at not in self._streams:
            for record in fetched.records:
                control.read(record)
            markers = control.markers.get(self.plan.epoch)
            if markers is not None:
                self.core.freeze_after(freeze_positions(self.plan, markers))
            return
        own = fetched.at == self._own_at
        take = self.core.own_read if own else self.core.parent_read
        for record in fetched.records:
            take(record.offset, record.value)
        (self.core.own_passed if own else self.core.parent_passed)(fetched.position)

    def _append(self, appender: Appender, raw: bytes) -> None:
        def done(outcome: AppendOutcome) -> None:
            if isinstance(outcome, AppendFailed):
                self._failed.set()

        try:
            appender.append(self._own_at, raw, done=done)
            self.records_appended += 1
        except BufferFull:
            self._failed.set()

    def status(self) -> dict[str, Any]:
        """Describe this instance for `/status`: JSON values, read while the loop runs."""
        core = self.core
        positions = dict(core.own.state.positions)
        return {
            "node": self.name,
            "epoch": self.plan.epoch,
            "parent": self.plan.collector(self.name).parent,
            "frozen": core.frozen,
            "records": core.own.state.count,
            "appended_here": self.records_appended,
            "pending": core.pending,
            "lag": core.lag,
            "void": {reason.name.lower(): count for reason, count in sorted(core.void.items())},
            "ordered": {
                self.plan.logs[number].name: position - self.starts[number]
                for number, position in sorted(positions.items())
            },
        }


def _open(
    state: ControlState, node: Node, starts: Mapping[str, int], name: str, *, below: int
) -> OrderStream:
    """Open a stream at its last checkpoint below an offset, else at the epoch's start."""
    points = state.checkpoints(node.plan.epoch, name)
    return OrderStream(
        node.plan, name, starts, best_checkpoint(points, node.plan.epoch, name, below)
    )
