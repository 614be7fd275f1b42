"""Encodes and decodes Kafka's record batches (message format 2).

`record_pieces` encodes one record, `written_batch` the batch of some; `read_records` decodes those
of a batch, and `read_batch`, for brokers in memory, the whole. No socket and no clock may live
here. The package's own encoder does the same for any format; an appender encodes thousands of
records a second, so it remembers numbers.

    record = length, attributes (1 byte), timestamp delta, offset delta, key, value, headers;
    all but the attributes are zigzag varints, or bytes after their length as one; -1 is null

Invariant: the size of a record == its length field.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from multicast.drivers.protocol import Headers, Record
from multicast.messages import header_name

_BATCH_HEAD = Struct(">qiibI")  # base offset, bytes that follow, leader epoch, magic, checksum
_BATCH = Struct(">hiqqqhii")  # attributes, last delta, two times, producer, epoch, sequence, count
_VARINT_BITS_MAX = 63  # the largest shift of a 64-bit number's last 7 bits
_UNCOUNTED = 12  # bytes of base offset and size, which the size does not include
_COUNTED = _BATCH_HEAD.size + _BATCH.size - _UNCOUNTED
_MAGIC = 2  # the version of the record format
_NULL = b"\1"  # the length -1
_FIRST = b"\0\0\0"  # no attributes, and both deltas are 0
NO_HEADERS = b"\0"
# The bytes of a batch without its records, and the most that a record's own lengths take.
BATCH_BYTES = _BATCH_HEAD.size + _BATCH.size
RECORD_BYTES = 30


class ProducerIdentity(NamedTuple):
    """By which a broker knows a batch that it has stored already (KIP-98)."""

    producer: int
    epoch: int


NO_IDENTITY = ProducerIdentity(-1, -1)
SEQUENCES = 2**31  # numbers wrap to 0
NO_SEQUENCE = -1  # Kafka's value for a batch without a producer


class Codec(NamedTuple):
    """A codec: its name, and its number in the attributes of a record batch."""

    name: str
    number: int
    library: str  # the Python package; the standard library has gzip
    is_installed: Callable[[], bool]
    encode: Callable[[bytes], bytes]


def varint(number: int) -> bytes:
    """Encode a number >= 0 as Kafka's zigzag varint."""
    rest = number << 1
    written = bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written)


# A plain choice: the places of a batch of small records, and the lengths that occur.
_varint = functools.lru_cache(maxsize=2**14)(varint)


def _written(raw: bytes | None) -> bytes:
    return _NULL if raw is None else _varint(len(raw)) + raw


def written_headers(headers: Headers) -> bytes:
    """Encode the end of a record: its headers, whose values may be null."""
    if not headers:
        return NO_HEADERS
    parts = [_varint(len(headers))]
    for name, value in headers:
        parts += [_written(name.encode()), _written(value)]
    return b"".join(parts)


def record_pieces(
    place: int, delta_ms: int, key: bytes | None, value: bytes | None, headers: bytes = NO_HEADERS
) -> tuple[bytes, ...]:
    """Encode a record, in pieces: a large value is not copied.

    It has the number `place` of its batch, `delta_ms` >= 0 after the first one; `headers` is what
    `written_headers` gives.
    """
    start = b"\0" + _varint(delta_ms) + _varint(place) if place else _FIRST
    start += _NULL if key is None else _written(key)
    if value is None:
        start, value = start + _NULL, b""
    else:
        start += _varint(len(value))
    return _varint(len(start) + len(value) + len(headers)), start, value, headers


def written_values(first_place: int, delta_ms: int, values: Sequence[bytes | None]) -> list[bytes]:
    """Encode records with neither key nor headers, in pieces, from that number of the batch on."""
    start = b"\0" + _varint(delta_ms)
    constant = len(start) + len(_NULL) + len(NO_HEADERS)
    pieces: list[bytes] = []
    heads: dict[int, tuple[bytes, bytes]] = {}  # by the size of a value, -1 for null
    place, end = first_place, first_place + len(values)
    while place < end:
        # As long as a place takes as many bytes, values of one size have the same head.
        width = len(_varint(place))
        stop = min(end, 1 << (7 * width - 1))
        heads.clear()
        for value in values[place - first_place : stop - first_place]:
            size = -1 if value is None else len(value)
            head = heads.get(size)
            if head is None:
                length = _NULL if value is None else _varint(size)
                total = constant + width + len(length) + max(0, size)
                head = heads[size] = (_varint(total) + start, _NULL + length)
            pieces += (head[0], _varint(place), head[1], value or b"", NO_HEADERS)
            place += 1
    return pieces


