"""The in-memory driver: a verified fake of Kafka for simulation and tests.

It implements `protocol.py` and answers as a real cluster would; all three drivers pass the same
contract tests (`tests/multicast/drivers/test_contract.py`). No sockets and no sleeping may live
here. Without `MemoryLog(threaded=True)` and without a clock nothing waits, so one thread and one
seed repeat everything. A simulator injects faults by the `step` of an appender.

    pending     an append without an outcome

Invariant, for each appender: every append is settled once, at the latest by `close`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Self

from multicast.drivers.appender.dispatcher import Limits
from multicast.drivers.memory.brokers import MemoryBrokers
from multicast.drivers.memory.joint_appender import MemoryJointAppender
from multicast.drivers.memory.logs import MemoryLog, name
from multicast.drivers.protocol import (
    CLOSE_TIMEOUT_S,
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_MAX,
    POLL_RECORDS_MAX,
    Appended,
    Appender,
    AppendFailed,
    AppendOutcome,
    Beside,
    DoneAll,
    Fetched,
    Headers,
    TopicPartition,
    append_each,
)
from multicast.errors import AppendRefused, AppendUnknown, BufferFull, Trimmed, UsageError

__all__ = [
    "MemoryAppender",
    "MemoryDriver",
    "MemoryLog",
    "MemoryReader",
    "MemoryWatcher",
    "PendingAppend",
    "store_at_once",
]


_NO_LIMITS = Limits(timeout_s=inf, delivery_timeout_s=inf)


class PendingAppend:
    """An append in flight, which a simulator may lose, duplicate or delay.

    `store` writes the record to the log (each time it is called); `settle` reports the outcome to
    the caller and must be called once. An append that `MemoryAppender.close` settled as unknown may
    still be stored.
    """

    __slots__ = ("_done", "_log", "headers", "key", "partition", "settled", "value")

    def __init__(
        self,
        log: MemoryLog,
        partition: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: Headers,
        done: Callable[[AppendOutcome], None],
    ) -> None:
        self._log = log
        self._done = done
        self.partition = partition
        self.value = value
        self.key = key
        self.headers = headers
        self.settled = False

    @property
    def size(self) -> int:
        """The bytes of value and key."""
        return len(self.value or b"") + len(self.key or b"")

    def store(self) -> AppendOutcome:
        """Write the record to the log and return the outcome for `settle`."""
        if self.size > self._log.message_bytes_max:
            return AppendFailed(
                AppendRefused(
                    f"A message of {self.size} bytes is too large for {name(self.partition)}, "
                    f"which accepts {self._log.message_bytes_max}."
                )
            )
        try:
            offset = self._log.write(self.partition, self.value, key=self.key, headers=self.headers)
        except UsageError as error:
            return AppendFailed(AppendRefused(str(error)))
        return Appended(offset)

    def settle(self, outcome: AppendOutcome) -> None:
        """Report the outcome to the caller; only the first call has an effect."""
        with self._log.changed:
            first, self.settled = not self.settled, True
        if first:
            self._done(outcome)


def store_at_once(append: PendingAppend) -> None:
    """Store and settle like a healthy cluster; the default step of an appender."""
    append.settle(append.store())


class MemoryDriver:
    """A driver of a `MemoryLog`.

    Its appenders call `step` with each append. Requests of its joint appenders go to `brokers`, by
    default some of its own, within `limits`, by default without a time limit.
    """

    def __init__(
        self,
        log: MemoryLog | None = None,
        *,
        step: Callable[[PendingAppend], None] = store_at_once,
        brokers: MemoryBrokers | None = None,
        limits: Limits = _NO_LIMITS,
    ) -> None:
        self.log = log or (brokers.log if brokers else MemoryLog())
        self.brokers = brokers or MemoryBrokers(self.log)
        self._step = step
        self._limits = limits
        # These methods of the memory log have the driver's signatures.
        self.log_start_offsets = self.log.log_start_offsets
        self.last_stable_offsets = self.log.last_stable_offsets
        self.high_watermarks = self.log.high_watermarks
        self.topic_ids = self.log.topic_ids
        self.partition_counts = self.log.partition_counts
        self.offsets_at = self.log.offsets_at
        self.commit = self.log.commit
        self.committed = self.log.committed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Return the driver's name."""
        return "memory"

    def appender(
        self,
        *,
        linger_ms: int = 0,  # noqa: ARG002 - these four are parameters of the other drivers
        compression: str = "none",  # noqa: ARG002
        batch_bytes: int | None = None,  # noqa: ARG002
        topics: Sequence[str] = (),  # noqa: ARG002
        in_flight_max: int = IN_FLIGHT_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
    ) -> Appender:
        """Open an appender."""
        return MemoryAppender(
            self.log,
            step=self._step,
            in_flight_max=in_flight_max,
            in_flight_bytes_max=in_flight_bytes_max,
        )

    def message_bytes_max(self, topics: Sequence[str]) -> int | None:  # noqa: ARG002 - one for all
        """Return the most bytes that a batch may have."""
        return self.log.message_bytes_max

    def reader(
        self,
        starts: Mapping[TopicPartition, int],
        *,
        wait_s: float | None = None,  # noqa: ARG002 - a parameter of the other drivers
    ) -> MemoryReader:
        """Open a reader."""
        return MemoryReader(self.log, starts)

    def column_reader(self, starts: Mapping[TopicPartition, int]) -> MemoryReader:
        """Open a reader: here, columns would save nothing."""
        return self.reader(starts)

    def watcher(
        self,
        starts: Mapping[TopicPartition, int],
        *,
        sentinel_topic: str | None = None,  # noqa: ARG002 - a parameter of the other drivers
    ) -> MemoryWatcher:
        """Open a watcher."""
        return MemoryWatcher(self.log, starts)

    def direct_appender(self) -> None:
        """Return None: the appender is already direct."""

    def joint_appender(
        self,
        *,
        beside: Beside | None = None,
        linger_ms: int = 0,  # noqa: ARG002 - these two are parameters of the other drivers
        compression: str = "none",  # noqa: ARG002
        batch_bytes: int | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
    ) -> MemoryJointAppender:
        """Open an appender whose requests go to `brokers`."""
        limits = self._limits
        if batch_bytes:
            limits = limits._replace(batch_bytes_max=min(batch_bytes, limits.batch_bytes_max))
        return MemoryJointAppender(
            self.brokers,
            limits,
            beside=beside,
            in_flight_max=in_flight_max,
            in_flight_bytes_max=in_flight_bytes_max,
        )

    def close(self) -> None:
        """Do nothing: the log outlives its drivers."""


