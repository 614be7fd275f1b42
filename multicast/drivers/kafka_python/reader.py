"""Records out of fetched batches, read_committed.

In go fetch responses; out come `Fetched`. Batches are taken apart when they are handed out, not
when they arrive: what is buffered is bytes, and their number is bounded.

    buffered    fetched, not handed out; at most one response above the limit per Kafka partition
    position    next offset to hand out; the fetch may be ahead of it

Invariant, of each Kafka partition: position <= offset of what is buffered <= offset to fetch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multicast.drivers.kafka_python.connection import EARLIEST, LATEST, Connection
from multicast.drivers.kafka_python.fetcher import Fetching
from multicast.drivers.kafka_python.records import committed, decoded
from multicast.drivers.protocol import Fetched, Record, TopicPartition
from multicast.errors import AmcastError, Trimmed, UsageError

_BUFFER_BYTES_MAX = 4 * 1024 * 1024
_PARTITION_BYTES_MAX = 1024 * 1024
_REQUEST_BYTES_MAX = 16 * 1024 * 1024


@dataclass(slots=True)
class _Batch:
    """A batch, or (`records` is None) offsets that hold no message for us."""

    next: int
    size: int
    records: Any
    left: deque[Record] | None = None  # where a poll could not take all


@dataclass(slots=True)
class _Log:
    position: int
    buffer: deque[_Batch] = field(default_factory=deque)
    buffered_bytes: int = 0
    paused: bool = False
    trimmed: bool = False


class KafkaPythonReader:
    """A reader with connections of its own; Kafka partitions take turns at being read first."""

    def __init__(
        self, open_connection: Callable[[], Connection], starts: Mapping[TopicPartition, int]
    ) -> None:
        self._connection = open_connection()
        self._fetching = Fetching(
            self._connection,
            self,
            partition_bytes_max=_PARTITION_BYTES_MAX,
            request_bytes_max=_REQUEST_BYTES_MAX,
        )
        self._logs: dict[TopicPartition, _Log] = {}
        self._woken = False
        self._closed = False
        self.add(starts)

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        """Read these, too (or anew), each from that offset."""
        self.remove(list(starts))
        for at, offset in starts.items():
            self._logs[at] = _Log(offset)
            self._fetching.want(at, offset)

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these no longer."""
        for one in partitions:
            self._logs.pop(one, None)
            self._fetching.forget(one)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Hand out nothing of these until `resume`."""
        for one in partitions:
            if one in self._logs:
                self._logs[one].paused = True
                self._fetching.leave_out(one)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Go on with paused ones."""
        for one in partitions:
            log = self._logs.get(one)
            if log is not None:
                log.paused = False
                self._admit(one, log)

    def poll(self, timeout_s: float, records_max: int = 5000) -> list[Fetched]:
        """Give what is new, in turns."""
        if self._closed:
            raise UsageError("This reader was closed before.")
        deadline = time.monotonic() + timeout_s
        while True:
            fetched = self._hand_out(records_max)
            left_s = deadline - time.monotonic()
            if fetched or self._woken or left_s <= 0:
                # The next fetch is on its way while the caller works on what was found.
                self._turn(0.0, fetched)
                break
            self._refuse_trimmed()
            self._turn(left_s, fetched)
        self._woken = False
        return fetched or self._hand_out(records_max)

    def wake(self) -> None:
        """End a poll, or the next one, early."""
        self._woken = True
        self._connection.net.wakeup()

    def close(self) -> None:
        """Close the sockets."""
        if not self._closed:
            self._closed = True
            self._connection.close()

    def fetched(self, partition: TopicPartition, answer: Any) -> None:
        """Buffer the batches of a response and go on fetching behind them."""
        if not answer.records:
            return
        log = self._logs[partition]
        next_offset = log.buffer[-1].next if log.buffer else log.position
        try:
            for batch in committed(partition, answer):
                log.buffer.append(_Batch(*batch))
                log.buffered_bytes += batch.size
                next_offset = max(next_offset, batch.next)
        except AmcastError as error:
            raise error.about(partition) from None
        self._fetching.want(partition, next_offset)
        self._admit(partition, log)

    def out_of_range(self, partition: TopicPartition) -> None:
        """Note what `poll` raises once what was fetched before is handed out."""
        self._logs[partition].trimmed = True

    def _turn(self, timeout_s: float, fetched: list[Fetched]) -> None:
        try:
            self._fetching.turn(timeout_s)
        except AmcastError:
            # What was taken out of the buffer must reach the caller; the error comes again.
            if not fetched:
                raise

    def _admit(self, partition: TopicPartition, log: _Log) -> None:
        if log.paused or log.buffered_bytes >= _BUFFER_BYTES_MAX:
            self._fetching.leave_out(partition)
        else:
            self._fetching.take_in(partition)

    def _hand_out(self, records_max: int) -> list[Fetched]:
        fetched: list[Fetched] = []
        left = records_max
        for at, log in list(self._logs.items()):
            if log.paused or not log.buffer:
                continue
            if left <= 0:
                break
            records, position = self._take(at, log, left)
            left -= len(records)
            if records or position > log.position:
                fetched.append(Fetched(at, records, position))
            log.position = position
            self._admit(at, log)
            # Put last, so that a long log cannot keep the others from their turn.
            self._logs[at] = self._logs.pop(at)
        return fetched

    def _take(self, partition: TopicPartition, log: _Log, count: int) -> tuple[list[Record], int]:
        records: list[Record] = []
        position = log.position
        while log.buffer and len(records) < count:
            batch = log.buffer[0]
            if batch.records is not None and batch.left is None:
                # A fetch from the middle of a batch brings all of it.
                batch.left = deque(
                    one for one in _decoded(partition, batch.records) if one.offset >= position
                )
            left = batch.left or deque()
            if len(left) > count - len(records):
                records += [left.popleft() for _ in range(count - len(records))]
                return records, records[-1].offset + 1
            records += left
            position = max(position, batch.next)
            log.buffered_bytes -= batch.size
            log.buffer.popleft()
        return records, position

    def _refuse_trimmed(self) -> None:
        for at, log in self._logs.items():
            if log.trimmed and not log.paused:
                begin = self._connection.run(self._connection.list_offsets, {at: EARLIEST})[at]
                end = self._connection.run(self._connection.list_offsets, {at: LATEST})[at]
                raise Trimmed(
                    f"{at.topic}/{at.partition} cannot be read from offset {log.position}: "
                    f"the log holds {begin} to {end}."
                ).about(at)


def _decoded(partition: TopicPartition, batch: Any) -> list[Record]:
    try:
        return decoded(partition, batch)
    except AmcastError as error:
        raise error.about(partition) from None
