"""The ledger of one chain: an append-only folder of blocks, as bytes, each with a checksum.

In: serialized blocks, in the order of their numbers. Out: the same bytes, to any number of threads,
also after a crash. Nothing in a block is looked at, but by pruning, which must know the config
block that the others refer to. Bytes and promises: docs/ordering.md, "Ledger"; the files are
`segments.py`'s.

    base      number of the oldest block of the unbroken part
    height    number of the next block
    kept      the config block in force at the base, where it is older than that
    newest    the segment that grows; all others are full, synced and have an index

Invariant: base <= height; every block from base to height - 1 can be read, and nothing else but the
kept block. What was read once reads the same for ever, until it is pruned.
"""

from __future__ import annotations

import bisect
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from multicast.errors import UsageError
from ordering_osn.chain.blocks import last_config_of
from ordering_osn.ledger import recovery, segments
from ordering_osn.ledger.errors import (
    LedgerDamaged,
    LedgerFailed,
    LedgerFull,
    LedgerLocked,
    NotNext,
    NotYet,
    Pruned,
)
from ordering_osn.ledger.recovery import LOG, Loaded
from ordering_osn.ledger.segments import Base, KeptConfig, Segment
from ordering_osn.protos import Block

__all__ = [
    "Ledger",
    "LedgerDamaged",
    "LedgerFailed",
    "LedgerFull",
    "LedgerLocked",
    "NotNext",
    "NotYet",
    "Pruned",
]

SEGMENT_BYTES_MAX = 64 << 20
_RECENT_BYTES_MAX = 8 << 20  # a reader that follows the end finds its block in memory


