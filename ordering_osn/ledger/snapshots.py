"""Snapshots: copies of a ledger's newest blocks, from which another node can start.

A snapshot is a ledger folder like any other: the blocks from its base on, and the config block in
force there. A chain starts from the newest config block and the newest transactions, so a base far
enough below the height to include these is enough (docs/ordering.md, "Ledger").
"""

from __future__ import annotations

import shutil
from pathlib import Path

from multicast.errors import UsageError
from ordering_osn.ledger import segments
from ordering_osn.ledger.errors import LedgerDamaged
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.ledger.windows import save_windows


def snapshot(ledger: Ledger, to: Path, *, base: int) -> None:
    """Copy the blocks from `base` to the present height into the new folder `to`.

    Each block's checksum is checked. The folder appears complete and synced, or not at all. The
    ledger may grow meanwhile. Raises `UsageError` where `to` exists or cannot be created, or the
    ledger has no block `base`; `Pruned` where the ledger is pruned above `base` meanwhile.
    """
    if to.exists():
        raise UsageError(f"{to} exists already; name a folder that does not")
    height = ledger.height
    if not ledger.base <= base < height:
        raise UsageError(
            f"no snapshot from block {base}: {ledger.folder} holds blocks {ledger.base} to "
            f"{height - 1}"
        )
    draft = to.with_name(to.name + segments.DRAFT)
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{draft} cannot be created: {error.strerror}") from error
    try:
        segments.write_base(draft, ledger.base_at(base))
        save_windows(ledger, base, draft)
        with Ledger.open(draft, fsync="never") as copy:
            for number in range(base, height):
                copy.append(number, ledger.read(number))
        draft.rename(to)
        segments.sync_folder(to.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def restore(taken: Path, folder: Path) -> None:
    """Create the ledger `folder` from a snapshot, or any ledger folder; checks each block.

    Raises `LedgerDamaged` where the snapshot ends in an incomplete block; else as `snapshot`.
    """
    ledger = Ledger.open(taken, read_only=True)
    if ledger.torn_bytes:
        raise LedgerDamaged(
            f"{taken} ends with {ledger.torn_bytes} bytes of an incomplete block; "
            "take the snapshot again"
        )
    snapshot(ledger, folder, base=ledger.base)
