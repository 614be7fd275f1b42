"""Where a block's entries stand in the logs, as the block's metadata says it.

An entry is a transaction of a block. Its *place* is the log and the offset of the record that it
came from. Every node of a chain reads the same records, so the places are the same at every node.
They let a reader of several chains follow the order in which the multicast delivers the records of
all these chains, and find each record in its chain's blocks. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ordering_osn.protos import DecodeError
from ordering_osn.wire.multichain_pb2 import BlockEntries

# More entries than a block of 100 MB (gRPC's limit here) can hold: metadata of a stranger's block
# must not expand to more. The smallest envelope with a channel header has some 20 bytes.
_ENTRIES_MAX = 5_000_000


class EntryPlace(NamedTuple):
    """The record of an entry: the name of its log, and its offset there."""

    log: str
    offset: int


class BadEntries(ValueError):
    """A block's metadata do not say where its entries stand; the text says why."""


def encode_entries(places: Iterable[EntryPlace]) -> bytes:
    """Serialize the places of a block's entries, in the entries' order."""
    logs: dict[str, int] = {}
    entries = BlockEntries()
    run = None
    for log, offset in places:
        index = logs.setdefault(log, len(logs))
        if run is not None and run.log == index and run.first + run.count == offset:
            run.count += 1
        else:
            run = entries.runs.add(log=index, first=offset, count=1)
    entries.logs.extend(logs)
    raw: bytes = entries.SerializeToString()
    return raw


def read_entries(raw: bytes, count: int) -> tuple[EntryPlace, ...]:
    """Read the places of the `count` entries of a block, in the one encoding that places have.

    Raises `BadEntries`.
    """
    try:
        entries = BlockEntries.FromString(raw)
    except DecodeError as error:
        raise BadEntries(f"the places of the entries cannot be decoded: {error}") from error
    stated = sum(run.count for run in entries.runs)
    if stated != count or count > _ENTRIES_MAX:
        raise BadEntries(f"the metadata say the places of {stated} entries; the block has {count}")
    if any(run.log >= len(entries.logs) for run in entries.runs):
        raise BadEntries("the metadata name a log by a number that is not in their list")
    places = tuple(
        EntryPlace(entries.logs[run.log], offset)
        for run in entries.runs
        for offset in range(run.first, run.first + run.count)
    )
    if encode_entries(places) != raw:
        raise BadEntries("the places of the entries are encoded in another way than ours")
    return places
