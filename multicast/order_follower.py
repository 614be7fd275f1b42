"""How far each log is ordered: follows the order streams of the newest epoch, for receipts.

A thread of its own reads the streams of the collectors that decide logs; whoever waits for a
message's place in the order waits here.
"""

from __future__ import annotations

import threading
import time

from multicast.control import ControlReader, stream_partition
from multicast.drivers.protocol import Driver, Reader, TopicPartition
from multicast.errors import AmcastError, ProtocolViolation
from multicast.order import OrderStream

_CONTROL_EVERY_S = 0.2


class OrderFollower:
    """Follows all collectors of the newest epoch that has begun; knows what is ordered."""

    def __init__(self, driver: Driver, topic: str) -> None:
        self._driver = driver
        self._control = ControlReader(driver, topic)
        self._moved = threading.Condition()
        self._ordered: dict[str, int] = {}
        self._alone: set[str] = set()
        self._error: AmcastError | None = None
        self._stop = threading.Event()
        self._reader: Reader = driver.reader({})
        self._checkpoints = True
        self._thread = threading.Thread(target=self._run, name="amcast-ordered", daemon=True)
        self._thread.start()

    def wait(self, log: str, offset: int, timeout_s: float) -> bool:
        """Wait until that offset of the log is ordered; False where time ran out.

        Raises what stopped the follower, if anything did.
        """
        deadline = time.monotonic() + timeout_s
        with self._moved:
            while not self._is_ordered(log, offset):
                if self._error is not None:
                    raise self._error
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._moved.wait(remaining)
        return True

    def close(self) -> None:
        """Stop the thread and release the readers."""
        self._stop.set()
        self._reader.wake()
        self._thread.join(10)
        self._reader.close()
        self._control.close()

    def _is_ordered(self, log: str, offset: int) -> bool:
        return log in self._alone or self._ordered.get(log, 0) > offset

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._follow_epoch()
                except ProtocolViolation:
                    if not self._checkpoints:
                        raise
                    # The log belies a checkpoint: read from the epoch's start instead.
                    self._checkpoints = False
        except AmcastError as error:
            with self._moved:
                self._error = error
                self._moved.notify_all()

    def _follow_epoch(self) -> None:
        state = self._control.refresh()
        plan = state.plan(state.begun_epoch)
        starts = state.begun(plan.epoch)
        at = {stream_partition(plan, node.name): node.name for node in plan.collectors}
        ends = self._driver.last_stable_offsets(list(at))
        streams = {
            place: state.stream(plan.epoch, name, below=ends[place] if self._checkpoints else 0)
            for place, name in at.items()
        }
        with self._moved:
            self._ordered.update(starts)
            self._alone = {log.name for log in plan.logs if plan.top(log.name) is None}
            self._moved.notify_all()
        self._reader.add({place: stream.offset_next for place, stream in streams.items()})
        try:
            self._read(plan.epoch, streams)
        finally:
            self._reader.remove(list(streams))

    def _read(self, epoch: int, streams: dict[TopicPartition, OrderStream]) -> None:
        """Read until a next epoch has begun, or we are stopped."""
        look_at = time.monotonic() + _CONTROL_EVERY_S
        while not self._stop.is_set():
            for fetched in self._reader.poll(0.5):
                stream = streams[fetched.partition]
                for record in fetched.records:
                    stream.read(record.offset, record.value)
                stream.passed(fetched.position)
                with self._moved:
                    for number in stream.own:
                        name = stream.plan.logs[number].name
                        self._ordered[name] = stream.state.positions[number]
                    self._moved.notify_all()
            now = time.monotonic()
            if now < look_at and not any(stream.state.frozen for stream in streams.values()):
                continue
            look_at = now + _CONTROL_EVERY_S
            state = self._control.follow(0.0)
            if state.begun_epoch > epoch:
                return
