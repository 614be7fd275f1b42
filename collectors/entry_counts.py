"""Counts the order entries that one process handles for one collector: appended and read, by log.

An *entry* is one offset that an accepted order record names: one message ID, whatever Kafka holds
there (a message, a skip, an epoch marker, the mark of a transaction). Void records, sentinel
records and ticks are no entries. Whole runs are added, never single entries.

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

Invariant, while no instance catches up:
    what an instance has read of the parent's stream beyond what was relayed at its start, it has
    counted once. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from multicast.order import OrderRecord, OrderStream, Run
from topology.tree import Plan
from topology.work import collector_work


class EntryCounts:
    """The counts of one collector in one process, by the plan's log numbers.

    Changed with the core's lock held. The dicts may be copied from any thread.
    """

    def __init__(self) -> None:
        self.appended: dict[int, int] = {}
        self.read: dict[int, int] = {}
        self._writers: set[int] = set()  # of the instances of this process
        self._appended_count = 0  # accepted records of the own stream that were looked at
        self._read_count = 0  # the same of the parent's stream
        # Entries read before the instance had caught up; at most what its relay keeps.
        self._waiting: list[tuple[int, Sequence[Run]]] = []
        self._caught_up = False

    def begin(self, own: OrderStream, parent: OrderStream | None, writer: int) -> None:
        """Count for an instance that begins with these streams and signs with `writer`."""
        # All keys stand here from the start: a copy in another thread never meets a new one.
        for counts, stream in ((self.appended, own), (self.read, parent)):
            for log in stream.state.positions if stream is not None else ():
                counts.setdefault(log, 0)
        self._writers.add(writer)
        self._waiting.clear()
        self._caught_up = False

    def own_record(self, number: int, record: OrderRecord) -> None:
        """Take the accepted record `number` of the own stream, whoever wrote it."""
        if number <= self._appended_count:
            return
        self._appended_count = number
        if record.writer in self._writers:
            _add(self.appended, record.runs)

    def parent_record(self, number: int, runs: Sequence[Run], *, relayed: int) -> None:
        """Take the accepted record `number` of the parent's stream.

        `relayed` is how many of its records the own stream has relayed as far as it is read.
        """
        if number <= self._read_count:
            return
        if self._caught_up:
            self._read_count = number
            _add(self.read, runs)
        elif number > relayed:
            self._waiting.append((number, runs))

    def caught_up(self, relayed: int) -> None:
        """Note that the own stream was read to its end at the instance's start."""
        if self._caught_up:
            return
        self._caught_up = True
        self._read_count = max(self._read_count, relayed)
        for number, runs in self._waiting:
            self.parent_record(number, runs, relayed=relayed)
        self._waiting.clear()


def _add(counts: dict[int, int], runs: Sequence[Run]) -> None:
    for log, first, end in runs:
        counts[log] += end - first


@dataclass(frozen=True, slots=True)
class CollectorEntries:
    """Entries that one process has handled for a collector since it started, by log name.

    `relayed` are those of `appended` in logs that no consumer which reads the collector wants, and
    `dropped` those of `read` in logs outside its bag: both are foreign work. A log that the plan
    gives no such work is left out.
    """

    appended: Mapping[str, int]
    relayed: Mapping[str, int]
    read: Mapping[str, int]
    dropped: Mapping[str, int]


def entries_of(plan: Plan, name: str, counts: EntryCounts) -> CollectorEntries:
    """Sort a collector's counts by the work that its plan gives it; from any thread.

    A collector that later plans retain keeps its consumers, so its first plan stays right.
    """
    work = collector_work(plan, plan.collector(name))
    appended = {plan.logs[log].name: count for log, count in sorted(counts.appended.copy().items())}
    read = {plan.logs[log].name: count for log, count in sorted(counts.read.copy().items())}
    return CollectorEntries(
        appended=appended,
        relayed={log: count for log, count in appended.items() if log in work.relays},
        read=read,
        dropped={log: count for log, count in read.items() if log in work.drops},
    )
