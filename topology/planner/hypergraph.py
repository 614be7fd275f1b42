"""The interest hypergraph: its vertices are logs, its edges are the interests that need an order.

Goes in: an `InterestFile`. Comes out: the logs it declares, which of them each interest meets,
whether that hypergraph is alpha-acyclic, and the reduced components that the planner searches.
No solver, no files, no floating point in what is compared: rates, weights and phi become whole
numbers over one common denominator, so that ties are ties on every machine.

    demand      all consumers whose interests meet the same two or more logs, as one
    log class   all logs with the same demands (and the same leading host), as one
    component   demands that are connected through shared logs

Why the reductions lose nothing. Given a tree and who reads which collector, the cheapest bags put
a log exactly where its readers' places must be connected: that depends only on who reads it, so
logs with equal readers may always move together. Equal interests may always share the cheaper of
their places. And a bag that mixes two components can be split into two that cost no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from topology.interests import InterestFile
from topology.tree import Log, log_name


def declared_logs(interests: InterestFile) -> tuple[Log, ...]:
    """List the logs: the single partitions in the file's order, then the declared wider sets."""
    single = [
        Log(name=name, topic=interests.topic, partition=number)
        for number, name in enumerate(interests.partitions)
    ]
    wider = [
        Log(name=log_name(to), topic=f"{interests.topic}.groups", partition=number)
        for number, to in enumerate(interests.destinations)
    ]
    return (*single, *wider)


def logs_by_partition(interests: InterestFile) -> dict[str, tuple[str, ...]]:
    """Tell for each partition which logs' destination sets contain it, in the plan's order."""
    found: dict[str, list[str]] = {name: [] for name in interests.partitions}
    for log in declared_logs(interests):
        for partition in log.to:
            found[partition].append(log.name)
    return {name: tuple(logs) for name, logs in found.items()}


def logs_met(interests: InterestFile) -> dict[str, tuple[str, ...]]:
    """Tell for each consumer which logs meet its interest, sorted by name."""
    holding = logs_by_partition(interests)
    return {
        consumer.name: tuple(sorted({log for p in consumer.interest for log in holding[p]}))
        for consumer in interests.consumers
    }


# -- alpha-acyclicity -----------------------------------------------------------------------


def residue(edges: Iterable[frozenset[str]]) -> tuple[frozenset[str], ...]:
    """Reduce a hypergraph as Graham, Yu and Ozsoyoglu do, and give what cannot be reduced.

    Drop a vertex that stands in one edge only; drop an edge inside another; repeat. Nothing left
    means alpha-acyclic: a join tree exists whose bags are the edges themselves.
    """
    rest = sorted({edge for edge in edges if edge}, key=sorted)
    while True:
        count: dict[str, int] = {}
        for edge in rest:
            for vertex in edge:
                count[vertex] = count.get(vertex, 0) + 1
        shared = [frozenset(v for v in edge if count[v] > 1) for edge in rest]
        kept = _maximal(shared)
        if kept == rest:
            return tuple(kept)
        rest = kept


def _maximal(edges: Sequence[frozenset[str]]) -> list[frozenset[str]]:
    kept: list[frozenset[str]] = []
    holding: dict[str, list[frozenset[str]]] = {}
    for edge in sorted({edge for edge in edges if edge}, key=lambda e: (-len(e), sorted(e))):
        if not any(edge <= other for other in holding.get(min(edge), ())):
            kept.append(edge)
            for vertex in edge:
                holding.setdefault(vertex, []).append(edge)
    return sorted(kept, key=sorted)


def is_acyclic(edges: Iterable[frozenset[str]]) -> bool:
    """Whether the hypergraph is alpha-acyclic: then every collector can be one interest's own."""
    return not residue(edges)


# -- reduction ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Demand:
    """Consumers that need the same logs in one order. `weight` is scaled to a whole number."""

    consumers: tuple[str, ...]
    logs: tuple[str, ...]
    weight: int


