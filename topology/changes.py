"""What is different between two plans, in sentences and in figures; and rates from offsets.

Goes in: two plans, or two samples of offsets. Comes out: what moves, and what it does to everyone.
Pure. Collectors are told apart by name, as their processes and streams are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from topology.check import PlanRejected, TreeFigures, figures
from topology.interests import Interest, InterestFile, PlanLimits
from topology.tree import Plan

RATE_MIN = 0.001  # a log that was silent while we looked is not free
RATE_DIGITS = 3


def differences(old: Plan, new: Plan) -> tuple[str, ...]:
    """Name everything that moves from one plan to the other; empty: the layout is the same."""
    return (
        *_named("log", {e.name for e in old.logs}, {e.name for e in new.logs}),
        *_named("collector", {e.name for e in old.collectors}, {e.name for e in new.collectors}),
        *_collectors_moved(old, new),
        *_logs_moved(old, new),
        *_named("consumer", {e.name for e in old.consumers}, {e.name for e in new.consumers}),
        *_consumers_moved(old, new),
    )


def _named(what: str, old: set[str], new: set[str]) -> Iterator[str]:
    for name in sorted(new - old):
        yield f"{what} {name} is new"
    for name in sorted(old - new):
        yield f"{what} {name} is gone"


def _collectors_moved(old: Plan, new: Plan) -> Iterator[str]:
    for node in new.collectors:
        if not old.has_collector(node.name):
            continue
        before = old.collector(node.name)
        if before.parent != node.parent:
            yield f"collector {node.name} follows {node.parent} (was {before.parent})"
        gained, lost = sorted(set(node.bag) - set(before.bag)), set(before.bag) - set(node.bag)
        if gained:
            yield f"collector {node.name} takes on {', '.join(gained)}"
        if lost:
            yield f"collector {node.name} gives up {', '.join(sorted(lost))}"
        if before.host != node.host:
            yield f"collector {node.name} stands on {node.host} (was {before.host})"
        if before.stream != node.stream:
            yield f"collector {node.name} writes stream {node.stream} (was {before.stream})"


def _logs_moved(old: Plan, new: Plan) -> Iterator[str]:
    for log in new.logs:
        if old.has_log(log.name):
            before, after = old.top(log.name), new.top(log.name)
            was, now = before and before.name, after and after.name
            if was != now:
                yield f"log {log.name} enters the order at {now} (was {was})"


def _consumers_moved(old: Plan, new: Plan) -> Iterator[str]:
    for entry in new.consumers:
        before = old.subscription(entry.name)
        if before is None:
            continue
        if before.collector != entry.collector:
            yield f"consumer {entry.name} reads {entry.collector} (was {before.collector})"
        if before.interest != entry.interest:
            yield f"consumer {entry.name} takes {', '.join(entry.interest)}"
            yield f"consumer {entry.name} took {', '.join(before.interest)}"


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure before and after; None where the plan has no such entry."""

    what: str
    before: float | None
    after: float | None


def compared(old: Plan, new: Plan) -> tuple[FigureChange, ...]:
    """Compare two plans by their figures, each at the rates that it was planned for."""
    was, now = figures(old), figures(new)
    return (
        FigureChange("cost", was.cost, now.cost),
        FigureChange("hops", was.hops, now.hops),
        FigureChange("foreign", was.foreign, now.foreign),
        FigureChange("genuine %", 100 * was.genuineness, 100 * now.genuineness),
        *_rows("hops of", _hops(was), _hops(now)),
        *_rows("foreign to", _foreign(was), _foreign(now)),
        *_rows("load of", dict(was.loads), dict(now.loads)),
    )


def _hops(figures: TreeFigures) -> dict[str, float]:
    return {share.consumer: share.hops for share in figures.shares}


def _foreign(figures: TreeFigures) -> dict[str, float]:
    return {share.consumer: share.foreign for share in figures.shares}


def _rows(what: str, old: Mapping[str, float], new: Mapping[str, float]) -> Iterator[FigureChange]:
    for name in dict.fromkeys((*old, *new)):
        yield FigureChange(f"{what} {name}", old.get(name), new.get(name))


# -- rates ----------------------------------------------------------------------------------


