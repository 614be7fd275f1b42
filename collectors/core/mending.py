"""Damage of logs and streams: how to detect it, and how the next epoch repairs it. No I/O.

Writers of the order topic are trusted, but a mistake must be repairable: a record that counts
cannot be revoked. And Kafka may lose the end of a partition after it was acknowledged. From the
streams of the running epoch the functions here compute what is damaged.

    too far     a log is ordered so far beyond its end that no collector fills it
    frozen      a freeze ended a stream although no plan ends its epoch there
    strayed     the positions of a stream contradict its parent's stream, or it has relayed another
                record than the parent's stream has there
    cut         a stream has lost its end: a collector has stated that, or a checkpoint that the
                control topic names is not there
    lost        a log has lost its end: nobody delivers it from there on

The repair of a log that is ordered too far is to fill it. For all other damage the epoch ends, and
the next one has the same layout. A lost log ends where the loss begins, in all its epochs, and gets
another life. The beginning of the next epoch repairs the contradictions between the streams:

    resumed     where a stream of the next epoch begins: at its own positions in this one. What
                other streams have ordered beyond them is restored (`restored_runs.py`)

Invariant: in its streams of both epochs together, a collector orders each offset of its logs once.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count

from collectors.core.collector import LIMITS
from multicast.order.stream import OrderStream
from topology.tree import Plan


class Harm(enum.StrEnum):
    """The kinds of damage of a stream."""

    TOO_FAR = "too far"
    FROZEN = "frozen"
    STRAYED = "strayed"
    CUT = "cut"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Damage:
    """One damage of a collector's stream, or of a log; `says` describes it in a sentence.

    `log` is the log that is lost, or ordered too far. Of one that is lost, `collector` is its top,
    or empty, and `first` the first offset that is lost.
    """

    harm: Harm
    collector: str
    says: str
    log: str = ""
    first: int = 0


@dataclass(frozen=True, slots=True)
class StreamRead:
    """A collector's stream, read to its end, and what it is compared with.

    `parent_positions` are the parent's positions after the records that this stream has relayed, or
    this stream's own where nothing can be compared; None if the parent has other or fewer records
    there. `marked` gives by log number the position up to which a log must be ordered before a
    freeze; None: no plan ends this epoch yet. `gone` is the lowest offset of a checkpoint that the
    control topic names and the stream lacks; None: it has all.
    """

    stream: OrderStream
    parent_positions: Mapping[int, int] | None = None
    marked: Mapping[int, int] | None = None
    gone: int | None = None
    is_lost: bool = False  # a collector has stated that the stream has lost its end

    @property
    def name(self) -> str:
        """The collector's name."""
        return self.stream.collector

    @property
    def is_cut(self) -> bool:
        """Whether the stream has lost its end."""
        return self.is_lost or self.gone is not None


# -- what is wrong --------------------------------------------------------------------------


def damage(
    streams: Iterable[StreamRead],
    log_ends: Mapping[str, int],
    *,
    lost: Collection[str] = (),
    fill_max: int | None = None,
) -> tuple[Damage, ...]:
    """Find all damage of streams; `log_ends` gives by log the offset that its next message gets.

    `fill_max` is how many offsets beyond a log's end collectors fill, if not their usual number;
    nobody fills a log that is `lost`.
    """
    fill_max = LIMITS.fill_max if fill_max is None else fill_max
    results: list[Damage] = []
    far: set[str] = {*lost}
    listed = list(streams)
    cut = {read.name for read in listed if read.is_cut}
    for read in listed:
        stream = f"the stream of collector {read.name}"
        harm = _harm(read)
        if harm is Harm.FROZEN:
            says = (
                f"{stream} was ended by a freeze that no plan asks for, so it orders nothing more"
            )
            results.append(Damage(harm, read.name, says))
        elif harm is Harm.STRAYED and read.stream.plan.collector(read.name).parent not in cut:
            says = f"{stream} contradicts its parent's stream, so it relays nothing more"
            if read.parent_positions is None:
                says += (
                    ": it has relayed what that one lacks. Where Kafka has lost the end of that "
                    "one, only --accept-loss keeps consumers of the two from different orders"
                )
            results.append(Damage(harm, read.name, says))
        if read.is_cut:
            how = "as a collector has stated"
            if read.gone is not None:
                how = f"at offset {read.gone} or before: the checkpoint that was there is gone"
            says = (
                f"{stream} has lost its end, {how}. Consumers that were beyond it stop with "
                f"Truncated, and begin anew with committed=False"
            )
            results.append(Damage(Harm.CUT, read.name, says))
        for log, position in read.stream.state.positions.items():
            name = read.stream.plan.logs[log].name
            beyond = position - log_ends.get(name, position)
            if beyond > fill_max and name not in far:
                far.add(name)
                says = (
                    f"log {name} is ordered {beyond} offsets beyond its end, and collectors fill "
                    f"at most {fill_max}, so its consumers wait"
                )
                results.append(Damage(Harm.TOO_FAR, read.name, says, name))
    return tuple(results)


def loss(plan: Plan, log: str, first: int, ordered: int, end: int) -> Damage:
    """Describe what a log has lost; it is ordered up to `ordered`, and ends at `end` now."""
    top = plan.top(log)
    says = (
        f"log {log} has lost what it held from offset {first} on (it was ordered up to {ordered}, "
        f"and ends at {end} now), so nobody delivers it from there on, and no position above "
        f"{first} stands"
    )
    return Damage(Harm.LOST, "" if top is None else top.name, says, log, first)


def _harm(read: StreamRead) -> Harm | None:
    stream = read.stream
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


def recovery_plan(plan: Plan, damaged: Collection[str], lost: Collection[str] = ()) -> Plan:
    """Make the plan of the next epoch: the same layout, but no damaged tree is retained.

    The stream of each damaged tree's root moves to the first Kafka partition of the order topic
    that no collector of this plan has, and each lost log gets another life. So both plans differ in
    that tree or log, and it is not retained (`topology/carry_over.py`).
    """
    roots = {_root(plan, name) for name in damaged}
    taken = {node.stream for node in plan.collectors}
    free = (number for number in count() if number not in taken)
    return replace(
        plan,
        epoch=plan.epoch + 1,
        base_epoch=plan.epoch,
        logs=tuple(
            replace(log, life=log.life + 1) if log.name in lost else log for log in plan.logs
        ),
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


def ordered_to(streams: Iterable[OrderStream]) -> dict[str, int]:
    """Give by log name the greatest position of any stream: the log has to be filled up to it."""
    furthest: dict[str, int] = {}
    for stream in streams:
        for log, position in stream.state.positions.items():
            name = stream.plan.logs[log].name
            furthest[name] = max(furthest.get(name, 0), position)
    return furthest


def resumed(
    streams: Mapping[str, OrderStream], ends: Mapping[str, int], cuts: Collection[str] = ()
) -> dict[str, dict[str, int]]:
    """Give by collector and log where a stream of the next epoch does not begin at the log's end.

    `streams` are the streams of the ending epoch, each read to its end, and `ends` where they end
    the logs. The result is empty after an ordinary change: there each collector has relayed all
    that its parent ordered. All streams begin alike in the logs that are cut.
    """
    begins: dict[str, dict[str, int]] = {}
    for name, stream in streams.items():
        for log in sorted(stream.inherited):
            position, log_name = stream.state.positions[log], stream.plan.logs[log].name
            if position != ends[log_name] and log_name not in cuts:
                begins.setdefault(name, {})[log_name] = position
    return begins
