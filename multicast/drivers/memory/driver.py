"""The in-memory driver: a verified fake of Kafka for simulation and tests.

In goes what `protocol.py` lets a driver be asked; out comes what a real cluster would have said
(`tests/multicast/drivers/test_contract.py` holds all three drivers to it). No sockets and no
sleeping may live here; without `MemoryLog(threaded=True)` nothing waits either: one thread and one
seed repeat everything. The seam for a simulator is the `step` of an appender.

    pending     an append that its caller has not heard of yet

Invariant, of each appender: every append is settled once, at the latest by `close`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

from multicast.drivers.memory.logs import MemoryLog, name
from multicast.drivers.protocol import (
    Appended,
    AppendFailed,
    AppendOutcome,
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


class PendingAppend:
    """An append on its way: the seam where a simulator loses, doubles or delays.

    `store` puts the record into the log (again, where it is called again); `settle` tells the
    caller, and must be called once. What `MemoryAppender.close` gave up may still be stored.
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
        """Bytes of payload and key."""
        return len(self.value or b"") + len(self.key or b"")

    def store(self) -> AppendOutcome:
        """Put the record into the log and give the outcome to settle with."""
        if self.size > self._log.message_bytes_max:
            return AppendFailed(
                AppendRefused(
                    f"A message of {self.size} bytes is too large for {name(self.partition)}."
                )
            )
        try:
            offset = self._log.write(self.partition, self.value, key=self.key, headers=self.headers)
        except UsageError as error:
            return AppendFailed(AppendRefused(str(error)))
        return Appended(offset)

    def settle(self, outcome: AppendOutcome) -> None:
        """Tell the caller what became of the append; what comes after the first is dropped."""
        with self._log.changed:
            first, self.settled = not self.settled, True
        if first:
            self._done(outcome)


def store_at_once(append: PendingAppend) -> None:
    """Do what a healthy cluster does; the default step of an appender."""
    append.settle(append.store())


class MemoryDriver:
    """A driver on a `MemoryLog`; `step` is what its appenders do with an append."""

    def __init__(
        self,
        log: MemoryLog | None = None,
        *,
        step: Callable[[PendingAppend], None] = store_at_once,
    ) -> None:
        self.log = log or MemoryLog()
        self._step = step
        # The cluster's own answers; the memory log's methods are the driver's.
        self.log_start_offsets = self.log.log_start_offsets
        self.last_stable_offsets = self.log.last_stable_offsets
        self.high_watermarks = self.log.high_watermarks
        self.topic_ids = self.log.topic_ids
        self.offsets_at = self.log.offsets_at
        self.commit = self.log.commit
        self.committed = self.log.committed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The driver's name."""
        return "memory"

    def appender(
        self,
        *,
        linger_ms: int = 0,  # noqa: ARG002 - what the other drivers take; nothing lingers here
        in_flight_max: int = 100_000,
        in_flight_bytes_max: int = 64 * 1024 * 1024,
    ) -> MemoryAppender:
        """Open a writer of its own."""
        return MemoryAppender(
            self.log,
            step=self._step,
            in_flight_max=in_flight_max,
            in_flight_bytes_max=in_flight_bytes_max,
        )

    def reader(self, starts: Mapping[TopicPartition, int]) -> MemoryReader:
        """Open a reader of its own."""
        return MemoryReader(self.log, starts)

    def watcher(
        self,
        starts: Mapping[TopicPartition, int],
        *,
        sentinel_topic: str | None = None,  # noqa: ARG002 - what the other drivers take; no bytes travel here
    ) -> MemoryWatcher:
        """Open a watcher."""
        return MemoryWatcher(self.log, starts)

    def direct_appender(self) -> None:
        """Nothing is nearer than the appender."""

    def close(self) -> None:
        """Nothing is held open: the log outlives its drivers."""


class MemoryAppender:
    """An appender on a `MemoryLog`; `done` is usually called before `append` returns."""

    def __init__(
        self,
        log: MemoryLog,
        *,
        step: Callable[[PendingAppend], None] = store_at_once,
        in_flight_max: int = 100_000,
        in_flight_bytes_max: int = 64 * 1024 * 1024,
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
        """Start an append; what happens then is the step's business."""
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
                    f"{len(self._in_flight)} appends ({self._bytes} bytes) are in flight already."
                )
            self._in_flight[number] = append
            self._bytes += append.size
        self._step(append)

    def append_all(
        self,
        partition: TopicPartition,
        values: Sequence[bytes | None],
        *,
        done: Callable[[int, AppendOutcome], None],
    ) -> int:
        """Start one append after the other until the buffer is full."""
        return append_each(self, partition, values, done=done)

    def flush(self, timeout_s: float) -> bool:
        """Wait (where threads are used) until nothing is in flight."""
        with self._log.changed:
            if self._log.threaded:
                self._log.changed.wait_for(lambda: not self._in_flight, timeout_s)
            return not self._in_flight

    def close(self, timeout_s: float = 5.0) -> None:
        """Flush, then give up what is left."""
        self._closed = True
        self.flush(timeout_s)
        for append in list(self._in_flight.values()):
            append.settle(
                AppendFailed(
                    AppendUnknown(
                        f"The appender was closed before {name(append.partition)} answered."
                    )
                )
            )


