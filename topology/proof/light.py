"""Light collectors: all trees whose collectors have small bags, by dynamic programming over sets.

A collector is light if the rate of its bag is at most a level, and heavy otherwise. Sets, logs and
rates are as in `boundaries.py`.

    boundary   logs read inside and outside a set of demands; it is within the bag of the collector
               that orders the set, so only sets with a boundary of at most the level matter
    value      of a tree below a collector: the prices of its collectors, less what the parent is
               credited for the boundary (the entries that the child does not drop), plus a hop for
               each reader of the boundary
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import NamedTuple

from topology.proof.boundaries import Budget, Exhausted, Restricted, small_boundaries
from topology.proof.pairs import partners

NEVER = 1 << 200  # more than any price: no light tree is known
UNKNOWN = NEVER >> 1  # a sum of at least this contains NEVER
# Levels of 0.1 million steps and more took 0.65 to 0.91 times the steps that the level before let
# expect (four inputs). One that would have to take less is not begun: the budget would be lost.
MISJUDGED_MAX = 1.5


class Family(NamedTuple):
    """A way to order a set below one collector: the logs that its children bring, their number.

    Each row divides it: `firsts[i]` is the child with the first demand, and `others[i]` is the only
    other child, or a family of all others. Both are nodes of `LightCollectors`.
    """

    node: int
    logs: int
    children: int
    firsts: list[int]
    others: list[int]


class _Near(NamedTuple):
    """A group of demands (`Alike`) that a collector could serve, of one demand if none is alike.

    With the logs and the weight of each, and their own rates, ascending.
    """

    group: int
    needs: int
    weight: int
    own: tuple[int, ...]


class LightCollectors:
    """All light collectors of a part, in the order in which a search can price them.

    `sets` lists the sets of demands, small ones first. Set i is node i + 1, node 0 is nothing, and
    each family has a node, too. `families[i]` are the families of set i. A collector that orders
    set i has the children `keys[i][j]` (a node: nothing, a set or a family) at the price
    `prices[i][j]`, and serves the other demands of the set.
    """

    def __init__(
        self,
        part: Restricted,
        level: int,
        budget: Budget,
        *,
        lower: LightCollectors | None = None,
    ) -> None:
        """List them; raises `Exhausted`.

        It is raised early if those of a `lower` level show that the steps will not suffice.
        """
        self.part, self.level = part, level
        self.boundary = small_boundaries(part, level, budget)
        left = budget.steps
        if lower is not None:
            # The steps grow nearly as the square of the number of sets.
            expected = lower.steps * len(self.boundary) ** 2 // len(lower.boundary) ** 2
            if expected > MISJUDGED_MAX * left:
                raise Exhausted
        self.sets = sorted(self.boundary, key=lambda demands: (demands.bit_count(), demands))
        self.node = {demands: number for number, demands in enumerate(self.sets, start=1)}
        self.nodes = len(self.sets) + 1
        self.inner = {
            demands: (part.touched(demands) & ~logs).bit_count()
            for demands, logs in self.boundary.items()
        }
        known = {} if lower is None else lower.passing
        self.passing: dict[int, int] = {
            d: known.get(d) or part.passing(d, b) for d, b in self.boundary.items()
        }
        self.prices: list[list[int]] = [[] for _ in self.sets]
        self.keys: list[list[int]] = [[] for _ in self.sets]
        self.families: list[list[Family]] = []
        self._extend(0, 0, 0, near=self._near(0, 0), key=0, budget=budget)
        divided = self._divided(budget)
        for place, demands in enumerate(self.sets):
            self.families.append(self._families(divided[place], budget))
            divided[place] = []
            boundary = self.boundary[demands]
            near = self._near(demands, boundary)
            for key, logs, count, *_ in self.families[place]:
                self.prices[place].append(part.drop * logs.bit_count() * (1 + count))
                self.keys[place].append(key)
                self._extend(demands, logs, count, near=near, key=key, budget=budget)
            if boundary.bit_count() <= level:
                self._extend(demands, boundary, 1, near=near, key=place + 1, budget=budget)
        self.steps: int = left - budget.steps  # without those for the sets
        self.count = self.nodes - 1 - len(self.sets) + sum(map(len, self.keys))

    def _divided(self, budget: Budget) -> list[list[tuple[int, int]]]:
        """List for each set the ways to divide it in two whose boundaries fit in a light bag.

        Both are nodes; the part with the set's first demand comes first.
        """
        node, ways = self.node, [list[tuple[int, int]]() for _ in self.sets]
        union = self.part.alike.union
        for demands, others, steps in partners(self.part, self.boundary, self.level):
            budget.take(steps)
            first = node[demands]
            for other in others:
                ways[node[union(demands, other)] - 1].append((first, node[other]))
        return ways

    def _families(self, ways: Sequence[tuple[int, int]], budget: Budget) -> list[Family]:
        """List the ways to divide a set among children, by the logs that they bring."""
        by_logs: dict[tuple[int, int], Family] = {}
        sets, boundary, level = self.sets, self.boundary, self.level
        for first, rest in ways:
            brought, families = boundary[sets[first - 1]], self.families[rest - 1]
            budget.take(1 + len(families))
            options = [(boundary[sets[rest - 1]] | brought, 2, rest)]
            options += [(f.logs | brought, f.children + 1, f.node) for f in families]
            for logs, children, others in options:
                if logs.bit_count() > level:
                    continue
                family = by_logs.get((logs, children))
                if family is None:
                    family = Family(self.nodes, logs, children, [], [])
                    by_logs[logs, children] = family
                    self.nodes += 1
                family.firsts.append(first)
                family.others.append(others)
        return list(by_logs.values())

    def _near(self, below: int, logs: int) -> list[_Near]:
        """List the groups with demands outside a set that a light collector above it could serve.

        Members of a group are alike, so its lowest demand stands for all.
        """
        part, level, alike = self.part, self.level, self.part.alike
        return [
            _Near(group, needs, part.weight[demand], alike.own[demand])
            for demand, (group, needs) in enumerate(zip(alike.group, part.needs, strict=True))
            if alike.first[demand] == demand
            and group & ~below
            and (logs | needs).bit_count() + alike.own[demand][0] <= level
        ]

    def _extend(
        self,
        below: int,
        logs: int,
        count: int,
        *,
        near: Sequence[_Near],
        key: int,
        budget: Budget,
    ) -> None:
        """List the collectors with these children that also serve some of the demands `near`."""
        part, level, node = self.part, self.level, self.node
        hop, drop, discard = part.hop, part.drop, part.discard
        near = [e for e in near if (logs | e.needs).bit_count() + e.own[0] <= level]
        pending = [(0, below, logs, 0, 0, 0, 0)]
        while pending:
            start, demands, bag, wanted, discards, fixed, own = pending.pop()
            for place, (group, needs, weight, rates) in enumerate(near[start:], start):
                left = group & ~demands
                if not left:
                    continue
                wider = bag | needs
                rate = wider.bit_count() + own + rates[(group & demands & ~below).bit_count()]
                if rate > level:
                    continue
                budget.take()
                served = wanted | needs
                least = rate - wider.bit_count() - own
                more = discards + weight
                less = fixed + weight * (needs.bit_count() * (hop - discard) - least * discard)
                union = demands | left & -left  # the lowest; others are not first sets
                pending.append((place, union, wider, served, more, less, own + least))
                ordered = node.get(union)
                if ordered is not None:
                    price = less + discard * more * rate
                    price += drop * (rate * (1 + count) - served.bit_count() - own - least)
                    self.prices[ordered - 1].append(price)
                    self.keys[ordered - 1].append(key)

    def credit(self, demands: int) -> int:
        """Give what is added to the price of a tree below a set to get its value."""
        return self.passing[demands] - self.part.drop * self.boundary[demands].bit_count()

    # -- evaluation; `values` has the least value of each node, as soon as it is known -------------

    def least(self, place: int, values: list[int]) -> int:
        """Give the least value of a set under a light collector, and note that of its families.

        It is at least `UNKNOWN` if there is no such tree.
        """
        known = values.__getitem__
        for node, _, _, firsts, others in self.families[place]:
            values[node] = min(map(add, map(known, firsts), map(known, others)))
        demands, best = self.sets[place], NEVER
        if self.keys[place]:
            best = min(map(add, self.prices[place], map(known, self.keys[place])))
        if demands & (demands - 1) == 0:
            best = min(best, self.part.leaf(demands.bit_length() - 1))
        return best + self.credit(demands) if best < UNKNOWN else NEVER
