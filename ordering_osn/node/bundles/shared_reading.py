"""Reads each record of a bundle once for all chains of a node, which read the same logs.

To read a record of k parts, with their hashes, costs k times what an ordinary record costs, and k
chains of the node do it. So the first one leaves what it read for the others. What is read depends
on the bytes alone, and the bytes are the key: a chain gets what it would have read itself.

    left    of a remembered record: how many chains of its set have not asked for it

A record is forgotten when all have asked, and the oldest ones where more than `BYTES_MAX` are
remembered: one chain is far behind the others, or this node does not run all chains of the set.
May be called from any thread. The lock is held while a record is read, too: a chain that wants the
same one gets it then, and two threads would not read faster, as Python executes one at a time.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from ordering_osn.chain.bundles.log_records import (
    BundleRecord,
    encode_bundle_record,
    read_bundle_record,
)

# Of records, which take twice as much in memory: a thousand bundles of eight parts of 3.6 kB, so
# that chains that read batches of hundreds in turn find them.
BYTES_MAX = 32 << 20


@dataclass(slots=True)
class _Remembered:
    record: BundleRecord
    left: int


class SharedReading:
    """A `log_records.RecordReader` for all chains of a node."""

    def __init__(self, *, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._records: dict[bytes, _Remembered] = {}  # oldest first
        self._bytes = 0

    def read(self, raw: bytes) -> BundleRecord:
        """Read a bundle record; raises `BadLogRecord`, each time anew."""
        with self._lock:
            known = self._records.get(raw)
            if known is None:
                record = read_bundle_record(raw)
                self._remember(raw, record, len(record.bundle.parts) - 1)
                return record
            known.left -= 1
            if not known.left:
                self._forget(raw)
            return known.record

    def encoded(self, record: BundleRecord) -> bytes:
        """Encode a record that this node posts, and remember it: all its chains will read it."""
        raw = encode_bundle_record(record)
        with self._lock:
            if raw not in self._records:
                self._remember(raw, record, len(record.bundle.parts))
        return raw

    def _remember(self, raw: bytes, record: BundleRecord, left: int) -> None:
        self._records[raw] = _Remembered(record, left)
        self._bytes += len(raw)
        while self._bytes > self._bytes_max:
            self._forget(next(iter(self._records)))

    def _forget(self, raw: bytes) -> None:
        del self._records[raw]
        self._bytes -= len(raw)
