"""Comparison of two plans in sentences and in figures; rates from two samples of offsets.

It also keeps logs and collectors' names from one plan to the next. No I/O. Two collectors with the
same name are the same collector, as they are for processes and streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from topology.carry_over import retained
from topology.check import PlanRejected, figures
from topology.draw import shortened
from topology.interests import Interest, InterestFile, PlanLimits
from topology.tree import Log, Plan

# A log that was silent during the measurement must not cost nothing: the planner would then send it
# through every collector.
RATE_MIN_PER_S = 0.001
RATE_DIGITS = 3  # more digits of a sample of seconds are noise, and change the plan's digest


def differences(old: Plan, new: Plan) -> tuple[str, ...]:
    """List every change of the layout from one plan to the other; empty: the same layout."""
    return (
        *_named("log", {e.name for e in old.logs}, {e.name for e in new.logs}),
        *_named("collector", {e.name for e in old.collectors}, {e.name for e in new.collectors}),
        *_collectors_moved(old, new),
        *(f"log {e} enters the order at {now} (was {was})" for e, now, was in moved_logs(old, new)),
        *_named("consumer", {e.name for e in old.consumers}, {e.name for e in new.consumers}),
        *_consumers_moved(old, new),
        *_tickets_moved(old, new),
    )


def effects(old: Plan, new: Plan) -> tuple[str, str, str]:
    """Say whom the change from one plan to the next makes pause, who joins, and who is gone."""
    kept = retained(old, new)
    known = [entry for entry in new.consumers if old.subscription(entry.name) is not None]
    waits = [
        entry.name
        for entry in known
        if not any(log.name in kept.logs for log in new.logs_of(entry.interest))
    ]
    return (
        f"pause until the new epoch begins: {_who(waits, ())}",
        f"join: {_who(*_added(old, new))}",
        f"gone: {_who(*_added(new, old))}",
    )


def _added(old: Plan, new: Plan) -> tuple[list[str], list[str]]:
    return (
        [entry.name for entry in new.consumers if old.subscription(entry.name) is None],
        [node.name for node in new.collectors if not old.has_collector(node.name)],
    )


def _who(consumers: Sequence[str], collectors: Sequence[str]) -> str:
    named = [f"consumers {shortened(consumers)}"] if consumers else []
    named += [f"collectors {shortened(collectors)}"] if collectors else []
    return "; ".join(named) or "nobody"


def _tickets_moved(old: Plan, new: Plan) -> Iterator[str]:
    if old.tickets != new.tickets:
        yield f"producers write {'' if new.tickets else 'no '}tickets"


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
            yield (f"collector {node.name} is {_place(node.parent)} (was {_place(before.parent)})")
        gained, lost = sorted(set(node.bag) - set(before.bag)), set(before.bag) - set(node.bag)
        if gained:
            yield f"collector {node.name} takes on {', '.join(gained)}"
        if lost:
            yield f"collector {node.name} gives up {', '.join(sorted(lost))}"
        if before.host != node.host:
            yield f"collector {node.name} is on {node.host} (was {before.host})"
        if before.stream != node.stream:
            yield f"collector {node.name} writes stream {node.stream} (was {before.stream})"


def _place(parent: str | None) -> str:
    return "a root" if parent is None else f"below {parent}"


def moved_logs(old: Plan, new: Plan) -> Iterator[tuple[str, str | None, str | None]]:
    """List the logs that enter the order elsewhere: name, collector now, collector before."""
    for log in new.logs:
        if old.has_log(log.name):
            before, after = old.top(log.name), new.top(log.name)
            was = None if before is None else before.name
            now = None if after is None else after.name
            if was != now:
                yield log.name, now, was


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
    """One figure before and after; None: that plan has no such entry."""

    what: str
    before: float | None
    after: float | None


def compared(old: Plan, new: Plan) -> tuple[FigureChange, ...]:
    """Compare the figures of two plans, each at the rates in the plan itself."""
    both = was, now = figures(old), figures(new)
    hops = ({share.consumer: share.hops for share in each.shares} for each in both)
    foreign = ({share.consumer: share.foreign for share in each.shares} for each in both)
    foreign_at = (
        {share.collector: share.passed_on + share.dropped for share in each.collectors}
        for each in both
    )
    return (
        FigureChange("cost", was.cost, now.cost),
        FigureChange("hops", was.hops, now.hops),
        FigureChange("foreign", was.foreign, now.foreign),
        FigureChange("genuine %", 100 * was.genuineness, 100 * now.genuineness),
        *_rows("hops of", *hops),
        *_rows("foreign to", *foreign),
        *_rows("load of", dict(was.loads), dict(now.loads)),
        *_rows("foreign at", *foreign_at),
    )


def _rows(what: str, old: Mapping[str, float], new: Mapping[str, float]) -> Iterator[FigureChange]:
    for name in dict.fromkeys((*old, *new)):
        yield FigureChange(f"{what} {name}", old.get(name), new.get(name))


# -- rates ----------------------------------------------------------------------------------


def measured_rates(
    first: Mapping[str, int], last: Mapping[str, int], *, seconds: float
) -> dict[str, float]:
    """Turn two samples of end offsets by log name into messages/s, rounded to three digits.

    Offsets without a message (transaction markers) count, too: the order names them like messages.
    """
    assert seconds > 0, "two samples are some time apart"
    rates = {}
    for name in sorted(first.keys() & last.keys()):
        rate = max(0, last[name] - first[name]) / seconds
        rates[name] = max(RATE_MIN_PER_S, float(f"{rate:.{RATE_DIGITS}g}"))
    return rates


def with_rates(interests: InterestFile, rates: Mapping[str, float]) -> InterestFile:
    """Add measured rates to the interest file; a rate that the file states has precedence."""
    return replace(interests, rates={**rates, **interests.rates})


def with_running_logs(interests: InterestFile, running: Plan) -> InterestFile:
    """Add the running plan's partitions and destination sets, each at its old index.

    Producers that have not read the new plan still send to them, and messages in a log that nobody
    orders would be lost. So a plan never drops a log; new logs follow the old ones.
    """
    wider = [log.to for log in running.logs if log.topic != running.topic]
    return replace(
        interests,
        partitions=tuple(dict.fromkeys([*running.partitions, *interests.partitions])),
        destinations=tuple(dict.fromkeys([*wider, *interests.destinations])),
    )


def interests_of(plan: Plan) -> InterestFile:
    """Give the interest file for which a plan was made, without its hosts."""
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
    """Raise `PlanRejected` if the plan drops a running log or moves it to another partition."""
    for log in running.logs:
        if not plan.has_log(log.name):
            raise PlanRejected(
                f"log {log.name} of epoch {running.epoch} is missing, but producers may still send "
                f"to it; plan with --against or --from-cluster, which keep it"
            )
        now = plan.log(log.name)
        if (now.topic, now.partition) != (log.topic, log.partition):
            raise PlanRejected(
                f"log {log.name} would move from {log.topic}/{log.partition} to "
                f"{now.topic}/{now.partition}; plan with --against or --from-cluster, which "
                f"leave it where it is"
            )
        if now.life < log.life:
            raise PlanRejected(
                f"log {log.name} has life {log.life}, and {now.life} in this plan; plan with "
                f"--against or --from-cluster, which keep it"
            )


# -- names ----------------------------------------------------------------------------------


def with_lives(old: Plan, logs: Sequence[Log]) -> tuple[Log, ...]:
    """Give these logs with the lives that they have in the old plan."""
    return tuple(
        replace(log, life=old.log(log.name).life) if old.has_log(log.name) else log for log in logs
    )


def with_kept_names(old: Plan, new: Plan) -> Plan:
    """Give the new plan's collectors the names and streams of the old ones that they continue.

    Pairs of a new and an old collector are matched greedily: the pair with most logs in common
    first (then the smaller difference of the bags, then the plans' order). Collectors without a
    common log are never matched. Unmatched new collectors take the lowest free names and streams.
    The version of the order records stays that of the old plan.
    """
    pairs = sorted(
        (
            (-len(bag & set(was.bag)), len(bag ^ set(was.bag)), new_index, old_index)
            for new_index, node in enumerate(new.collectors)
            for bag in [set(node.bag)]
            for old_index, was in enumerate(old.collectors)
            if not bag.isdisjoint(was.bag)
        )
    )
    matches: dict[int, int] = {}
    unmatched = set(range(len(old.collectors)))
    for _, _, new_index, old_index in pairs:
        if new_index not in matches and old_index in unmatched:
            matches[new_index] = old_index
            unmatched.discard(old_index)
    names = {index: old.collectors[match].name for index, match in matches.items()}
    streams = {index: old.collectors[match].stream for index, match in matches.items()}
    for index in range(len(new.collectors)):
        if index not in matches:
            taken = {*names.values(), *(node.name for node in old.collectors)}
            names[index] = next(f"K{n}" for n in count(1) if f"K{n}" not in taken)
            streams[index] = next(n for n in count() if n not in streams.values())
    name_of = {node.name: names[index] for index, node in enumerate(new.collectors)}
    return replace(
        new,
        tickets=old.tickets,
        logs=with_lives(old, new.logs),
        collectors=tuple(
            replace(
                node,
                name=names[index],
                stream=streams[index],
                parent=node.parent and name_of[node.parent],
            )
            for index, node in enumerate(new.collectors)
        ),
        consumers=tuple(
            replace(entry, collector=entry.collector and name_of[entry.collector])
            for entry in new.consumers
        ),
    )