@dataclass(frozen=True, slots=True)
class LogClass:
    """Logs that the same demands need; `readers` has bit i set where demand i needs them."""

    logs: tuple[str, ...]
    readers: int
    rate: int
    leader: str | None


@dataclass(frozen=True, slots=True)
class Component:
    """One connected part of the problem in whole numbers: demands are bits, classes are indices."""

    demands: tuple[Demand, ...]
    classes: tuple[LogClass, ...]

    @property
    def everyone(self) -> int:
        """The set of all demands."""
        return (1 << len(self.demands)) - 1


def exact(value: float) -> Fraction:
    """Give the fraction that the shortest decimal form of a float says: 0.1 is one tenth."""
    return Fraction(repr(float(value)))


@dataclass(frozen=True, slots=True)
class Reduced:
    """The problem in whole numbers: a rate is `rate / rates`, a weight `weight / weights`."""

    components: tuple[Component, ...]
    rates: int
    weights: int


def reduced(interests: InterestFile) -> Reduced:
    """Merge and split the problem; consumers that meet one log only take no part in it.

    Components are ordered by their first consumer in the file, demands within likewise.
    """
    met = logs_met(interests)
    groups: dict[tuple[str, ...], list[str]] = {}
    for consumer in interests.consumers:
        if len(met[consumer.name]) > 1:
            groups.setdefault(met[consumer.name], []).append(consumer.name)
    weight_of = {entry.name: exact(entry.weight) for entry in interests.consumers}
    wanted = sorted({log for logs in groups for log in logs})
    rate_of = {log: exact(interests.rate(log)) for log in wanted}
    bounds = interests.limits.collector_rate_max, interests.limits.collector_rate_wanted
    whole_too = [exact(bound) for bound in bounds if bound is not None]
    rates = math.lcm(*(rate.denominator for rate in (*rate_of.values(), *whole_too)))
    weights = math.lcm(*(weight.denominator for weight in weight_of.values()))
    demands = [
        Demand(
            consumers=tuple(names),
            logs=logs,
            weight=int(sum((weight_of[name] for name in names), Fraction()) * weights),
        )
        for logs, names in groups.items()
    ]
    whole = {log: int(rate * rates) for log, rate in rate_of.items()}
    leaders = dict(interests.hosts.leaders) if interests.hosts else {}
    components = tuple(_component(part, whole, leaders) for part in _connected(demands))
    return Reduced(components=components, rates=rates, weights=weights)


def _connected(demands: Sequence[Demand]) -> list[list[Demand]]:
    """Split demands into those connected through logs, in the order of their first members."""
    root = list(range(len(demands)))

    def find(number: int) -> int:
        while root[number] != number:
            root[number] = root[root[number]]
            number = root[number]
        return number

    first: dict[str, int] = {}
    for number, demand in enumerate(demands):
        for log in demand.logs:
            other = find(first.setdefault(log, number))
            mine = find(number)
            root[max(other, mine)] = min(other, mine)
    parts: dict[int, list[Demand]] = {}
    for number, demand in enumerate(demands):
        parts.setdefault(find(number), []).append(demand)
    return list(parts.values())


def _component(
    demands: Sequence[Demand], rates: dict[str, int], leaders: dict[str, str]
) -> Component:
    readers: dict[str, int] = {}
    for number, demand in enumerate(demands):
        for log in demand.logs:
            readers[log] = readers.get(log, 0) | 1 << number
    merged: dict[tuple[int, str], list[str]] = {}
    for log in sorted(readers):
        merged.setdefault((readers[log], leaders.get(log, "")), []).append(log)
    classes = tuple(
        LogClass(
            logs=tuple(logs),
            readers=mask,
            rate=sum(rates[log] for log in logs),
            leader=leader or None,
        )
        for (mask, leader), logs in merged.items()
    )
    return Component(demands=tuple(demands), classes=classes)
