"""The bundles of a ledger's sets, as a restart needs them: from the blocks, and from a file.

A restart reads the newest bundles of each set in the chain's blocks. Pruning would take blocks away
that hold some of them, so it first writes their places into a file beside the blocks. Without
bundles in the blocks below the new base there is no such file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ordering_osn.chain.blocks import consenter_of
from ordering_osn.chain.bundles.metadata import BlockBundles, PartPlace, read_block_bundles
from ordering_osn.chain.bundles.restart import RestoredSet, restored_sets
from ordering_osn.chain.bundles.sets import Chains
from ordering_osn.ledger.errors import LedgerDamaged, Pruned
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.protos import Block
from topology.documents import json_object
from topology.files import write_text

WINDOWS_FILE = "windows.json"
_SCHEMA_VERSION = 1  # of the file; another version was written by another program
_ID_BYTES = 32  # of SHA-256


def ledger_sets(ledger: Ledger, block: int) -> tuple[RestoredSet, ...]:
    """Give the sets of the chain right behind a block. Reads the blocks with their bundles.

    Raises `ValueError` for metadata that no correct node writes, `LedgerDamaged`, and `Pruned` for
    a `block` that was pruned.
    """
    known: dict[int, BlockBundles | None] = {}  # the links of several sets lead to the same blocks

    def read(number: int) -> BlockBundles | None:
        if number not in known:
            known[number] = _bundles(ledger, number)
        return known[number]

    if read(block) is None:
        raise Pruned(f"block {block} was pruned; the oldest one is {ledger.base}")
    return restored_sets(block, read, pruned=read_windows(ledger.folder))


def _bundles(ledger: Ledger, number: int) -> BlockBundles | None:
    if number < ledger.base:
        return None  # also of the config block that is kept
    return read_block_bundles(consenter_of(Block.FromString(ledger.read(number))).bundles)


def save_windows(ledger: Ledger, base: int) -> None:
    """Write into a ledger's folder what a restart needs of its blocks below `base`.

    Atomic, and synced. Writes nothing where these blocks have no bundles. Raises as `ledger_sets`.
    """
    if base <= ledger.base:
        return
    sets = [
        {
            "chains": entry.chains,
            "places": [[place.bundle_id.hex(), place.block, place.index] for place in entry.places],
        }
        for entry in ledger_sets(ledger, base - 1)
        if entry.places
    ]
    if not sets:
        return
    document = {"schema_version": _SCHEMA_VERSION, "sets": sets}
    write_text(ledger.folder / WINDOWS_FILE, json.dumps(document), force=True)


def read_windows(folder: Path) -> Mapping[Chains, Sequence[PartPlace]]:
    """Read the file of a ledger's folder; empty where there is none. Raises `LedgerDamaged`."""
    path = folder / WINDOWS_FILE
    try:
        document = json_object(path.read_bytes())
        known = document["schema_version"] == _SCHEMA_VERSION
        windows = {
            _chains(entry["chains"]): tuple(_place(*place) for place in entry["places"])
            for entry in document["sets"]
        }
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerDamaged(
            f"{path} is not what a pruning wrote ({error}); copy the ledger of another node"
        ) from error
    if not known:
        raise LedgerDamaged(f"{path} has version {document['schema_version']}; use that program")
    return windows


def _chains(names: list[str]) -> Chains:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("a set is not a list of names")
    return tuple(names)


def _place(bundle_id: str, block: int, index: int) -> PartPlace:
    place = PartPlace(bytes.fromhex(bundle_id), block, index)
    if len(place.bundle_id) != _ID_BYTES:
        raise ValueError(f"a bundle ID has {len(place.bundle_id)} bytes, not {_ID_BYTES}")
    for number in (block, index):
        if type(number) is not int or number < 0:
            raise ValueError(f"{number!r} is no number of a block, and no index")
    return place
