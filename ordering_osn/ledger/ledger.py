"""The ledger of one chain: an append-only folder of serialized blocks, each with a checksum.

Blocks are appended in the order of their numbers, and any number of threads read the same bytes
back, also after a crash. Only pruning decodes a block, to find the config block that the others
refer to. The file format and the guarantees are in docs/ordering.md, "Ledger"; `segments.py` reads
and writes the files.

    base      the number of the oldest block that is not pruned
    height    the number of the next block
    kept      the config block in force at the base, where it is older than the base
    newest    the segment that grows; all others are full, synced and have an index

Invariant: base <= height. Exactly the blocks from base to height - 1 and the kept block can be
read. A block reads the same until it is pruned.
"""

from __future__ import annotations

import bisect
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Self

from multicast.errors import AmcastError, UsageError
from ordering_osn.chain.blocks import last_config_of
from ordering_osn.ledger import recovery, segments
from ordering_osn.ledger.errors import (
    LedgerDamaged,
    LedgerFailed,
    LedgerFull,
    NotNext,
    NotYet,
    Pruned,
)
from ordering_osn.ledger.recovery import LOG, Loaded
from ordering_osn.ledger.segments import Base, KeptConfig, Segment
from ordering_osn.protos import Block
from topology.files import sync_folder

# Fabric's size of a block file. Opening reads the newest segment whole, and pruning frees space by
# whole segments; with ten times less, a chain of 1 TB would have 150,000 segments.
SEGMENT_BYTES_MAX = 64 << 20
# A few full blocks (2 MB, PreferredMaxBytes in docs/ordering.md), so that readers at the end of the
# chain need no disk. Each chain of the node takes so much memory.
_RECENT_BYTES_MAX = 8 << 20


