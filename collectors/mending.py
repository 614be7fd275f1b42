"""Damage by a wrong order record: how to detect it, and how the next epoch repairs it. No I/O.

Writers of the order topic are trusted, but a mistake must be repairable: a record with the right
digest is accepted, whatever its runs are, and cannot be revoked. From the streams of the running
epoch the functions here compute what is damaged, and which records a recovery has to write.

    too far     a log is ordered so far beyond its end that no collector fills it
    frozen      a freeze ended a stream although no plan ends its epoch there
    strayed     the positions of a stream contradict its parent's stream
    unreadable  the stream continues with a record of a version that this program does not know. In
                version 2 such a record is void, so this damage does not exist

The repair of a log that is ordered too far is to fill it. For all other damage the epoch ends, and
the next one has the same layout. Its beginning repairs the contradictions between the streams:

    resumed     where a stream of the next epoch begins: at its own positions in this one

In version 1 the repair is done by these records; in version 2 by `multicast/tickets/recovery.py`:

    owed        what a parent's stream has ordered and its child's has not. A recovery writes it
                into the child's next stream in the parent's order, before that epoch begins
    ahead       what a child's stream has ordered and its top's has not. A recovery writes it into
                the top's next stream; every collector leaves out what it has ordered before

Invariant: in its streams of both epochs together, a collector orders each offset of its logs once.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from collectors.collector import CollectorLimits
from collectors.ticket_core import LIMITS
from multicast.control import AnyStream, of_version_1
from multicast.order import ORDERED_MAX, OrderRecord, OrderStream, RecordKind, Resumed, Run
from topology.tree import ORDER_VERSION_FIRST, Plan

_RUNS_MAX = CollectorLimits().runs_max  # in one record that a recovery writes


class Harm(enum.StrEnum):
    """The kinds of damage of a stream."""

    TOO_FAR = "too far"
    FROZEN = "frozen"
    STRAYED = "strayed"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Damage:
    """One damage of a collector's stream; `says` describes it in a sentence."""

    harm: Harm
    collector: str
    says: str


@dataclass(frozen=True, slots=True)
class StreamRead:
    """A collector's stream, read to its end, and what it is compared with.

    `parent_positions` are the parent's positions after the records that this stream has relayed, or
    this stream's own where nothing can be compared; None if the parent has fewer records. `marked`
    gives by log number the position up to which a log must be ordered before a freeze; None: no
    plan ends this epoch yet.
    """

    stream: AnyStream
    unknown_version: bool = False
    parent_positions: Mapping[int, int] | None = None
    marked: Mapping[int, int] | None = None

    @property
    def name(self) -> str:
        """The collector's name."""
        return self.stream.collector


# -- what is wrong --------------------------------------------------------------------------


def damage(
    streams: Iterable[StreamRead],
    log_ends: Mapping[str, int],
    *,
    fill_max: int | None = None,
) -> tuple[Damage, ...]:
    """Find all damage; `log_ends` gives by log name the offset that its next message gets.

    `fill_max` is how many offsets beyond a log's end collectors fill, if not their usual number.
    """
    results: list[Damage] = []
    far: set[str] = set()
    for read in streams:
        stream = f"the stream of collector {read.name}"
        beyond_max = fill_max_of(read.stream.plan) if fill_max is None else fill_max
        harm = _harm(read)
        if harm is Harm.UNREADABLE:
            says = (
                f"{stream} has at offset {of_version_1(read.stream).stop} a record of a version "
                f"that this program does not know, so nothing after it is delivered"
            )
            results.append(Damage(harm, read.name, says))
        elif harm is Harm.FROZEN:
            says = (
                f"{stream} was ended by a freeze that no plan asks for, so it orders nothing more"
            )
            results.append(Damage(harm, read.name, says))
        elif harm is Harm.STRAYED:
            says = f"{stream} contradicts its parent's stream, so it relays nothing more"
            results.append(Damage(harm, read.name, says))
        for log, position in read.stream.state.positions.items():
            name = read.stream.plan.logs[log].name
            beyond = position - log_ends.get(name, position)
            if beyond > beyond_max and name not in far:
                far.add(name)
                says = (
                    f"log {name} is ordered {beyond} offsets beyond its end, and collectors fill "
                    f"at most {beyond_max}, so its consumers wait"
                )
                results.append(Damage(Harm.TOO_FAR, read.name, says))
    return tuple(results)


def fill_max_of(plan: Plan) -> int:
    """Give how many offsets beyond a log's end collectors fill in a plan's epoch."""
    is_first = plan.order_version == ORDER_VERSION_FIRST
    return CollectorLimits().fill_max if is_first else LIMITS.fill_max


def _harm(read: StreamRead) -> Harm | None:
    stream = read.stream
    if read.unknown_version:
        return Harm.UNREADABLE
    if stream.state.frozen and not _may_be_frozen(read):
        return Harm.FROZEN
    return Harm.STRAYED if _strayed(read) else None


def _may_be_frozen(read: StreamRead) -> bool:
    if read.marked is None:
        return False
    positions = read.stream.state.positions
    return all(positions[log] >= end for log, end in read.marked.items() if log in read.stream.own)


