"""A proven lower bound of the cost of any tree, for components too large for the exact search.

1. Given the tree, the cost is a sum of terms that are linear in the rates of the logs. So the least
   cost is superadditive in the rates: if they are divided among several problems, the sum of the
   least costs of these is a lower bound. Here rates are rounded down to multiples of one unit, for
   what is left over only the hop is counted that each log needs, and the logs of a large component
   are divided into areas. A demand without a log in an area costs nothing there; demands that
   become equal in an area remain separate, because the tree may have them at different collectors.
2. Each area is solved to a bound by `light.py` (small bags, exactly) and `prices.py` (the others).
   Own logs have one hop in any tree, which is counted here.
3. A weight below one is cheaper to serve than a parent's entry is to drop; then drops are counted
   at the least weight. Limits only raise costs and are ignored; with hosts each hop costs as much
   as the cheapest link.

Budgets are steps, so the same input gives the same bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from topology.planner.cost import Measure, bits
from topology.planner.solver import PlannedPart, Solution
from topology.planner.watch import Watch
from topology.proof.boundaries import Budget, Exhausted, Restricted
from topology.proof.light import LightCollectors
from topology.proof.prices import DemandPrices, Numbers
from topology.tree import Plan

# Some 15 s of CPU for 50 interests, most of it for the level that is reached last. Each level needs
# five to seven times the steps of the one before (local1 of docs/planner.md).
STEPS_MAX = 4_000_000
# With more demands than the first number the logs are divided into areas, of so many demands as the
# second says. Divided bounds meet no tree, and small areas are coarse.
UNDIVIDED_DEMANDS_MAX, AREA_DEMANDS_MAX = 256, 128
# Of the rates of shared logs: finer ones make the bit sets longer and hardly tighten the bound.
UNITS_MAX = 256
LEVELS = 128  # at most so many up to the rate of all shared logs, and as many more up to all rates
# Below the highest, a level is priced if it has so many times as many collectors as the last one.
GROWN = 1.25
FULL_DEMANDS = 50  # components with fewer demands get fewer steps, by their number
FINE = 1 << 12  # prices are multiples of 1 / FINE


def proven(solution: Solution, *, effort: float = 1.0, watch: Watch | None = None) -> Plan:
    """Give the plan with its gap to a lower bound of the cost of all trees, which is proven here.

    `watch` is that of the search, or None. Blocks for seconds, with a thousand interests for
    minutes.
    """
    watch = watch or Watch()
    bound, cost = 0.0, solution.plan.objective.cost
    for number, part in enumerate(solution.parts, start=1):
        watch.begin(f"lower bound, part {number} of {len(solution.parts)}")
        bound += part.measure.cost(_bound_of(part, effort, watch))
    gap = 0.0 if cost <= bound else (cost - bound) / cost
    return replace(solution.plan, objective=replace(solution.plan.objective, gap=gap))


def _bound_of(part: PlannedPart, effort: float, watch: Watch) -> int:
    if part.exact:
        return part.price
    steps = int(STEPS_MAX * effort)
    return min(part.price, bounded(part.measure, steps=steps, price=part.price, watch=watch))


def bounded(
    measure: Measure,
    *,
    steps: int = STEPS_MAX,
    price: int | None = None,
    watch: Watch | None = None,
) -> int:
    """Give a lower bound of the price of any tree of the component, as an integer of `measure`.

    Costs are whole numbers of the measure, so the bound is rounded up. Once it is as high as the
    `price` of a tree that is known, the search ends: that tree is proven least. `steps` bounds the
    lists of all areas.
    """
    watch = watch or Watch()
    unit = _unit(measure)
    units = [rate // unit for rate in measure.rate]
    fixed = _outside(measure, units, unit)
    parts = [part for area in _areas(measure, units) for part in _parts(measure, area, units)]
    bounds = [sum(part.leaf(demand) for demand in range(len(part.weight))) for part in parts]
    whole = math.ceil(fixed + Fraction(sum(bounds) * unit, FINE))
    for place, part in enumerate(parts):
        share = steps * len(part.weight) // max(len(measure.weight), FULL_DEMANDS)
        for bound in _bounds(part, Budget(share), watch):
            bounds[place] = max(bounds[place], bound)
            whole = math.ceil(fixed + Fraction(sum(bounds) * unit, FINE))
            met = price is not None and whole >= price // measure.tie_work
            if watch.stopped() or met:
                break
    return whole * measure.tie_work


def _bounds(part: Restricted, budget: Budget, watch: Watch) -> Iterator[int]:
    """Raise the level of the light collectors as long as the budget allows; prove a bound each."""
    if len(part.weight) == 1 or part.drop == 0:
        return
    numbers: Numbers | None = None
    for light in _light_levels(part, budget):
        bound, numbers = DemandPrices(light).best(numbers, stopped=watch.stopped)
        yield bound


def _outside(measure: Measure, units: Sequence[int], unit: int) -> Fraction:
    """Price what is in no part: a hop of own logs, and of what rounding left over."""
    hop, total = measure.cheapest_hop() * measure.scale.phi.denominator, 0
    shared = [
        rate if mask & (mask - 1) else 0 for mask, rate in zip(measure.readers, units, strict=True)
    ]
    for weight, logs in zip(measure.weight, measure.needs, strict=True):
        counted = sum(shared[number] for number in bits(logs)) * unit
        total += weight * (measure.load(logs) - counted) * hop
    return Fraction(total)


def _unit(measure: Measure) -> int:
    """Choose the unit of the rates: few units for all shared logs, and if possible whole ones."""
    both = zip(measure.readers, measure.rate, strict=True)
    shared = [rate for mask, rate in both if mask & (mask - 1)]
    most = max(UNITS_MAX, 4 * len(measure.rate))
    least = max(math.gcd(*measure.rate), sum(shared) // most)
    common = math.gcd(*shared)
    counts = range(common // least, common // least // 4, -1)
    return next((common // count for count in counts if common % count == 0), least)


def _areas(measure: Measure, units: Sequence[int]) -> Iterator[list[int]]:
    """Divide the logs of many demands into areas of at most so many, or of one log.

    Each grows by the log that adds the fewest demands.
    """
    demands = len(measure.weight)
    most = demands if demands <= UNDIVIDED_DEMANDS_MAX else AREA_DEMANDS_MAX
    left = dict.fromkeys(number for number, rate in enumerate(units) if rate)
    while left:
        area: list[int] = []
        demands = 0
        around = {min(left): 0}
        while around:
            number = min(around, key=lambda n: ((measure.readers[n] & ~demands).bit_count(), n))
            joined = demands | measure.readers[number]
            if area and joined.bit_count() > most:
                break
            area.append(number)
            del left[number], around[number]
            for demand in bits(joined & ~demands):
                around.update((n, 0) for n in bits(measure.needs[demand]) if n in left)
            demands = joined
        yield area


def _parts(measure: Measure, logs: Iterable[int], units: Sequence[int]) -> Iterator[Restricted]:
    """Split the problem of some logs into connected parts."""
    groups: list[tuple[int, list[tuple[int, int]]]] = []
    for number in logs:
        joined, members = measure.readers[number], [(measure.readers[number], units[number])]
        apart = []
        for demands, others in groups:
            if demands & joined:
                joined, members = joined | demands, [*others, *members]
            else:
                apart.append((demands, others))
        groups = [*apart, (joined, members)]
    one, hop = measure.scale.weights, measure.cheapest_hop() * measure.scale.phi.denominator
    discard = measure.scale.phi.numerator * measure.scale.hops
    for demands, members in groups:
        place = {demand: number for number, demand in enumerate(bits(demands))}
        weighted = tuple(measure.weight[demand] for demand in place)
        masks: list[int] = []
        own = [0] * len(place)
        for mask, rate in members:
            if mask & (mask - 1):
                masks += [sum(1 << place[demand] for demand in bits(mask))] * rate
            else:
                own[place[mask.bit_length() - 1]] += rate
        drop = discard * min((one, *weighted))
        prices = hop * FINE, drop * FINE, discard * FINE
        yield Restricted(tuple(masks), weighted, *prices, own_rates=tuple(own))


def _light_levels(part: Restricted, budget: Budget) -> Iterator[LightCollectors]:
    """List light collectors at one level after the other, as far as the budget allows.

    Left out are levels with hardly more collectors than at the last one: a later one proves more.
    The highest is always given: heavy bags are larger there, even if it lists nothing new.
    """
    light, given, level = None, None, 0
    own = sum(part.own)
    while light is None or level < part.shared + own:
        # Bags of shared logs first, then larger ones: own rates may be a thousand times as great.
        level += max(1, (part.shared if level < part.shared else own) // LEVELS)
        try:
            light = LightCollectors(part, level, budget, lower=light)
        except Exhausted:
            break
        if light.count > (GROWN * given.count if given else 0):
            given = light
            yield light
    if light is not None and light is not given:
        yield light
