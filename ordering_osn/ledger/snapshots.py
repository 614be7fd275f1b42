"""Snapshots: a ledger that begins at a later block, with all that a node needs to go on from there.

A snapshot is a ledger folder like any other: the blocks from its base on, and the config block in
force there. A chain starts again from the newest config block and the newest transactions, so a
base that far below the height is enough (docs/ordering.md, "Ledger").
"""

from __future__ import annotations

import shutil
from pathlib import Path

from multicast.errors import UsageError
from ordering_osn.ledger import segments
from ordering_osn.ledger.errors import LedgerDamaged
from ordering_osn.ledger.ledger import Ledger


def snapshot(ledger: Ledger, to: Path, *, base: int) -> None:
    """Copy the blocks from `base` on, as many as there are now, to the new folder `to`.

    Each block's checksum is checked. The folder appears as a whole and synced, or not at all. The
    ledger may grow meanwhile; where it is pruned meanwhile, beyond `base`, this raises `Pruned`.
    """
    if to.exists():
        raise UsageError(f"{to} exists already; name a folder that does not")
    height = ledger.height
    if not ledger.base <= base < height:
        raise UsageError(
            f"no snapshot from block {base}: {ledger.folder} holds {ledger.base} to {height - 1}"
        )
    draft = to.with_name(to.name + segments.DRAFT)
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{draft} cannot be made: {error.strerror}") from error
    try:
        segments.write_base(draft, ledger.base_at(base))
        with Ledger.open(draft, fsync="never") as copy:
            for number in range(base, height):
                copy.append(number, ledger.read(number))
        draft.rename(to)
        segments.sync_folder(to.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def restore(taken: Path, folder: Path) -> None:
    """Make the new ledger `folder` from a snapshot, or from any ledger folder, checking it all."""
    ledger = Ledger.open(taken, read_only=True)
    if ledger.torn_bytes:
        raise LedgerDamaged(f"{taken} ends in {ledger.torn_bytes} bytes that are no block")
    snapshot(ledger, folder, base=ledger.base)
