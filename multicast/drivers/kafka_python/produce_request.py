"""The Produce request of a direct appender, which appends one small record.

`ProduceRequest` encodes the request for a value; `answered` decodes the record's offset from an
answer; `why_refused` puts Kafka's error codes into words. No socket and no clock may live here. The
package's own classes do the same for any records; a collector appends thousands of times a second,
so the constant part is encoded once.

The version is 3, the oldest that brokers of Kafka 4 accept, and the first with record batches
(KIP-98). The batch has no producer ID, so the broker detects no duplicates; of two copies of an
order record the acceptance rule (`multicast.order`) counts one.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import NamedTuple

from kafka import errors as kafka_errors

from multicast.drivers.appender.partition_appends import TOO_LARGE
from multicast.drivers.appender.record_batch import written_batch, written_record
from multicast.drivers.client_settings import WRONG_CLOCK
from multicast.drivers.kafka_python.fetch_request import written_text
from multicast.drivers.protocol import TopicPartition
from multicast.errors import ProtocolViolation

# The API key of Produce, and the oldest version that Kafka 4 serves (KIP-896).
PRODUCE_KEY = 0
PRODUCE_VERSION = 3

_INVALID_TIME, _INVALID_RECORD = 32, 87
_WHY = {
    **dict.fromkeys(TOO_LARGE, "it is larger than the topic's max.message.bytes"),
    _INVALID_TIME: WRONG_CLOCK,
    _INVALID_RECORD: "it is invalid there, as records without a key are in a compacted topic",
}
_ALL_IN_SYNC = -1  # acks=all
_HEAD = Struct(">ihhi")  # size of what follows, key, version, number of the request
_TEXT = Struct(">h")
_NO_TEXT = _TEXT.pack(-1)
_SETTINGS = Struct(">hi")  # acks, timeout_ms
_COUNT = Struct(">i")
_PARTITION = Struct(">ii")  # partition, bytes of its records
_ANSWER_HEAD = Struct(">iii")  # size of what follows, number, count of topics
_ANSWERED = Struct(">iihqq")  # count of partitions, partition, error, offset, time


class Stored(NamedTuple):
    """An answer: its request's number, Kafka's error code (0: none), and the record's offset."""

    number: int
    error: int
    offset: int


class ProduceRequest:
    """Requests for one Kafka partition; the caller numbers them for each connection."""

    def __init__(self, client_id: str, partition: TopicPartition, *, timeout_ms: int) -> None:
        name = written_text(partition.topic.encode())
        self._head = written_text(client_id.encode()) + _NO_TEXT
        self._head += _SETTINGS.pack(_ALL_IN_SYNC, timeout_ms) + _COUNT.pack(1) + name
        self._head += _COUNT.pack(1)
        self._partition = partition.partition

    def written(self, number: int, value: bytes, now_ms: int) -> bytes:
        """Encode the request with that number, which appends that value."""
        batch = written_batch([written_record(0, 0, None, value)], now_ms, now_ms)
        frame = self._head + _PARTITION.pack(self._partition, len(batch)) + batch
        size = _HEAD.size - _COUNT.size + len(frame)
        return _HEAD.pack(size, PRODUCE_KEY, PRODUCE_VERSION, number) + frame


def why_refused(code: int) -> str:
    """Say why brokers refused a record with an error code of Kafka's."""
    return _WHY.get(code) or str(kafka_errors.for_code(code).__name__)


def answered(frame: bytes | bytearray, number: int) -> Stored:
    """Decode an answer; raises `ProtocolViolation` if it answers another request."""
    try:
        _, answer_number, topics = _ANSWER_HEAD.unpack_from(frame)
        if topics != 1 or answer_number != number:
            raise ProtocolViolation(
                f"A broker answered request {answer_number} for {topics} topics, "
                f"not request {number}."
            )
        (length,) = _TEXT.unpack_from(frame, _ANSWER_HEAD.size)
        if length < 0:
            raise ProtocolViolation("A broker's answer names no topic.")
        place = _ANSWER_HEAD.size + _TEXT.size + length
        _, _, error, offset, _ = _ANSWERED.unpack_from(frame, place)
    except struct.error as wrong:
        raise ProtocolViolation(f"A broker's answer ends too early: {wrong}.") from wrong
    return Stored(number, error, offset)
