"""Decodes the batches of a fetch response, and the records of a batch (message format 2).

Malformed bytes raise a `ProtocolViolation` that names the Kafka partition. The package's own
decoder stops at a header name that is not UTF-8, and misreads a record whose attributes are above
127; a broker stores both. This decoder reads every record that a broker stores
(`messages.header_name` defines a name).

    record = length, attributes (1 byte), timestamp delta, offset delta, key, value, headers;
    all but the attributes are zigzag varints, or bytes after their length as one; -1 is null

Invariant: the size of a record == its length field.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from multicast.drivers.client_settings import MESSAGE_BYTES_MAX
from multicast.drivers.kafka.codecs import TooLarge, decompressed, missing_for
from multicast.drivers.kafka.private import MemoryRecords
from multicast.drivers.protocol import Headers, Record, TopicPartition
from multicast.errors import AmcastError, ProtocolViolation
from multicast.messages import header_name

LOG_APPEND_TIME = 1  # the timestamp type of a batch that the broker stamped
_VARINT_BITS_MAX = 63  # the largest shift of a 64-bit number's last 7 bits


class Committed(NamedTuple):
    """A batch; if `records` is None, its offsets hold no message."""

    next: int
    size: int
    records: Any


def committed(partition: TopicPartition, answer: Any) -> Iterator[Committed]:
    """Split a response into batches, without the records of aborted transactions (KIP-98).

    Raises `ProtocolViolation` if the bytes are malformed, and no error but an `AmcastError`.
    """
    try:
        yield from _committed(partition, answer)
    except AmcastError:
        raise
    except Exception as error:
        # The package raises errors of its own, of `struct` or of a codec.
        raise ProtocolViolation(
            f"The batches of {partition.topic}/{partition.partition} are malformed: {error!r}."
        ) from error


def _committed(partition: TopicPartition, answer: Any) -> Iterator[Committed]:
    aborted = deque(sorted(answer.aborted_transactions or (), key=_first_offset))
    aborting: set[int] = set()
    records = MemoryRecords(answer.records)
    while (batch := records.next_batch()) is not None:
        if batch.magic < 2:
            raise ProtocolViolation(
                f"{partition.topic}/{partition.partition} holds records in a format older than "
                f"Kafka 0.11, which cannot be read."
            )
        if not batch.validate_crc():
            raise ProtocolViolation(
                f"The records of {partition.topic}/{partition.partition} at offset "
                f"{batch.base_offset} do not match their checksum."
            )
        while aborted and aborted[0].first_offset <= batch.last_offset:
            aborting.add(aborted.popleft().producer_id)
        empty = batch.is_control_batch or (batch.is_transactional and batch.producer_id in aborting)
        if batch.is_control_batch:
            decompress(partition, batch)
            if next(iter(batch)).abort:
                aborting.discard(batch.producer_id)
        yield Committed(batch.next_offset, batch.size_in_bytes, None if empty else batch)


def _first_offset(aborted: Any) -> int:
    offset: int = aborted.first_offset
    return offset


def decompress(partition: TopicPartition, batch: Any) -> None:
    """Decompress a batch, if it is not yet; raises `AmcastError` if that fails.

    What would become larger than any message may be is a `ProtocolViolation`: the reader stops, and
    keeps its memory.
    """
    if batch._decompressed:  # noqa: SLF001 - there is no other way to the bytes
        return
    where = f"The records of {partition.topic}/{partition.partition} at offset {batch.base_offset}"
    try:
        if batch.compression_type:
            packed = bytes(memoryview(batch._buffer)[batch._pos :])  # noqa: SLF001
            plain = decompressed(batch.compression_type, packed, MESSAGE_BYTES_MAX)
            batch._buffer = plain  # noqa: SLF001
            batch._pos = 0  # noqa: SLF001
        batch._decompressed = True  # noqa: SLF001
    except TooLarge as error:
        raise ProtocolViolation(
            f"{where} become more than {MESSAGE_BYTES_MAX} bytes when they are decompressed, which "
            f"no correct producer writes (SECURITY.md says what to do)."
        ).about(partition) from error
    except Exception as error:
        # Each codec has errors of its own.
        why = missing_for(batch.compression_type) or error
        raise AmcastError(f"{where} cannot be decompressed: {why}.").about(partition) from error


def decoded(partition: TopicPartition, batch: Any) -> list[Record]:
    """Decode a batch's records.

    Raises `AmcastError` if the batch cannot be decompressed, `ProtocolViolation` if its bytes are
    malformed, and no other error.
    """
    decompress(partition, batch)
    append_time = batch.timestamp_type == LOG_APPEND_TIME
    try:
        return _records(
            bytes(batch._buffer),  # noqa: SLF001
            batch._pos,  # noqa: SLF001
            batch.records_count,
            base=batch.base_offset,
            first_ms=batch.max_timestamp if append_time else batch.first_timestamp,
            append_time=append_time,
            leader_epoch=batch.leader_epoch,
        )
    except (_Malformed, IndexError) as error:
        raise ProtocolViolation(
            f"The records of {partition.topic}/{partition.partition} at offset {batch.base_offset} "
            f"are malformed: {error}."
        ).about(partition) from error


class _Malformed(ValueError):
    """The bytes are not records."""


def _records(
    raw: bytes,
    pos: int,
    count: int,
    *,
    base: int,
    first_ms: int,
    append_time: bool,
    leader_epoch: int,
) -> list[Record]:
    records: list[Record] = []
    offset_next = base
    make = tuple.__new__  # faster than the NamedTuple's constructor, which checks its arguments
    for _ in range(count):
        length, pos = _varint(raw, pos)
        end = pos + length
        if not pos < end <= len(raw):
            raise _Malformed("a record's length is wrong")
        delta_ms, pos = _varint(raw, pos + 1)  # skips the attributes, which nothing uses
        delta, pos = _varint(raw, pos)
        offset = base + delta
        if offset < offset_next:
            raise _Malformed("its offsets do not rise")
        offset_next = offset + 1
        key, pos = _nullable(raw, pos, end)
        value, pos = _nullable(raw, pos, end)
        headers, pos = _headers(raw, pos, end)
        if pos != end:
            raise _Malformed("a record's length is wrong")
        time_ms = first_ms if append_time else first_ms + delta_ms
        records.append(make(Record, (offset, value, key, headers, time_ms, leader_epoch)))
    if pos != len(raw):
        raise _Malformed("it has more bytes than records")
    return records


def _headers(raw: bytes, pos: int, end: int) -> tuple[Headers, int]:
    count, pos = _varint(raw, pos)
    if not count:
        return (), pos
    if not 0 < count <= (end - pos) // 2:
        raise _Malformed("a record's number of headers is wrong")
    headers: list[tuple[str, bytes | None]] = []
    readable = True
    for _ in range(count):
        name_bytes, pos = _nullable(raw, pos, end)
        if name_bytes is None:
            raise _Malformed("a header has no name")
        value, pos = _nullable(raw, pos, end)
        name = header_name(name_bytes)
        if name is None:
            readable = False
        else:
            headers.append((name, value))
    return (headers if readable else ()), pos


def _nullable(raw: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    length, pos = _varint(raw, pos)
    if length < 0:
        return None, pos
    if pos + length > end:
        raise _Malformed("a field is longer than its record")
    return raw[pos : pos + length], pos + length


def _varint(raw: bytes, pos: int) -> tuple[int, int]:
    byte = raw[pos]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    number = shift = 0
    while True:
        byte = raw[pos]
        pos += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), pos
        shift += 7
        if shift > _VARINT_BITS_MAX:
            raise _Malformed("a number has too many bytes")
