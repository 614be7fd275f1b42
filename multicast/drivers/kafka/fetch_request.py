"""The Fetch request that a watcher repeats to learn how far logs have grown.

`EndsRequest` encodes the request for a list of Kafka partitions and offsets, and decodes the part
of an answer that a watcher uses. No socket and no clock may live here. The package's own classes
do the same for any request; a watcher sends thousands of requests a second, so its request is
encoded once, and afterwards only the numbers that changed are overwritten.

The version is 4, the oldest that brokers of Kafka 4 accept: it reports the last stable offset, and
has neither fetch sessions nor variable-length numbers. (Sessions are unusable here: a broker moves
a Kafka partition that returned data to the end of its session, KIP-227, but the sentinel record
must stay in front; see `watch_connection.py`.)
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from multicast.drivers.protocol import TopicPartition
from multicast.errors import ProtocolViolation

# The API key of Fetch, and the oldest version that Kafka 4 serves (KIP-896).
FETCH_KEY = 1
FETCH_VERSION = 4

_ANY_CONSUMER = -1  # the replica ID of a client that is no broker
_READ_COMMITTED = 1  # the isolation level
_SIZE = Struct(">i")
_TEXT = Struct(">h")
_HEAD = Struct(">ihhi")  # size of what follows, key, version, number of the request
_LIMITS = Struct(">iiiib")  # replica, wait_ms, bytes_min, bytes_max, isolation
_WANTED = Struct(">iqi")  # partition, offset, bytes_max
_OFFSET = Struct(">q")
_ANSWER_HEAD = Struct(">iiii")  # size of what follows, number, throttle_ms, count of topics
_ANSWERED = Struct(">ihqqii")  # partition, error, high watermark, end, aborted, bytes
_ABORTED_BYTES = 16  # of one aborted transaction: producer ID and first offset, 8 bytes each


class FetchPartition(NamedTuple):
    """One Kafka partition of a request."""

    partition: TopicPartition
    offset: int
    bytes_max: int


class FetchAnswer(NamedTuple):
    """An answer's numbers for one Kafka partition; the records themselves are dropped."""

    partition: TopicPartition
    error: int
    end: int
    record_bytes: int
    high: int  # the high watermark: where it is above the end, a transaction is open


class EndsRequest:
    """A request for a fixed list of Kafka partitions; those of one topic must be adjacent."""

    def __init__(self, client_id: str, wanted: Sequence[FetchPartition]) -> None:
        topics: dict[str, list[FetchPartition]] = defaultdict(list)
        for entry in wanted:
            topics[entry.partition.topic].append(entry)
        self._number = 0
        self._offset_at: dict[TopicPartition, int] = {}
        self._offsets: dict[bytes, dict[int, int]] = {}
        frame = bytearray(_HEAD.size) + written_text(client_id.encode())
        self._limits_at = len(frame)
        frame += bytes(_LIMITS.size) + _SIZE.pack(len(topics))
        for topic, entries in topics.items():
            name = topic.encode()
            self._offsets[name] = {entry.partition.partition: entry.offset for entry in entries}
            frame += written_text(name) + _SIZE.pack(len(entries))
            for partition, offset, bytes_max in entries:
                self._offset_at[partition] = len(frame) + _SIZE.size
                frame += _WANTED.pack(partition.partition, offset, bytes_max)
        self._frame = frame

    def move(self, partition: TopicPartition, offset: int) -> None:
        """Request this Kafka partition from another offset."""
        _OFFSET.pack_into(self._frame, self._offset_at[partition], offset)
        self._offsets[partition.topic.encode()][partition.partition] = offset

    def written(self, *, wait_ms: int, bytes_min: int, bytes_max: int) -> bytearray:
        """Encode the next request; the buffer is valid until the next call."""
        self._number = (self._number + 1) & 0x7FFFFFFF
        size = len(self._frame) - _SIZE.size
        _HEAD.pack_into(self._frame, 0, size, FETCH_KEY, FETCH_VERSION, self._number)
        _LIMITS.pack_into(
            self._frame,
            self._limits_at,
            _ANY_CONSUMER,
            wait_ms,
            bytes_min,
            bytes_max,
            _READ_COMMITTED,
        )
        return self._frame

    def answered(self, frame: bytes | bytearray) -> tuple[int, list[FetchAnswer]]:
        """Decode the answer to the last request: the broker's throttle time in ms, and the news.

        Kafka partitions without news are left out: no error, no record, no open transaction, and an
        end equal to the requested offset. Raises `ProtocolViolation` for malformed bytes and for an
        answer to another request.
        """
        try:
            _, number, throttle_ms, topics = _ANSWER_HEAD.unpack_from(frame)
            if number != self._number:
                raise ProtocolViolation(f"A broker answered request {number}, not {self._number}.")
            return throttle_ms, list(self._decoded(frame, topics))
        except struct.error as error:
            raise ProtocolViolation(f"A broker's answer ends too early: {error}.") from error

    def _decoded(self, frame: bytes | bytearray, topics: int) -> Iterator[FetchAnswer]:
        place = _ANSWER_HEAD.size
        for _ in range(topics):
            (length,) = _TEXT.unpack_from(frame, place)
            place += _TEXT.size
            if length < 0:
                raise ProtocolViolation("A broker's answer names no topic.")
            name = bytes(frame[place : place + length])
            offsets = self._offsets.get(name, {})
            place += length
            (count,) = _SIZE.unpack_from(frame, place)
            place += _SIZE.size
            for _ in range(count):
                partition, error, high, end, aborted, size = _ANSWERED.unpack_from(frame, place)
                if aborted > 0:
                    # The list of aborted transactions precedes the size, so `size` was misread.
                    place += aborted * _ABORTED_BYTES
                    (size,) = _SIZE.unpack_from(frame, place + _ANSWERED.size - _SIZE.size)
                place += _ANSWERED.size
                if size > 0:
                    place += size
                elif not error and end == offsets.get(partition) and high <= end:
                    continue
                if partition in offsets:
                    yield FetchAnswer(
                        TopicPartition(name.decode(), partition), error, end, size, high
                    )


def frame_size(begun: bytes | bytearray) -> int | None:
    """Return a frame's size from its first bytes, with the size field; None if too few are here."""
    if len(begun) < _SIZE.size:
        return None
    size: int = _SIZE.unpack_from(begun)[0]
    if size < 0:
        raise ProtocolViolation(f"A broker announced a frame of {size} bytes.")
    return size + _SIZE.size


def written_text(text: bytes) -> bytes:
    """Encode a text as Kafka does: its length, then its bytes."""
    return _TEXT.pack(len(text)) + text
