"""A cluster's logs in memory: what the in-memory driver (`driver.py`) reads and writes.

In go appends, transactions, trimming and compaction; out comes what a `read_committed` client of
a real cluster would be told. No sockets, no sleeping and nothing of a client's state live here.

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
import uuid
from collections.abc import Callable, Mapping, Sequence

from multicast.drivers.protocol import Fetched, Headers, Record, TopicPartition
from multicast.errors import TopicMissing, Trimmed, UsageError


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
        self._ids: dict[str, str] = {}
        self._topics_made = 0
        self._groups: dict[str, dict[TopicPartition, tuple[int, str]]] = {}
        self._transactions_begun = 0
        for topic, partitions in (topics or {}).items():
            self.create(topic, partitions)

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic, or give it more Kafka partitions; those that exist stay as they are."""
        with self.changed:
            if topic not in self._ids:
                self._topics_made += 1
                self._ids[topic] = str(uuid.UUID(int=self._topics_made))
            for partition in range(partitions):
                self._partitions.setdefault(TopicPartition(topic, partition), _Partition())

    def recreate(self, topic: str) -> None:
        """Delete a topic and make it again: as many Kafka partitions, all empty, another id."""
        with self.changed:
            if topic not in self._ids:
                raise TopicMissing(f"{topic} does not exist.")
            gone = [at for at in self._partitions if at.topic == topic]
            for at in gone:
                del self._partitions[at]
            del self._ids[topic]
            self.create(topic, len(gone))
            self.changed.notify_all()

    def write(
        self,
        partition: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
    ) -> int:
        """Store one record and return its offset."""
        with self.changed:
            offset = self._put(self._of(partition), value, key, headers)
            self.changed.notify_all()
        return offset

    def transaction(self) -> MemoryTransaction:
        """Begin a transaction (for tests: nothing of ours writes in one)."""
        with self.changed:
            self._transactions_begun += 1
            return MemoryTransaction(self, self._transactions_begun)

    def trim(self, topic_partition: TopicPartition, offset: int) -> None:
        """Drop the records below `offset`, as retention or `delete_records` would."""
        with self.changed:
            partition = self._of(topic_partition)
            if offset > partition.next:
                raise UsageError(
                    f"{name(topic_partition)} ends at {partition.next}, below {offset}."
                )
            if offset > partition.begin:
                del partition.cells[: offset - partition.begin]
                partition.begin = offset
            partition.check()

    def compact(self, topic_partition: TopicPartition) -> None:
        """Keep the last committed record of each key only, as a compacted topic may at any time."""
        with self.changed:
            partition = self._of(topic_partition)
            kept: set[bytes] = set()
            for index in range(partition.end - partition.begin - 1, -1, -1):
                record = partition.cells[index]
                if record is None or record.key is None:
                    continue
                if record.key in kept:
                    partition.cells[index] = None
                kept.add(record.key)

    def log_start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Give the oldest retained offsets."""
        with self.changed:
            return {one: self._of(one).begin for one in partitions}

    def last_stable_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Give the last stable offsets."""
        with self.changed:
            return {one: self._of(one).end for one in partitions}

    def high_watermarks(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Give the offsets that the next appends get."""
        with self.changed:
            return {one: self._of(one).next for one in partitions}

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Give the ids of those topics that exist."""
        with self.changed:
            return {topic: self._ids[topic] for topic in topics if topic in self._ids}

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Give the first offsets of a record at or after that time; the end where none is."""
        with self.changed:
            return {one: self._of(one).offset_at(timestamp_ms) for one in partitions}

    def read(
        self, topic_partition: TopicPartition, position: int, records_max: int
    ) -> Fetched | None:
        """Give what stands from `position` on, or None where nothing committed does."""
        with self.changed:
            partition = self._of(topic_partition)
            if not partition.begin <= position <= partition.next:
                raise Trimmed(
                    f"{name(topic_partition)} cannot be read from offset {position}: "
                    f"the log holds {partition.begin} to {partition.next}."
                ).about(topic_partition)
            records, offset_next = partition.read(position, records_max)
        if offset_next == position:
            return None
        return Fetched(topic_partition, records, offset_next)

    def commit(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Store offsets and texts under a group."""
        with self.changed:
            for at in offsets:
                self._of(at)
            self._groups.setdefault(group, {}).update(offsets)

    def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Read back what `commit` stored."""
        with self.changed:
            stored = self._groups.get(group, {})
            return {one: stored[one] for one in partitions if one in stored}

    def _write_open(
        self,
        transaction: int,
        topic_partition: TopicPartition,
        value: bytes | None,
        key: bytes | None,
    ) -> int:
        with self.changed:
            partition = self._of(topic_partition)
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

    def _of(self, topic_partition: TopicPartition) -> _Partition:
        partition = self._partitions.get(topic_partition)
        if partition is None:
            raise TopicMissing(f"{name(topic_partition)} does not exist.").about(topic_partition)
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
        assert self.begin >= 0
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

    def append(
        self, partition: TopicPartition, value: bytes | None, *, key: bytes | None = None
    ) -> int:
        """Write in the transaction; the offset is taken at once, whatever becomes of it."""
        offset = self._log._write_open(self._number, partition, value, key)  # noqa: SLF001
        self._written.setdefault(partition, []).append(offset)
        return offset

    def commit(self) -> None:
        """Make the records visible."""
        self._end({at: [] for at in self._written})

    def abort(self) -> None:
        """Leave empty offsets where the records stood."""
        self._end(self._written)

    def _end(self, aborted: Mapping[TopicPartition, list[int]]) -> None:
        self._log._end_open(self._number, aborted)  # noqa: SLF001
        self._written = {}


def name(partition: TopicPartition) -> str:
    """Name a Kafka partition for a sentence."""
    return f"{partition.topic}/{partition.partition}"


def _wall_clock_ms() -> int:
    return int(time.time() * 1000)
