"""Follows the order streams of the newest epoch: tells receipts how far each log is ordered.

A thread reads the streams of all collectors; `wait` blocks until an offset is ordered. Where the
driver's clock allows no threads (`drivers/clock.py`), the thread that waits reads them.

After an error the follower begins anew: after an outage who waits goes on by itself. An error that
no waiting ends, such as a missing right, is raised to who waits and who asks, until a later attempt
succeeds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from multicast.consuming.stated_ends import lost_stream, refuse_lost_stream
from multicast.consuming.tails import LostLogs
from multicast.control import ORDER_GONE, ControlReader, stream_partition
from multicast.control.topic_identity import refuse_recreated_logs
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver, Reader, TopicPartition
from multicast.errors import (
    AmcastError,
    ClusterUnreachable,
    ProtocolViolation,
    Trimmed,
    Truncated,
    UsageError,
)
from multicast.order.stream import OrderStream, StreamCheckpoint
from multicast.producing.own_order import OrderView

# How often the control topic is read for a newer epoch. While a plan changes, receipts wait up to
# this long in addition; a human notices 0.2 s. Every follower pays for each read.
_CONTROL_EVERY_S = 0.2
# And how often for its end: where it has lost its end, a loss may be stated below what was read.
_END_EVERY_S = 5.0
_ANSWER_S = 1.0  # a broker that is away holds up no other log's receipts for longer
_POLL_S = 0.5  # one wait for order records; `close` wakes it
_RETRY_S = 1.0  # before the next attempt after an outage; a producer's user notices no shorter one
# The same after an error that does not pass by itself. An attempt may read a stream from its start,
# so it must be rare; a right that was granted is noticed this late.
_REPEAT_S = 30.0
_JOIN_S = 10.0  # `close` waits so long for the thread, which may be in a request to the cluster


class OrderFollower:
    """Reads the streams of all collectors of the newest epoch that has begun."""

    def __init__(self, driver: Driver, topic: str) -> None:
        self._driver = driver
        self._clock = clock_of(driver)
        self._topic = topic
        self._control: ControlReader | None = None
        self._moved = threading.Condition()
        self._ordered: dict[str, int] = {}
        self._self_ordered: set[str] = set()  # logs without a collector: each is its own order
        self.lost = LostLogs()
        self.lost.moved = self._notify
        self._error: AmcastError | None = None
        self._listener: Callable[[], None] | None = None
        self._stop = threading.Event()
        self._reader: Reader = driver.reader({})
        self._checkpoints = True
        self._epoch: int | None = None  # whose streams are read now
        self._streams: dict[TopicPartition, OrderStream] = {}
        # By collector whose stream ends below a checkpoint that is named: those that are.
        self._refused: dict[str, list[StreamCheckpoint]] = {}
        self._view: OrderView | None = None
        self.moves = 0  # how often the answers of `view` may have changed
        self._control_due = self._end_due = 0.0
        self._thread: threading.Thread | None = None
        if self._clock.threads:
            self._thread = threading.Thread(target=self._run, name="amcast-ordered", daemon=True)
            self._thread.start()

    def wait(self, log: str, offset: int, timeout_s: float) -> bool:
        """Wait until that offset of the log is ordered; False after `timeout_s` seconds.

        Outlives an outage. Raises `Truncated` if the log has lost that offset, `UsageError` once
        the follower is closed, and an error that keeps it from reading and does not pass by itself.
        """
        deadline = self._clock.monotonic() + timeout_s
        self.wait_moved(self.moves, 0.0)
        while True:
            moves = self.moves
            if self.is_ordered(log, offset):
                return True
            remaining = deadline - self._clock.monotonic()
            if remaining <= 0:
                return False
            self.wait_moved(moves, remaining)

    def wait_moved(self, moves: int, timeout_s: float) -> None:
        """Wait until `moves` is another number, for at most `timeout_s` seconds; perhaps less.

        Who waits calls it first for 0 s: what is known may be an error, or of an epoch that has
        ended, and without a thread nobody else goes on.
        """
        if self._thread is None:
            self._follow(min(timeout_s, _POLL_S))
        else:
            with self._moved:
                self._moved.wait_for(lambda: self.moves != moves, min(timeout_s, _POLL_S))

    def view(self) -> OrderView | None:
        """Give the epoch that is followed; None: none is at the moment. Raises as `is_ordered`."""
        self._refuse()
        return self._view

    def is_ordered(self, log: str, offset: int) -> bool:
        """Whether that offset of the log is ordered; does not block, and raises as `wait`."""
        self.lost.refuse(log, offset)
        if log in self._self_ordered or self._ordered.get(log, 0) > offset:
            return True
        self._refuse()
        return False

    def _refuse(self) -> None:
        if self._stop.is_set():
            raise UsageError("the producer is closed; the message may still be ordered")
        if self._error is not None:
            raise self._error

    def listen(self, moved: Callable[[], None]) -> None:
        """Have `moved` called, in the follower's thread, when answers of `is_ordered` may change.

        It must neither block nor raise. There is one listener.
        """
        self._listener = moved

    def close(self) -> None:
        """Stop the thread and release the readers."""
        self._stop.set()
        with self._moved:
            self.moves += 1
            self._moved.notify_all()
        self._reader.wake()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        self._reader.close()
        if self._control is not None:
            self._control.close()

    def _notify(self) -> None:
        with self._moved:
            self.moves += 1
            self._moved.notify_all()
        if self._listener is not None:
            self._listener()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._follow(_POLL_S)

    def _follow(self, timeout_s: float) -> None:
        """Do a turn; after an error prepare to begin anew, tell who waits, and pause."""
        try:
            self._turn(timeout_s)
        except Trimmed as error:
            failed: AmcastError = Trimmed(f"{str(error).rstrip('.')}; {ORDER_GONE}")
            failed.__cause__ = error
        except AmcastError as error:
            failed = error
        except Exception as error:  # noqa: BLE001 - it would end the thread, and nobody would learn
            failed = AmcastError(f"the order could not be followed, by a defect: {error!r}")
            failed.__cause__ = error
        else:
            self._error = None
            return
        self._leave()
        if failed.retriable:
            pause_s = _RETRY_S
        else:
            pause_s = _REPEAT_S
            self._error = failed
            if isinstance(failed, Truncated):  # what was ordered may be lost, and nobody says so
                self._ordered, self._self_ordered = {}, set()
            self._notify()
        if self._thread is None:  # who waits decides how long
            pause_s = min(pause_s, timeout_s)
        self._clock.wait_for(self._moved, self._stop.is_set, pause_s)

    def _turn(self, timeout_s: float) -> None:
        """Read for at most `timeout_s` seconds; begin with the epoch's streams where none are."""
        try:
            if self._epoch is None:
                self._begin()
            self._read(timeout_s)
        except ProtocolViolation:
            self._leave()
            if not self._checkpoints:
                raise
            # A checkpoint does not match its stream: read from the epoch's start instead.
            self._checkpoints = False

    def _begin(self) -> None:
        self._control = self._control or ControlReader(self._driver, self._topic)
        state = self._control.refresh()
        plan = state.plan(state.begun_epoch)
        refuse_recreated_logs(self._driver, plan)
        starts = state.begun(plan.epoch)
        names = {stream_partition(plan, spec.name): spec.name for spec in plan.collectors}
        self.lost.begin()
        self._refused = {}
        for name in names.values():
            try:
                refuse_lost_stream(self._driver, state, plan.epoch, name)
            except Truncated as error:
                self.lost.lost_order(plan.own_logs(name), error)
                self._refused[name] = state.checkpoints(plan.epoch, name)[-1:]
        ends = self._driver.last_stable_offsets(list(names))
        self._streams = {
            partition: state.stream(
                plan.epoch, name, below=ends[partition] if self._checkpoints else 0
            )
            for partition, name in names.items()
        }
        by_name = {name: self._streams[partition] for partition, name in names.items()}
        self._view = OrderView(plan, starts, partial(_position, by_name))
        self.lost.learn(state)
        self._ordered.update(starts)
        self._self_ordered = {log.name for log in plan.logs if plan.top(log.name) is None}
        self._notify()
        self._reader.add(
            {partition: stream.offset_next for partition, stream in self._streams.items()}
        )
        self._epoch = plan.epoch
        self._control_due = self._clock.monotonic() + _CONTROL_EVERY_S

    def _leave(self) -> None:
        """Stop reading the epoch's streams."""
        self._reader.remove(list(self._streams))
        self._streams = {}
        self._view = None
        self._epoch = None

    def _read(self, timeout_s: float) -> None:
        """Poll once; leave the epoch once a newer one has begun."""
        for fetched in self._reader.poll(timeout_s):
            stream = self._streams[fetched.partition]
            for record in fetched.records:
                stream.read(record.offset, record.value)
            stream.passed(fetched.position)
            if not stream.proven:
                continue  # by a false checkpoint more might be ordered than is
            self.lost.read(stream)
            for number in stream.own:
                name = stream.plan.logs[number].name
                self._ordered[name] = stream.state.positions[number]
            self._notify()
        now = self._clock.monotonic()
        if now < self._control_due and not any(
            stream.state.frozen for stream in self._streams.values()
        ):
            return
        self._control_due = now + _CONTROL_EVERY_S
        self._learn(now)

    def _learn(self, now: float) -> None:
        """Take what the control topics say; leave the epoch if another one is to be read."""
        assert self._control is not None
        if now >= self._end_due:
            self._end_due = now + _END_EVERY_S
            with suppress(ClusterUnreachable):  # it asks again
                self._control.refresh(_ANSWER_S)
        state = self._control.follow(0.0)
        self.lost.learn(state)
        for stream in self._streams.values():
            plan, name = stream.plan, stream.collector
            if state.stream_is_lost(plan.epoch, name):
                self.lost.lost_order(plan.own_logs(name), lost_stream(state, plan.epoch, name))
        if self._epoch is not None and state.begun_epoch > self._epoch:
            self._self_ordered = set()  # some may have a collector now
            self._leave()
        elif self._epoch is not None and any(
            state.checkpoints(self._epoch, name)[-1:] != points
            for name, points in self._refused.items()
        ):
            self._leave()  # perhaps it was a false one, and is deleted


def _position(streams: Mapping[str, OrderStream], collector: str, log: str) -> int:
    """Give a log's position in a stream; -1: by a false checkpoint more might be ordered than is.

    A record moves all positions at once, or the earlier run first; so who asks for one log, and
    then for another one, sees at least what was ordered of that before.
    """
    stream = streams[collector]
    return stream.state.positions[stream.plan.number(log)] if stream.proven else -1
