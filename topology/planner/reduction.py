"""The reduced components that the planner searches, in integers.

Compared values are never floating point: rates and weights become integers over a common
denominator, so ties are ties on every machine. No solver and no files.

    demand      all consumers whose interests meet the same logs (two or more), merged
    log class   all logs with the same demands, and leaders on the same host, merged
    component   demands that are connected through shared logs

Why the reductions do not change the best cost: Given a tree and the collector that each consumer
reads, the cheapest bags hold a log only at its readers' collectors and on the paths between them.
Those depend only on its readers, so logs with equal readers can always be in the same bags. Equal
interests can always share the cheaper of their collectors. A bag that mixes two components can be
split into two that cost no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from topology.interests import InterestFile
from topology.planner.hypergraph import logs_met


@dataclass(frozen=True, slots=True)
class Demand:
    """Consumers that need the same logs in one order. `weight` is scaled to an integer."""

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
    """One connected part of the problem. A set of demands is an integer: bit i is demand i."""

    demands: tuple[Demand, ...]
    classes: tuple[LogClass, ...]

    @property
    def everyone(self) -> int:
        """The set of all demands."""
        return (1 << len(self.demands)) - 1


def exact(value: float) -> Fraction:
    """Give the fraction of a float's shortest decimal form: 0.1 is one tenth."""
    return Fraction(repr(float(value)))


@dataclass(frozen=True, slots=True)
class Reduced:
    """The problem in integers. `rates` and `weights` are the common denominators.

    So a log class has `rate / rates` messages a second, a demand the weight `weight / weights`.
    """

    components: tuple[Component, ...]
    rates: int
    weights: int


def reduced(interests: InterestFile) -> Reduced:
    """Merge and split the problem; it leaves out consumers whose interest meets one log only.

    Components, and the demands in them, are ordered by their first consumers in the file.
    """
    met = logs_met(interests)
    groups: dict[tuple[str, ...], list[str]] = {}
    for consumer in interests.consumers:
        if len(met[consumer.name]) > 1:
            groups.setdefault(met[consumer.name], []).append(consumer.name)
    weight_of = {entry.name: exact(entry.weight) for entry in interests.consumers}
    wanted = sorted({log for logs in groups for log in logs})
    rate_of = {log: exact(interests.rate(log)) for log in wanted}
    limits = interests.limits.collector_rate_max, interests.limits.collector_rate_wanted
    limit_rates = [exact(limit) for limit in limits if limit is not None]
    rates = math.lcm(*(rate.denominator for rate in (*rate_of.values(), *limit_rates)))
    weights = math.lcm(*(weight.denominator for weight in weight_of.values()))
    demands = [
        Demand(
            consumers=tuple(names),
            logs=logs,
            weight=int(sum((weight_of[name] for name in names), Fraction()) * weights),
        )
        for logs, names in groups.items()
    ]
    scaled = {log: int(rate * rates) for log, rate in rate_of.items()}
    leaders = dict(interests.hosts.leaders) if interests.hosts else {}
    components = tuple(_component(part, scaled, leaders) for part in _connected(demands))
    return Reduced(components=components, rates=rates, weights=weights)


def find(root: list[int], number: int) -> int:
    """Find the representative of a number in a disjoint-set forest."""
    while root[number] != number:
        root[number] = root[root[number]]
        number = root[number]
    return number


def _connected(demands: Sequence[Demand]) -> list[list[Demand]]:
    """Split demands into groups that are connected through logs, ordered by first member."""
    root = list(range(len(demands)))
    first: dict[str, int] = {}
    for number, demand in enumerate(demands):
        for log in demand.logs:
            other = find(root, first.setdefault(log, number))
            mine = find(root, number)
            root[max(other, mine)] = min(other, mine)
    parts: dict[int, list[Demand]] = {}
    for number, demand in enumerate(demands):
        parts.setdefault(find(root, number), []).append(demand)
    return list(parts.values())


def _component(
    demands: Sequence[Demand], rate_of: dict[str, int], leaders: dict[str, str]
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
            rate=sum(rate_of[log] for log in logs),
            leader=leader or None,
        )
        for (mask, leader), logs in merged.items()
    )
    return Component(demands=tuple(demands), classes=classes)