class _Waker:
    """What readers and watchers share: a bounded wait on the log that `wake` ends."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._woken = False
        self._closed = False

    def wake(self) -> None:
        """End a poll, or the next one, early."""
        with self._log.changed:
            self._woken = True
            self._log.changed.notify_all()

    def close(self) -> None:
        """Refuse polls from now on."""
        self._closed = True

    def _wait(self, found: Callable[[], bool], timeout_s: float) -> None:
        """Call `found` until it says yes, the time is up, or someone woke us."""
        _refuse_closed(self._closed)
        with self._log.changed:
            if self._log.threaded and not found():
                self._log.changed.wait_for(lambda: self._woken or found(), timeout_s)
            elif not self._log.threaded:
                found()
            self._woken = False


class MemoryReader(_Waker):
    """A reader on a `MemoryLog`; Kafka partitions take turns at being read first."""

    def __init__(self, log: MemoryLog, starts: Mapping[TopicPartition, int]) -> None:
        super().__init__(log)
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self.add(starts)

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        """Read these, too (or anew), each from that offset."""
        self._log.log_start_offsets(list(starts))
        self.remove(list(starts))
        self._positions.update(starts)

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these no longer."""
        for one in partitions:
            self._positions.pop(one, None)
            self._paused.discard(one)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Hand out nothing of these until `resume`."""
        self._paused.update(one for one in partitions if one in self._positions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Go on with paused ones."""
        self._paused.difference_update(partitions)

    def poll(self, timeout_s: float, records_max: int = 5000) -> list[Fetched]:
        """Give what is there; wait for it only where threads are used."""
        fetched: list[Fetched] = []

        def found() -> bool:
            fetched.extend(self._read(records_max))
            return bool(fetched)

        self._wait(found, timeout_s)
        return fetched

    def _read(self, records_max: int) -> list[Fetched]:
        fetched: list[Fetched] = []
        left = records_max
        for at, position in list(self._positions.items()):
            if left == 0:
                break
            if at in self._paused:
                continue
            try:
                found = self._log.read(at, position, left)
            except Trimmed:
                if fetched:
                    break  # What was read is handed out first; the next poll raises.
                raise
            if found is not None:
                left -= len(found.records)
                # Put last, so that a long log cannot keep the others from their turn.
                del self._positions[at]
                self._positions[at] = found.position
                fetched.append(found)
        return fetched


class MemoryWatcher(_Waker):
    """A watcher on a `MemoryLog`."""

    def __init__(self, log: MemoryLog, starts: Mapping[TopicPartition, int]) -> None:
        super().__init__(log)
        self._log.log_start_offsets(list(starts))
        self.spacing_s = 0.0
        self._watched = list(starts)
        self._told: dict[TopicPartition, int] = {}

    def add(self, partitions: Sequence[TopicPartition]) -> None:
        """Follow these, too."""
        self._log.log_start_offsets(partitions)
        self.remove(partitions)
        self._watched.extend(partitions)

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Follow these no longer."""
        gone = set(partitions)
        self._watched = [one for one in self._watched if one not in gone]
        for one in partitions:
            self._told.pop(one, None)

    def highs(self) -> Mapping[TopicPartition, int]:
        """Give the high watermarks that lie above the end."""
        ends, highs = (
            self._log.last_stable_offsets(self._watched),
            self._log.high_watermarks(self._watched),
        )
        return {at: high for at, high in highs.items() if high > ends[at]}

    def poll(self, timeout_s: float) -> Mapping[TopicPartition, int]:
        """Give the ends that moved since they were last told."""
        moved: dict[TopicPartition, int] = {}

        def found() -> bool:
            ends = self._log.last_stable_offsets(self._watched)
            moved.update({at: end for at, end in ends.items() if self._told.get(at) != end})
            return bool(moved)

        self._wait(found, timeout_s)
        self._told.update(moved)
        return moved


def _refuse_closed(closed: bool) -> None:  # noqa: FBT001
    if closed:
        raise UsageError("This was closed before.")