class Ledger:
    """One chain's blocks: one appender, any number of readers. Create it with `open`.

    `torn_bytes` is how many bytes after the last intact block the opening found (and cut off,
    unless read-only); `indexes_rebuilt` is how many indexes were missing or damaged.
    """

    def __init__(
        self, folder: Path, *, fsync: Literal["block", "never"], segment_bytes_max: int
    ) -> None:
        self.folder = folder
        self.torn_bytes = 0
        self.indexes_rebuilt = 0
        self._sync = fsync == "block"
        self._segment_bytes_max = segment_bytes_max
        self._lock = threading.Lock()  # appending, pruning, closing; no reader takes it
        self._locked: int | None = None  # the lock file's descriptor; None: read-only or closed
        self._appending: int | None = None  # the newest segment's descriptor
        self._failed: OSError | None = None
        self._base = Base(0, None)
        self._segments: tuple[Segment, ...] = ()
        self._height = 0
        self._recent: dict[int, bytes] = {}
        self._recent_bytes = 0
        self._unread: int | None = None  # the number of the last block that could not be read
        self._watchers: tuple[Callable[[], None], ...] = ()

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        fsync: Literal["block", "never"] = "block",
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        read_only: bool = False,
    ) -> Self:
        """Open the ledger in `folder`, or create one.

        With `fsync="block"` an appended block survives a power cut; with "never" only a crash of
        the process. A torn tail is truncated, and a pruning that a crash interrupted is finished.
        `read_only` changes and locks nothing, so that it works on a running node's ledger; it
        shows the blocks that exist when it opens. Raises `LedgerLocked`, `LedgerDamaged`, and
        `UsageError` where there is no folder to open read-only.
        """
        ledger = cls(folder, fsync=fsync, segment_bytes_max=segment_bytes_max)
        if read_only:
            if not folder.is_dir():
                raise UsageError(f"there is no ledger in {folder}")
            ledger._take(recovery.load_read_only(folder))
            return ledger
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True)
            sync_folder(folder.parent)
        ledger._locked = recovery.lock(folder)
        try:
            loaded = recovery.load(folder)
            recovery.repair(folder, loaded)
            ledger._take(loaded)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def _take(self, loaded: Loaded) -> None:
        self._base, self._height = loaded.base, loaded.height
        self._segments = loaded.segments
        self.torn_bytes, self.indexes_rebuilt = loaded.torn_bytes, len(loaded.unindexed)

    @property
    def height(self) -> int:
        """The number of the next block."""
        return self._height

    @property
    def base(self) -> int:
        """The number of the oldest block that is not pruned; `height` where there is none."""
        return self._base.number

    def append(self, number: int, raw: bytes) -> None:
        """Append the next block. Readers see it, and watchers are called, AFTER it is safe.

        Safe means synced to disk with `fsync="block"`, else written. Raises `NotNext`;
        `LedgerFull`, which leaves the ledger as it was; `LedgerFailed`, after which nothing can
        be appended until the ledger is opened again.
        """
        with self._lock:
            self._may_write()
            if number != self._height:
                raise NotNext(
                    f"cannot append block {number} to {self.folder}: the next one is {self._height}"
                )
            newest, descriptor = self._segment_with_space()
            end = self._written(newest, descriptor, raw)
            newest.bounds.append(end)
            self._remember(number, raw)
            self._height = number + 1
            watchers = self._watchers
        for callback in watchers:
            try:
                callback()
            except Exception:  # noqa: BLE001 - the block is written; a watcher's error changes nothing
                LOG.exception("%s: a watcher of block %d failed", self.folder, number)

    def read(self, number: int) -> bytes:
        """Return the bytes of a block from `base` on, or of the kept config block.

        Raises `NotYet`, `Pruned`, `LedgerDamaged`.
        """
        if number >= self._height:
            raise NotYet(f"there is no block {number} yet; the next one is {self._height}")
        raw = self._recent.get(number)
        if raw is not None:
            return raw
        present, base = self._segments, self._base  # pruning sets the base first, then the segments
        if number < base.number:
            if base.kept is not None and base.kept.number == number:
                return base.kept.raw
            raise Pruned(f"block {number} was pruned; the oldest one is {base.number}")
        index = bisect.bisect_right(present, number, key=lambda segment: segment.first) - 1
        try:
            return segments.read(present[index], number)
        except FileNotFoundError:
            if self._locked is None:  # another process may have pruned since a read-only opening
                self._base = segments.read_base(self.folder)
            if number < self._base.number:
                return self.read(number)
            self._unread = number
            raise segments.damaged(present[index].path, 0, "it is missing") from None
        except (LedgerDamaged, OSError):
            self._unread = number
            raise

    def missing(self) -> str | None:
        """Say that the newest file is gone, to which blocks are appended; None where it is there.

        What is appended without it is lost at the next start.
        """
        newest = self._segments[-1].path if self._segments else None
        return None if newest is None or newest.exists() else f"{newest} is missing"

    def unread(self) -> str | None:
        """Read the last block again that could not be read; say why, if it still cannot.

        Appending goes on without it, and so does reading all other blocks.
        """
        number, self._unread = self._unread, None
        try:
            if number is not None:
                self.read(number)
        except Pruned:
            return None
        except (AmcastError, OSError) as error:
            self._unread = number
            return f"block {number}: {error}"
        return None

    def prune(self, below: int) -> None:
        """Remove the blocks below `below`; the config block in force there stays readable.

        Atomic: after a crash the base is the old one or `below`. Space is freed by whole segments.
        The newest block cannot be removed: raises `UsageError` where `below` is above it.
        """
        with self._lock:
            self._may_write()
            if below <= self.base:
                return
            if below >= self._height:
                raise UsageError(
                    f"cannot prune {self.folder} below {below}: its newest block is "
                    f"block {self._height - 1}, which must stay"
                )
            config = last_config_of(Block.FromString(self.read(below)))
            kept = KeptConfig(config, self.read(config)) if config < below else None
            base = Base(below, kept)
            self._flush()  # the new base must not reach the disk before the blocks after it
            try:
                segments.write_base(self.folder, base)
            except OSError as error:
                raise LedgerFull(f"{self.folder} was not pruned: {error}") from error
            self._base = base
            for number in [number for number in self._recent if number < below]:
                self._recent_bytes -= len(self._recent.pop(number))
            self._drop_pruned()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` in the appender's thread AFTER each append.

        It must return at once. Returns the function that ends the watch; the callback may be
        called once more after that.
        """

        def unwatch() -> None:
            with self._lock:
                self._watchers = tuple(each for each in self._watchers if each is not mine)

        def mine() -> None:
            callback()

        with self._lock:
            self._watchers = (*self._watchers, mine)
        return unwatch

    def close(self) -> None:
        """Sync and unlock the folder; blocks can still be read. A second call does nothing."""
        with self._lock:
            if self._locked is None:
                return
            try:
                if self._failed is None:
                    self._flush()
            finally:
                self._end_appending()
                os.close(self._locked)
                self._locked = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Appending

    def _may_write(self) -> None:
        if self._failed is not None:
            raise LedgerFailed(f"{self.folder} must be opened again after: {self._failed}")
        if self._locked is None:
            raise UsageError(f"the ledger in {self.folder} is not open for writing")

    def _segment_with_space(self) -> tuple[Segment, int]:
        """Return the segment for the next block and its descriptor; closes a full one first."""
        newest = self._segments[-1] if self._segments else None
        try:
            if newest is not None and self._appending is None:
                self._appending = os.open(newest.path, os.O_WRONLY)
            if newest is None or (
                newest.next > newest.first and newest.end >= self._segment_bytes_max
            ):
                self._flush()
                if newest is not None:
                    segments.write_index(newest)
                newest, descriptor = segments.create(self.folder, self._height)
                self._end_appending()
                self._appending = descriptor
                self._segments = (*self._segments, newest)
        except OSError as error:
            raise LedgerFull(f"no segment could be created in {self.folder}: {error}") from error
        assert self._appending is not None
        return newest, self._appending

    def _written(self, newest: Segment, descriptor: int, raw: bytes) -> int:
        """Write a block and return its end; where that fails, truncate the file to what it was."""
        try:
            end = segments.append(newest, descriptor, raw)
        except OSError as error:
            try:
                os.ftruncate(descriptor, newest.end)
            except OSError as worse:
                self._failed = worse
            raise LedgerFull(
                f"block {self._height} was not written to {self.folder}: {error}"
            ) from error
        if self._sync:
            self._flush()
        return end

    def _flush(self) -> None:
        """Sync all blocks to disk. After one failure a later success would prove nothing."""
        if self._appending is not None:
            try:
                segments.sync_data(self._appending)
            except OSError as error:
                self._failed = error
                raise LedgerFailed(f"{self.folder} could not be synced: {error}") from error

    def _remember(self, number: int, raw: bytes) -> None:
        self._recent[number] = raw
        self._recent_bytes += len(raw)
        while self._recent_bytes > _RECENT_BYTES_MAX:
            self._recent_bytes -= len(self._recent.pop(next(iter(self._recent))))

    def _end_appending(self) -> None:
        if self._appending is not None:
            os.close(self._appending)
            self._appending = None

    # Pruning

    def _drop_pruned(self) -> None:
        """Remove the segments below the base, oldest first, so that no gap appears."""
        pruned = [segment for segment in self._segments if segment.next <= self.base]
        self._segments = self._segments[len(pruned) :]
        for segment in pruned:
            segment.path.unlink()
            segment.path.with_suffix(segments.INDEX).unlink(missing_ok=True)
