"""Recovery: read a ledger's folder after a crash (`load`), and truncate and repair it (`repair`).

`load` changes nothing; `repair` finishes what a crash interrupted. Anything that no crash can leave
behind is damage: it raises `LedgerDamaged` and is never truncated, because only the operator may
drop blocks that were acknowledged.

    torn tail   bytes behind the last intact record of the newest segment, none of them an intact
                record
    leftover    a segment below the base, which an interrupted pruning did not remove
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ordering_osn.ledger import segments
from ordering_osn.ledger.errors import LedgerDamaged, LedgerLocked
from ordering_osn.ledger.segments import Base, Scanned, Segment
from topology.files import DRAFT, sync_folder

LOG = logging.getLogger("amcast.ledger")
_LOCK_FILE = "lock"
# A pruning can overtake one load, or two. If it seems to overtake so many, the files are missing
# for another reason.
_LOADS_MAX = 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a folder holds. `segments` follow each other without a gap and end at the height."""

    base: Base
    height: int
    segments: tuple[Segment, ...]
    leftovers: tuple[Path, ...]
    unindexed: tuple[Segment, ...]
    torn_bytes: int
    headless: Path | None  # a newest segment that a crash left without its header


def lock(folder: Path) -> int:
    """Lock the folder for one writer; returns the descriptor that holds the lock."""
    descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace")
        os.close(descriptor)
        raise LedgerLocked(f"{folder} is in use by process {holder or '?'}") from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def load_read_only(folder: Path) -> Loaded:
    """Load a folder that another process may be writing to and pruning; raises `LedgerDamaged`."""
    for _ in range(_LOADS_MAX):
        base = segments.read_base(folder)
        try:
            return load(folder)
        except FileNotFoundError:
            continue
        except LedgerDamaged:
            if segments.read_base(folder) == base:
                raise
    raise LedgerDamaged(
        f"{folder} changed during each of {_LOADS_MAX} attempts to read it; stop its node and retry"
    )


def load(folder: Path) -> Loaded:
    """Read what the folder holds; raises `LedgerDamaged`."""
    base, paths = segments.read_base(folder), segments.listed(folder)
    present: list[Segment] = []
    unindexed: list[Segment] = []
    for path in paths[:-1]:
        segment = segments.read_index(path)
        if segment is None:
            segment = _intact(path, segments.scan(path), is_newest=False)
            unindexed.append(segment)
        present.append(segment)
    torn_bytes, headless = 0, None
    if paths:
        scanned = segments.scan(paths[-1])
        torn_bytes = scanned.rest
        if scanned.segment is None:
            headless = paths[-1]
        else:
            present.append(_intact(paths[-1], scanned, is_newest=True))
    height = _unbroken(folder, base, present)
    return Loaded(
        base=base,
        height=height,
        segments=tuple(segment for segment in present if segment.next > base.number)
        or tuple(present[-1:]),
        leftovers=tuple(segment.path for segment in present[:-1] if segment.next <= base.number),
        unindexed=tuple(unindexed),
        torn_bytes=torn_bytes,
        headless=headless,
    )


def repair(folder: Path, loaded: Loaded) -> None:
    """Repair a folder that this process has locked; no block that `load` found is lost."""
    for path in loaded.leftovers:
        path.unlink()
    if loaded.torn_bytes:
        LOG.warning(
            "%s: truncated %d bytes of an incomplete block behind block %d, left by a crash",
            *(folder, loaded.torn_bytes, loaded.height - 1),
        )
    if loaded.headless is not None:
        loaded.headless.unlink()
    if loaded.segments:
        _truncate(loaded.segments[-1])
    full = loaded.segments[:-1]
    for segment in loaded.unindexed:
        if segment in full:
            LOG.warning("%s: its index was missing or damaged; writing a new one", segment.path)
            segments.write_index(segment)
    current = {segment.path.with_suffix(segments.INDEX) for segment in full}
    for path in folder.glob(f"*{segments.INDEX}"):
        if path not in current:
            path.unlink()
    for path in folder.glob(f"*{DRAFT}"):
        path.unlink()
    sync_folder(folder)


def _truncate(segment: Segment) -> None:
    """Truncate a segment behind its last block, and sync it."""
    descriptor = os.open(segment.path, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, segment.end)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _intact(path: Path, scanned: Scanned, *, is_newest: bool) -> Segment:
    """Return the segment; raises `LedgerDamaged` where more than a torn tail is wrong with it."""
    segment = scanned.segment
    if segment is None:
        raise segments.damaged(path, 0, "it has no header")
    if scanned.resumes is not None:
        what = f"block {segment.next}, but block {scanned.resumes} behind it is intact"
        raise segments.damaged(path, segment.end, what)
    if scanned.rest and not is_newest:
        raise segments.damaged(
            path, segment.end, f"block {segment.next}, but there are later segments"
        )
    return segment


def _unbroken(folder: Path, base: Base, present: Sequence[Segment]) -> int:
    """Return the height; raises `LedgerDamaged` where blocks are missing."""
    if not present:
        return base.number
    first = present[0]
    if first.first > base.number:
        missing = f"blocks {base.number} to {first.first - 1} are missing before it"
        raise segments.damaged(first.path, 0, missing)
    for before, after in itertools.pairwise(present):
        if before.next != after.first:
            raise segments.damaged(after.path, 0, f"block {before.next} is missing before it")
    if present[-1].next < base.number:
        missing = f"blocks {present[-1].next} to {base.number} are missing"
        raise segments.damaged(folder / segments.BASE_FILE, 0, missing)
    return present[-1].next