def written_batch(
    pieces: Sequence[bytes],
    first_ms: int,
    last_ms: int,
    identity: ProducerIdentity = NO_IDENTITY,
    sequence: int = NO_SEQUENCE,
    *,
    count: int = 1,
    codec: int = 0,
) -> bytes:
    """Encode a batch of `count` >= 1 records, whose times are from `first_ms` to `last_ms`.

    The pieces together are the records; each costs a call, so small ones should be joined. With a
    `codec`, the number of `codecs.Codec`, they are the compressed records.
    `sequence` is the number of the first record among those of the producer in this partition.
    """
    producer, epoch = identity
    head = _BATCH.pack(codec, count - 1, first_ms, last_ms, producer, epoch, sequence, count)
    checksum, size = crc32c(head), 0
    for piece in pieces:
        # 50 us a megabyte: who lets other threads run meanwhile may wait 5 ms for its next turn.
        checksum = crc32c(piece, checksum, gil_release_mode=False)
        size += len(piece)
    return b"".join((_BATCH_HEAD.pack(0, _COUNTED + size, -1, _MAGIC, checksum), head, *pieces))


class ReadBatch(NamedTuple):
    """What a broker reads of a batch; offsets of `records` count from 0."""

    identity: ProducerIdentity
    sequence: int
    records: Sequence[Record]
    size: int

    @property
    def last(self) -> int:
        """The number of its last record."""
        return (self.sequence + len(self.records) - 1) % SEQUENCES


def read_batch(written: bytes) -> ReadBatch:
    """Decode a batch whose records are not compressed."""
    *_, producer, epoch, sequence, count = _BATCH.unpack_from(written, _BATCH_HEAD.size)
    records = read_records(written, BATCH_BYTES, count)
    return ReadBatch(ProducerIdentity(producer, epoch), sequence, records, len(written))


class MalformedRecords(ValueError):
    """The bytes are not records."""


def read_records(
    raw: bytes,
    pos: int,
    count: int,
    *,
    base: int = 0,
    first_ms: int = 0,
    append_time: bool = False,
    leader_epoch: int = -1,
) -> list[Record]:
    """Decode so many records from `pos` to the end; `base` is the offset of the batch.

    With `append_time` all have the time `first_ms`, else it is that of the first one. Raises
    `MalformedRecords`, or `IndexError` if a field goes on after the last byte.
    """
    records: list[Record] = []
    offset_next = base
    make = tuple.__new__  # faster than the NamedTuple's constructor, which checks its arguments
    for _ in range(count):
        length, pos = _read_varint(raw, pos)
        end = pos + length
        if not pos < end <= len(raw):
            raise MalformedRecords("a record's length is wrong")
        delta_ms, pos = _read_varint(raw, pos + 1)  # skips the attributes, which nothing uses
        delta, pos = _read_varint(raw, pos)
        offset = base + delta
        if offset < offset_next:
            raise MalformedRecords("its offsets do not rise")
        offset_next = offset + 1
        key, pos = _read_nullable(raw, pos, end)
        value, pos = _read_nullable(raw, pos, end)
        headers, pos = _read_headers(raw, pos, end)
        if pos != end:
            raise MalformedRecords("a record's length is wrong")
        time_ms = first_ms if append_time else first_ms + delta_ms
        records.append(make(Record, (offset, value, key, headers, time_ms, leader_epoch)))
    if pos != len(raw):
        raise MalformedRecords("it has more bytes than records")
    return records


def _read_headers(raw: bytes, pos: int, end: int) -> tuple[Headers, int]:
    count, pos = _read_varint(raw, pos)
    if not count:
        return (), pos
    if not 0 < count <= (end - pos) // 2:
        raise MalformedRecords("a record's number of headers is wrong")
    headers: list[tuple[str, bytes | None]] = []
    readable = True
    for _ in range(count):
        name_bytes, pos = _read_nullable(raw, pos, end)
        if name_bytes is None:
            raise MalformedRecords("a header has no name")
        value, pos = _read_nullable(raw, pos, end)
        name = header_name(name_bytes)
        if name is None:
            readable = False
        else:
            headers.append((name, value))
    return (headers if readable else ()), pos


def _read_nullable(raw: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    length, pos = _read_varint(raw, pos)
    if length < 0:
        return None, pos
    if pos + length > end:
        raise MalformedRecords("a field is longer than its record")
    return raw[pos : pos + length], pos + length


def _read_varint(raw: bytes, pos: int) -> tuple[int, int]:
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
            raise MalformedRecords("a number has too many bytes")