def measured_rates(
    first: Mapping[str, int], last: Mapping[str, int], *, seconds: float
) -> dict[str, float]:
    """Turn two samples of end offsets by log name into messages/s, three digits each.

    Empty offsets (transaction markers) count as messages: the order names them all the same.
    """
    assert seconds > 0, "two samples are some time apart"
    rates = {}
    for name in sorted(first.keys() & last.keys()):
        rate = max(0, last[name] - first[name]) / seconds
        rates[name] = max(RATE_MIN, float(f"{rate:.{RATE_DIGITS}g}"))
    return rates


def with_rates(interests: InterestFile, rates: Mapping[str, float]) -> InterestFile:
    """Fill `[rates]` with measured ones; what the file itself says stays."""
    return replace(interests, rates={**rates, **interests.rates})


def with_running_logs(interests: InterestFile, running: Plan) -> InterestFile:
    """Keep every partition and destination set of the running plan, each in its place.

    Producers that have not heard of the new plan yet still send there: a log that no collector
    ordered would lose messages. So logs only grow in number; what is new comes after.
    """
    wider = [log.to for log in running.logs if log.topic != running.topic]
    return replace(
        interests,
        partitions=tuple(dict.fromkeys([*running.partitions, *interests.partitions])),
        destinations=tuple(dict.fromkeys([*wider, *interests.destinations])),
    )


def interests_of(plan: Plan) -> InterestFile:
    """Give the interest file that a plan answers; hosts are left out."""
    return InterestFile(
        topic=plan.topic,
        partitions=plan.partitions,
        destinations=tuple(log.to for log in plan.logs if log.topic != plan.topic),
        consumers=tuple(
            Interest(entry.name, entry.interest, entry.weight) for entry in plan.consumers
        ),
        rates=plan.rates,
        limits=PlanLimits(**plan.limits),  # type: ignore[arg-type] # its fields are numbers or None
    )


def refuse_moved_logs(running: Plan, plan: Plan) -> None:
    """Raise `PlanRejected` where a log of the running plan is missing or stands elsewhere."""
    for log in running.logs:
        if not plan.has_log(log.name):
            raise PlanRejected(
                f"log {log.name} of epoch {running.epoch} is missing, and producers may still send "
                f"there; plan with --against or --from-cluster, which keeps it"
            )
        now = plan.log(log.name)
        if (now.topic, now.partition) != (log.topic, log.partition):
            raise PlanRejected(
                f"log {log.name} would move from {log.topic}/{log.partition} to "
                f"{now.topic}/{now.partition}; plan with --against or --from-cluster, which "
                f"leaves it where it is"
            )


# -- names ----------------------------------------------------------------------------------


def with_kept_names(old: Plan, new: Plan) -> Plan:
    """Rename the new plan's collectors so that what stays keeps its name and its stream.

    Of all pairs the one with most logs in common comes first (then: most alike in size, then in
    the plans' order); pairs that share no log are not the same collector. What is left over takes
    the lowest names and streams that are free.
    """
    pairs = sorted(
        (
            (-len(bag & set(was.bag)), len(bag ^ set(was.bag)), here, there)
            for here, node in enumerate(new.collectors)
            for bag in [set(node.bag)]
            for there, was in enumerate(old.collectors)
            if not bag.isdisjoint(was.bag)
        ),
    )
    became: dict[int, int] = {}
    gone = set(range(len(old.collectors)))
    for _, _, here, there in pairs:
        if here not in became and there in gone:
            became[here] = there
            gone.discard(there)
    names = {here: old.collectors[there].name for here, there in became.items()}
    streams = {here: old.collectors[there].stream for here, there in became.items()}
    for here in range(len(new.collectors)):
        if here not in became:
            taken = {*names.values(), *(node.name for node in old.collectors)}
            names[here] = next(f"K{n}" for n in count(1) if f"K{n}" not in taken)
            streams[here] = next(n for n in count() if n not in streams.values())
    name_of = {node.name: names[here] for here, node in enumerate(new.collectors)}
    return replace(
        new,
        collectors=tuple(
            replace(
                node,
                name=names[here],
                stream=streams[here],
                parent=node.parent and name_of[node.parent],
            )
            for here, node in enumerate(new.collectors)
        ),
        consumers=tuple(
            replace(entry, collector=entry.collector and name_of[entry.collector])
            for entry in new.consumers
        ),
    )
