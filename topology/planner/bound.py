"""A proven lower bound of the cost of any tree, for components too large for the exact search.

1. Given the tree, the cost is a sum of terms that are linear in the rates of the logs. So the least
   cost is superadditive in the rates: if they are divided among several problems, the sum of the
   least costs of these is a lower bound. Here rates are rounded down to multiples of one unit, for
   what is left over only the hop is counted that each log needs, and the logs of a large component
   are divided into areas. A demand without a log in an area costs nothing there; demands that
   become equal in an area remain separate, because the tree may have them at different collectors.
2. Each area is solved to a bound by `light.py` (small bags, exactly) and `prices.py` (the others).
   If all logs are in one area, the best tree of small bags is a candidate for the plan; and where
   the bound is near the cost of the best known tree, `remaining.py` searches what is left.
3. Before that, and with more steps after it, `pieces/search.py` bounds the trees of the undivided
   problem. It is quick where few logs separate demands, for a thousand of them, too.
4. Demands that share the same logs, but differ in weight, are made alike (`alike.py`) if they are
   many: the least weight is taken for all, and of the rest only one hop is counted. Sets of them
   cannot be listed one by one. Own logs have one hop in any tree, which is counted here.
5. A weight below one is cheaper to serve than a parent's entry is to drop; then drops are counted
   at the least weight. Limits only raise costs and are ignored; with hosts each hop costs as much
   as the cheapest link.

Budgets are steps, so the same input gives the same bound. The linear program is solved by CBC.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from topology.planner.boundaries import (
    KINDS_SETS_MAX,
    Budget,
    Exhausted,
    Restricted,
    least_boundaries,
)
from topology.planner.cost import Measure, TreeNode, bits
from topology.planner.integer_program import maximised
from topology.planner.light import NEVER, LightCollectors
from topology.planner.pieces.search import Level, bounded_by_pieces, levels
from topology.planner.prices import DemandPrices, Priced
from topology.planner.remaining import RemainingTrees

# At most about 50 s of CPU for 50 interests, most of it for the level that is reached last. Each
# level needs five to seven times the steps of the one before, and its bound is 6 to 10 % higher.
STEPS_MAX = 12_000_000
# With more demands than this the logs are divided into areas, of so many demands. Divided bounds
# meet no tree, and small areas are coarse; but of a thousand local interests areas of 256 prove
# less than those of 128, because fewer steps are left for each. With uneven rates the lists are
# longer, so areas are smaller, and few demands are bounded both ways: of 200 sliding windows with
# rates of 1 to 40 the undivided logs prove a third of what areas of 64 do.
UNDIVIDED_DEMANDS_MAX, AREA_DEMANDS_MAX, UNEVEN_AREA_DEMANDS_MAX = 256, 128, 64
# Of the rates of shared logs: finer ones make the bit sets longer and hardly tighten the bound.
UNITS_MAX = 256
# Of prices and proofs, for one area and in all; a round takes about half a second of CPU.
ROUNDS, ROUNDS_IN_ALL = 4, 60
LEVELS = 128  # at most so many up to the rate of all shared logs, and as many more up to all rates
# The part of all steps that pieces may take before all else, for each demand; and at the end.
PIECES_FIRST, PIECES_LAST = Fraction(1, 800), Fraction(1, 2)
# Below the highest, a level is priced if it has so many times as many collectors as the last one.
GROWN = 1.25
ROUNDS_BELOW = 2  # at each level below the last, if there is one area; the prices are used above
# From this gap on a level gets more rounds, and the remaining trees are searched; with larger gaps
# that seldom ends. After a search that ran out of steps, the gap must be a quarter smaller.
NEAR, ROUNDS_NEAR, NEARER = 0.2, 6, 0.75
# A level of so many steps is not priced if the gap was larger than this below it: the next levels
# will not close it either.
FAR, FAR_STEPS = 0.5, 200_000
FULL_DEMANDS = 50  # components with fewer demands get fewer steps, by their number
FINE = 1 << 12  # prices are multiples of 1 / FINE
NOTHING = Fraction()


@dataclass(frozen=True, slots=True)
class Bounded:
    """A lower `bound` of the price of any tree, and the cheapest tree that is known."""

    bound: int
    tree: TreeNode | None


def bounded(measure: Measure, *, steps: int = STEPS_MAX, known: TreeNode | None = None) -> Bounded:
    """Give a lower bound of the price of any tree of the component, as an integer of `measure`.

    Costs are whole numbers of the measure, so the bound is rounded up. Once it is as high as the
    price of the tree that is known, or of a cheaper one that was found, the search ends: that tree
    is proven least. Without a known tree none is looked for. Blocks; starts solver processes and
    waits for their end. `steps` bounds the lists of all areas, and each search of remaining trees.
    """
    problem = _Problem(measure)
    tree, demands = known, len(measure.weight)
    last = int(steps * PIECES_LAST * min(demands, FULL_DEMANDS) / FULL_DEMANDS)
    best = problem.bound_by_pieces(tree, int(steps * PIECES_FIRST * demands))
    if not problem.met(best, tree):
        by_sets, tree = problem.bound_by_sets(tree, steps)
        best = max(best, by_sets)
    if not problem.met(best, tree):
        best = max(best, problem.bound_by_pieces(tree, last, best))
    return Bounded(math.ceil(best) * measure.tie_work, tree)


def component_by_pieces(
    measure: Measure, known: TreeNode, steps: int
) -> Iterator[tuple[Level, float]]:
    """Give what each level of pieces proves for a component, with the bound as a cost."""
    return _Problem(measure).levels_by_pieces(known, steps)


class _Problem:
    """A component with its rates in whole units; bounds are in units of `measure` less ties."""

    def __init__(self, measure: Measure) -> None:
        self.measure, self.unit = measure, _unit(measure)
        self.units = [rate // self.unit for rate in measure.rate]
        self.hop = measure.cheapest_hop() * measure.scale.phi.denominator
        both = zip(measure.readers, self.units, strict=True)
        self.shared = [rate if mask & (mask - 1) else 0 for mask, rate in both]

    def met(self, bound: Fraction, tree: TreeNode | None) -> bool:
        """Whether a tree costs no more than a bound, rounded up to a whole number."""
        measure = self.measure
        return tree is not None and math.ceil(bound) >= measure.priced(tree) // measure.tie_work

    def bound_by_pieces(
        self, known: TreeNode | None, steps: int, proven: Fraction = NOTHING
    ) -> Fraction:
        """Bound it undivided; `known` is a tree, and `proven` a bound."""
        budget = Budget(steps)
        parts = self._parts_of(range(len(self.units)), self.measure.weight)
        below, behind = None, 0
        if known is not None and len(parts) == 1:
            below = self._below(known)
            behind = math.floor((proven - self._outside(self.measure.weight)) * FINE / self.unit)
        bounds = sum(bounded_by_pieces(part, budget, below=below, proven=behind) for part in parts)
        return self._outside(self.measure.weight) + Fraction(bounds * self.unit, FINE)

    def _below(self, known: TreeNode) -> int:
        """Say what each tree of an only part costs at least if none is cheaper than a known one."""
        least = self.measure.priced(known) // self.measure.tie_work - 1
        return math.floor((least - self._outside(self.measure.weight)) * FINE / self.unit) + 1

    def levels_by_pieces(self, known: TreeNode, steps: int) -> Iterator[tuple[Level, float]]:
        """Give what each level of pieces proves, with the bound as a cost."""
        outside = self._outside(self.measure.weight)
        (part,) = self._parts_of(range(len(self.units)), self.measure.weight)
        below = self._below(known)
        for level in levels(part, Budget(steps), below=below):
            bound = outside + Fraction(min(below, level.bound) * self.unit, FINE)
            yield level, float(bound / self.measure.scale.cost)

    def bound_by_sets(self, known: TreeNode | None, steps: int) -> tuple[Fraction, TreeNode | None]:
        """Bound it by light collectors and prices, divided into areas if it is large.

        Gives the cheapest known tree, too.
        """
        measure, best, tree = self.measure, Fraction(), known
        weights = _made_alike(measure)
        fixed = self._outside(weights)
        for most in _area_sizes(measure, self.shared):
            areas = list(_areas(measure, self.units, most))
            parts = [part for area in areas for part in self._parts_of(area, weights)]
            goal = None
            if tree is not None and len(parts) == 1 and len(parts[0].weight) == len(weights):
                goal = _Goal(measure, tree, Fraction(self.unit, FINE), fixed, steps)
            bound = fixed
            for part in parts:
                share = steps * len(part.weight) // max(len(weights), FULL_DEMANDS)
                rounds = max(1, min(ROUNDS, ROUNDS_IN_ALL // len(areas)))
                bound += Fraction(_part_bound(part, share, rounds, goal) * self.unit, FINE)
            best = max(best, bound)
            tree = tree if goal is None else goal.tree
            if self.met(best, tree):
                break
        return best, tree

    def _outside(self, weights: Sequence[int]) -> Fraction:
        """Price what is in no part: a hop of own logs, of remainders, and of weights left out."""
        measure, total = self.measure, Fraction()
        for weight, least, logs in zip(measure.weight, weights, measure.needs, strict=True):
            counted = least * sum(self.shared[n] for n in bits(logs)) * self.unit
            total += (weight * measure.load(logs) - counted) * self.hop
        return total

    def _parts_of(self, logs: Iterable[int], weights: Sequence[int]) -> list[Restricted]:
        """List the connected parts of the problem of some logs."""
        of_rate = [(self.measure.readers[n], self.units[n]) for n in logs if self.units[n]]
        return list(_parts(self.measure, of_rate, weights, self.hop))


def _area_sizes(measure: Measure, shared: Sequence[int]) -> Iterator[int]:
    """Say how many demands an area may have; with several answers, the greatest bound counts."""
    few = len(measure.weight) <= UNDIVIDED_DEMANDS_MAX
    even = sum(shared) < 2 * sum(rate > 0 for rate in shared)  # most are of one unit
    if few:
        yield UNDIVIDED_DEMANDS_MAX
    if not (few and (even or len(measure.weight) <= UNEVEN_AREA_DEMANDS_MAX)):
        yield AREA_DEMANDS_MAX if even else UNEVEN_AREA_DEMANDS_MAX


@dataclass(slots=True)
class _Goal:
    """The cheapest tree that is known, and what was proven against it so far.

    `fixed` plus a part's bound times `unit` bounds the component. The remaining trees are searched
    if the gap is at most `gap`; each search takes no more than `steps`.
    """

    measure: Measure
    tree: TreeNode
    unit: Fraction
    fixed: Fraction
    steps: int
    priced: Priced | None = None
    gap: float = NEAR

    @property
    def prices(self) -> Sequence[int] | None:
        """The prices that proved the greatest bound so far."""
        return None if self.priced is None else self.priced.prices

    @property
    def _cost(self) -> int:
        return self.measure.priced(self.tree) // self.measure.tie_work

    def settled(self, light: LightCollectors, trivial: int) -> int | None:
        """Try one level; give the part's bound if nothing more is to be searched, else None."""
        if light.steps > FAR_STEPS and self.priced and self._gap(self.priced.bound) > FAR:
            return None
        finder = DemandPrices(light)
        light_cost = self._offer_light(finder)
        priced = finder.best(maximised, rounds=ROUNDS_BELOW, start=self.prices)
        priced = Priced(max(priced.bound, trivial), priced.prices)
        near = self._gap(priced.bound) <= self.gap
        if near and not self._proven(priced.bound):
            priced = finder.best(maximised, rounds=ROUNDS_NEAR, start=priced.prices)
        if self.priced is None or priced.bound > self.priced.bound:
            self.priced = priced
        if self._proven(self.priced.bound) or self.priced.bound >= light_cost:
            return self.priced.bound
        return self._searched(finder, priced) if near else None

    def _offer_light(self, finder: DemandPrices) -> int:
        """Offer the best tree of small bags; give its cost: at this bound the part is solved."""
        tree = finder.least_light_tree()
        if tree is None:
            return NEVER
        self._offer(tree)
        return finder.values_of_light_trees()[finder.part.everyone]

    def _offer(self, tree: TreeNode) -> None:
        """Take a tree if it is cheaper, and keeps the limits."""
        if self.measure.plain:
            self.tree = min(self.tree, tree, key=self.measure.priced)

    def _proven(self, bound: int) -> bool:
        """Whether a part's bound, rounded up to a whole number, is the cost of the tree."""
        return math.ceil(self.fixed + bound * self.unit) >= self._cost

    def _gap(self, bound: int) -> float:
        cost = self._cost
        return float(1 - (self.fixed + bound * self.unit) / cost) if cost else 0.0

    def _searched(self, finder: DemandPrices, priced: Priced) -> int | None:
        """Search all trees that are cheaper; give the bound that follows, or None: too many."""
        # If every tree of the part costs at least this, none of the component is cheaper than ours.
        below = math.floor((self._cost - 1 - self.fixed) / self.unit) + 1
        search = RemainingTrees(finder, priced.prices, below=below, budget=Budget(self.steps))
        try:
            found = search.cheapest()
        except Exhausted:
            self.gap = NEARER * self._gap(priced.bound)
            return None
        if found is None:
            return below
        self._offer(found.tree)
        return found.cost


