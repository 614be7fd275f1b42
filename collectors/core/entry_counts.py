"""Counts the order entries that one process handles for one collector: appended and read, by log.

An *entry* is one offset that an order record which counts names: one message ID, whatever Kafka
holds there (a message, a skip, an epoch marker, the mark of a transaction). Void records, sentinel
records and ticks are no entries. A stream's positions say how many entries were read: so nothing is
added up while an instance reads new records of its parent, or its own.

    appended   entries of accepted records of the collector's own stream that this process wrote, of
               its own logs and of inherited ones. What another process wrote is not counted here,
               so the sum over all processes is what the stream holds
    read       entries of accepted records of the parent's stream that this process read. A standby
               reads that stream, too, so it counts them, and appends nothing meanwhile

`EntryCounts` outlives the instances that a process runs one after the other, so its counts begin
with the process. What an instance reads again to recover is not counted again:

    own stream       a record is counted at most once: the number of the last one is kept from
                     instance to instance
    parent's stream  as above; and nothing is counted that the own stream had relayed when the
                     instance had read it to its end. Until then new entries wait for that number.
                     Records that were dropped whole leave no trace in the own stream until it
                     relays a later one. So a new process counts those again that come after the
                     last record relayed

Invariants, by log, once an instance has caught up:
    read = the parent's position - where the entries that are new to this process begin;
    appended + what others wrote and what was counted before = how far the own stream has moved.

A record's *number* is the offset behind it, with which `parent_next` compares. Producers write
entries, too, which no collector appends; a record does not say who wrote it, so what an instance
had in flight when it failed is not counted, and of two equal records of two processes each one
counts what came first.
No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from multicast.order.runs import Run
from multicast.order.stream import OrderStream
from topology.tree import Plan
from topology.work import collector_work


class EntryCounts:
    """The counts of one collector in one process, by the plan's log numbers.

    Changed with the core's lock held; `appended` and `read` may be called from any thread.
    """

    def __init__(self) -> None:
        self._parent: OrderStream | None = None
        self._appended: dict[int, int] = {}
        self._own_number_max = 0  # over all instances: no record of our own up to here is new
        self._read_base: dict[int, int] | None = None  # read = the parent's positions - these
        self._read_kept: dict[int, int] = {}  # what is shown while an instance catches up
        self._read_number = 0  # records of the parent up to here are not new
        self._relayed_at_start: int | None = None  # None: our own stream is not read so far
        # Records read before the instance had caught up; at most what its relay keeps.
        self._waiting: list[tuple[int, Sequence[Run]]] = []

    def begin(self, own: OrderStream, parent: OrderStream | None) -> None:
        """Count for an instance that begins with these streams."""
        appended, read = self._appended, self.read()
        if self._parent is not None and self._read_base is not None:
            self._read_number = max(self._read_number, self._parent.offset_next)
        self._appended = {log: appended.get(log, 0) for log in own.state.positions}
        self._read_base = None
        inherited = () if parent is None else parent.state.positions
        self._read_kept = {log: read.get(log, 0) for log in inherited}
        self._parent = parent
        self._relayed_at_start = None
        self._waiting.clear()

    def own_record(self, number: int, runs: Sequence[Run], *, ours: bool) -> None:
        """Take the record `number` of the own stream, which counts; `ours`: we wrote it."""
        is_new = number > self._own_number_max
        self._own_number_max = max(self._own_number_max, number)
        for log, first, end in runs if is_new and ours else ():
            self._appended[log] += end - first

    def parent_record(self, number: int, runs: Sequence[Run], *, relayed: int) -> None:
        """Take the record `number` of the parent's stream.

        `relayed` is the number of the last one that the own stream has relayed, as far as it is
        read.
        """
        if self._read_base is None:
            if number > max(relayed, self._read_number):
                self._waiting.append((number, runs))
            self._settle()

    def caught_up(self, relayed: int) -> None:
        """Note that the own stream was read to its end at the instance's start."""
        if self._relayed_at_start is None:
            self._relayed_at_start = relayed
            self._settle()

    def _settle(self) -> None:
        """Count by the parent's positions from now on, if all that is not new is read."""
        if self._parent is None or self._relayed_at_start is None:
            return
        known = max(self._relayed_at_start, self._read_number)
        if self._parent.offset_next < known:
            return
        base = {
            log: position - self._read_kept[log]
            for log, position in self._parent.state.positions.items()
        }
        for number, runs in self._waiting:
            for log, first, end in runs if number > known else ():
                base[log] -= end - first
        self._waiting.clear()
        self._read_base = base

    def appended(self) -> dict[int, int]:
        """Give the entries appended by log number."""
        return self._appended

    def read(self) -> dict[int, int]:
        """Give the entries read in the parent's stream by log number."""
        parent, base = self._parent, self._read_base
        if parent is None or base is None:
            return self._read_kept
        return {log: end - base[log] for log, end in parent.state.positions.copy().items()}


@dataclass(frozen=True, slots=True)
class CollectorEntries:
    """Entries that one process has handled for a collector since it started, by log name.

    `passed_on` are those of `appended` in logs that no consumer which reads the collector wants,
    and `dropped` those of `read` in logs outside its bag: both are foreign work. A log that the
    plan gives no such work is left out.
    """

    appended: Mapping[str, int]
    passed_on: Mapping[str, int]
    read: Mapping[str, int]
    dropped: Mapping[str, int]


def entries_of(plan: Plan, name: str, counts: EntryCounts) -> CollectorEntries:
    """Sort a collector's counts by the work that its plan gives it; from any thread.

    A collector that later plans retain keeps its consumers, so its first plan stays right.
    """
    work = collector_work(plan, plan.collector(name))
    appended = {plan.logs[log].name: count for log, count in sorted(counts.appended().items())}
    read = {plan.logs[log].name: count for log, count in sorted(counts.read().items())}
    return CollectorEntries(
        appended=appended,
        passed_on={log: count for log, count in appended.items() if log in work.passes_on},
        read=read,
        dropped={log: count for log, count in read.items() if log in work.drops},
    )
