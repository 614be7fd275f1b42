"""What a delivery holds: records that are not handed out yet, and runs of the order. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter

from multicast.drivers.protocol import Record

_offset = attrgetter("offset")
# By index instead of by name: that cuts the cost of looking at every record to a third.
_value = itemgetter(Record._fields.index("value"))
# Estimated memory of a buffered record without its payload (a tuple of five objects): many empty
# records must not fill the memory.
_RECORD_BYTES = 200


@dataclass(slots=True)
class WaitingRun:
    """The rest of a run: offsets first … next-1 of a log, from run `run` of record `record`.

    `proof` is that record's checksum.
    """

    log: int
    first: int
    next: int
    record: int
    run: int
    proof: int = 0


@dataclass(slots=True)
class _Chunk:
    """The records of one poll, and their size in bytes; those before index `start` are taken.

    `since` is when they came, in seconds.
    """

    records: Sequence[Record]
    bytes: int
    since: float
    start: int = 0


@dataclass(slots=True)
class LogBuffer:
    """The received, undelivered records of one log, in offset order."""

    chunks: deque[_Chunk] = field(default_factory=deque)
    passed: int = 0
    bytes: int = 0  # of all chunks, each counted until its last record is taken
    records: int = 0
    payload_bytes: int = 0  # of all records so far
    taken_since: float = 0.0  # when those came that were taken last

    def add(self, records: Sequence[Record], position: int, now: float) -> None:
        """Add the records of one poll; below `position` nothing more will come."""
        if records:
            chunk = _Chunk(records, _size(records), now)
            self.chunks.append(chunk)
            self.bytes += chunk.bytes
            self.records += len(records)
            self.payload_bytes += chunk.bytes - _RECORD_BYTES * len(records)
        self.passed = max(self.passed, position)

    def take(self, first: int, end: int, records_max: int) -> Sequence[Record]:
        """Take records from `first` to below `end`, the oldest first; drop those before `first`.

        Takes from one chunk only. Empty if no received record is in that range.
        """
        while self.chunks:
            chunk = self.chunks[0]
            records, low, high = chunk.records, chunk.start, len(chunk.records)
            if records[low].offset < first:
                low = bisect_left(records, first, low, key=_offset)
            if records[-1].offset >= end:
                high = bisect_left(records, end, low, key=_offset)
            high = min(high, low + records_max)
            self.records -= high - chunk.start
            self.taken_since = chunk.since
            if high == len(records):
                self.chunks.popleft()
                self.bytes -= chunk.bytes
            else:
                chunk.start = high
            if low < high:
                return records if high - low == len(records) else records[low:high]
            if self.chunks and self.chunks[0] is chunk:
                break
        return ()

    def polls(self) -> Iterator[tuple[Sequence[Record], int]]:
        """Give the records of each poll, and the index of the first one that is not taken."""
        return ((chunk.records, chunk.start) for chunk in self.chunks)

    def put_back(self, records: Sequence[Record]) -> None:
        """Undo the last `take`, or the last part of it."""
        chunk = _Chunk(records, _size(records), self.taken_since)
        self.chunks.appendleft(chunk)
        self.bytes += chunk.bytes
        self.records += len(records)


def _size(records: Sequence[Record]) -> int:
    """Estimate the memory that buffered records take, in bytes."""
    return sum(map(len, filter(None, map(_value, records)))) + _RECORD_BYTES * len(records)


class RunQueue:
    """The runs that are not handed out yet, in their order; the first one of each log at hand.

    Whoever hands out a part of a run moves its `first`.
    """

    def __init__(self, logs: Iterable[int]) -> None:
        self._all: deque[WaitingRun] = deque()
        self._of: dict[int, deque[WaitingRun]] = {log: deque() for log in logs}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def head(self) -> WaitingRun:
        """The first run; there must be one."""
        return self._all[0]

    def first_of(self, log: int) -> WaitingRun | None:
        """Give a log's first run; None: it has none."""
        of_log = self._of[log]
        return of_log[0] if of_log else None

    def append(self, run: WaitingRun) -> None:
        """Add a run behind all others."""
        self._all.append(run)
        self._of[run.log].append(run)

    def popleft(self) -> None:
        """Remove the first run."""
        self._of[self._all.popleft().log].popleft()

    def clear(self) -> None:
        """Remove all."""
        self._all.clear()
        for of_log in self._of.values():
            of_log.clear()


@dataclass(frozen=True, slots=True)
class Waiting:
    """For what a consumer waits that has messages at hand, and cannot deliver them.

    `offset` is that of log `log` which the order comes to next. If it is below `ordered`, the log
    is ordered ahead of its end: that offset is not stored yet, or on its way to this consumer.
    Else its message is at hand, the oldest, and the order is missing. `seconds` says for how long
    the oldest message at hand has waited (milliseconds are usual), and `behind` counts the messages
    at hand by log name.
    """

    log: str
    offset: int
    ordered: int
    seconds: float
    behind: Mapping[str, int]
