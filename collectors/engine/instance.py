"""One instance of one collector: events come in, go to the core, and its actions are carried out.

What is right to do is decided in `collector.py` and `multicast.order`. There is no thread and no
loop here: those of the process (`engine.py`) bring the ends of our logs, the records of our own and
the parent's stream, announcements, the outcomes of appends, and ticks. Whoever brings an event
gives it to the core and carries out at once what the core answers, one at a time, under one lock.

    heard       at which offsets our appends came to stand, not given to the core yet
    alone       so many of our records counted one after the other, and nobody else's. The offset
                that Kafka gives an append then says what counts, and the own stream is not read;
                it is again as soon as another record stands between
    open        stands ready: its logs are followed, and its address was told
    begun       the epoch before has ended, and the core works

Any number of instances of a node may run at once, anywhere: the log decides which records count.
Of several, those that stand by (`standby.py`) follow and hold back what they would append. An error
ends the one instance that it happened to; another one then goes on from the log.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collectors.collector import Append, Collector, CollectorLimits, Fill, SaveCheckpoint
from collectors.engine.status import describe, warn
from collectors.epoch_change import freeze_positions
from collectors.standby import PATIENCE_S, Standby
from multicast.announcements import Address, decode
from multicast.control import (
    ControlState,
    address_record,
    checkpoint_record,
    control_partition,
    log_partition,
    running_record,
    stream_partition,
)
from multicast.drivers.protocol import AppendFailed, AppendOutcome, TopicPartition
from multicast.errors import AccessDenied, UsageError
from multicast.order import OrderStream
from multicast.topic_identity import refuse_other_topics

if TYPE_CHECKING:
    from collectors.engine.engine import Engine
    from collectors.engine.stream_loop import Came

_ALONE = 64
_REST_TICKS = 8  # without an event; longer than any debt is remembered (`Promises`)


class CollectorInstance:
    """Runs one collector of one epoch until the epoch is over, it fails, or `stop` is called.

    `epoch` None takes the newest; `plan` is the one that the collector began with. Where the epoch
    before still runs, it stands ready until that has ended. Without `checkpoints` the streams
    are read from the epoch's start: what to do after `ProtocolViolation` has named one that the log
    belies. A `standby` appends only what has waited for longer than `patience_s`. Raises
    `UsageError` where the plan has no such collector. Nothing happens before `Engine.add`; `error`
    says in the end what it failed of, `TopicChanged` where a log's topic is another by now.
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
    ) -> None:
        state = engine.control
        asked = state.plan(epoch)
        if not asked.has_collector(name):
            raise UsageError(f"epoch {asked.epoch} has no collector {name}")
        self.name = name
        self.plan = state.plan(state.first_epoch(asked.epoch, name))
        self.own_at = stream_partition(self.plan, name)
        self.role = Standby(primary=not standby, patience_s=patience_s)
        self.starts: dict[int, int] = {}
        self.core: Collector
        self.is_open = False
        self.begun = False
        self.over = False
        self.error: Exception | None = None
        self.ended = threading.Event()
        self.on_end: Callable[[], None] = _nothing
        self.records_appended = 0
        self.skips_appended = 0
        self.announcements = 0
        self._engine = engine
        self._logs = {
            log_partition(self.plan.log(log)): self.plan.number(log)
            for log in self.plan.own_logs(name)
        }
        above = self.plan.collector(name).parent
        self._above = above
        self._parent_at = None if above is None else stream_partition(self.plan, above)
        self._checkpoints = checkpoints
        self._limits = limits
        self._lock = threading.Lock()  # whoever holds it has the core's turn
        self._failed = threading.Event()
        self._denied: AccessDenied | None = None  # what Kafka refused an append for
        self._heard: deque[tuple[bytes, int]] = deque()
        self._alone = 0
        self._reads_own = True
        self._paused = False  # the parent's stream
        self._address: Address | None = None
        self._advertised_address = False
        self._rested = 0  # ticks since the last event
        self._control_seen = (0, 0)
        self.said: tuple[str, ...] = ()

    @property
    def topics(self) -> set[str]:
        """Name the topics that its logs stand in."""
        return {at.topic for at in self._logs}

    # -- life -------------------------------------------------------------------------------

    def open(self, ids: Mapping[str, str]) -> None:
        """Stand ready; `ids` are the cluster's of our topics."""
        try:
            refuse_other_topics(ids, self.plan, self.topics)
            with self._lock:
                if self.over:
                    return
                self._address = self._engine.listen(self)
                if self.role.primary:
                    self._tell_address()
                self._engine.ends.follow(self, list(self._logs))
                self._engine.add_direct(self.own_at)
                self.is_open = True  # before the look: what changes afterwards is told
                state = self._engine.control
                due = state.starts(self.plan.epoch) is not None
                if not due:
                    # So that they are at hand the moment the epoch before has ended.
                    self._engine.streams.subscribe(self, self._first_offsets(), paused=True)
            if due:
                self._engine.chores.begin(self)
        except Exception as error:  # noqa: BLE001 - this instance's failure, not the loop's
            self.fail(error)

    def begin(self, state: ControlState, own_end: int) -> None:
        """Make the core: the epoch has begun, and our own stream ends there now."""
        try:
            with self._lock:
                if self.over or self.begun:
                    return
                self._make_core(state, own_end)
            self._take(self._ends_came, self._engine.ends.known(list(self._logs)))
            self.control_changed(self._engine.control)  # it may have changed meanwhile
        except Exception as error:  # noqa: BLE001 - this instance's failure, not the loop's
            self.fail(error)

    def control_changed(self, state: ControlState) -> None:
        """Hear what the control topic says by now."""
        if not self.begun:
            if self.is_open and state.starts(self.plan.epoch) is not None:
                self._engine.chores.begin(self)
            return
        seen = state.epoch, len(state.markers)
        if seen != self._control_seen:
            self._control_seen = seen
            self._take(self._control_read, state)

    def play(self, *, primary: bool) -> None:
        """Act as the primary from now on, or stand by."""
        if self.role.primary is primary:
            return
        with self._lock:
            self.role.primary = primary
            if primary and self.is_open and not self.over and not self._advertised_address:
                self._tell_address()
        self.look()

    def stop(self) -> None:
        """End soon. Safe from any thread."""
        self._end(None)

    def fail(self, error: Exception) -> None:
        """End, and say why. Safe from any thread that does not hold our lock."""
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        with self._lock:
            if self.over:
                return
            self.over = True
            self.error = error
        engine = self._engine
        engine.ends.leave(self, list(self._logs))
        engine.streams.unsubscribe(self, list(self._first_offsets()))
        engine.clock.leave(self)
        engine.leave(self, self._address, self.own_at)
        self.on_end()
        self.ended.set()

    def _first_offsets(self) -> dict[TopicPartition, int]:
        """Give the streams that we read, each with where its epoch starts."""
        plan = self.plan
        starts = {self.own_at: plan.collector(self.name).stream_first}
        if self._parent_at is not None and self._above is not None:
            starts[self._parent_at] = plan.collector(self._above).stream_first
        return starts

    def _make_core(self, state: ControlState, own_end: int) -> None:
        epoch = self.plan.epoch
        starts = state.begun(epoch)
        self.starts = {self.plan.number(log): at for log, at in starts.items()}
        own = state.stream(epoch, self.name, below=own_end if self._checkpoints else 0)
        streams: dict[TopicPartition, OrderStream] = {self.own_at: own}
        parent = None
        if self._parent_at is not None and self._above is not None:
            below = own.state.parent_next.offset if self._checkpoints else 0
            parent = state.stream(epoch, self._above, below=below)
            streams[self._parent_at] = parent
        self.core = Collector(
            own, parent, writer=int.from_bytes(os.urandom(8), "big"), limits=self._limits
        )
        self.core.own_end(own_end)
        self._control_read(state)
        self.begun = True
        starts_at = {at: stream.offset_next for at, stream in streams.items()}
        self._engine.streams.subscribe(self, starts_at)

    # -- events -----------------------------------------------------------------------------

    def streams_came(self, batches: Sequence[Came]) -> None:
        """Take records of our own and the parent's stream."""
        self._take(self._records_came, batches)

    def ends_came(self, ends: Mapping[TopicPartition, int]) -> int | None:
        """Take ends of logs that moved; say how many offsets below them were not ordered yet."""
        self._engine.chores.moved(self, {at.topic for at in ends})
        unordered: list[int] = []

        def came() -> None:
            core = self.core
            unordered.append(sum([core.unordered(self._logs[at], end) for at, end in ends.items()]))
            self._ends_came(ends)

        self._take(came)
        return sum(unordered) if unordered and self.role.acting else None

    def transaction_opened(self) -> None:
        """Hear that a transaction is open in one of our logs: ticks say whether it stands still."""
        self._take(_nothing)

    def datagrams_came(self, datagrams: Sequence[bytes]) -> None:
        """Take announcements."""
        self._take(self._announced, datagrams)

    def filled(self, log: int, end: int | None) -> None:
        """Hear where a log ends after a fill; None: nobody knows."""
        self._take(lambda: self.core.filled(log, end))

    def tick(self) -> None:
        """Hear that a while has passed; at rest we need no more ticks until the next event."""
        self._take(self._tick, event=False)

    def look(self) -> None:
        """Look whether a standby's patience has ended."""
        self._take(_nothing, event=False)

    def refuse_other(self, ids: Mapping[str, str], topics: set[str]) -> None:
        """Fail where one of these topics is another one by now."""
        try:
            refuse_other_topics(ids, self.plan, topics)
        except Exception as error:  # noqa: BLE001 - this instance's failure, not the loop's
            self.fail(error)

    def _take(self, give: Callable[..., None], *events: object, event: bool = True) -> None:
        """Give events to the core and carry out what it answers."""
        try:
            with self._lock:
                if self.over or not self.begun:
                    return
                if event:
                    self._rested = 0
                    self._engine.clock.follow(self)
                give(*events)
                self._carry_out()
            self._work_off()
        except Exception as error:  # noqa: BLE001 - this instance's failure, not the loop's
            self.fail(error)
            return
        if self.core.frozen:
            self.stop()

    def _work_off(self) -> None:
        """Give what was heard to the core, unless somebody has its turn: then that one will."""
        while self._heard and self._lock.acquire(blocking=False):
            try:
                while self._heard:
                    heard = self._heard.popleft()
                    if not self.over:
                        self._append_came(*heard)
                if not self.over:
                    self._rested = 0
                    self._engine.clock.follow(self)
                    self._carry_out()
            finally:
                self._lock.release()

    def _tick(self) -> None:
        core = self.core
        highs = self._engine.ends.highs(list(self._logs))
        core.tick({self._logs[at]: high for at, high in highs.items()})
        warn(self)
        self._rested += 1
        due = core.pending or core.early or core.lag or highs or self._failed.is_set()
        if self._rested >= _REST_TICKS and not due and not core.due:
            self._engine.clock.leave(self)

    def _append_came(self, raw: bytes, offset: int) -> None:
        """Take an append of ours as read back where nothing stands before it that was not."""
        expected = self.core.own.offset_next
        if offset == expected:
            self._own_read(offset, raw)
        elif offset > expected or offset < 0:  # below 0: Kafka stored it and told no offset
            self._alone = 0

    def _own_read(self, offset: int, raw: bytes | None) -> None:
        before = self.core.ours
        self.core.own_read(offset, raw)
        self._alone = self._alone + 1 if self.core.ours > before else 0
        if self._alone == _ALONE:  # whoever orders is to hear the announcements
            self._tell_address()

    def _ends_came(self, ends: Mapping[TopicPartition, int]) -> None:
        for at, end in ends.items():
            self.core.log_end(self._logs[at], end)

    def _announced(self, datagrams: Sequence[bytes]) -> None:
        token = self._address.token if self._address is not None else b""
        for raw in datagrams:
            announcement = decode(token, raw)
            if announcement is not None:
                self.announcements += 1
                self.core.announced(announcement)

    def _records_came(self, batches: Sequence[Came]) -> None:
        for came in batches:
            if came.partition == self.own_at:
                self._own_came(came)
                continue
            for record in came.records:
                self.core.parent_read(record.offset, record.value)
            self.core.parent_passed(came.position)

    def _own_came(self, came: Came) -> None:
        """Read on in our own stream, where our appends have not told it before."""
        for record in came.records:
            if record.offset >= self.core.own.offset_next:
                self._own_read(record.offset, record.value)
        self.core.own_passed(came.position)

    def _control_read(self, state: ControlState) -> None:
        last = state.last_epoch(self.plan.epoch, self.name)
        markers = None if last is None else state.markers.get(last)
        if markers is not None:
            self.core.freeze_after(freeze_positions(self.plan, markers))

    # -- carrying out -----------------------------------------------------------------------

    def _carry_out(self) -> None:
        if self._failed.is_set():
            self._failed.clear()
            if self._denied is not None:
                raise self._denied
            self.core.append_failed()
        before, acts = self.role.acting, self.role.acts(self.core, time.monotonic())
        if acts and not before:
            self._tell_address()
        if self.role.waiting:
            self._engine.clock.hurry(self)
        for action in self.core.step(time.time_ns() // 1_000_000) if acts else ():
            match action:
                case Append(raw):
                    self._append(raw)
                case SaveCheckpoint(checkpoint):
                    key, value = checkpoint_record(checkpoint)
                    self._write_control(key, value)
                case Fill():
                    self._engine.chores.fill(self, action)
        self._follow_streams()

    def _follow_streams(self) -> None:
        """Read our own stream unless we are its only writer; the parent's while there is room."""
        streams = self._engine.streams
        wanted = self._alone < _ALONE
        if wanted is not self._reads_own:
            self._reads_own = wanted
            if wanted:
                streams.subscribe(self, {self.own_at: self.core.own.offset_next})
            else:
                streams.unsubscribe(self, [self.own_at])
        if self._parent_at is not None:
            paused = self.core.parent_paused(paused=self._paused)
            if paused is not self._paused:
                self._paused = paused
                streams.pause(self, self._parent_at, paused=paused)

    def _append(self, raw: bytes) -> None:
        def done(outcome: AppendOutcome) -> None:
            if isinstance(outcome, AppendFailed):
                if isinstance(outcome.error, AccessDenied):
                    self._denied = outcome.error  # our lock may be held here
                self._failed.set()  # the next event or tick sees it: failures must not chase
                return
            self._heard.append((raw, outcome.offset))
            try:
                self._work_off()
            except Exception as error:  # noqa: BLE001 - this instance's failure, not the loop's
                self.fail(error)
                return
            if self.core.frozen:
                self.stop()

        self.records_appended += 1
        if not self._engine.append(self.own_at, raw, done=done):
            self._failed.set()

    def _tell_address(self) -> None:
        """Tell producers where we listen, and whoever changes the tree that we stand ready.

        Not where that is the newest told, nor where one of our name in a later epoch told its own.
        """
        state, epoch = self._engine.control, self.plan.epoch
        if self._address is None:
            if state.running.get(self.name, 0) < epoch and not self._advertised_address:
                self._write_control(*running_record(epoch, self.name))
        else:
            told, address = state.addresses.get(self.name, (0, None))
            if told <= epoch and address != self._address:
                self._write_control(*address_record(epoch, self.name, self._address))
        self._advertised_address = True

    def _write_control(self, key: bytes, value: bytes) -> None:
        self._engine.write(control_partition(self.plan.topic), value, key=key)

    def status(self) -> dict[str, Any]:
        """Describe this instance for `/status`: JSON values, read while it runs."""
        return describe(self, reads_back=self._reads_own)


def _nothing() -> None:
    """Take nothing new."""
