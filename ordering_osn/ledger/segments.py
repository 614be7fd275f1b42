"""The files of a ledger: segments of blocks, their indexes, and the base file.

The format is in docs/ordering.md, "Ledger". Each function reads or writes a whole file or one
record; `ledger.py` decides which files exist, in which order, and who may write.

    mark      eight random bytes, drawn for each file; each of its records begins with them. A
              sender of transactions does not know them, so nobody can forge a record in a block
    record    mark, number, length, checksum, and the block's bytes
    bounds    the offsets at which the records of a segment begin, and the end of the last one
    base      the number of the ledger's oldest block; the file `base` holds it after a pruning

Invariant: record i of a segment is block first + i, and spans bounds[i] to bounds[i + 1].
"""

from __future__ import annotations

import os
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from crc32c import crc32c

from multicast.errors import UnknownVersion
from ordering_osn.ledger.errors import LedgerDamaged
from topology.files import sync_folder, write_bytes

VERSION = 1  # of the file format
BLOCKS, INDEX = ".blocks", ".index"
BASE_FILE = "base"

_SEGMENT_MAGIC, _INDEX_MAGIC, _BASE_MAGIC = b"amcastLS", b"amcastLI", b"amcastLB"
_HEADER = struct.Struct(">8sIQ8sI")  # magic, version, first, mark, crc32c of these
_RECORD = struct.Struct(">8sQII")  # mark, number, length, crc32c of these and the block
_INDEX_HEADER = struct.Struct(">8sIQ8sQ")  # magic, version, first, mark, count; bounds and crc32c
_CHECKSUM = struct.Struct(">I")

HEADER_BYTES, RECORD_BYTES = _HEADER.size, _RECORD.size
sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of blocks. `bounds` grows as the appender appends, while readers read."""

    path: Path
    first: int
    mark: bytes
    bounds: array[int]

    @property
    def next(self) -> int:
        """The number after its last block."""
        return self.first + len(self.bounds) - 1

    @property
    def end(self) -> int:
        """The offset at which its last record ends."""
        return self.bounds[-1]


class Scanned(NamedTuple):
    """The result of a scan: the intact records from the start on, and the bytes behind them."""

    segment: Segment | None  # None: not even the header is there
    rest: int  # bytes behind the last intact record
    resumes: int | None  # an intact block in that rest: then it is no torn tail


class KeptConfig(NamedTuple):
    """The config block below the base that the blocks from the base on refer to."""

    number: int
    raw: bytes


class Base(NamedTuple):
    """Where a ledger begins: its oldest block, and the config block in force there."""

    number: int
    kept: KeptConfig | None


# Segments


def segment_path(folder: Path, first: int) -> Path:
    """Return the path of the segment that begins with block `first`."""
    return folder / f"{first:020d}{BLOCKS}"


def create(folder: Path, first: int) -> tuple[Segment, int]:
    """Create an empty, synced segment; returns it and a descriptor to append with."""
    path, mark = segment_path(folder, first), os.urandom(8)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _write_all(descriptor, [_header(_SEGMENT_MAGIC, first, mark)], 0)
        os.fsync(descriptor)
        sync_folder(folder)
    except OSError:
        os.close(descriptor)
        path.unlink()
        raise
    return Segment(path, first, mark, array("Q", [HEADER_BYTES])), descriptor


def append(segment: Segment, descriptor: int, raw: bytes) -> int:
    """Write the next block behind the last one; returns its end, but does not add it to `bounds`.

    Raises OSError; then the file may be longer than `segment.end`.
    """
    head = _record_head(segment.mark, segment.next, raw)
    _write_all(descriptor, [head, raw], segment.end)
    return segment.end + RECORD_BYTES + len(raw)


def read(segment: Segment, number: int) -> bytes:
    """Read and check one block; raises `LedgerDamaged`, or FileNotFoundError if it was pruned."""
    index = number - segment.first
    start, end = segment.bounds[index], segment.bounds[index + 1]
    with segment.path.open("rb", buffering=0) as file:
        head = os.pread(file.fileno(), RECORD_BYTES, start)
        raw = os.pread(file.fileno(), end - start - RECORD_BYTES, start + RECORD_BYTES)
    if head != _record_head(segment.mark, number, raw):
        raise damaged(segment.path, start, f"block {number} is not what was written")
    return raw


def scan(path: Path) -> Scanned:
    """Read a segment from its start up to the first record that is not intact."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        header = file.read(HEADER_BYTES)
        opened = _parse_header(_SEGMENT_MAGIC, header)
        if opened is None:
            if size <= HEADER_BYTES or not any(header + file.read()):
                return Scanned(None, size, None)
            raise damaged(path, 0, "its header is not what was written")
        segment = Segment(path, *opened, array("Q", [HEADER_BYTES]))
        if path != segment_path(path.parent, segment.first):
            raise damaged(path, 0, f"it begins with block {segment.first}")
        while (raw := _intact(file, segment.mark, segment.next, size)) is not None:
            segment.bounds.append(segment.end + RECORD_BYTES + len(raw))
        file.seek(segment.end)
        # Another process may be appending behind `size`, or have written the header since.
        rest = file.read(max(0, size - segment.end))
        return Scanned(segment, len(rest), _resumes(rest, segment))


