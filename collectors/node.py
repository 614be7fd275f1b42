"""One instance of one collector, on a driver: poll, give to the core, carry out.

What is right to do is decided in `collector.py` and `multicast.order`. Three feeders, a thread
each, wait for what blocks: the ends of our logs; our own, the parent's and the control stream;
announcements. Whoever brings news gives it to the core and carries out at once what the core
answers, one at a time, without a hand-over to another thread. The thread
that runs the node keeps time: it tells the core that a while has passed, and fills holes.

    heard       at which offsets our appends came to stand, not given to the core yet
    alone       so many of our records counted one after the other, and nobody else's. The offset
                that Kafka gives an append then says what counts, and the own stream is not read;
                it is again as soon as another record stands between

Any number of instances of a node may run at once, anywhere: the log decides which records count.
Of several, those that stand by (`standby.py`) follow and hold back what they would append.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from collectors.collector import Append, Collector, Fill, Limits, SaveCheckpoint
from collectors.filling import fill, log_denied
from collectors.listener import Listener
from collectors.node_status import describe
from collectors.replan import freeze_positions
from collectors.standby import PATIENCE_S, Standby
from multicast.announcements import decode
from multicast.control import (
    ControlReader,
    ControlState,
    address_record,
    bells_topic,
    checkpoint_record,
    control_partition,
    log_partition,
    refuse_changed_topics,
    stream_partition,
)
from multicast.errors import AccessDenied, BufferFull, ClusterUnreachable, UsageError
from multicast.log import (
    Appender,
    AppendFailed,
    AppendOutcome,
    Direct,
    Driver,
    Fetched,
    Reader,
    TopicPartition,
    Watcher,
)
from multicast.order import OrderStream

_POLL_S = 0.5
_TICK_S = 0.25
_ALONE = 64
_MANY = 4
_BUSY_S = 0.001
_ANNOUNCED_S = 0.02
_STANDBY_S = 0.05
_ALONE_POLL_S = 0.05
_SAME_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class _Filled:
    """What became of a fill: where the log ends now; None: nobody knows."""

    log: int
    end: int | None


class Node:
    """Runs one collector of one epoch until the epoch is over or `stop` is called.

    `epoch` None takes the newest; `plan` is the one that the collector began with. Where the epoch
    before still runs, `run` stands ready until that has ended. Without `checkpoints` the streams
    are read from the epoch's start: what to do after `ProtocolViolation` has named one that the log
    belies. Announcements are taken at a free port of the host `listen`; None takes none. A
    `standby` appends only what has waited for longer than `patience_s`. Raises `UsageError` where
    the plan has no such collector, `TopicChanged` where one of its logs' topics is another by now.
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
        listen: str | None = None,
        standby: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.name = name
        self.part = Standby(primary=not standby, patience_s=patience_s)
        self._driver = driver
        with ExitStack() as failing:
            self._control = ControlReader(driver, topic)
            failing.callback(self._control.close)
            state = self._control.refresh()
            asked = state.plan(epoch)
            if not asked.has_collector(name):
                raise UsageError(f"epoch {asked.epoch} has no collector {name}")
            self.plan = state.plan(state.first_epoch(asked.epoch, name))
            self._logs = {
                log_partition(self.plan.log(log)): self.plan.number(log)
                for log in self.plan.own_logs(name)
            }
            refuse_changed_topics(driver, self.plan, {at.topic for at in self._logs})
            failing.pop_all()
        self._own_at = stream_partition(self.plan, name)
        self._checkpoints = checkpoints
        self._limits = limits
        self._streams: dict[TopicPartition, OrderStream] = {}
        self.starts: dict[int, int] = {}
        self.core: Collector
        self.begun = False
        self._listen = listen
        self._listener: Listener | None = None
        self._told_address = False
        self._turn = threading.Lock()
        self._stopped = threading.Event()
        self._failed = threading.Event()
        self._heard: deque[tuple[bytes, int]] = deque()
        self._alone = 0
        self._reads_own = True
        self._moved: set[str] = set()  # topics that may have been made again since we looked
        self._news: queue.SimpleQueue[Fill | _Filled | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._appender: Appender
        self._direct: Direct | None = None
        self.ended = threading.Event()
        self._wakes: list[Callable[[], None]] = []
        self.records_appended = 0
        self.skips_appended = 0
        self.announcements = 0
        self._begin_if_due(state)

    def _begin_if_due(self, state: ControlState) -> None:
        """Make the core once it is known where the epoch begins."""
        starts = state.starts(self.plan.epoch)
        if starts is None:
            return
        self.starts = {self.plan.number(log): at for log, at in starts.items()}
        end = self._driver.ends([self._own_at])[self._own_at]
        own = state.stream(self.plan.epoch, self.name, below=end if self._checkpoints else 0)
        parent = None
        self._streams[self._own_at] = own
        above = self.plan.collector(self.name).parent
        if above is not None:
            below = own.state.parent_next.offset if self._checkpoints else 0
            parent = state.stream(self.plan.epoch, above, below=below)
            self._streams[stream_partition(self.plan, above)] = parent
        self.core = Collector(
            own, parent, writer=int.from_bytes(os.urandom(8), "big"), limits=self._limits
        )
        self.core.own_end(end)
        self.begun = True

    def stop(self) -> None:
        """Make `run` return soon. Safe from any thread."""
        self._stopped.set()
        self._news.put(None)
        for wake in self._wakes:
            wake()

    def run(self) -> None:
        """Follow, order, append: until stopped or frozen.

        Raises `AmcastError` on what it cannot mend; a new instance then goes on from the log.
        """
        with ExitStack() as opened:
            opened.callback(self.ended.set)
            opened.callback(self._control.close)
            if self._listen is not None:
                self._listener = Listener(self._listen)
                opened.callback(self._listener.close)
            reader = self._driver.reader({})
            opened.callback(reader.close)
            # Where the logs end is found out at once; none ends below its start.
            watcher = self._driver.watcher(
                self._driver.begins(list(self._logs)), bells=bells_topic(self.plan.topic)
            )
            opened.callback(watcher.close)
            self._appender = self._driver.appender()
            opened.callback(self._appender.close, 1.0)
            if self._listener is not None:
                self._direct = self._driver.direct(self._own_at)
                if self._direct is not None:
                    opened.callback(self._direct.close)
                    self._direct.mend()
            self._wait_for_begin()
            if self._stopped.is_set():
                return
            feeders = [self._feed_ends(watcher)]
            opened.callback(_join, feeders)
            opened.callback(self.stop)
            if self._listener is not None:
                feeders.append(self._hear(self._listener))
            feeders.append(self._feeder("same", self._refuse_made_again))
            feeders.append(self._feed_streams(reader))
            self._keep_time()

    def _wait_for_begin(self) -> None:
        """Stand ready until the epoch before has ended."""
        while not self._stopped.is_set():
            if self.part.primary and not self._told_address:
                self._tell_address()
            if not self.begun:
                self._begin_if_due(self._control.state)
            if self.begun:
                self._control_read(self._control.state)
                return
            self._control.follow(_ALONE_POLL_S)

    def _feed_streams(self, reader: Reader) -> threading.Thread:
        """Start to read our own stream, the parent's, and the control topic."""
        starts = {at: stream.offset_next for at, stream in self._streams.items()}
        control_at = control_partition(self.plan.topic)
        reader.add({**starts, control_at: self._control.position})

        def read() -> None:
            self._follow_own(reader)
            if self.core.parent is not None:
                places = [at for at in self._streams if at != self._own_at]
                (reader.pause if self.core.parent_paused() else reader.resume)(places)
            # While the own stream is not read, the need for it must not wait for a poll to end.
            acting = self.part.acting  # a standby also wants to know soon that nothing comes
            fetched = reader.poll(_POLL_S if self._reads_own and acting else _ALONE_POLL_S)
            if fetched or not acting:
                self._take(self._records_came, fetched)

        self._wakes.append(reader.wake)
        return self._feeder("read", read)

    def _feed_ends(self, watcher: Watcher) -> threading.Thread:
        """Start to watch the logs."""

        def watch() -> None:
            ends = watcher.poll(_POLL_S)
            if ends:
                watcher.spacing_s = self._spacing_s(ends)
                self._take(self._ends_came, ends)

        self._wakes.append(watcher.wake)
        return self._feeder("watch", watch)

    def _follow_own(self, reader: Reader) -> None:
        """Read our own stream unless we are its only writer. For the reading thread alone."""
        wanted = self._alone < _ALONE
        if wanted and not self._reads_own:
            with self._turn:
                begin = self.core.own.offset_next
            reader.add({self._own_at: begin})
        elif self._reads_own and not wanted:
            reader.remove([self._own_at])
        self._reads_own = wanted

    # -- feeders ----------------------------------------------------------------------------

    def _feeder(self, what: str, poll: Callable[[], None]) -> threading.Thread:
        """Start a thread that polls until it fails or we stop."""

        def feed() -> None:
            try:
                while not self._stopped.is_set():
                    poll()
            except Exception as error:  # noqa: BLE001 - the thread that runs the node raises it
                self._fail(error)

        thread = threading.Thread(target=feed, name=f"amcast-{self.name}-{what}", daemon=True)
        thread.start()
        return thread

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._news.put(None)

    def _tell_address(self) -> None:
        """Tell producers where we listen, and whoever changes the tree that we stand ready.

        Not where that is the newest told, nor where one of our name in a later epoch told its own.
        """
        self._told_address = True
        if self._listener is None:
            return
        epoch, address = self._control.state.addresses.get(self.name, (0, None))
        if epoch > self.plan.epoch or address == self._listener.address:
            return
        key, value = address_record(self.plan.epoch, self.name, self._listener.address)
        at = control_partition(self.plan.topic)
        self._appender.append(at, value, key=key, done=log_denied)

    def _hear(self, listener: Listener) -> threading.Thread:
        """Start to hear announcements."""
        direct = self._direct

        def hear() -> None:
            if direct is None:
                datagrams = listener.poll(_POLL_S)
            else:
                datagrams = listener.poll(_POLL_S, also=direct.fileno())
                direct.receive()
            if datagrams:
                self._take(self._announced, datagrams, listener.address.token)
                if len(datagrams) >= _MANY:
                    self._stopped.wait(_BUSY_S)

        self._wakes.append(listener.wake)
        return self._feeder("hear", hear)

    def _take(self, give: Callable[..., None], *news: object) -> None:
        """Give news to the core and carry out what it answers."""
        with self._turn:
            give(*news)
            self._carry_out()
        self._work_off()

    def _work_off(self) -> None:
        """Give what was heard to the core, unless somebody has its turn: then that one will."""
        while self._heard and self._turn.acquire(blocking=False):
            try:
                while self._heard:
                    self._append_came(*self._heard.popleft())
                self._carry_out()
            finally:
                self._turn.release()

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

    def _spacing_s(self, ends: Mapping[TopicPartition, int]) -> float:
        """Say how long to wait at least between two looks: not at all, unless little is lost.

        Where much comes, a look finds many messages, and all together they wait hardly longer;
        where all was ordered early, nobody waits for the look. Nor for that of a standby.
        """
        if not self.part.acting:
            return _STANDBY_S
        news = sum([self.core.unordered(self._logs[at], end) for at, end in ends.items()])
        return _BUSY_S if news >= _MANY else 0.0 if news else _ANNOUNCED_S

    def _ends_came(self, ends: Mapping[TopicPartition, int]) -> None:
        for at, end in ends.items():
            self._moved.add(at.topic)
            self.core.log_end(self._logs[at], end)

    def _refuse_made_again(self) -> None:
        """Raise `TopicChanged` soon after the end moved of a log that is another one by now."""
        self._stopped.wait(_SAME_EVERY_S)
        with self._turn:
            moved, self._moved = self._moved, set()
        try:
            refuse_changed_topics(self._driver, self.plan, moved)
        except ClusterUnreachable:
            self._moved |= moved

    def _announced(self, datagrams: Sequence[bytes], token: bytes) -> None:
        for raw in datagrams:
            announcement = decode(token, raw)
            if announcement is not None:
                self.announcements += 1
                self.core.announced(announcement)

    def _records_came(self, found: Sequence[Fetched]) -> None:
        for fetched in found:
            if fetched.at not in self._streams:
                self._control_came(fetched)
                continue
            if fetched.at == self._own_at:
                self._own_came(fetched)
                continue
            for record in fetched.records:
                self.core.parent_read(record.offset, record.value)
            self.core.parent_passed(fetched.position)

    def _own_came(self, fetched: Fetched) -> None:
        """Read on in our own stream, where our appends have not told it before."""
        for record in fetched.records:
            if record.offset >= self.core.own.offset_next:
                self._own_read(record.offset, record.value)
        self.core.own_passed(fetched.position)

    def _control_came(self, fetched: Fetched) -> None:
        for record in fetched.records:
            self._control.state.read(record)
        self._control_read(self._control.state)

    def _control_read(self, state: ControlState) -> None:
        last = state.last_epoch(self.plan.epoch, self.name)
        markers = None if last is None else state.markers.get(last)
        if markers is not None:
            self.core.freeze_after(freeze_positions(self.plan, markers))

    # -- carrying out -----------------------------------------------------------------------

    def _carry_out(self) -> None:
        if self._failed.is_set():
            self._failed.clear()
            self.core.append_failed()
        before, acts = self.part.acting, self.part.acts(self.core, time.monotonic())
        if acts and not before:
            self._tell_address()
        for action in self.core.step(time.time_ns() // 1_000_000) if acts else ():
            match action:
                case Append(raw):
                    self._append(raw)
                case SaveCheckpoint(checkpoint):
                    key, value = checkpoint_record(checkpoint)
                    at = control_partition(self.plan.topic)
                    self._appender.append(at, value, key=key, done=log_denied)
                case Fill():
                    self._news.put(action)
        if self.core.frozen:
            self._news.put(None)

    def _append(self, raw: bytes) -> None:
        def done(outcome: AppendOutcome) -> None:
            if isinstance(outcome, AppendFailed):
                if isinstance(outcome.error, AccessDenied):
                    self._fail(outcome.error)
                self._failed.set()  # the next news or tick sees it: failures must not chase
                return
            self._heard.append((raw, outcome.offset))
            try:
                self._work_off()
            except Exception as error:  # noqa: BLE001 - the thread that runs the node raises it
                self._fail(error)

        self.records_appended += 1
        if self._direct is not None and self._direct.append(raw, done=done):
            return
        try:
            self._appender.append(self._own_at, raw, done=done)
        except BufferFull:
            self._failed.set()

    def _keep_time(self) -> None:
        """Tell the core that time passes, and fill holes, until all is over."""
        next_tick = time.monotonic() + _TICK_S
        while not self._stopped.is_set() and not self.core.frozen:
            try:
                news = self._news.get(timeout=max(0.0, next_tick - time.monotonic()))
            except queue.Empty:
                next_tick = time.monotonic() + _TICK_S
                if self._direct is not None:
                    self._direct.mend()
                self._take(self.core.tick)
                continue
            if self._error is not None:
                raise self._error
            match news:
                case Fill(log, below):
                    self._fill(log, below)
                case _Filled(log, end):
                    self._take(self.core.filled, log, end)

    def _fill(self, number: int, below: int) -> None:
        def told(end: int | None) -> None:
            self._news.put(_Filled(number, end))

        self.skips_appended += fill(
            self._driver, self._appender, self.plan, number, below=below, told=told
        )

    def status(self) -> dict[str, Any]:
        """Describe this instance for `/status`: JSON values, read while the loop runs."""
        return describe(self, reads_back=self._reads_own)


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join(5 * _POLL_S)
