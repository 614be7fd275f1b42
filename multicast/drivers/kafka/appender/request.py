"""The Produce request of an appender: one batch for each of several Kafka partitions.

`written` encodes a request, `answered` decodes what an answer says of each partition. No socket and
no clock may live here. The version is 7, the first that takes zstd (KIP-110); Kafka 2.1 and later
serve it.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable
from struct import Struct

from multicast.drivers.kafka.fetch_request import written_text
from multicast.drivers.protocol import TopicPartition
from multicast.errors import ProtocolViolation

PRODUCE_KEY = 0  # of Kafka's protocol, as all that follows
PRODUCE_VERSION = 7  # see above

_HEAD = Struct(">ihhi")  # size of what follows, key, version, number of the request
_SETTINGS = Struct(">hhi")  # no transaction, acks, timeout_ms
_COUNT = Struct(">i")
_TEXT = Struct(">h")
_PARTITION = Struct(">ii")  # partition, bytes of its records
_ANSWER_HEAD = Struct(">iii")  # size of what follows, number, count of topics
_ANSWERED = Struct(">ihqqq")  # partition, error, offset, time, start of the log
_ALL_IN_SYNC = -1  # acks=all
_PIECE_BYTES = 64 * 1024  # a copy of less takes no longer than one more call of `send`


# What became of each batch, by topic and partition: Kafka's error code (0: none), its first offset.
Answers = dict[tuple[str, int], tuple[int, int]]


def settings(client_id: str, *, timeout_ms: int) -> bytes:
    """Encode what all requests of an appender have in common; `timeout_ms` is the broker's."""
    return written_text(client_id.encode()) + _SETTINGS.pack(-1, _ALL_IN_SYNC, timeout_ms)


def written(
    number: int, common: bytes, batches: Iterable[tuple[TopicPartition, bytes]]
) -> list[bytes]:
    """Encode the request with that number; it holds one batch for each partition.

    `common` is what `settings` gives. The result is in pieces, so that large batches are not
    copied.
    """
    topics: dict[str, list[bytes]] = {}
    for (topic, partition), batch in batches:
        entries = topics.get(topic)
        if entries is None:
            entries = topics[topic] = []
        entries += (_PARTITION.pack(partition, len(batch)), batch)
    parts = [b"", common, _COUNT.pack(len(topics))]
    for topic, entries in topics.items():
        parts += (_name(topic), _COUNT.pack(len(entries) // 2), *entries)
    size = _HEAD.size - _COUNT.size + sum(map(len, parts))
    parts[0] = _HEAD.pack(size, PRODUCE_KEY, PRODUCE_VERSION, number)
    if size < _PIECE_BYTES:
        return [b"".join(parts)]
    pieces: list[bytes] = []
    small: list[bytes] = []
    for part in parts:
        if len(part) < _PIECE_BYTES:
            small.append(part)
        else:
            pieces += (b"".join(small), part)
            small = []
    return [*pieces, b"".join(small)] if small else pieces


# A plain choice: so many topics are encoded once.
@functools.lru_cache(maxsize=1024)
def _name(topic: str) -> bytes:
    return written_text(topic.encode())


def answered(frame: bytes, number: int) -> Answers:
    """Decode the answer to the request with that number; raises `ProtocolViolation` for another."""
    answers: Answers = {}
    try:
        _, answer_number, topics = _ANSWER_HEAD.unpack_from(frame)
        if answer_number != number:
            raise ProtocolViolation(f"A broker answered request {answer_number}, not {number}.")
        place = _ANSWER_HEAD.size
        for _ in range(topics):
            (length,) = _TEXT.unpack_from(frame, place)
            if length < 0:
                raise ProtocolViolation("A broker's answer names no topic.")
            start = place + _TEXT.size
            place = start + length
            topic = frame[start:place].decode(errors="replace")
            (count,) = _COUNT.unpack_from(frame, place)
            place += _COUNT.size
            for _ in range(count):
                partition, error, offset, _, _ = _ANSWERED.unpack_from(frame, place)
                place += _ANSWERED.size
                answers[topic, partition] = error, offset
    except struct.error as wrong:
        raise ProtocolViolation(f"A broker's answer ends too early: {wrong}.") from wrong
    return answers
