"""Give the entries of several chains in the one order that all their readers agree on.

No merge of ledgers gives such an order: an idle chain says nothing about when its next entry comes,
and a chain that nobody asked for may decide the order of two others. So the order is the
multicast's own. A consumer of all these chains gives the records of their logs; this module finds
for each record the entries that it made in the ledgers, by the places that blocks hold.

    record    of a log, as the consumer delivers it
    entry     a transaction in a block of one chain; its place names its record
    passed    per log: below this offset, each record came before the one at hand, or came to nobody
    settled   per chain and log: below this offset, each record is in a durable block, or never is

A chain's blocks hold their entries in the order of that chain's own stream, and every two streams
agree on the records that they have in common. So the entry at a ledger's pointer

    has the place of the record at hand:  the record made this entry
    is passed:                            it lies before the reader's start, and is skipped
    is any other, or is not there yet although the record is settled:   the record made no entry
    is not there yet, and the record is not settled:                    the reader waits

Invariant: what `MergedOrder.next` gives, and in which order, depends on the records and the
ledgers' entries alone; not on how fast the ledgers grow. No I/O of its own, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ordering_osn.api.multi.ledger_entries import LedgerEntries, LedgerEntry
from ordering_osn.chain.entries import EntryPlace


class OrderedRecord(NamedTuple):
    """A delivered record: its log and offset, the chains that it is for, the cursor behind it."""

    log: str
    offset: int
    to: tuple[str, ...]
    cursor: str


class MergedEntry(NamedTuple):
    """What one record made: the entries by chain, of those that the reader asked for."""

    cursor: str
    parts: tuple[tuple[str, LedgerEntry], ...]


class TornBundle(Exception):
    """The ledgers do not hold the same bundle at a record's place; the text says which."""


class MergedOrder:
    """The entries of the chains of `ledgers`, from where its records begin."""

    def __init__(self, ledgers: Mapping[str, LedgerEntries]) -> None:
        self._ledgers = dict(ledgers)
        self._records: deque[OrderedRecord] = deque()
        self._passed: dict[str, int] = {}
        self._sought = False

    @property
    def waits(self) -> bool:
        """Whether there are records whose entries were not given yet."""
        return bool(self._records)

    def take(self, records: Iterable[OrderedRecord], progress: Mapping[str, int]) -> None:
        """Take the next records of the order. Only where no earlier ones wait.

        `progress`: per log, the offset below which the consumer delivered all that it delivers,
        these records among it.
        """
        assert not self._records, "the earlier records come first"
        self._records.extend(records)
        first: dict[str, int] = {}
        for record in self._records:
            first.setdefault(record.log, record.offset)
        for log, offset in {**progress, **first}.items():
            self._passed[log] = max(self._passed.get(log, 0), offset)
        if self._records and not self._sought:
            for ledger in self._ledgers.values():
                ledger.seek(self._is_passed)
            self._sought = True

    def next(self) -> MergedEntry | None:
        """Give the next entry; None where there is none without more records or blocks.

        Raises `TornBundle`, and what reading a ledger raises.
        """
        while self._records:
            record = self._records[0]
            chains = [chain for chain in record.to if chain in self._ledgers]
            # No part is given before all are there, and a pointer moves only then.
            entries = []
            for chain in chains:
                entry, decided = self._look(self._ledgers[chain], record)
                if not decided:
                    return None
                entries.append((chain, entry))
            self._records.popleft()
            self._passed[record.log] = record.offset + 1
            made = [(chain, entry) for chain, entry in entries if entry is not None]
            if made:
                _refuse_torn(record, made, len(chains))
                for chain, _ in made:
                    self._ledgers[chain].skip()
                return MergedEntry(record.cursor, tuple(made))
        return None

    def _look(
        self, ledger: LedgerEntries, record: OrderedRecord
    ) -> tuple[LedgerEntry | None, bool]:
        """Give the entry that a record made in a ledger, and whether that is decided."""
        # Asked before the ledger is read: what is settled by now is in the ledger by then.
        settled = ledger.settled(record.log) > record.offset
        while (entry := ledger.peek()) is not None:
            if entry.place == (record.log, record.offset):
                return entry, True
            if not self._is_passed(entry.place):
                return None, True
            ledger.skip()
        return None, settled

    def _is_passed(self, place: EntryPlace) -> bool:
        return place.offset < self._passed.get(place.log, 0)


def _refuse_torn(record: OrderedRecord, made: list[tuple[str, LedgerEntry]], chains: int) -> None:
    bundles = {entry.bundle.bundle_id if entry.bundle else b"" for _, entry in made}
    if len(made) < chains or len(bundles) > 1:
        raise TornBundle(
            f"record {record.offset} of the log {record.log} made other entries in the blocks of "
            f"{' and '.join(record.to)}; verify these ledgers with 'amcast osn ledger verify'"
        )
