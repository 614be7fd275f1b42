"""The one request that a watcher repeats: a Fetch that tells how far logs have grown.

In go Kafka partitions with the offsets to ask from; out come the bytes of a request, and of an
answer what a watcher wants of it. No socket and no clock may live here. The package's own classes
do the same for any request; a watcher asks thousands of times a second, so its request is written
once, and afterwards only the numbers that changed are written over.

The version is 4, the oldest that brokers of Kafka 4 take: it names the last stable offset, and has
neither fetch sessions nor variable-length numbers. (A session would not do: a broker moves a Kafka
partition that gave data to its end, KIP-227, and a bell must stay in front; see
`watch_connection.py`.)
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from multicast.drivers.protocol import TopicPartition
from multicast.errors import ProtocolViolation

FETCH_KEY = 1
FETCH_VERSION = 4

_ANY_CONSUMER = -1
_READ_COMMITTED = 1
_SIZE = Struct(">i")
_TEXT = Struct(">h")
_HEAD = Struct(">ihhi")  # size of what follows, key, version, number of the request
_LIMITS = Struct(">iiiib")  # replica, wait_ms, bytes_min, bytes_max, isolation
_ASKED = Struct(">iqi")  # partition, offset, bytes_max
_OFFSET = Struct(">q")
_ANSWER_HEAD = Struct(">iiii")  # size of what follows, number, throttle_ms, count of topics
_ANSWERED = Struct(">ihqqii")  # partition, error, high watermark, end, aborted, bytes
_ABORTED_BYTES = 16


class FetchPartition(NamedTuple):
    """One Kafka partition of a request."""

    partition: TopicPartition
    offset: int
    bytes_max: int


class FetchAnswer(NamedTuple):
    """What an answer says of one Kafka partition; the records themselves are dropped."""

    partition: TopicPartition
    error: int
    end: int
    record_bytes: int
    high: int  # the high watermark: above the end there are open transactions


class EndsRequest:
    """A request for fixed Kafka partitions; those of one topic must stand together."""

    def __init__(self, client_id: str, wanted: Sequence[FetchPartition]) -> None:
        topics: dict[str, list[FetchPartition]] = defaultdict(list)
        for one in wanted:
            topics[one.partition.topic].append(one)
        self._number = 0
        self._offset_at: dict[TopicPartition, int] = {}
        self._offsets: dict[bytes, dict[int, int]] = {}
        frame = bytearray(_HEAD.size) + written_text(client_id.encode())
        self._limits_at = len(frame)
        frame += bytes(_LIMITS.size) + _SIZE.pack(len(topics))
        for topic, some in topics.items():
            name = topic.encode()
            self._offsets[name] = {one.partition.partition: one.offset for one in some}
            frame += written_text(name) + _SIZE.pack(len(some))
            for at, offset, bytes_max in some:
                self._offset_at[at] = len(frame) + _SIZE.size
                frame += _ASKED.pack(at.partition, offset, bytes_max)
        self._frame = frame

    def move(self, partition: TopicPartition, offset: int) -> None:
        """Ask for this Kafka partition from another offset."""
        _OFFSET.pack_into(self._frame, self._offset_at[partition], offset)
        self._offsets[partition.topic.encode()][partition.partition] = offset

    def written(self, *, wait_ms: int, bytes_min: int, bytes_max: int) -> bytearray:
        """Give the next request; valid until the one after it is written."""
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
        """Take the answer to the last request apart: how long to pause, in ms, and what it tells.

        Left out are Kafka partitions of which it tells nothing: no error, no record, no open
        transaction, and no other end than what was asked from. Raises `ProtocolViolation` for an
        answer to something else.
        """
        try:
            _, number, throttle_ms, topics = _ANSWER_HEAD.unpack_from(frame)
            if number != self._number:
                raise ProtocolViolation(f"A broker answered request {number}, not {self._number}.")
            return throttle_ms, list(self._told(frame, topics))
        except struct.error as error:
            raise ProtocolViolation(f"A broker's answer ends too early: {error}.") from error

    def _told(self, frame: bytes | bytearray, topics: int) -> Iterator[FetchAnswer]:
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
                    # `size` was read too early: the list of aborted transactions stands before it.
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
    """Give the size of a frame, its size included, of which this is the beginning; None as yet."""
    if len(begun) < _SIZE.size:
        return None
    size: int = _SIZE.unpack_from(begun)[0]
    if size < 0:
        raise ProtocolViolation(f"A broker announced a frame of {size} bytes.")
    return size + _SIZE.size


def written_text(text: bytes) -> bytes:
    """Write a text as Kafka does: its length, then its bytes."""
    return _TEXT.pack(len(text)) + text
