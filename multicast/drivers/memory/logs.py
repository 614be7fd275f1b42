"""A cluster's logs in memory, which the in-memory driver (`driver.py`) reads and writes.

It supports appends, transactions, trimming and compaction, and answers as a real cluster answers a
`read_committed` client. No sockets, no sleeping and no state of a client may live here.

    start       the oldest retained offset; `trim` raises it
    end         the last stable offset: the first offset of the oldest open transaction, else next
    next        the offset that the next append gets
    empty       an offset below `end` without a record for readers: a transaction's marker, an
                aborted record, a record that compaction removed

Invariant, for each Kafka partition: 0 <= start <= end <= next.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from multicast.drivers.clock import SYSTEM_CLOCK, ClientClock
from multicast.drivers.memory.groups import MemoryGroup, MemoryMember
from multicast.drivers.protocol import (
    ChooseMember,
    Fetched,
    Headers,
    LeaderEnd,
    MemberIdentity,
    Record,
    TopicPartition,
)
from multicast.errors import TopicMissing, Trimmed, UsageError

# Of a message, by default: the limit of a local cluster's brokers (`multicast.local.broker`).
MESSAGE_BYTES_MAX = 16 * 1024 * 1024


class MemoryLog:
    """One cluster in memory, which several drivers may share.

    With `threaded` a poll waits up to its time-out, with a `clock` for that time of the clock;
    without either, it returns at once. `now_ms` gives the records' timestamps (a simulator's
    virtual time). `message_bytes_max` bounds a record, as the brokers' message.max.bytes does.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        threaded: bool = False,
        clock: ClientClock | None = None,
        now_ms: Callable[[], int] | None = None,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self._clock = SYSTEM_CLOCK if threaded else clock
        self.now_ms = now_ms or _wall_clock_ms
        self.message_bytes_max = message_bytes_max
        self.changed = threading.Condition()
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._ids: dict[str, str] = {}
        self._topics_made = 0
        self._groups: dict[str, MemoryGroup] = {}
        self._transactions_begun = 0
        for topic, partitions in (topics or {}).items():
            self.create(topic, partitions)

    def wait_for(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `ready` gives True, at most `timeout_s` seconds; return its last answer."""
        if self._clock is None:
            return ready()
        return self._clock.wait_for(self.changed, ready, timeout_s)

    def monotonic(self) -> float:
        """Return the time of the clock in seconds; without one it stands still."""
        return 0.0 if self._clock is None else self._clock.monotonic()

    def exists(self, partition: TopicPartition) -> bool:
        """Return whether there is such a Kafka partition."""
        return partition in self._partitions

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic, or add Kafka partitions to it up to `partitions`."""
        with self.changed:
            if topic not in self._ids:
                self._topics_made += 1
                self._ids[topic] = str(uuid.UUID(int=self._topics_made))
            for partition in range(partitions):
                self._partitions.setdefault(TopicPartition(topic, partition), _Partition())

    def recreate(self, topic: str) -> None:
        """Delete and create a topic: the same number of empty Kafka partitions, another ID."""
        with self.changed:
            if topic not in self._ids:
                raise TopicMissing(f"{topic} does not exist.")
            deleted = [partition for partition in self._partitions if partition.topic == topic]
            for partition in deleted:
                del self._partitions[partition]
            del self._ids[topic]
            self.create(topic, len(deleted))
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

    def lose(self, topic_partition: TopicPartition, first: int) -> None:
        """Lose all from offset `first` on, as replicas without power do; another leader follows."""
        with self.changed:
            partition = self._of(topic_partition)
            del partition.cells[max(0, first - partition.start) :]
            partition.begins.append(partition.next)
            self.changed.notify_all()

    def transaction(self) -> MemoryTransaction:
        """Begin a transaction. Only tests do: copiers have librdkafka's."""
        with self.changed:
            self._transactions_begun += 1
            return MemoryTransaction(self, self._transactions_begun)

    def trim(self, topic_partition: TopicPartition, offset: int) -> None:
        """Delete the records below `offset`, as retention or `delete_records` does."""
        with self.changed:
            partition = self._of(topic_partition)
            if offset > partition.next:
                raise UsageError(
                    f"{name(topic_partition)} ends at {partition.next}, below {offset}."
                )
            if offset > partition.start:
                del partition.cells[: offset - partition.start]
                partition.start = offset
            partition.check()

    def compact(self, topic_partition: TopicPartition) -> None:
        """Keep only the last committed record of each key, as log compaction does."""
        with self.changed:
            partition = self._of(topic_partition)
            kept: set[bytes] = set()
            for index in range(partition.end - partition.start - 1, -1, -1):
                record = partition.cells[index]
                if record is None or record.key is None:
                    continue
                if record.key in kept:
                    partition.cells[index] = None
                kept.add(record.key)

    def log_start_offsets(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the oldest retained offsets."""
        with self.changed:
            return {partition: self._of(partition).start for partition in partitions}

    def last_stable_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the last stable offsets."""
        with self.changed:
            return {partition: self._of(partition).end for partition in partitions}

    def high_watermarks(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offsets that the next appends get."""
        with self.changed:
            return {partition: self._of(partition).next for partition in partitions}

    def leader_ends(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, LeaderEnd]:
        """Return the last stable offsets with their leaders' epochs."""
        with self.changed:
            logs = {partition: self._of(partition) for partition in partitions}
            return {each: LeaderEnd(log.end, log.leader_epoch) for each, log in logs.items()}

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return where the records of leader epochs up to these end; -1: not known."""
        with self.changed:
            return {each: self._of(each).epoch_end(epoch) for each, epoch in epochs.items()}

    def topic_ids(self, topics: Sequence[str], *, timeout_s: float | None = None) -> dict[str, str]:
        """Return the IDs of the topics that exist."""
        with self.changed:
            return {topic: self._ids[topic] for topic in topics if topic in self._ids}

    def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """Return how many Kafka partitions each topic has."""
        with self.changed:
            counts = Counter(partition.topic for partition in self._partitions)
            return {topic: counts[topic] for topic in topics if topic in self._ids}

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offsets with a timestamp at or after that time, else the ends."""
        with self.changed:
            return {log: self._of(log).offset_at(timestamp_ms) for log in partitions}

    def read(
        self, topic_partition: TopicPartition, position: int, records_max: int
    ) -> Fetched | None:
        """Return up to `records_max` records from `position` on; None if it cannot move."""
        with self.changed:
            partition = self._of(topic_partition)
            if not partition.start <= position <= partition.next:
                raise Trimmed(
                    f"{name(topic_partition)} cannot be read from offset {position}: "
                    f"the log holds {partition.start} to {partition.next}."
                ).about(topic_partition)
            records, offset_next = partition.read(position, records_max)
        if offset_next == position:
            return None
        return Fetched(topic_partition, records, offset_next)

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        member: MemberIdentity | None = None,
    ) -> None:
        """Store offsets and texts under a consumer group, as its member or if it has none."""
        with self.changed:
            for partition in offsets:
                self._of(partition)
            self.group(group).store(offsets, member)

    def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Return what `commit` stored."""
        with self.changed:
            stored = self.group(group).stored
            return {log: stored[log] for log in partitions if log in stored}

    def member(
        self,
        group: str,
        partitions: Sequence[TopicPartition],  # all of them go to one
        choose: ChooseMember,
    ) -> MemoryMember:
        """Make a member of a group."""
        with self.changed:
            return MemoryMember(self.group(group), choose)

    def group(self, name: str) -> MemoryGroup:
        """Give a consumer group, which exists from then on."""
        with self.changed:
            return self._groups.setdefault(name, MemoryGroup(self.changed))

    def _write_open(
        self,
        transaction: int,
        topic_partition: TopicPartition,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
    ) -> int:
        with self.changed:
            partition = self._of(topic_partition)
            partition.open.setdefault(transaction, partition.next)
            return self._put(partition, value, key, headers)

    def _end_open(self, transaction: int, written: Mapping[TopicPartition, list[int]]) -> None:
        """End a transaction in the Kafka partitions of `written` by a marker, which has an offset.

        The offsets in `written` are of aborted records.
        """
        with self.changed:
            for topic_partition, aborted in written.items():
                partition = self._of(topic_partition)
                del partition.open[transaction]
                for offset in aborted:
                    if offset >= partition.start:
                        partition.cells[offset - partition.start] = None
                partition.cells.append(None)
                partition.check()
            self.changed.notify_all()

    def _put(
        self, partition: _Partition, value: bytes | None, key: bytes | None, headers: Headers
    ) -> int:
        offset = partition.next
        headers, epoch = tuple(headers), partition.leader_epoch
        partition.cells.append(Record(offset, value, key, headers, self.now_ms(), epoch))
        partition.check()
        return offset

    def _of(self, topic_partition: TopicPartition) -> _Partition:
        partition = self._partitions.get(topic_partition)
        if partition is None:
            raise TopicMissing(f"{name(topic_partition)} does not exist.").about(topic_partition)
        return partition


class _Partition:
    """One Kafka partition: a cell for each offset from `start` on, None if the offset is empty."""

    __slots__ = ("begins", "cells", "open", "start")

    def __init__(self) -> None:
        self.start = 0
        self.begins = [0]  # where each leader began to write
        self.cells: list[Record | None] = []
        self.open: dict[int, int] = {}  # transaction -> its first offset here

    @property
    def next(self) -> int:
        return self.start + len(self.cells)

    @property
    def end(self) -> int:
        return max(self.start, min(self.open.values())) if self.open else self.next

    @property
    def leader_epoch(self) -> int:
        return len(self.begins) - 1

    def epoch_end(self, epoch: int) -> int:
        if epoch > self.leader_epoch:
            return -1
        return max(self.start, min(self.begins[epoch + 1 :], default=self.next))

    def check(self) -> None:
        assert self.start >= 0
        assert self.start <= self.end
        assert self.end <= self.next

    def read(self, position: int, records_max: int) -> tuple[list[Record], int]:
        """Return at most `records_max` records from `position` on, and the next position."""
        records: list[Record] = []
        end = self.end
        offset = position
        while offset < end and len(records) < records_max:
            # A slice of at most the missing number of cells cannot hold too many records.
            some = self.cells[offset - self.start : end - self.start][: records_max - len(records)]
            records += [record for record in some if record is not None]
            offset += len(some)
        return records, offset

    def offset_at(self, timestamp_ms: int) -> int:
        for record in self.cells[: self.end - self.start]:
            if record is not None and record.timestamp_ms >= timestamp_ms:
                return record.offset
        return self.end


class MemoryTransaction:
    """One transaction: readers get its records after it ends; a marker ends it."""

    def __init__(self, log: MemoryLog, number: int) -> None:
        self._log = log
        self._number = number
        self._written: dict[TopicPartition, list[int]] = {}

    def append(
        self,
        partition: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
    ) -> int:
        """Write in the transaction; the offset is used at once, even if the transaction aborts."""
        offset = self._log._write_open(self._number, partition, value, key, headers)  # noqa: SLF001
        self._written.setdefault(partition, []).append(offset)
        return offset

    def commit(self) -> None:
        """Make the records visible."""
        self._end({partition: [] for partition in self._written})

    def abort(self) -> None:
        """Make the records' offsets empty."""
        self._end(self._written)

    def _end(self, aborted: Mapping[TopicPartition, list[int]]) -> None:
        self._log._end_open(self._number, aborted)  # noqa: SLF001
        self._written = {}


def name(partition: TopicPartition) -> str:
    """Return the usual text for a Kafka partition: TOPIC/NUMBER."""
    return f"{partition.topic}/{partition.partition}"


def _wall_clock_ms() -> int:
    return int(time.time() * 1000)
