"""Counts the order entries that a consumer reads in its collectors' streams, and those it drops.

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

from multicast.consuming.delivery import Delivery


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


class EntriesRead:
    """Adds up the counts of one consumer's deliveries, each of one epoch from one cursor on."""

    def __init__(self) -> None:
        self._read: dict[str, int] = {}
        self._dropped: dict[str, int] = {}
        self._current: Delivery | None = None

    def begin(self, delivery: Delivery) -> None:
        """Continue with this delivery; the one before it reads nothing more."""
        sums = self.sums()
        self._read, self._dropped = dict(sums.read), dict(sums.dropped)
        self._current = delivery

    def sums(self) -> ConsumerEntries:
        """Give the counts of all deliveries so far."""
        read, dropped = dict(self._read), dict(self._dropped)
        if self._current is not None:
            logs = self._current.plan.logs
            for log, count in sorted(self._current.entries_read().items()):
                name = logs[log].name
                read[name] = read.get(name, 0) + count
                if log not in self._current.logs:
                    dropped[name] = dropped.get(name, 0) + count
        return ConsumerEntries(read, dropped)
