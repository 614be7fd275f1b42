"""What waits in the queue of a Kafka partition: one record, or the records of one call. No I/O.

    since     when it was taken, in seconds of a monotonic clock
    counted   whether no more request counts its records as its first
    beside    whether it goes along with other records: nobody waits for its outcome

`size` is the most bytes that an entry takes in a batch, `count` its records. `done` takes the
outcome of the first record: if it is stored, the others are at the offsets that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import ClassVar

from multicast.drivers.appender.record_batch import (
    NO_HEADERS,
    RECORD_BYTES,
    record_pieces,
    written_headers,
    written_values,
)
from multicast.drivers.protocol import AppendOutcome, DoneAll, Headers, JointRecord, TopicPartition
from multicast.errors import UsageError

Done = Callable[[AppendOutcome], None]
NOWHERE = TopicPartition("", -1)  # until an entry is queued
_PLAIN_TYPES = frozenset({bytes, NoneType})


@dataclass(slots=True, eq=False)
class QueuedRecord:
    """One record to append; `headers` are encoded."""

    size: int
    value: bytes | None
    key: bytes | None
    headers: bytes
    done: Done
    since: float = 0.0
    counted: bool = False
    beside: bool = False
    partition: TopicPartition = NOWHERE
    count: ClassVar[int] = 1

    def pieces(self, place: int, delta_ms: int) -> Sequence[bytes]:
        """Encode the record with that number in its batch, `delta_ms` after the batch's first."""
        return record_pieces(place, delta_ms, self.key, self.value, self.headers)

    def divided(self) -> Sequence[QueuedRecord]:
        """Give the entry in parts; one record has none."""
        return (self,)


@dataclass(slots=True, eq=False)
class QueuedRun:
    """Consecutive records of one call; `first` is the index of the first one there.

    `headers` are encoded; keys or headers are None if no record has some.
    """

    beside: ClassVar[bool] = False

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[bytes] | None
    done_all: DoneAll
    first: int = 0
    since: float = 0.0
    counted: bool = False
    partition: TopicPartition = NOWHERE
    count: int = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = len(self.values)
        headers = self.count * len(NO_HEADERS) if self.headers is None else _bytes_of(self.headers)
        contents = _bytes_of(self.values) + _bytes_of(self.keys or ())
        self.size = self.count * RECORD_BYTES + headers + contents

    def done(self, outcome: AppendOutcome) -> None:
        """Report the outcome of all records."""
        self.done_all(self.first, self.count, outcome)

    def pieces(self, place: int, delta_ms: int) -> Sequence[bytes]:
        """Encode the records; the first one has that number in its batch."""
        if self.keys is None and self.headers is None:
            return written_values(place, delta_ms, self.values)
        encoded: list[bytes] = []
        for index, value in enumerate(self.values):
            key = None if self.keys is None else self.keys[index]
            headers = NO_HEADERS if self.headers is None else self.headers[index]
            encoded += record_pieces(place + index, delta_ms, key, value, headers)
        return encoded

    def divided(self) -> Sequence[QueuedRun]:
        """Give the entry in two parts; one record stays whole."""
        middle = self.count // 2
        return (self.part(0, middle), self.part(middle, self.count)) if middle else (self,)

    def part(self, start: int, stop: int) -> QueuedRun:
        """Give the records with these places."""
        keys = None if self.keys is None else self.keys[start:stop]
        headers = None if self.headers is None else self.headers[start:stop]
        values, first = self.values[start:stop], self.first + start
        part = QueuedRun(values, keys, headers, self.done_all, first)
        part.partition, part.since, part.counted = self.partition, self.since, self.counted
        return part


QueuedEntry = QueuedRecord | QueuedRun


def queued(value: bytes | None, key: bytes | None, headers: Headers, done: Done) -> QueuedRecord:
    """Encode the headers of a record, and count its bytes; `UsageError` if they are no bytes."""
    written = written_headers(headers) if headers else NO_HEADERS
    size = RECORD_BYTES + len(written)
    if value is not None:
        if not isinstance(value, bytes):
            raise _not_bytes(value)
        size += len(value)
    if key is not None:
        if not isinstance(key, bytes):
            raise _not_bytes(key)
        size += len(key)
    return QueuedRecord(size, value, key, written, done)


def prepared(records: Sequence[JointRecord]) -> Sequence[tuple[TopicPartition, QueuedRecord]]:
    """Prepare records to be queued; see `queued`."""
    return [
        (partition, queued(value, key, headers, done))
        for partition, value, done, key, headers in records
    ]


def queued_run(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers] | None,
    done: DoneAll,
) -> QueuedRun:
    """Prepare at least one record of a call, up to the first that is no bytes.

    Raises `UsageError` if that is the first one of all.
    """
    count = min(_count_bytes(values), len(values) if keys is None else _count_bytes(keys))
    if not count:
        raise _not_bytes(values[0] if _count_bytes(values[:1]) == 0 else (keys or values)[0])
    written = None
    if headers is not None:
        written = [written_headers(pairs) if pairs else NO_HEADERS for pairs in headers[:count]]
    if keys is not None:
        keys = keys[:count]
    return QueuedRun(values[:count], keys, written, done)


def _count_bytes(contents: Sequence[object]) -> int:
    """Return how many, from the first one on, are bytes or None."""
    if _PLAIN_TYPES.issuperset(map(type, contents)):
        return len(contents)
    allowed = (bytes, NoneType)
    return next(
        (place for place, content in enumerate(contents) if not isinstance(content, allowed)),
        len(contents),
    )


def _bytes_of(contents: Sequence[bytes | None]) -> int:
    return sum(map(len, filter(None, contents)))


def _not_bytes(content: object) -> UsageError:
    return UsageError(f"A key or value is {type(content).__name__}; give bytes or None.")
