"""A proven lower bound of the cost of any tree: it says how good a plan is, and finds none.

1. Given the tree, the cost is a sum of terms that are linear in the rates of the logs. So the least
   cost is superadditive in the rates: if the logs are divided among areas, the sum of the least
   costs of the areas is a lower bound. A demand without a log in an area costs nothing there;
   demands that become equal in an area remain separate, because the tree may have them at
   different collectors.
2. An area has few demands, and all logs that only these read, so the exact search finds its least
   cost. Demands may be in several areas; their own logs are in the first of these.
3. Each log has a hop to each of its readers in any tree. That is all that is counted of a log with
   more readers than an area may have. Limits only raise costs and are ignored; with hosts each hop
   costs as much as the cheapest link.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from topology.interests import Hosts
from topology.planner.cost import NOWHERE, Measure, bits
from topology.planner.exact import SearchState, best_choices, choices
from topology.planner.reduction import Component
from topology.planner.solver import Solution
from topology.planner.watch import Watch
from topology.tree import Plan

# 4,140 families (`exact.py`): some 0.1 s of CPU for an area; seven demands take five times as long.
AREA_DEMANDS_MAX = 6


def proven(solution: Solution, *, watch: Watch | None = None) -> Plan:
    """Give the plan with its gap to a lower bound of the cost of all trees, which is proven here.

    `watch` is that of the search, or None. Blocks for seconds, with a thousand interests for half a
    minute.
    """
    watch = watch or Watch()
    bound, cost = 0.0, solution.plan.objective.cost
    for number, part in enumerate(solution.parts, start=1):
        watch.begin(f"lower bound, part {number} of {len(solution.parts)}")
        least = part.measure.cost(part.price)
        bound += least if part.exact else min(least, float(bounded(part.measure, watch=watch)))
    gap = 0.0 if cost <= bound else (cost - bound) / cost
    return replace(solution.plan, objective=replace(solution.plan.objective, gap=gap))


def bounded(measure: Measure, *, watch: Watch | None = None) -> Fraction:
    """Give a lower bound of the cost of any tree of the component, in the objective's unit.

    Areas that are left once `watch` says so count with their hops only.
    """
    watch = watch or Watch()
    bound = _hops(measure)
    for area in _areas(measure):
        if watch.stopped():
            break
        least = best_choices(choices(area))[SearchState(area.component.everyone, NOWHERE, None)]
        bound += Fraction(least[0] // area.tie_work, area.scale.cost) - _hops(area)
    return bound


def _hops(measure: Measure) -> Fraction:
    """Price one hop for each log that a demand needs: no tree has fewer."""
    entries = sum(w * load for w, load in zip(measure.weight, measure.loads, strict=True))
    unit = measure.scale.rates * measure.scale.weights * measure.scale.hops
    return Fraction(entries * measure.cheapest_hop(), unit)


def _areas(measure: Measure) -> Iterator[Measure]:
    """Divide the logs with few readers into areas; each grows by the log that adds fewest demands.

    An area's own logs are those of its demands that no earlier area has.
    """
    left = {n: mask for n, mask in enumerate(measure.readers) if mask.bit_count() > 1}
    left = {n: mask for n, mask in left.items() if mask.bit_count() <= AREA_DEMANDS_MAX}
    own = {n: mask for n, mask in enumerate(measure.readers) if mask.bit_count() == 1}
    while left:
        demands, around = 0, [left[min(left)]]
        while around:
            demands |= min(around, key=lambda mask: (mask & ~demands).bit_count())
            near = [mask for mask in left.values() if mask & demands and mask & ~demands]
            around = [m for m in near if (m | demands).bit_count() <= AREA_DEMANDS_MAX]
        inside = [n for n, mask in (left | own).items() if not mask & ~demands]
        yield _area(measure, demands, inside)
        for number in inside:
            left.pop(number, None)
            own.pop(number, None)


def _area(measure: Measure, demands: int, logs: list[int]) -> Measure:
    """Give the measure of some logs of a component, and of the demands that need one of them."""
    place = {demand: number for number, demand in enumerate(bits(demands))}
    entries = [measure.component.classes[number] for number in logs]
    area = Component(
        demands=tuple(measure.component.demands[demand] for demand in place),
        classes=tuple(
            replace(entry, readers=sum(1 << place[d] for d in bits(entry.readers)), leader=None)
            for entry in entries
        ),
    )
    scale = measure.scale
    hop = float(Fraction(measure.cheapest_hop(), scale.hops))
    return Measure(
        area,
        rates=scale.rates,
        weights=scale.weights,
        phi=scale.phi,
        hosts=Hosts(("",), ((hop,),), {}),
    )
