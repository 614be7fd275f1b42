"""What all order records have in common: runs, bounds, digests, anchors and checksums. No I/O.

run         (log, first, next): the consecutive offsets first … next-1 of one log
anchor      names the stream of one collector in one epoch of one plan
checksum    of an order record: its CRC-32, by which readers tell it from another one at its place
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from multicast.drivers.protocol import Record
from topology.tree import DIGEST_BYTES

MAGIC = b"TO"
OFFSET_MAX = 2**63 - 1  # Kafka's offsets are signed 64-bit numbers
# The offsets that one record may order. Where a wrong record orders offsets beyond its log's end,
# `amcast topology recover` must append one skip for each: the bound limits the damage that one
# record can do. Correct ones stay far below.
ORDERED_MAX = 2**24


_CHECKED = struct.Struct(">QqI")  # offset, milliseconds since 1970, bytes of the key


class Run(NamedTuple):
    """The offsets first … next-1 of a log; `log` is its number in the plan."""

    log: int
    first: int
    next: int


def digest_of(raw: bytes) -> bytes:
    """BLAKE2b of these bytes, 16 bytes."""
    return hashlib.blake2b(raw, digest_size=DIGEST_BYTES).digest()


def order_checksum(record: Record) -> int:
    """Give the checksum of an order record: the CRC-32 of its offset, time, key and value.

    The time and the writer, which is the key, tell equal values apart. Never 0, which stands for
    no record.
    """
    key, value = record.key or b"", record.value or b""
    head = _CHECKED.pack(record.offset, record.timestamp_ms, len(key))
    return zlib.crc32(value, zlib.crc32(key, zlib.crc32(head))) or 1


def anchor(epoch: int, collector: str, began: bytes) -> bytes:
    """Name a collector's stream that begins in this epoch, in 16 bytes.

    `began` is the digest of the statement with which the epoch began. It names the plan and all
    that was stated before, so no record of another plan, epoch or collector has this tag.
    """
    return digest_of(b"amcast anchor\0%d\0%s\0%s" % (epoch, began, collector.encode()))


def ordered_by(runs: Sequence[Run]) -> int:
    """Count the offsets that these runs order."""
    return sum([end - first for _, first, end in runs])