class Ledger:
    """One chain's blocks: one appender, any number of readers, made by `open`.

    `torn_bytes` is what the opening cut off behind the last intact block, 0 where nothing was;
    `indexes_rebuilt` how many indexes it made anew.
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
        self._locked: int | None = None  # the lock file's descriptor; None: read only, or closed
        self._appending: int | None = None  # the newest segment's descriptor
        self._failed: OSError | None = None
        self._base = Base(0, None)
        self._segments: tuple[Segment, ...] = ()
        self._height = 0
        self._recent: dict[int, bytes] = {}
        self._recent_bytes = 0
        self._watchers: tuple[Callable[[], None], ...] = ()

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        fsync: Literal["block", "never"] = "block",
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        first: int = 0,
        read_only: bool = False,
    ) -> Self:
        """Open the ledger in `folder`, or make one whose first block has the number `first`.

        With `fsync="block"` an appended block survives a power cut; with "never" the end of a crash
        of the process only. A torn tail is cut off, and what a crash left unfinished is finished.
        `read_only` changes and locks nothing, so that a running node's ledger can be looked at; it
        shows the blocks that were there at the opening. Raises `LedgerLocked`, `LedgerDamaged`.
        """
        ledger = cls(folder, fsync=fsync, segment_bytes_max=segment_bytes_max)
        if read_only:
            if not folder.is_dir():
                raise UsageError(f"there is no ledger in {folder}")
            ledger._take(recovery.load_read_only(folder))
            return ledger
        if not folder.is_dir():
            folder.mkdir(parents=True)
            segments.sync_folder(folder.parent)
        ledger._locked = recovery.lock(folder)
        try:
            if first and not (segments.listed(folder) or (folder / segments.BASE_FILE).exists()):
                segments.write_base(folder, Base(first, None))
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
        """The number of the oldest block that is kept without a gap; `height` where none is."""
        return self._base.number

    def append(self, number: int, raw: bytes) -> None:
        """Append the next block; readers see it, and are told, AFTER it is as safe as it gets.

        Raises `NotNext`; `LedgerFull`, after which the ledger is as before; `LedgerFailed`, after
        which nothing can be appended until it is opened anew.
        """
        with self._lock:
            self._may_write()
            if number != self._height:
                raise NotNext(
                    f"block {number} is not the next one, {self._height}, of {self.folder}"
                )
            newest, descriptor = self._segment_with_space()
            end = self._written(newest, descriptor, raw)
            newest.bounds.append(end)
            self._remember(number, raw)
            self._height = number + 1
            watchers = self._watchers
        for tell in watchers:
            try:
                tell()
            except Exception:  # noqa: BLE001 - the block is written, whatever becomes of readers
                LOG.exception("%s: a watcher of block %d failed", self.folder, number)

    def read(self, number: int) -> bytes:
        """Give a block's bytes: from `base` on, or the kept config block.

        Raises `NotYet`, `Pruned`, `LedgerDamaged`.
        """
        if number >= self._height:
            raise NotYet(f"block {number} is not there yet; the next one is {self._height}")
        raw = self._recent.get(number)
        if raw is not None:
            return raw
        present, base = self._segments, self._base  # pruning sets them the other way round
        if number < base.number:
            if base.kept is not None and base.kept.number == number:
                return base.kept.raw
            raise Pruned(f"block {number} was pruned; the oldest one is {base.number}")
        index = bisect.bisect_right(present, number, key=lambda segment: segment.first) - 1
        try:
            return segments.read(present[index], number)
        except FileNotFoundError:
            if self._locked is None:  # who only looks is not told of prunings
                self._base = segments.read_base(self.folder)
            if number < self._base.number:
                return self.read(number)
            raise segments.damaged(present[index].path, 0, "it is missing") from None

    def last(self) -> bytes | None:
        """Give the newest block; None where there is none."""
        height = self._height
        return self.read(height - 1) if height > self.base else None

    def config_at(self, number: int) -> int:
        """Give the number of the config block that block `number` refers to."""
        return last_config_of(Block.FromString(self.read(number)))

    def base_at(self, number: int) -> Base:
        """Give what a ledger that begins with block `number` has for a base."""
        config = self.config_at(number)
        return Base(number, KeptConfig(config, self.read(config)) if config < number else None)

    def prune(self, below: int) -> None:
        """Forget the blocks below `below`, but keep the config block in force there.

        All at once: after a crash the base is the old one or `below`. Space comes back by whole
        segments. The newest block stays: raises `UsageError` where `below` is beyond it.
        """
        with self._lock:
            self._may_write()
            if below <= self.base:
                return
            if below >= self._height:
                raise UsageError(
                    f"block {self._height - 1} is the newest of {self.folder}: it stays"
                )
            base = self.base_at(below)
            self._flush()  # what follows must not outlive the blocks it relies on
            try:
                segments.write_base(self.folder, base)
            except OSError as error:
                raise LedgerFull(f"{self.folder} was not pruned: {error}") from error
            self._base = base
            for number in [number for number in self._recent if number < below]:
                self._recent_bytes -= len(self._recent.pop(number))
            self._drop_pruned()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called in the appender's thread AFTER each append; gives what ends that.

        It must return at once. It may be called once more after it was ended.
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
        """Sync, and let go of the folder; blocks may still be read. Again does nothing."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Appending

    def _may_write(self) -> None:
        if self._failed is not None:
            raise LedgerFailed(f"{self.folder} must be opened anew: {self._failed}")
        if self._locked is None:
            raise UsageError(f"the ledger in {self.folder} is not open for writing")

    def _segment_with_space(self) -> tuple[Segment, int]:
        """Give the segment for the next block, and its descriptor; a full one is ended first."""
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
            raise LedgerFull(f"no segment could be made in {self.folder}: {error}") from error
        assert self._appending is not None
        return newest, self._appending

    def _written(self, newest: Segment, descriptor: int, raw: bytes) -> int:
        """Write a block; where that fails, the file is cut back to what it was."""
        try:
            end = segments.append(newest, descriptor, raw)
        except OSError as error:
            try:
                os.ftruncate(descriptor, newest.end)
            except OSError as worse:
                self._failed = worse
            raise LedgerFull(f"block {self._height} of {self.folder}: {error}") from error
        if self._sync:
            self._flush()
        return end

    def _flush(self) -> None:
        """Have the disk hold all blocks; whoever was told otherwise once is not believed again."""
        if self._appending is not None:
            try:
                segments.sync_file(self._appending)
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
        """Remove the segments below the base, oldest first, so that what is left has no gap."""
        pruned = [segment for segment in self._segments if segment.next <= self.base]
        self._segments = self._segments[len(pruned) :]
        for segment in pruned:
            segment.path.unlink()
            segment.path.with_suffix(segments.INDEX).unlink(missing_ok=True)
