"""A proven lower bound of the cost of any tree, for components too large for the exact search.

1. Given the tree, the cost is a sum of terms that are linear in the rates of the logs. So the least
   cost is superadditive in the rates: if they are divided among several problems, the sum of the
   least costs of these is a lower bound. Here rates are rounded down to multiples of one unit, for
   what is left over only the hop is counted that each log needs, and the logs of a large component
   are divided into areas. A demand without a log in an area costs nothing there; demands that
   become equal in an area remain separate, because the tree may have them at different collectors.
2. Each area is solved to a bound by `light.py` (small bags, exactly) and `prices.py` (the others).
3. A weight below one is cheaper to serve than a parent's entry is to drop; then drops are counted
   at the least weight. Limits only raise costs and are ignored; with hosts each hop costs as much
   as the cheapest link.

Budgets are steps, so the same input gives the same bound. The linear program is solved by CBC.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from topology.planner.boundaries import Budget, Exhausted, Restricted, least_boundaries
from topology.planner.cost import Measure, bits
from topology.planner.integer_program import maximised
from topology.planner.light import LightCollectors
from topology.planner.prices import DemandPrices

# At most about 50 s of CPU for 50 interests, most of it for the level that is reached last. Each
# level needs five to seven times the steps of the one before, and its bound is 6 to 10 % higher.
STEPS_MAX = 12_000_000
AREA_DEMANDS_MAX = 64  # the program for the prices has a row for each two sizes of sets
UNITS_MAX = 256  # of all rates: finer ones make the bit sets longer and hardly tighten the bound
# Of prices and proofs, for one area and in all; a round takes about half a second of CPU.
ROUNDS, ROUNDS_IN_ALL = 4, 60
TRIED_LEVEL_MAX = 5  # levels up to this are tried against a known tree; each takes 0.1 to 1 s
FULL_DEMANDS = 50  # components with fewer demands get fewer steps, by their number
FINE = 1 << 12  # prices are multiples of 1 / FINE


def bounded(measure: Measure, *, steps: int = STEPS_MAX, enough: int | None = None) -> int:
    """Give a lower bound of the price of any tree of the component, as an integer of `measure`.

    Costs are whole numbers of the measure, so the bound is rounded up. Once it is as high as
    `enough`, the price of a known tree, the search ends: that tree is proven least. Blocks; starts
    solver processes and waits for their end. `steps` bounds the search of all areas.
    """
    whole = math.gcd(*measure.rate)
    most = max(UNITS_MAX, 4 * len(measure.rate))
    unit = max(whole, sum(measure.rate) // most)
    units = [rate // unit for rate in measure.rate]
    hop = measure.cheapest_hop() * measure.scale.phi.denominator
    total = Fraction()
    for weight, logs in zip(measure.weight, measure.needs, strict=True):
        left_over = sum(measure.rate[n] - units[n] * unit for n in bits(logs))
        total += weight * left_over * hop
    areas = list(_areas(measure, units))
    parts = [
        part
        for area in areas
        for part in _parts(measure, [(measure.readers[n], units[n]) for n in area], hop)
    ]
    target = None
    if enough is not None and len(parts) == 1:
        # Above the whole number before it, which `ceil` then rounds up.
        target = (Fraction(enough // measure.tie_work - 1) - total) * FINE / unit
    for part in parts:
        share = steps * len(part.weight) // max(len(measure.weight), FULL_DEMANDS)
        rounds = max(1, min(ROUNDS, ROUNDS_IN_ALL // len(areas)))
        total += Fraction(_part_bound(part, share, rounds, target) * unit, FINE)
    return max(0, math.ceil(total)) * measure.tie_work


def _areas(measure: Measure, units: Sequence[int]) -> Iterator[list[int]]:
    """Divide the logs into areas with few demands; each grows by the log that adds the fewest."""
    left = dict.fromkeys(number for number, rate in enumerate(units) if rate)
    while left:
        area: list[int] = []
        demands = 0
        around = {min(left): 0}
        while around:
            number = min(around, key=lambda n: ((measure.readers[n] & ~demands).bit_count(), n))
            joined = demands | measure.readers[number]
            if area and joined.bit_count() > AREA_DEMANDS_MAX:
                break
            area.append(number)
            del left[number], around[number]
            for demand in bits(joined & ~demands):
                around.update((n, 0) for n in bits(measure.needs[demand]) if n in left)
            demands = joined
        yield area


def _parts(measure: Measure, logs: Sequence[tuple[int, int]], hop: int) -> Iterator[Restricted]:
    """Split the problem of some logs, given by readers and rate, into connected parts."""
    groups: list[tuple[int, list[tuple[int, int]]]] = []
    for readers, rate in logs:
        joined, members = readers, [(readers, rate)]
        apart = []
        for demands, others in groups:
            if demands & joined:
                joined, members = joined | demands, [*others, *members]
            else:
                apart.append((demands, others))
        groups = [*apart, (joined, members)]
    one = measure.scale.weights
    discard = measure.scale.phi.numerator * measure.scale.hops
    for demands, members in groups:
        place = {demand: number for number, demand in enumerate(bits(demands))}
        weights = tuple(measure.weight[demand] for demand in place)
        masks = tuple(
            sum(1 << place[demand] for demand in bits(mask))
            for mask, rate in members
            for _ in range(rate)
        )
        drop = discard * min((one, *weights))
        yield Restricted(masks, weights, hop * FINE, drop * FINE, discard * FINE)


def _part_bound(part: Restricted, steps: int, rounds: int, target: Fraction | None) -> int:
    """Raise the level of the light collectors as long as the budget allows; then prove a bound.

    With a target, each level's bound is tried, and one above the target ends the search.
    """
    trivial = sum(part.leaf(demand) for demand in range(len(part.weight)))
    if len(part.weight) == 1 or part.drop == 0:
        return trivial
    budget, light, level = Budget(steps), None, 0
    stride = max(1, len(part.readers) // 128)
    while light is None or level < len(part.readers):
        level += stride
        try:
            light = LightCollectors(part, level, budget, lower=light)
        except Exhausted:
            break
        if target is not None and level <= TRIED_LEVEL_MAX:
            bound = DemandPrices(light, []).best(maximised, rounds=1)
            if bound > target:
                return bound
    if light is None:
        return trivial
    floors = _floors(part, light.level, Budget(steps // 2))
    return max(trivial, DemandPrices(light, floors).best(maximised, rounds=rounds))


def _floors(part: Restricted, level: int, budget: Budget) -> list[int]:
    """Find the least boundary of a set of each size, up to the level that the budget allows."""
    floors: list[int] = []
    used = 0
    while level < len(part.readers) and used <= budget.steps:  # a higher level takes more
        left = budget.steps
        try:
            floors = least_boundaries(part, level, budget)
        except Exhausted:
            break
        if max(floors) <= level:
            break  # all are exact
        used = left - budget.steps
        level += max(1, len(part.readers) // 128)
    return floors
