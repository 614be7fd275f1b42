"""What a wrong order record has done to an epoch, and how the next one makes it good. Pure.

Writers of the order topic are trusted, but a mistake must be mendable: a record with the right
digest counts, whatever it says, and nobody can take it back. In go the streams of the running epoch
as far as they are read; out comes what is damaged, and what a recovery has to write.

    too far     a log is ordered so far beyond its end that no collector fills it
    frozen      a stream was ended by a freeze although no plan ends its epoch there
    strayed     a stream does not say what its parent's stream says
    unreadable  a record of a version that no program here knows continues the stream

A log that is too far is mended by filling it. For all the rest the epoch is ended, and the next has
the same layout. What the streams of the epoch disagree about is made good at the begin of the next:

    resumed     where each stream begins in the next epoch: where it stood itself
    owed        what a parent's stream has ordered and its child's has not. A recovery writes it
                into the child's next stream in the parent's order, before that epoch begins
    ahead       what a child's stream has ordered and its top's has not. A recovery writes it into
                the top's next stream; every collector leaves out what it has ordered before

Invariant: over the streams of both epochs every collector orders each offset of its logs once.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from collectors.collector import CollectorLimits
from multicast.order import ORDERED_MAX, OrderRecord, OrderStream, RecordKind, Resumed, Run
from topology.tree import Plan

_RUNS_MAX = CollectorLimits().runs_max  # in one record that a recovery writes


class Harm(enum.StrEnum):
    """What is wrong with a stream."""

    TOO_FAR = "too far"
    FROZEN = "frozen"
    STRAYED = "strayed"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong, of a collector's stream, in a sentence."""

    harm: Harm
    collector: str
    says: str


@dataclass(frozen=True, slots=True)
class StreamRead:
    """A collector's stream, read to its end, and what it is held to.

    `parent_positions` are the parent's after as many records as this one has relayed; None where
    the parent has fewer. `marked` says to where each log must be ordered before a freeze; None:
    nothing ends this epoch yet.
    """

    stream: OrderStream
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
    """Name what is wrong; `log_ends` are the offsets that the next appends to each log get."""
    beyond_max = CollectorLimits().fill_max if fill_max is None else fill_max
    found: list[Damage] = []
    far: set[str] = set()
    for read in streams:
        said = f"the stream of collector {read.name}"
        harm = _harm(read)
        if harm is Harm.UNREADABLE:
            says = (
                f"{said} is continued at offset {read.stream.stop} by a record of a version that "
                f"this program does not know, so nothing after it is delivered"
            )
            found.append(Damage(harm, read.name, says))
        elif harm is Harm.FROZEN:
            says = f"{said} was ended by a freeze that no plan asks for, so it orders nothing more"
            found.append(Damage(harm, read.name, says))
        elif harm is Harm.STRAYED:
            says = f"{said} does not say what its parent's says, so it relays nothing more"
            found.append(Damage(harm, read.name, says))
        for log, position in read.stream.state.positions.items():
            name = read.stream.plan.logs[log].name
            beyond = position - log_ends.get(name, position)
            if beyond > beyond_max and name not in far:
                far.add(name)
                says = (
                    f"log {name} is ordered {beyond} offsets beyond its end, and collectors fill "
                    f"{beyond_max} at most, so its consumers wait"
                )
                found.append(Damage(Harm.TOO_FAR, read.name, says))
    return tuple(found)


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
    """Lay the next epoch out as the running one, so that no damaged tree is carried over.

    The stream of each such tree's root moves to the first Kafka partition of the order topic that
    no collector of this plan has: then the trees are not the same (`topology/carry_over.py`).
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


def same_trees(one: Plan, other: Plan) -> bool:
    """Whether two plans differ in nothing that a collector or a consumer goes by but streams."""

    def bare(plan: Plan) -> tuple[object, ...]:
        return (
            {(node.name, frozenset(node.bag), node.parent) for node in plan.collectors},
            [(log.name, log.topic, log.partition) for log in plan.logs],
            {(entry.name, entry.interest, entry.collector) for entry in plan.consumers},
        )

    return bare(one) == bare(other)


def _root(plan: Plan, name: str) -> str:
    node = plan.collector(name)
    while node.parent is not None:
        node = plan.collector(node.parent)
    return node.name


def ordered_to(streams: Iterable[OrderStream]) -> dict[str, int]:
    """Give by log the furthest position of any stream: to there each log has to be filled."""
    furthest: dict[str, int] = {}
    for stream in streams:
        for log, position in stream.state.positions.items():
            name = stream.plan.logs[log].name
            furthest[name] = max(furthest.get(name, 0), position)
    return furthest


def resumed(
    streams: Mapping[str, OrderStream], ends: Mapping[str, int]
) -> dict[str, dict[str, Resumed]]:
    """Say where streams of the next epoch begin elsewhere than where the logs ended.

    `streams` are those that end, each read to its end. Empty after an ordinary change: there every
    collector has relayed all that its parent ordered.
    """
    found: dict[str, dict[str, Resumed]] = {}
    for name, stream in streams.items():
        parent = stream.plan.collector(name).parent
        above = streams[parent].state.positions if parent is not None else {}
        for log in sorted(stream.inherited):
            position = stream.state.positions[log]
            begin = Resumed(position, max(position, above[log]))
            log_name = stream.plan.logs[log].name
            end = ends[log_name]
            if (begin.position, begin.owed) != (end, end):
                found.setdefault(name, {})[log_name] = begin
    return found


# -- what a recovery writes into the next epoch's streams -----------------------------------


def left_out(child: OrderStream, runs: Iterable[Run]) -> Iterator[Run]:
    """Give of a parent's runs, in their order, what its child's stream has not ordered."""
    positions = dict(child.state.positions)
    for log, first, end in runs:
        if log in child.inherited and end > positions[log]:
            yield Run(log, max(first, positions[log]), end)
            positions[log] = end


def owed_record(stream: OrderStream, runs: Iterable[Run]) -> OrderRecord | None:
    """Make the next record that brings a stream to what it is owed; None where nothing is.

    `runs` are those of the parent's stream of the epoch before, in its order.
    """
    return _record(stream, RecordKind.PARENT, left_out(stream, runs))


def ahead_record(stream: OrderStream, furthest: Mapping[str, int]) -> OrderRecord | None:
    """Make the next record by which a top orders what streams below it have ordered before it."""
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
    """Make the record that ends a stream where it stands."""
    return OrderRecord(RecordKind.FREEZE, stream.state.digest, stream.state.parent_next, ())
