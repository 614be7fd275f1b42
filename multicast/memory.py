"""The in-memory driver: a verified fake of Kafka for simulation and tests.

In goes what `log.py` lets a driver be asked; out comes what a real cluster would have said
(`tests/test_drivers.py` holds all three drivers to it). No sockets and no sleeping may live
here; without `threaded` nothing waits either: one thread and one seed repeat everything.

    begin       the oldest retained offset; `trim` raises it
    end         the last stable offset: the first offset of the oldest open transaction, else next
    next        the offset that the next append gets
    empty       an offset below `end` that hands out nothing: a transaction's marker, an aborted
                record, a record that compaction took

Invariant, of each Kafka partition: 0 <= begin <= end <= next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from multicast.errors import AppendRefused, AppendUnknown, BufferFull, Trimmed, UsageError
from multicast.log import (
    Appended,
    AppendFailed,
    AppendOutcome,
    Fetched,
    Headers,
    Record,
    TopicPartition,
)


class MemoryLog:
    """One cluster in memory: several drivers may share it.

    With `threaded` a poll waits for its time-out as a real one would; without, a poll that finds
    nothing returns at once. `now_ms` gives the records' timestamps (a simulator's virtual time).
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        threaded: bool = False,
        now_ms: Callable[[], int] | None = None,
        message_bytes_max: int = 16 * 1024 * 1024,
    ) -> None:
        self.threaded = threaded
        self.now_ms = now_ms or _wall_clock_ms
        self.message_bytes_max = message_bytes_max
        self.changed = threading.Condition()
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._groups: dict[str, dict[TopicPartition, tuple[int, str]]] = {}
        self._transactions_begun = 0
        for topic, partitions in (topics or {}).items():
            self.create(topic, partitions)

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic, or give it more Kafka partitions; those that exist stay as they are."""
        with self.changed:
            for partition in range(partitions):
                self._partitions.setdefault(TopicPartition(topic, partition), _Partition())

    def write(
        self,
        at: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
    ) -> int:
        """Store one record and return its offset."""
        with self.changed:
            offset = self._put(self._of(at), value, key, headers)
            self.changed.notify_all()
        return offset

    def transaction(self) -> MemoryTransaction:
        """Begin a transaction (for tests: nothing of ours writes in one)."""
        with self.changed:
            self._transactions_begun += 1
            return MemoryTransaction(self, self._transactions_begun)

    def trim(self, at: TopicPartition, offset: int) -> None:
        """Drop the records below `offset`, as retention or `delete_records` would."""
        with self.changed:
            partition = self._of(at)
            if offset > partition.next:
                raise UsageError(f"{_name(at)} ends at {partition.next}, below {offset}.")
            if offset > partition.begin:
                del partition.cells[: offset - partition.begin]
                partition.begin = offset
            partition.check()

    def compact(self, at: TopicPartition) -> None:
        """Keep the last committed record of each key only, as a compacted topic may at any time."""
        with self.changed:
            partition = self._of(at)
            kept: set[bytes] = set()
            for index in range(partition.end - partition.begin - 1, -1, -1):
                record = partition.cells[index]
                if record is None or record.key is None:
                    continue
                if record.key in kept:
                    partition.cells[index] = None
                kept.add(record.key)

    def begins(self, at: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Give the oldest retained offsets."""
        with self.changed:
            return {one: self._of(one).begin for one in at}

    def ends(self, at: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Give the last stable offsets."""
        with self.changed:
            return {one: self._of(one).end for one in at}

    def offsets_at(
        self, at: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Give the first offsets of a record at or after that time; the end where none is."""
        with self.changed:
            return {one: self._of(one).offset_at(timestamp_ms) for one in at}

    def read(self, at: TopicPartition, position: int, records_max: int) -> Fetched | None:
        """Give what stands from `position` on, or None where nothing committed does."""
        with self.changed:
            partition = self._of(at)
            if not partition.begin <= position <= partition.next:
                raise Trimmed(
                    f"{_name(at)} cannot be read from offset {position}: "
                    f"the log holds {partition.begin} to {partition.next}."
                )
            records, offset_next = partition.read(position, records_max)
        if offset_next == position:
            return None
        return Fetched(at, records, offset_next)

    def commit(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Store offsets and texts under a group."""
        with self.changed:
            for at in offsets:
                self._of(at)
            self._groups.setdefault(group, {}).update(offsets)

    def committed(
        self, group: str, at: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Read back what `commit` stored."""
        with self.changed:
            stored = self._groups.get(group, {})
            return {one: stored[one] for one in at if one in stored}

    def _write_open(
        self, transaction: int, at: TopicPartition, value: bytes | None, key: bytes | None
    ) -> int:
        with self.changed:
            partition = self._of(at)
            partition.open.setdefault(transaction, partition.next)
            return self._put(partition, value, key, ())

    def _end_open(self, transaction: int, written: Mapping[TopicPartition, list[int]]) -> None:
        """Close a transaction: a marker takes an offset; what `written` names was aborted."""
        with self.changed:
            for at, aborted in written.items():
                partition = self._of(at)
                del partition.open[transaction]
                for offset in aborted:
                    if offset >= partition.begin:
                        partition.cells[offset - partition.begin] = None
                partition.cells.append(None)
                partition.check()
            self.changed.notify_all()

    def _put(
        self, partition: _Partition, value: bytes | None, key: bytes | None, headers: Headers
    ) -> int:
        offset = partition.next
        partition.cells.append(Record(offset, value, key, tuple(headers), self.now_ms()))
        partition.check()
        return offset

    def _of(self, at: TopicPartition) -> _Partition:
        partition = self._partitions.get(at)
        if partition is None:
            raise UsageError(f"{_name(at)} does not exist.")
        return partition


class _Partition:
    """One Kafka partition: a cell an offset, None where the offset is empty."""

    __slots__ = ("begin", "cells", "open")

    def __init__(self) -> None:
        self.begin = 0
        self.cells: list[Record | None] = []
        self.open: dict[int, int] = {}  # transaction -> its first offset here

    @property
    def next(self) -> int:
        return self.begin + len(self.cells)

    @property
    def end(self) -> int:
        return max(self.begin, min(self.open.values())) if self.open else self.next

    def check(self) -> None:
        assert 0 <= self.begin
        assert self.begin <= self.end
        assert self.end <= self.next

    def read(self, position: int, records_max: int) -> tuple[list[Record], int]:
        """Give at most so many records from `position` on, and the offset to go on from."""
        records: list[Record] = []
        end = self.end
        offset = position
        while offset < end and len(records) < records_max:
            # A slice as long as what is still wanted cannot hold too many.
            some = self.cells[offset - self.begin : end - self.begin][: records_max - len(records)]
            records += [record for record in some if record is not None]
            offset += len(some)
        return records, offset

    def offset_at(self, timestamp_ms: int) -> int:
        for record in self.cells[: self.end - self.begin]:
            if record is not None and record.timestamp_ms >= timestamp_ms:
                return record.offset
        return self.end


class MemoryTransaction:
    """One transaction: its records are held back until it ends, and a marker ends it."""

    def __init__(self, log: MemoryLog, number: int) -> None:
        self._log = log
        self._number = number
        self._written: dict[TopicPartition, list[int]] = {}

    def append(self, at: TopicPartition, value: bytes | None, *, key: bytes | None = None) -> int:
        """Write in the transaction; the offset is taken at once, whatever becomes of it."""
        offset = self._log._write_open(self._number, at, value, key)  # noqa: SLF001
        self._written.setdefault(at, []).append(offset)
        return offset

    def commit(self) -> None:
        """Make the records visible."""
        self._end(dict.fromkeys(self._written, []))

    def abort(self) -> None:
        """Leave empty offsets where the records stood."""
        self._end(self._written)

    def _end(self, aborted: Mapping[TopicPartition, list[int]]) -> None:
        self._log._end_open(self._number, aborted)  # noqa: SLF001
        self._written = {}


class PendingAppend:
    """An append on its way: the seam where a simulator loses, doubles or delays.

    `store` puts the record into the log (again, where it is called again); `settle` tells the
    caller, and must be called once. What `MemoryAppender.close` gave up may still be stored.
    """

    __slots__ = ("_done", "_log", "at", "headers", "key", "settled", "value")

    def __init__(
        self,
        log: MemoryLog,
        at: TopicPartition,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        done: Callable[[AppendOutcome], None],
    ) -> None:
        self._log = log
        self._done = done
        self.at = at
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
                AppendRefused(f"A message of {self.size} bytes is too large for {_name(self.at)}.")
            )
        try:
            offset = self._log.write(self.at, self.value, key=self.key, headers=self.headers)
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
        at: TopicPartition,
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

            append = PendingAppend(self._log, at, value, key, headers, settled)
            full = self._bytes + append.size > self._in_flight_bytes_max and self._in_flight
            if full or len(self._in_flight) >= self._in_flight_max:
                raise BufferFull(
                    f"{len(self._in_flight)} appends ({self._bytes} bytes) are in flight already."
                )
            self._in_flight[number] = append
            self._bytes += append.size
        self._step(append)

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
                    AppendUnknown(f"The appender was closed before {_name(append.at)} answered.")
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
        self._log.begins(list(starts))
        self.remove(list(starts))
        self._positions.update(starts)

    def remove(self, at: Sequence[TopicPartition]) -> None:
        """Read these no longer."""
        for one in at:
            self._positions.pop(one, None)
            self._paused.discard(one)

    def pause(self, at: Sequence[TopicPartition]) -> None:
        """Hand out nothing of these until `resume`."""
        self._paused.update(one for one in at if one in self._positions)

    def resume(self, at: Sequence[TopicPartition]) -> None:
        """Go on with paused ones."""
        self._paused.difference_update(at)

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
        self._log.begins(list(starts))
        self._watched = list(starts)
        self._told: dict[TopicPartition, int] = {}

    def poll(self, timeout_s: float) -> Mapping[TopicPartition, int]:
        """Give the ends that moved since they were last told."""
        moved: dict[TopicPartition, int] = {}

        def found() -> bool:
            for at, end in self._log.ends(self._watched).items():
                if self._told.get(at) != end:
                    moved[at] = end
            return bool(moved)

        self._wait(found, timeout_s)
        self._told.update(moved)
        return moved


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
        self.begins = self.log.begins
        self.ends = self.log.ends
        self.offsets_at = self.log.offsets_at
        self.commit = self.log.commit
        self.committed = self.log.committed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The driver's name."""
        return "memory"

    def appender(
        self, *, in_flight_max: int = 100_000, in_flight_bytes_max: int = 64 * 1024 * 1024
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

    def watcher(self, starts: Mapping[TopicPartition, int]) -> MemoryWatcher:
        """Open a watcher."""
        return MemoryWatcher(self.log, starts)

    def close(self) -> None:
        """Nothing is held open: the log outlives its drivers."""


def _refuse_closed(closed: bool) -> None:  # noqa: FBT001
    if closed:
        raise UsageError("This was closed before.")


def _name(at: TopicPartition) -> str:
    return f"{at.topic}/{at.partition}"


def _wall_clock_ms() -> int:
    return int(time.time() * 1000)
