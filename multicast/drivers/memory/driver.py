"""The in-memory driver: a verified fake of Kafka for simulation and tests.

It implements `protocol.py` and answers as a real cluster would; all three drivers pass the same
contract tests (`tests/multicast/drivers/test_contract.py`). No sockets and no sleeping may live
here. Without `MemoryLog(threaded=True)` and without a clock nothing waits, so one thread and one
seed repeat everything. Faults are injected by the hook `carry` of the brokers (`brokers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from multicast.drivers.appender.dispatcher import Limits
from multicast.drivers.closing import ClosedAtEnd
from multicast.drivers.memory.appender import MemoryJointAppender
from multicast.drivers.memory.brokers import MemoryBrokers
from multicast.drivers.memory.logs import MemoryLog
from multicast.drivers.protocol import (
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_MAX,
    POLL_RECORDS_MAX,
    Appender,
    Beside,
    Fetched,
    Settled,
    TopicPartition,
)
from multicast.errors import Trimmed, UsageError

__all__ = ["MemoryDriver", "MemoryLog", "MemoryReader", "MemoryWatcher"]

_NO_LIMITS = Limits(timeout_s=inf, delivery_timeout_s=inf)


class MemoryDriver(ClosedAtEnd):
    """A driver of a `MemoryLog`.

    Its appenders send to `brokers`, by default to some of its own, and keep `limits`, which by
    default have no time-outs.
    """

    def __init__(
        self,
        log: MemoryLog | None = None,
        *,
        brokers: MemoryBrokers | None = None,
        limits: Limits = _NO_LIMITS,
    ) -> None:
        self.log = log or (brokers.log if brokers else MemoryLog())
        self.brokers = brokers or MemoryBrokers(self.log)
        self._limits = limits
        # These methods of the memory log have the driver's signatures.
        self.log_start_offsets = self.log.log_start_offsets
        self.last_stable_offsets = self.log.last_stable_offsets
        self.high_watermarks = self.log.high_watermarks
        self.leader_ends = self.log.leader_ends
        self.epoch_ends = self.log.epoch_ends
        self.topic_ids = self.log.topic_ids
        self.partition_counts = self.log.partition_counts
        self.offsets_at = self.log.offsets_at
        self.commit = self.log.commit
        self.committed = self.log.committed
        self.member = self.log.member

    @property
    def name(self) -> str:
        """Return the driver's name."""
        return "memory"

    def reader(
        self, starts: Mapping[TopicPartition, int], *, wait_s: float | None = None
    ) -> MemoryReader:
        """Open a reader."""
        return MemoryReader(self.log, starts)

    def column_reader(self, starts: Mapping[TopicPartition, int]) -> MemoryReader:
        """Open a plain reader: columns save nothing in memory."""
        return self.reader(starts)

    def watcher(
        self, starts: Mapping[TopicPartition, int], *, sentinel_topic: str | None = None
    ) -> MemoryWatcher:
        """Open a watcher."""
        return MemoryWatcher(self.log, starts)

    def appender(
        self,
        *,
        beside: Beside | None = None,
        settled: Settled | None = None,
        linger_ms: int = 0,
        compression: str = "none",
        batch_bytes: int | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
    ) -> Appender:
        """Open an appender whose requests go to `brokers`."""
        limits = self._limits
        if batch_bytes:
            limits = limits._replace(batch_bytes_max=min(batch_bytes, limits.batch_bytes_max))
        return MemoryJointAppender(
            self.brokers,
            limits,
            beside=beside,
            settled=settled,
            in_flight_max=in_flight_max,
            in_flight_bytes_max=in_flight_bytes_max,
        )

    def close(self) -> None:
        """Do nothing: the log outlives its drivers."""


class _Pollable:
    """What readers and watchers share: a wait that is bounded in time, and ended by `wake`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._woken = False
        self._closed = False

    def wake(self) -> None:
        """Make a poll, or the next one, return early."""
        with self._log.changed:
            self._woken = True
            self._log.changed.notify_all()

    def close(self) -> None:
        """Make later polls raise `UsageError`."""
        self._closed = True

    def _wait(self, collect: Callable[[], bool], timeout_s: float) -> None:
        """Call `collect` until it has found something, the time is up or `wake` is called."""
        if self._closed:
            raise UsageError("This appender, reader or watcher is closed; open another one.")

        def is_over() -> bool:
            over = collect() or self._woken
            if over:
                self._woken = False
            return over

        self._log.wait_for(is_over, timeout_s)


class MemoryReader(_Pollable):
    """A reader of a `MemoryLog`; each poll starts with another Kafka partition."""

    def __init__(self, log: MemoryLog, starts: Mapping[TopicPartition, int]) -> None:
        super().__init__(log)
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self.add(starts)

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        """Start to read these, or start again, each from the given offset."""
        self._log.log_start_offsets(list(starts))
        self.remove(list(starts))
        self._positions.update(starts)

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading these."""
        for partition in partitions:
            self._positions.pop(partition, None)
            self._paused.discard(partition)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return no records of these until `resume`."""
        self._paused.update(each for each in partitions if each in self._positions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Continue paused Kafka partitions at their positions."""
        self._paused.difference_update(partitions)

    def poll(self, timeout_s: float, records_max: int = POLL_RECORDS_MAX) -> list[Fetched]:
        """Return the records that are there; wait for some only if the log can wait."""
        fetched: list[Fetched] = []

        def collect() -> bool:
            fetched.extend(self._read(records_max))
            return bool(fetched)

        self._wait(collect, timeout_s)
        return fetched

    def _read(self, records_max: int) -> list[Fetched]:
        fetched: list[Fetched] = []
        left = records_max
        for partition, position in list(self._positions.items()):
            if left == 0:
                break
            if partition in self._paused:
                continue
            try:
                part = self._log.read(partition, position, left)
            except Trimmed:
                if fetched:
                    break  # This poll returns what was read; the next one raises.
                raise
            if part is not None:
                left -= len(part.records)
                # Moved to the end, so that a long log cannot starve the others.
                del self._positions[partition]
                self._positions[partition] = part.position
                fetched.append(part)
        return fetched


class MemoryWatcher(_Pollable):
    """A watcher of a `MemoryLog`."""

    def __init__(self, log: MemoryLog, starts: Mapping[TopicPartition, int]) -> None:
        super().__init__(log)
        self._log.log_start_offsets(list(starts))
        self.spacing_s = 0.0
        self._watched = list(starts)
        self._reported: dict[TopicPartition, int] = {}

    def add(self, partitions: Sequence[TopicPartition]) -> None:
        """Start to follow these."""
        self._log.log_start_offsets(partitions)
        self.remove(partitions)
        self._watched.extend(partitions)

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop following these."""
        removed = set(partitions)
        self._watched = [partition for partition in self._watched if partition not in removed]
        for partition in partitions:
            self._reported.pop(partition, None)

    def highs(self) -> Mapping[TopicPartition, int]:
        """Return the high watermarks above the end."""
        ends = self._log.last_stable_offsets(self._watched)
        highs = self._log.high_watermarks(self._watched)
        return {each: high for each, high in highs.items() if high > ends[each]}

    def poll(self, timeout_s: float) -> Mapping[TopicPartition, int]:
        """Return the ends that moved since last time; wait only if the log can wait."""
        moved: dict[TopicPartition, int] = {}

        def collect() -> bool:
            ends, before = self._log.last_stable_offsets(self._watched), self._reported
            moved.update({each: end for each, end in ends.items() if before.get(each) != end})
            return bool(moved)

        self._wait(collect, timeout_s)
        self._reported.update(moved)
        return moved