def _unit(measure: Measure) -> int:
    """Choose the unit of the rates: few units for all shared logs, and if possible whole ones."""
    both = zip(measure.readers, measure.rate, strict=True)
    shared = [rate for mask, rate in both if mask & (mask - 1)]
    most = max(UNITS_MAX, 4 * len(measure.rate))
    least = max(math.gcd(*measure.rate), sum(shared) // most)
    common = math.gcd(*shared)
    counts = range(common // least, common // least // 4, -1)
    return next((common // count for count in counts if common % count == 0), least)


def _made_alike(measure: Measure) -> list[int]:
    """Give weights at most those of the demands, so that many demands are alike."""
    weights = list(measure.weight)
    kinds: dict[int, dict[int, list[int]]] = {}
    for demand, logs in enumerate(measure.needs):
        shared = sum(1 << n for n in bits(logs) if measure.readers[n] & ~(1 << demand))
        kinds.setdefault(shared, {}).setdefault(weights[demand], []).append(demand)
    for same in kinds.values():
        if math.prod(1 + len(demands) for demands in same.values()) > KINDS_SETS_MAX:
            for demand in (demand for demands in same.values() for demand in demands):
                weights[demand] = min(same)
    return weights


def _areas(measure: Measure, units: Sequence[int], most: int) -> Iterator[list[int]]:
    """Divide the logs into areas of at most so many demands, or of one log.

    Each grows by the log that adds the fewest demands.
    """
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


def _parts(
    measure: Measure, logs: Sequence[tuple[int, int]], weights: Sequence[int], hop: int
) -> Iterator[Restricted]:
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
        weighted = tuple(weights[demand] for demand in place)
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


def _part_bound(part: Restricted, steps: int, rounds: int, goal: _Goal | None) -> int:
    """Raise the level of the light collectors as long as the budget allows; then prove a bound.

    With a goal, levels are priced on the way, and the search ends when the goal is proven.
    """
    trivial = sum(part.leaf(demand) for demand in range(len(part.weight)))
    if len(part.weight) == 1 or part.drop == 0:
        return trivial
    light = None
    for light in _light_levels(part, Budget(steps)):
        settled = None if goal is None else goal.settled(light, trivial)
        if settled is not None:
            return settled
    if light is None:
        return trivial
    floors = _floors(part, light.level, Budget(steps // 2))
    start = None if goal is None else goal.prices
    last = DemandPrices(light, floors).best(maximised, rounds=rounds, start=start).bound
    return max(trivial, last, goal.priced.bound if goal and goal.priced else 0)


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


def _floors(part: Restricted, level: int, budget: Budget) -> list[int]:
    """Find the least boundary of a set of each size, up to the level that the budget allows."""
    floors: list[int] = []
    used = 0
    while level < part.shared and used <= budget.steps:  # a higher level takes more
        left = budget.steps
        try:
            floors = least_boundaries(part, level, budget)
        except Exhausted:
            break
        if max(floors) <= level:
            break  # all are exact
        used = left - budget.steps
        level += max(1, part.shared // LEVELS)
    return floors