class MemoryAppender:
    """An appender of a `MemoryLog`; `done` is usually called before `append` returns."""

    def __init__(
        self,
        log: MemoryLog,
        *,
        step: Callable[[PendingAppend], None] = store_at_once,
        in_flight_max: int = IN_FLIGHT_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
    ) -> None:
        self._log = log
        self._step = step
        self._in_flight_max = in_flight_max
        self._in_flight_bytes_max = in_flight_bytes_max
        self._in_flight: dict[int, PendingAppend] = {}
        self._bytes = 0
        self._count = 0
        self._closed = False

    def append(
        self,
        partition: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        done: Callable[[AppendOutcome], None],
    ) -> None:
        """Start an append by a call of `step`."""
        _refuse_closed(self._closed)
        with self._log.changed:
            number = self._count = self._count + 1

            def settled(outcome: AppendOutcome) -> None:
                with self._log.changed:
                    del self._in_flight[number]
                    self._bytes -= append.size
                    self._log.changed.notify_all()
                done(outcome)

            append = PendingAppend(
                self._log, partition, value, key=key, headers=headers, done=settled
            )
            full = self._bytes + append.size > self._in_flight_bytes_max and self._in_flight
            if full or len(self._in_flight) >= self._in_flight_max:
                raise BufferFull(
                    f"{len(self._in_flight)} appends ({self._bytes} bytes) are in flight; wait for "
                    f"some outcomes, then append again."
                )
            self._in_flight[number] = append
            self._bytes += append.size
        self._step(append)

    def ready(self, partition: TopicPartition) -> bool:  # noqa: ARG002 - no append waits here
        """Return True."""
        return True

    def prepare(self, partition: TopicPartition) -> None:
        """Do nothing."""

    def append_all(
        self,
        partition: TopicPartition,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        done: DoneAll,
    ) -> int:
        """Start one append after another until the buffer is full."""
        return append_each(self, partition, values, keys=keys, headers=headers, done=done)

    def flush(self, timeout_s: float) -> bool:
        """Wait (if the log can wait) until nothing is in flight."""
        return self._log.wait_for(lambda: not self._in_flight, timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush, then settle the remaining appends as unknown."""
        self._closed = True
        self.flush(timeout_s)
        for append in list(self._in_flight.values()):
            append.settle(
                AppendFailed(
                    AppendUnknown(
                        f"It is unknown whether {name(append.partition)} holds the record: the "
                        f"appender was closed."
                    )
                )
            )


class _Waker:
    """The wait that readers and watchers share: bounded in time, and ended by `wake`."""

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

    def _wait(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Call `ready` until it returns True, the time is up or `wake` is called."""
        _refuse_closed(self._closed)

        def is_over() -> bool:
            over = ready() or self._woken
            if over:
                self._woken = False
            return over

        self._log.wait_for(is_over, timeout_s)


class MemoryReader(_Waker):
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
        self._paused.update(log for log in partitions if log in self._positions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Continue paused Kafka partitions at their positions."""
        self._paused.difference_update(partitions)

    def poll(self, timeout_s: float, records_max: int = POLL_RECORDS_MAX) -> list[Fetched]:
        """Return the records that are there; wait for some only if the log can wait."""
        fetched: list[Fetched] = []

        def ready() -> bool:
            fetched.extend(self._read(records_max))
            return bool(fetched)

        self._wait(ready, timeout_s)
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


class MemoryWatcher(_Waker):
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
        return {log: high for log, high in highs.items() if high > ends[log]}

    def poll(self, timeout_s: float) -> Mapping[TopicPartition, int]:
        """Return the ends that moved since last time; wait only if the log can wait."""
        moved: dict[TopicPartition, int] = {}

        def ready() -> bool:
            ends = self._log.last_stable_offsets(self._watched)
            moved.update({log: end for log, end in ends.items() if self._reported.get(log) != end})
            return bool(moved)

        self._wait(ready, timeout_s)
        self._reported.update(moved)
        return moved


def _refuse_closed(closed: bool) -> None:  # noqa: FBT001
    if closed:
        raise UsageError("This appender, reader or watcher is closed; open another one.")
