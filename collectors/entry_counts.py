"""Counts the order entries that one process handles for one collector: appended and read, by log.

An *entry* is one offset that an accepted order record names: one message ID, whatever Kafka holds
there (a message, a skip, an epoch marker, the mark of a transaction). Void records, sentinel
records and ticks are no entries. A stream's positions say how many entries were read: so nothing is
added up while an instance reads new records of its parent, or its own.

    appended   entries of accepted records of the collector's own stream that this process wrote, of
               its own logs and of inherited ones. What another process wrote is not counted here,
               so the sum over all processes is what the stream holds
    read       entries of accepted records of the parent's stream that this process read. A standby
               reads that stream, too, so it counts them, and appends nothing meanwhile

`EntryCounts` outlives the instances that a process runs one after the other, so its counts begin
with the process. What an instance reads again to recover is not counted again:

    own stream       a record is counted at most once: the number of accepted records counted so far
                     is kept from instance to instance
    parent's stream  as above; and nothing is counted that the own stream had relayed when the
                     instance had read it to its end. Until then new entries wait for that number.
                     Records that were dropped whole leave no trace in the own stream until it
                     relays a later one. So a new process counts those again that come after the
                     last record relayed, at most `CollectorLimits.relay_max` / 2

Invariants, by log, once an instance has caught up:
    read = the parent's position - where the entries that are new to this process begin;
    appended + what others wrote and what was counted before = how far the own stream has moved.

A record's *number* says where it is in its stream. In version 1 that is how many records were
accepted up to it. In version 2 it is the offset behind it, and `parent_next` compares with it.
There producers write entries, too, which no collector appends; a record does not say who wrote it,
so what an instance had in flight when it failed is not counted, and of two equal records of two
processes each one counts what came first.
No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from multicast.control import AnyStream
from multicast.order import OrderRecord, OrderStream, Run
from topology.tree import Plan
from topology.work import collector_work


class EntryCounts:
    """The counts of one collector in one process, by the plan's log numbers.

    Changed with the core's lock held; `appended` and `read` may be called from any thread.
    """

    def __init__(self) -> None:
        self._writers: set[int] = set()  # of the instances of this process
        self._own: OrderStream | None = None  # None in version 2: there `appended` is added up
        self._parent: AnyStream | None = None
        self._appended_base: dict[int, int] = {}  # appended = the own stream's positions - these
        self._appended_shown: dict[int, int] = {}  # the newest answer of `appended`
        self._own_number = 0  # the own stream's accepted records that `_appended_base` knows
        self._own_number_max = 0  # the same over all instances: none of these is new
        self._read_base: dict[int, int] | None = None  # as above, of the parent; None: catches up
        self._read_kept: dict[int, int] = {}  # what is shown meanwhile
        self._read_number = 0  # accepted records of the parent up to here are not new
        self._relayed_at_start: int | None = None  # None: our own stream is not read so far
        # Records read before the instance had caught up; at most what its relay keeps.
        self._waiting: list[tuple[int, Sequence[Run]]] = []

    def begin(self, own: AnyStream, parent: AnyStream | None, writer: int) -> None:
        """Count for an instance that begins with these streams and signs with `writer`."""
        appended, read = self.appended(), self.read()
        if self._parent is not None and self._read_base is not None:
            self._read_number = max(self._read_number, _read_to(self._parent))
        self._writers.add(writer)
        positions = own.state.positions
        self._own = None  # `appended` gives its newest answer while this changes
        self._appended_shown = {log: appended.get(log, 0) for log in positions}
        self._appended_base = {
            log: position - self._appended_shown[log] for log, position in positions.items()
        }
        self._own_number = own.count
        self._own = own if isinstance(own, OrderStream) else None
        self._read_base = None
        inherited = () if parent is None else parent.state.positions
        self._read_kept = {log: read.get(log, 0) for log in inherited}
        self._parent = parent
        self._relayed_at_start = None
        self._waiting.clear()

    def own_record(self, number: int, record: OrderRecord) -> None:
        """Take the accepted record `number` of the own stream, whoever wrote it."""
        is_new = number > self._own_number_max
        if is_new:
            self._own_number_max = number
        if not is_new or record.writer not in self._writers:
            for log, first, end in record.runs:
                self._appended_base[log] += end - first
        self._own_number = number

    def own_ticketed(self, number: int, runs: Sequence[Run], *, ours: bool) -> None:
        """Take the accepted record `number` of the own stream of version 2."""
        is_new = number > self._own_number_max
        self._own_number_max = max(self._own_number_max, number)
        for log, first, end in runs if is_new and ours else ():
            self._appended_shown[log] += end - first

    def parent_record(self, number: int, runs: Sequence[Run], *, relayed: int) -> None:
        """Take the accepted record `number` of the parent's stream.

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
        if _read_to(self._parent) < known:
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
        """Give the entries appended by log number; while a record is taken, those before it."""
        own, number = self._own, self._own_number
        if own is not None:
            positions, base = own.state.positions.copy(), self._appended_base.copy()
            if own is self._own and own.state.count == number == self._own_number:
                self._appended_shown = {log: positions[log] - base[log] for log in positions}
        return self._appended_shown

    def read(self) -> dict[int, int]:
        """Give the entries read in the parent's stream by log number."""
        parent, base = self._parent, self._read_base
        if parent is None or base is None:
            return self._read_kept
        return {log: end - base[log] for log, end in parent.state.positions.copy().items()}


def _read_to(stream: AnyStream) -> int:
    """Give the number of the last record that was read."""
    return stream.count if isinstance(stream, OrderStream) else stream.offset_next


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
