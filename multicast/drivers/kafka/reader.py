"""The reader of the kafka-python driver, read_committed.

It buffers fetched batches as bytes, up to a limit, and decodes them when a poll returns them.

    buffered    fetched but not returned; at most one response above the limit per Kafka partition
    position    the next offset to return; the next offset to fetch may be ahead of it
    plain       decompressed by a poll; it ends with the batch that goes beyond the limit

Invariant, for each Kafka partition:
position <= the next offset of each buffered batch <= the next offset to fetch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multicast.drivers.kafka.connection import EARLIEST, LATEST, Connection
from multicast.drivers.kafka.fetcher import Fetching
from multicast.drivers.kafka.records import FetchedBatch, committed, decoded, decompress
from multicast.drivers.protocol import POLL_RECORDS_MAX, Fetched, Record, TopicPartition
from multicast.errors import AmcastError, Trimmed, UsageError

# Per Kafka partition: four fetches ahead of the caller. Ten times more would cost 40 MB for each
# log of a consumer that is behind; a tenth would stop fetching after each response.
_BUFFER_BYTES_MAX = 4 * 1024 * 1024
# Bounds the memory of one response; Kafka's default of fetch.max.bytes is 50 MB.
_REQUEST_BYTES_MAX = 16 * 1024 * 1024
# A broker that truncates a log while it answers sends bytes that are no batch: they are fetched
# again so often before the reader takes it that they are stored.
_MALFORMED_MAX = 10
# Of one poll: as much as a response without compression gives.
PLAIN_BYTES_MAX = _REQUEST_BYTES_MAX


@dataclass(slots=True)
class BufferedLog:
    """A Kafka partition that is read, and what was fetched of it."""

    position: int
    buffer: deque[FetchedBatch] = field(default_factory=deque)
    buffered_bytes: int = 0
    paused: bool = False
    trimmed: bool = False
    malformed: int = 0  # the last answers, one after the other


class KafkaPythonReader:
    """A reader with its own connections; each poll starts with another Kafka partition."""

    partition_bytes_max = 1024 * 1024  # of one response; Kafka's default of this setting

    def __init__(
        self,
        open_connection: Callable[[], Connection],
        starts: Mapping[TopicPartition, int],
        *,
        wait_s: float | None = None,
    ) -> None:
        self._connection = open_connection()
        self._fetching = Fetching(
            self._connection,
            self,
            partition_bytes_max=self.partition_bytes_max,
            request_bytes_max=_REQUEST_BYTES_MAX,
            wait_s=wait_s,
        )
        self._logs: dict[TopicPartition, BufferedLog] = {}
        self._plain_bytes = 0
        self._woken = False
        self._closed = False
        self.add(starts)

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        """Start to read these, or start again, each from the given offset."""
        self.remove(list(starts))
        for partition, offset in starts.items():
            self._logs[partition] = BufferedLog(offset)
            self._fetching.want(partition, offset)

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading these."""
        for partition in partitions:
            self._logs.pop(partition, None)
            self._fetching.forget(partition)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return no records of these until `resume`."""
        for partition in partitions:
            if partition in self._logs:
                self._logs[partition].paused = True
                self._fetching.leave_out(partition)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Continue paused Kafka partitions at their positions."""
        for partition in partitions:
            log = self._logs.get(partition)
            if log is not None:
                log.paused = False
                self._admit(partition, log)

    def poll(self, timeout_s: float, records_max: int = POLL_RECORDS_MAX) -> list[Fetched]:
        """Wait up to `timeout_s` for records; return an empty list if none came."""
        if self._closed:
            raise UsageError("This reader is closed; open another one.")
        self._connection.home.check()
        deadline = time.monotonic() + timeout_s
        while True:
            self._raise_trimmed()
            fetched = self._hand_out(records_max)
            left_s = deadline - time.monotonic()
            if fetched or self._woken or left_s <= 0:
                # The next fetch travels while the caller processes these records.
                self._turn(0.0, fetched)
                break
            self._turn(left_s, fetched)
        self._woken = False
        return fetched or self._hand_out(records_max)

    def wake(self) -> None:
        """Make a poll, or the next one, return early."""
        self._woken = True
        self._connection.net.wakeup()

    def close(self) -> None:
        """Close the sockets."""
        if not self._closed:
            self._closed = True
            self._connection.close()

    def fetched(self, partition: TopicPartition, answer: Any) -> None:
        """Buffer the batches of a response and continue to fetch after them."""
        if not answer.records:
            return
        log = self._logs[partition]
        next_offset = log.buffer[-1].next if log.buffer else log.position
        try:
            for batch in committed(partition, answer):
                log.buffer.append(batch)
                log.buffered_bytes += batch.size
                next_offset = max(next_offset, batch.next)
        except AmcastError as error:
            log.malformed += 1
            if log.malformed > _MALFORMED_MAX:
                raise error.about(partition) from None
            self._fetching.hold([partition])
        else:
            log.malformed = 0
        self._fetching.want(partition, next_offset)
        self._admit(partition, log)

    def out_of_range(self, partition: TopicPartition) -> None:
        """Have `poll` raise `Trimmed` once it has returned what was fetched before."""
        self._logs[partition].trimmed = True

    def _turn(self, timeout_s: float, fetched: list[Fetched]) -> None:
        try:
            self._fetching.turn(timeout_s)
        except AmcastError:
            # Records that left the buffer must reach the caller; the next poll raises the error.
            if not fetched:
                raise

    def _admit(self, partition: TopicPartition, log: BufferedLog) -> None:
        if log.paused or log.buffered_bytes >= _BUFFER_BYTES_MAX:
            self._fetching.leave_out(partition)
        else:
            self._fetching.take_in(partition)

    def _hand_out(self, records_max: int) -> list[Fetched]:
        fetched: list[Fetched] = []
        left, self._plain_bytes = records_max, 0
        for partition, log in list(self._logs.items()):
            if log.paused or not log.buffer:
                continue
            if left <= 0 or self._is_enough:
                break
            try:
                records, position = self._take(partition, log, left)
            except AmcastError:
                # As in `_turn`: the next poll begins with this Kafka partition.
                if not fetched:
                    raise
                break
            left -= len(records)
            if records or position > log.position:
                fetched.append(Fetched(partition, records, position))
            log.position = position
            self._admit(partition, log)
            # Moved to the end, so that a long log cannot starve the others.
            self._logs[partition] = self._logs.pop(partition)
        return fetched

    @property
    def _is_enough(self) -> bool:
        return self._plain_bytes >= PLAIN_BYTES_MAX

    def _decompress(self, partition: TopicPartition, records: Any) -> None:
        decompress(partition, records)
        self._plain_bytes += len(records._buffer)  # noqa: SLF001

    def _take(
        self, partition: TopicPartition, log: BufferedLog, count: int
    ) -> tuple[Sequence[Record], int]:
        records: list[Record] = []
        position = log.position
        while log.buffer and len(records) < count and not (records and self._is_enough):
            batch = log.buffer[0]
            if batch.records is not None and batch.left is None:
                try:
                    self._decompress(partition, batch.records)
                    decoded_records = decoded(partition, batch.records)
                except AmcastError:
                    if not records:
                        raise
                    break  # these must reach the caller first
                # A fetch from the middle of a batch returns the whole batch.
                batch.left = deque(each for each in decoded_records if each.offset >= position)
            left = batch.left or deque()
            if len(left) > count - len(records):
                records += [left.popleft() for _ in range(count - len(records))]
                return records, records[-1].offset + 1
            records += left
            position = max(position, batch.next)
            log.buffered_bytes -= batch.size
            log.buffer.popleft()
        return records, position

    def _raise_trimmed(self) -> None:
        for partition, log in self._logs.items():
            if log.trimmed and not (log.paused or log.buffer):
                start = self._offset(partition, EARLIEST)
                end = self._offset(partition, LATEST)
                raise Trimmed(
                    f"{partition.topic}/{partition.partition} cannot be read from offset "
                    f"{log.position}: the log holds {start} to {end}."
                ).about(partition)

    def _offset(self, partition: TopicPartition, which: int) -> int:
        offset: int = self._connection.run(self._connection.list_offsets, {partition: which})[
            partition
        ]
        return offset