def _intact(file: BinaryIO, mark: bytes, number: int | None, size: int) -> bytes | None:
    """Read the record at the file's position; None where it is not intact or has another number.

    `number` None allows any number.
    """
    head = file.read(RECORD_BYTES)
    if len(head) < RECORD_BYTES:
        return None
    its_mark, its_number, length, _ = _RECORD.unpack(head)
    if its_mark != mark or number not in (None, its_number) or file.tell() + length > size:
        return None
    raw = file.read(length)
    return raw if head == _record_head(mark, its_number, raw) else None


def _resumes(rest: bytes, segment: Segment) -> int | None:
    """Return the block number of the first intact record in `rest`; None where there is none."""
    start = rest.find(segment.mark)
    while start >= 0:
        head = rest[start : start + RECORD_BYTES]
        if len(head) == RECORD_BYTES:
            _, number, length, _ = _RECORD.unpack(head)
            raw = rest[start + RECORD_BYTES : start + RECORD_BYTES + length]
            if head == _record_head(segment.mark, number, raw):
                return int(number)
        start = rest.find(segment.mark, start + 1)
    return None


# Indexes of full segments


def write_index(segment: Segment) -> None:
    """Write a full segment's index. It can be made from the segment again at any time."""
    head = _INDEX_HEADER.pack(
        _INDEX_MAGIC, VERSION, segment.first, segment.mark, len(segment.bounds)
    )
    body = head + struct.pack(f">{len(segment.bounds)}Q", *segment.bounds)
    _replace(segment.path.with_suffix(INDEX), body + _CHECKSUM.pack(crc32c(body)))


def read_index(path: Path) -> Segment | None:
    """Read the index of the segment at `path`; None if missing, damaged or another segment's."""
    try:
        written, size = path.with_suffix(INDEX).read_bytes(), path.stat().st_size
    except FileNotFoundError:
        return None
    body, checksum = written[: -_CHECKSUM.size], written[-_CHECKSUM.size :]
    if len(body) < _INDEX_HEADER.size or checksum != _CHECKSUM.pack(crc32c(body)):
        return None
    magic, version, first, mark, count = _INDEX_HEADER.unpack_from(body)
    if (magic, version) != (_INDEX_MAGIC, VERSION) or path != segment_path(path.parent, first):
        return None
    bounds = array("Q", struct.unpack_from(f">{count}Q", body, _INDEX_HEADER.size))
    return Segment(path, first, mark, bounds) if bounds and bounds[-1] == size else None


# Where the ledger begins


def write_base(folder: Path, base: Base) -> None:
    """Set where the ledger begins, atomically: a crash leaves the old base or the new one."""
    mark = os.urandom(8)
    written = _header(_BASE_MAGIC, base.number, mark)
    if base.kept is not None:
        written += _record_head(mark, base.kept.number, base.kept.raw) + base.kept.raw
    _replace(folder / BASE_FILE, written)


def read_base(folder: Path) -> Base:
    """Read where the ledger begins: block 0 where there is no base file."""
    path = folder / BASE_FILE
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return Base(0, None)
    with file:
        size = os.fstat(file.fileno()).st_size  # of the open file: it may be replaced now
        opened = _parse_header(_BASE_MAGIC, file.read(HEADER_BYTES))
        if opened is None:
            raise damaged(path, 0, "its header is not what was written")
        number, mark = opened
        if size == HEADER_BYTES:
            return Base(number, None)
        raw = _intact(file, mark, None, size)
        if raw is None or file.tell() != size:
            raise damaged(path, HEADER_BYTES, "the config block kept there is not what was written")
        file.seek(HEADER_BYTES)
        kept = _RECORD.unpack(file.read(RECORD_BYTES))[1]
    return Base(number, KeptConfig(kept, raw))


# What all of them share


def listed(folder: Path) -> list[Path]:
    """List the folder's segments, oldest first."""
    return sorted(folder.glob(f"{'[0-9]' * 20}{BLOCKS}"))


def damaged(path: Path, offset: int, what: str) -> LedgerDamaged:
    """Return the error for damage at a byte of a file; `what` names the block or the fault."""
    return LedgerDamaged(f"{path} is damaged at byte {offset}: {what}")


def _header(magic: bytes, first: int, mark: bytes) -> bytes:
    head = _HEADER.pack(magic, VERSION, first, mark, 0)[: -_CHECKSUM.size]
    return head + _CHECKSUM.pack(crc32c(head))


def _parse_header(magic: bytes, header: bytes) -> tuple[int, bytes] | None:
    """Return number and mark of a file's header; None where it is not an intact header."""
    if len(header) < HEADER_BYTES:
        return None
    its_magic, version, first, mark, checksum = _HEADER.unpack(header)
    if its_magic != magic or checksum != crc32c(header[: -_CHECKSUM.size]):
        return None
    if version != VERSION:
        raise UnknownVersion(
            f"the ledger has version {version}; this program reads version {VERSION}"
        )
    return first, mark


def _record_head(mark: bytes, number: int, raw: bytes) -> bytes:
    head = _RECORD.pack(mark, number, len(raw), 0)[: -_CHECKSUM.size]
    return head + _CHECKSUM.pack(crc32c(raw, crc32c(head)))


def _write_all(descriptor: int, parts: list[bytes], offset: int) -> None:
    """Write the parts one after the other from `offset` on, without copying them."""
    left = [memoryview(part) for part in parts if part]
    while left:
        written = os.pwritev(descriptor, left, offset)
        offset += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left:
            left[0] = left[0][written:]


def _replace(path: Path, written: bytes) -> None:
    """Replace the file atomically: a draft is written and synced, then renamed."""
    write_bytes(path, written, force=True)
    sync_folder(path.parent)