def _strayed(read: StreamRead) -> bool:
    stream = read.stream
    if stream.plan.collector(stream.collector).parent is None:
        return False
    if read.parent_positions is None:
        return True
    return any(
        stream.state.positions[log] != max(read.parent_positions[log], stream.starts[log])
        for log in stream.inherited
    )


# -- the next epoch -------------------------------------------------------------------------


def recovery_plan(plan: Plan, damaged: Collection[str]) -> Plan:
    """Make the plan of the next epoch: the same layout, but no damaged tree is retained.

    The stream of each damaged tree's root moves to the first Kafka partition of the order topic
    that no collector of this plan has. So both plans differ in that tree, and it is not retained
    (`topology/carry_over.py`).
    """
    roots = {_root(plan, name) for name in damaged}
    taken = {node.stream for node in plan.collectors}
    free = (number for number in count() if number not in taken)
    return replace(
        plan,
        epoch=plan.epoch + 1,
        base_epoch=plan.epoch,
        collectors=tuple(
            replace(node, stream=next(free)) if node.name in roots else node
            for node in plan.collectors
        ),
    )


def same_trees(first: Plan, second: Plan) -> bool:
    """Whether two plans have the same collectors, logs and consumers; streams may differ."""

    def bare(plan: Plan) -> tuple[object, ...]:
        return (
            {(node.name, frozenset(node.bag), node.parent) for node in plan.collectors},
            [(log.name, log.topic, log.partition) for log in plan.logs],
            {(entry.name, entry.interest, entry.collector) for entry in plan.consumers},
        )

    return bare(first) == bare(second)


def _root(plan: Plan, name: str) -> str:
    node = plan.collector(name)
    while node.parent is not None:
        node = plan.collector(node.parent)
    return node.name


def ordered_to(streams: Iterable[AnyStream]) -> dict[str, int]:
    """Give by log name the greatest position of any stream: the log has to be filled up to it."""
    furthest: dict[str, int] = {}
    for stream in streams:
        for log, position in stream.state.positions.items():
            name = stream.plan.logs[log].name
            furthest[name] = max(furthest.get(name, 0), position)
    return furthest


def resumed(
    streams: Mapping[str, AnyStream], ends: Mapping[str, int]
) -> dict[str, dict[str, Resumed]]:
    """Give by collector and log where a stream of the next epoch does not begin at the log's end.

    `streams` are the streams of the ending epoch, each read to its end. The result is empty after
    an ordinary change: there each collector has relayed all that its parent ordered.
    """
    begins: dict[str, dict[str, Resumed]] = {}
    for name, stream in streams.items():
        parent = stream.plan.collector(name).parent
        above = streams[parent].state.positions if parent is not None else {}
        for log in sorted(stream.inherited):
            position = stream.state.positions[log]
            begin = Resumed(position, max(position, above[log]))
            log_name = stream.plan.logs[log].name
            end = ends[log_name]
            if (begin.position, begin.owed) != (end, end):
                begins.setdefault(name, {})[log_name] = begin
    return begins


# -- what a recovery writes into the next epoch's streams -----------------------------------


def left_out(child: OrderStream, runs: Iterable[Run]) -> Iterator[Run]:
    """Give the parts of a parent's runs that its child's stream has not ordered, in their order."""
    positions = dict(child.state.positions)
    for log, first, end in runs:
        if log in child.inherited and end > positions[log]:
            yield Run(log, max(first, positions[log]), end)
            positions[log] = end


def owed_record(stream: OrderStream, runs: Iterable[Run]) -> OrderRecord | None:
    """Make the next record with runs that a stream is owed; None if it is owed nothing more.

    `runs` are those of the parent's stream of the epoch before, in its order.
    """
    return _record(stream, RecordKind.PARENT, left_out(stream, runs))


def ahead_record(stream: OrderStream, furthest: Mapping[str, int]) -> OrderRecord | None:
    """Make the next record in which a top orders what streams below it have ordered already.

    None if there is nothing more.
    """
    missing = (
        Run(log, stream.state.positions[log], furthest[stream.plan.logs[log].name])
        for log in sorted(stream.own)
        if stream.state.positions[log] < furthest.get(stream.plan.logs[log].name, 0)
    )
    return _record(stream, RecordKind.OWN, missing)


def _record(stream: OrderStream, kind: RecordKind, runs: Iterable[Run]) -> OrderRecord | None:
    taken: list[Run] = []
    room = ORDERED_MAX
    for log, first, end in runs:
        taken.append(Run(log, first, min(end, first + room)))
        room -= taken[-1].next - first
        if room == 0 or len(taken) == _RUNS_MAX:
            break
    if not taken:
        return None
    return OrderRecord(kind, stream.state.digest, stream.state.parent_next, tuple(taken))


def freeze_record(stream: OrderStream) -> OrderRecord:
    """Make the record that ends a stream at its present positions."""
    return OrderRecord(RecordKind.FREEZE, stream.state.digest, stream.state.parent_next, ())
