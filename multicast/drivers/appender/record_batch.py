"""Encodes Kafka's record batches (message format 2).

`record_pieces` encodes one record, `written_batch` the batch of some; `read_batch`, for brokers in
memory, is their inverse. No socket and no clock may live here. The package's own encoder does the
same for any format; an appender encodes thousands of records a second, so it remembers numbers.

    record = length, attributes (1 byte), timestamp delta, offset delta, key, value, headers;
    all but the attributes are zigzag varints, or bytes after their length as one; -1 is null
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from multicast.drivers.protocol import Headers

_BATCH_HEAD = Struct(">qiibI")  # base offset, bytes that follow, leader epoch, magic, checksum
_BATCH = Struct(">hiqqqhii")  # attributes, last delta, two times, producer, epoch, sequence, count
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


def _nullable(raw: bytes | None) -> bytes:
    return _NULL if raw is None else _varint(len(raw)) + raw


def written_headers(headers: Headers) -> bytes:
    """Encode the end of a record: its headers, whose values may be null."""
    if not headers:
        return NO_HEADERS
    parts = [_varint(len(headers))]
    for name, value in headers:
        parts += [_nullable(name.encode()), _nullable(value)]
    return b"".join(parts)


def record_pieces(
    place: int, delta_ms: int, key: bytes | None, value: bytes | None, headers: bytes = NO_HEADERS
) -> tuple[bytes, ...]:
    """Encode a record, in pieces: a large value is not copied.

    It has the number `place` of its batch, `delta_ms` >= 0 after the first one; `headers` is what
    `written_headers` gives.
    """
    start = b"\0" + _varint(delta_ms) + _varint(place) if place else _FIRST
    start += _NULL if key is None else _nullable(key)
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
    """What a broker reads of a batch; `records` are values, keys and headers."""

    identity: ProducerIdentity
    sequence: int
    records: Sequence[tuple[bytes | None, bytes | None, Headers]]
    size: int

    @property
    def last(self) -> int:
        """The number of its last record."""
        return (self.sequence + len(self.records) - 1) % SEQUENCES


def read_batch(written: bytes) -> ReadBatch:
    """Decode a batch whose records are not compressed."""
    *_, producer, epoch, sequence, count = _BATCH.unpack_from(written, _BATCH_HEAD.size)
    place = BATCH_BYTES
    records = []
    for _ in range(count):
        _, place = _read_varint(written, place)
        _, place = _read_varint(written, place + 1)
        _, place = _read_varint(written, place)
        key, place = _read_nullable(written, place)
        value, place = _read_nullable(written, place)
        headers = []
        number, place = _read_varint(written, place)
        for _ in range(number):
            name, place = _read_nullable(written, place)
            content, place = _read_nullable(written, place)
            headers.append(((name or b"").decode(), content))
        records.append((value, key, headers))
    return ReadBatch(ProducerIdentity(producer, epoch), sequence, records, len(written))


def _read_varint(written: bytes, place: int) -> tuple[int, int]:
    rest = shift = 0
    while True:
        byte = written[place]
        place += 1
        rest |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return (rest >> 1) ^ -(rest & 1), place
        shift += 7


def _read_nullable(written: bytes, place: int) -> tuple[bytes | None, int]:
    size, place = _read_varint(written, place)
    return (None, place) if size < 0 else (written[place : place + size], place + size)
