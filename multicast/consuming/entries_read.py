"""The order entries that a consumer reads in its collectors' streams, and those it drops.

An *entry* is one offset that an accepted order record names. A consumer reads the whole stream of
its collector and drops the entries of logs outside its interest: that is its foreign work. Entries
before the cursor, which a restart reads again to recover the order, are not counted. No I/O.

    read       since the consumer was opened, over all epochs, from each cursor on. After a return
               to an earlier cursor entries are delivered again, and counted again
    dropped    those of `read` in logs that its interest does not meet in the epoch

A single-log subscription reads no collector: all its counts are absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumerEntries:
    """Order entries that a consumer has read and dropped, by log name.

    `dropped` has only logs that were outside its interest in some epoch.
    """

    read: Mapping[str, int]
    dropped: Mapping[str, int]

    @property
    def genuineness(self) -> float | None:
        """Entries that were wanted / entries read; None if none was read."""
        read = sum(self.read.values())
        return (read - sum(self.dropped.values())) / read if read else None
