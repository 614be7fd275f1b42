"""Follows the order streams of the newest epoch: tells receipts how far each log is ordered.

A thread reads the streams of all collectors; `wait` blocks until an offset is ordered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from multicast.control import ControlReader, stream_partition
from multicast.drivers.protocol import Driver, Reader, TopicPartition
from multicast.errors import AmcastError, ProtocolViolation
from multicast.order import OrderStream

# How often the control topic is read for a newer epoch. While a plan changes, receipts wait up to
# this long in addition; a human notices 0.2 s. Every follower pays for each read.
_CONTROL_EVERY_S = 0.2
_POLL_S = 0.5  # one wait for order records; `close` wakes it
_JOIN_S = 10.0  # `close` waits so long for the thread, which may be in a request to the cluster


class OrderFollower:
    """Reads the streams of all collectors of the newest epoch that has begun."""

    def __init__(self, driver: Driver, topic: str) -> None:
        self._driver = driver
        self._control = ControlReader(driver, topic)
        self._moved = threading.Condition()
        self._ordered: dict[str, int] = {}
        self._self_ordered: set[str] = set()  # logs without a collector: each is its own order
        self._error: AmcastError | None = None
        self._listener: Callable[[], None] | None = None
        self._stop = threading.Event()
        self._reader: Reader = driver.reader({})
        self._checkpoints = True
        self._thread = threading.Thread(target=self._run, name="amcast-ordered", daemon=True)
        self._thread.start()

    def wait(self, log: str, offset: int, timeout_s: float) -> bool:
        """Wait until that offset of the log is ordered; False after `timeout_s` seconds.

        Raises the error that has stopped the follower, if there was one.
        """
        deadline = time.monotonic() + timeout_s
        with self._moved:
            while not self.is_ordered(log, offset):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._moved.wait(remaining)
        return True

    def is_ordered(self, log: str, offset: int) -> bool:
        """Whether that offset of the log is ordered; does not block, and raises as `wait`."""
        if log in self._self_ordered or self._ordered.get(log, 0) > offset:
            return True
        if self._error is not None:
            raise self._error
        return False

    def listen(self, moved: Callable[[], None]) -> None:
        """Have `moved` called, in the follower's thread, when answers of `is_ordered` may change.

        It must neither block nor raise. There is one listener.
        """
        self._listener = moved

    def close(self) -> None:
        """Stop the thread and release the readers."""
        self._stop.set()
        self._reader.wake()
        self._thread.join(_JOIN_S)
        self._reader.close()
        self._control.close()

    def _notify(self) -> None:
        self._moved.notify_all()
        if self._listener is not None:
            self._listener()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._follow_epoch()
                except ProtocolViolation:
                    if not self._checkpoints:
                        raise
                    # A checkpoint does not match its stream: read from the epoch's start instead.
                    self._checkpoints = False
        except AmcastError as error:
            with self._moved:
                self._error = error
                self._notify()

    def _follow_epoch(self) -> None:
        state = self._control.refresh()
        plan = state.plan(state.begun_epoch)
        starts = state.begun(plan.epoch)
        names = {stream_partition(plan, spec.name): spec.name for spec in plan.collectors}
        ends = self._driver.last_stable_offsets(list(names))
        streams = {
            partition: state.stream(
                plan.epoch, name, below=ends[partition] if self._checkpoints else 0
            )
            for partition, name in names.items()
        }
        with self._moved:
            self._ordered.update(starts)
            self._self_ordered = {log.name for log in plan.logs if plan.top(log.name) is None}
            self._notify()
        self._reader.add({partition: stream.offset_next for partition, stream in streams.items()})
        try:
            self._read(plan.epoch, streams)
        finally:
            self._reader.remove(list(streams))

    def _read(self, epoch: int, streams: dict[TopicPartition, OrderStream]) -> None:
        """Read until a newer epoch has begun, or until `close`."""
        control_due = time.monotonic() + _CONTROL_EVERY_S
        while not self._stop.is_set():
            for fetched in self._reader.poll(_POLL_S):
                stream = streams[fetched.partition]
                for record in fetched.records:
                    stream.read(record.offset, record.value)
                stream.passed(fetched.position)
                with self._moved:
                    for number in stream.own:
                        name = stream.plan.logs[number].name
                        self._ordered[name] = stream.state.positions[number]
                    self._notify()
            now = time.monotonic()
            if now < control_due and not any(stream.state.frozen for stream in streams.values()):
                continue
            control_due = now + _CONTROL_EVERY_S
            state = self._control.follow(0.0)
            if state.begun_epoch > epoch:
                return
