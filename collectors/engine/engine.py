"""What all collectors of a process share: a fixed number of threads, few sockets and clients.

    live       one reader for the control topics and all order streams (`stream_loop.py`)
    streams    what instances subscribe to: another reader for what is far behind (`catch_up.py`)
    ends       one watcher for all logs (`log_end_loop.py`)
    clock      ticks (`clock.py`)
    chores     what blocks: opening instances, filling holes, checking topic ids (`chores.py`)

They share one appender (a Kafka producer), too. An instance (`instance.py`) has no thread and no
client of its own: the loops bring it events, and it asks the engine to append. The control topics
are read once for all: every instance gets the same snapshot of what they say, which nobody changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial

from collectors.change_pauses import ChangePauses
from collectors.engine.catch_up import CatchUpLoop
from collectors.engine.chores import Chores, Hosted
from collectors.engine.clock import Clock
from collectors.engine.ended_processes import EndedProcesses
from collectors.engine.log_end_loop import LogEndLoop
from collectors.engine.skips import log_refused
from collectors.engine.stream_loop import StreamBatch, StreamLoop
from multicast.control import (
    ControlReader,
    ControlState,
    StatusPage,
    collectors_partition,
    sentinel_topic,
)
from multicast.control.topic_identity import refuse_changed_topics
from multicast.drivers.clock import WRITER_BYTES
from multicast.drivers.closing import ClosedAtEnd
from multicast.drivers.protocol import AppendOutcome, Driver, TopicPartition
from multicast.errors import AmcastError, BufferFull, Trimmed

# How long closing waits for outcomes of appends. Later ones stay unknown, which the acceptance rule
# allows. Ten times as long, a process would end that much later while the cluster is away.
_APPENDER_CLOSE_S = 1.0


class Engine(ClosedAtEnd):
    """Runs instances of collectors of one topic; a context manager.

    The constructor reads the control topics to their ends, and blocks for as long as that takes. It
    raises `UncoveredInterest` where no plan was ever applied. `page` is where the process serves
    its status.

    `control` is the newest snapshot of the control topics; it is replaced, never changed.
    """

    def __init__(self, driver: Driver, topic: str, *, page: StatusPage | None = None) -> None:
        self.control: ControlState
        self.page = page
        self.ended_processes = EndedProcesses()
        self.pauses = ChangePauses()
        self._collectors_partition = collectors_partition(topic)
        self._instances: dict[Hosted, None] = {}
        self._lock = threading.Lock()  # of the instances
        with ExitStack() as opened:
            self._read_control = partial(_read_control, driver, topic)
            self.refuse_changed = partial(refuse_changed_topics, driver)
            self.control, positions, leaders = self._read_control()
            self.appender = driver.appender()
            opened.callback(self.appender.close, _APPENDER_CLOSE_S)
            self.live = StreamLoop(driver, failed=self.fail_all, compacted=positions.keys())
            opened.callback(self.live.close)
            self.streams = CatchUpLoop(driver, self.live)
            opened.callback(self.streams.close)
            self.ends = LogEndLoop(driver, sentinel_topic(topic), failed=self.fail_all)
            opened.callback(self.ends.close)
            self.clock = Clock(failed=self.fail_all)
            self.chores = Chores(
                driver,
                self.appender,
                lambda: self.control,
                self.write_control,
                failed=self.fail_all,
            )
            self._control_sink = _ControlSink(self, positions, leaders)
            self._control_sink.subscribe()
            self.ends.hurries = self.plan_changes
            parts = self.live, self.streams, self.ends, self.clock, self.chores
            self._loops = [part.loop for part in parts]
            self._opened = opened.pop_all()
        for loop in self._loops:
            loop.start()

    def add(self, instance: Hosted) -> None:
        """Run an instance until it is over, for whatever reason; returns at once."""
        with self._lock:
            self._instances[instance] = None
        self.chores.open(instance)

    def close(self) -> None:
        """Stop all instances and loops, and release what was opened; ends within seconds."""
        for instance in self._all():
            instance.stop()
        for loop in self._loops:
            loop.stop()
        # A loop that has not ended may still use what it opened: then nothing is closed.
        running = [loop for loop in self._loops if not loop.join()]
        if not running:
            self._opened.close()

    @property
    def plan_changes(self) -> bool:
        """Whether a plan is applied whose epoch has not begun: consumers may wait for that."""
        return self.control.epoch != self.control.begun_epoch

    # -- for instances ------------------------------------------------------------------------

    def leave(self, instance: Hosted) -> None:
        """Forget an instance that is over."""
        with self._lock:
            self._instances.pop(instance, None)

    def append(
        self,
        partition: TopicPartition,
        raw: bytes,
        *,
        writer: int,
        done: Callable[[AppendOutcome], None],
    ) -> bool:
        """Start an append to an order stream; False where the buffer is full: nothing was started.

        `done` is called once, from any thread, perhaps before this returns; it must not block.
        """
        try:
            key = writer.to_bytes(WRITER_BYTES, "big")
            self.appender.append(partition, raw, key=key, done=done)
        except BufferFull:
            return False
        return True

    def write_control(self, key: bytes, value: bytes) -> None:
        """Start an append of a collector's statement, whose loss does no harm."""
        with suppress(BufferFull):
            self.appender.append(self._collectors_partition, value, key=key, done=log_refused)

    # -- from the loops -----------------------------------------------------------------------

    def control_changed(self, state: ControlState) -> None:
        """Give every instance the control topics' new state."""
        self.control = state
        self.ends.hurries = self.plan_changes
        self._control_sink.urge(urgent=self.plan_changes)
        for instance in self._all():
            instance.control_changed(state)

    def read_control_anew(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Read the control topics from their starts; give the positions reached, and leaders."""
        state, positions, leaders = self._read_control()
        self.control_changed(state)
        return positions, leaders

    def fail_all(self, error: Exception) -> None:
        """Fail all instances: a loop met an error that does not concern one partition alone."""
        for instance in self._all():
            instance.fail(error)

    def _all(self) -> list[Hosted]:
        with self._lock:
            return list(self._instances)


def _read_control(
    driver: Driver, topic: str
) -> tuple[ControlState, dict[TopicPartition, int], dict[TopicPartition, int]]:
    with closing(ControlReader(driver, topic)) as reader:
        return reader.refresh(), dict(reader.positions), dict(reader.leaders)


class _ControlSink:
    """Reads the control topics on, for all instances."""

    def __init__(
        self,
        engine: Engine,
        positions: Mapping[TopicPartition, int],
        leaders: Mapping[TopicPartition, int],
    ) -> None:
        self._engine = engine
        self._positions, self._leaders = dict(positions), dict(leaders)

    def subscribe(self) -> None:
        """Read on from the positions reached so far."""
        urgent = self._engine.plan_changes
        self._engine.live.subscribe(self, self._positions, urgent=urgent)

    def urge(self, *, urgent: bool) -> None:
        """Read new records at once, or as seldom as a stream for which nobody waits."""
        for partition in self._positions:
            self._engine.live.urge(self, partition, urgent=urgent)

    def on_batches(self, batches: Sequence[StreamBatch]) -> None:
        """Give the instances a snapshot of the state after these batches.

        If two statements have one key, also one from before the second: an instance that claims a
        collector must see its own claim to know that a later one has replaced it.

        A later leader may have other records where an earlier one's were read, so all is read anew.
        """
        later = any(
            each.leader_epoch > self._leaders.get(batch.partition, each.leader_epoch)
            for batch in batches
            for each in batch.records[-1:]
        )
        if later and self._read_anew():
            return
        state = self._engine.control.copy()
        keys: set[bytes | None] = set()
        for batch in batches:
            for record in batch.records:
                if record.key in keys:
                    self._engine.control_changed(state)
                    state = state.copy()
                    keys.clear()
                keys.add(record.key)
                state.read_from(batch.partition, record)
            self._positions[batch.partition] = batch.position
        self._engine.control_changed(state)

    def fail(self, error: Exception) -> None:
        """Subscribe again, and fail all instances: none can work without the control topics.

        Where a topic has lost what was read, both are read anew, which blocks for that.
        """
        if not (isinstance(error, Trimmed) and self._read_anew()):
            self.subscribe()
        self._engine.fail_all(error)

    def _read_anew(self) -> bool:
        """Read both topics from their starts, and on from there; whether that succeeded."""
        try:
            self._positions, self._leaders = self._engine.read_control_anew()
        except AmcastError:
            return False
        self.subscribe()
        return True
