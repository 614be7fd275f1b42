"""Reads the entries of a chain's ledger with their places, for `merge.py`.

Holds one block. The first one, of the genesis, says no places: its config is skipped. Reading a
block can block for as long as the disk does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ordering_osn.api.channels import Channel
from ordering_osn.chain.blocks import consenter_of
from ordering_osn.chain.bundles.metadata import BundleMetadata, read_block_bundles
from ordering_osn.chain.entries import EntryPlace, read_entries
from ordering_osn.ledger.errors import Pruned
from ordering_osn.protos import Block


class LedgerEntry(NamedTuple):
    """A transaction in a block; `bundle` where it is a part of one."""

    place: EntryPlace
    block: int
    number: int  # in the block, from 0
    envelope: bytes
    bundle: BundleMetadata | None = None


class LedgerEntries:
    """The entries of one chain; for one thread.

    Raises what reading the ledger raises, and `ValueError`s where a block cannot be understood.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._block = 0  # the next block to read
        self._entries: Sequence[LedgerEntry] = ()
        self._index = 0  # of the pointer, in `_entries`

    def seek(self, passed: Callable[[EntryPlace], bool]) -> None:
        """Go to the first block whose last entry is not passed; raises `Pruned`.

        A block is passed only if all before it are, so a search by halves finds it.
        """
        ledger = self._channel.ledger
        base = low = ledger.base
        high = ledger.height
        while low < high:
            middle = (low + high) // 2
            entries = self._read(middle)
            if not entries or passed(entries[-1].place):
                low = middle + 1
            else:
                high = middle
        self._block, self._entries, self._index = low, (), 0
        if low == base > 0:
            first = self.peek()
            if first is None or not passed(first.place):
                raise Pruned(
                    f"entries of {self._channel.name} behind this start may be in blocks below "
                    f"{base}, which this node has pruned; read from a later cursor or another node"
                )

    def peek(self) -> LedgerEntry | None:
        """Give the entry at the pointer; None where the ledger has none yet."""
        while self._index == len(self._entries):
            if self._block >= self._channel.ledger.height:
                return None
            self._entries, self._index = self._read(self._block), 0
            self._block += 1
        return self._entries[self._index]

    def skip(self) -> None:
        """Move the pointer behind the entry that `peek` gave."""
        self._index += 1

    def settled(self, log: str) -> int:
        """Give the offset in a log below which each record is in a durable block, or never is."""
        return self._channel.settled(log)

    def _read(self, number: int) -> Sequence[LedgerEntry]:
        """Read a block's entries; none where the block says no places."""
        block = Block.FromString(self._channel.ledger.read(number))
        consenter = consenter_of(block)
        envelopes = block.data.data
        if not consenter.entries:
            return ()
        places = read_entries(consenter.entries, len(envelopes))
        bundles = {part.index: part for part in read_block_bundles(consenter.bundles).parts}
        return [
            LedgerEntry(place, number, index, envelope, bundles.get(index))
            for index, (place, envelope) in enumerate(zip(places, envelopes, strict=True))
        ]
