"""The trees that may still be cheaper than the best known one: all of them, if they are few.

A proof by prices (`prices.py`) gives each set of demands below a heavy collector a *slack*: by how
much the value of its tree exceeds what the proof assumes.

    slack(S) = value(S) - drop * inner(S) - u(S) + A(|S|)        of a set below a heavy collector

No slack is negative, and the slacks of disjoint sets add up. So a tree with this set costs at least
the bound plus the slack. Where the bound is near the cost of the best known tree, nearly all sets
can be left out, and the trees of the others can be searched without any limit of their bags:

* A set in the list of `LightCollectors` may be below a heavy or a light collector. For the second
  case `_away` gives the least cost of the rest of the tree, by a pass from the root down.
* Collectors that are light at the level of the proof are those of the list, with the sets that are
  left.
* Heavy ones are put together part by part, with the parts' lowest demands in ascending order. What
  is put together has a slack, too. The proof assumes the same bag for each step, so the order of
  parts does not matter, and a further part never makes the slack smaller.

Sets are searched by size. If a set is part of a cheaper tree, its least value is known before any
larger set needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from topology.planner.boundaries import Budget
from topology.planner.cost import TreeNode, bits
from topology.planner.light import NEVER, UNKNOWN
from topology.planner.prices import SERVED, DemandPrices

GROUP_STEPS = 10  # for a part that joins a group; a part that is skipped takes one step


class Cheapest(NamedTuple):
    """The cheapest tree that remains, and its cost."""

    cost: int
    tree: TreeNode


class _Part(NamedTuple):
    """A child, or a demand that is served: the demands, the logs it needs, what it costs."""

    demands: int
    logs: int
    cost: int
    weight: int  # of a served demand: (discard * its weight - drop), for each log of the bag
    served: bool
    slack: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Some parts of a heavy collector."""

    demands: int
    logs: int
    wanted: int
    cost: int
    weight: int
    served: int  # how many, and
    taken: int  # which demands (a first set),
    own: int  # with which own logs, at the least
    slack: int
    parts: tuple[_Part, ...]

    @property
    def bag(self) -> int:
        """The rate of the collector's bag."""
        return self.logs.bit_count() + self.own

    @property
    def last(self) -> int:
        """The lowest demand of the last part."""
        demands = self.parts[-1].demands
        return demands & -demands


class RemainingTrees:
    """Searches the trees that cost less than a known one, with one proof of a lower bound."""

    def __init__(
        self, finder: DemandPrices, prices: Sequence[int], *, below: int, budget: Budget
    ) -> None:
        """Take the prices of the proof, and the cost which a tree must be below.

        The finder must have no floors: they would make the slack depend on the order of parts.
        """
        assert set(finder.floors) == {finder.bag}, "with floors the order of parts matters"
        self.finder, self.light, self.part = finder, finder.light, finder.part
        self.prices, self.below, self.budget = finder.part.alike.even(prices), below, budget
        self.proof = finder.proven(self.prices)
        self.spare = below - self.proof.bound
        self.away = self._away()
        self.values = [0, *[NEVER] * (self.light.nodes - 1)]  # of listed sets that remain
        self.made: dict[int, tuple[_Part, ...]] = {}  # heavy collectors, by their demands
        self.parts: list[list[_Part]] = [[] for _ in range(finder.count + 1)]
        self.groups: list[list[_Group]] = [[] for _ in range(finder.count + 1)]

    def cheapest(self) -> Cheapest | None:
        """Find the cheapest tree with a cost below the known one; None: there is none.

        Raises `Exhausted`.
        """
        if self.spare <= 0:
            return None
        light, count, place = self.light, self.finder.count, 0
        self._add_served()
        for size in range(1, count + 1):
            heavy = self._heavy(size)
            while place < len(light.sets) and light.sets[place].bit_count() == size:
                demands = light.sets[place]
                self.budget.take(1 + len(light.keys[place]))
                value = light.least(place, self.values)
                place += 1
                if demands == self.part.everyone:
                    heavy.setdefault(demands, (NEVER, ()))
                    return self._best(place - 1, value, *heavy[demands])
                other, parts = heavy.pop(demands, (NEVER, ()))
                if other < value:
                    value, self.made[demands] = other, parts
                if self._remains(place, demands, value):
                    self.values[place] = value
                    self._add(demands, light.boundary[demands], value)
            for demands, (value, parts) in heavy.items():
                self.made[demands] = parts
                self._add(demands, self._boundary(demands), value)
            self.parts[size].sort(key=attrgetter("slack"))
        return self._best(-1, NEVER, *heavy.get(self.part.everyone, (NEVER, ())))

    def _best(
        self, place: int, light: int, heavy: int, parts: tuple[_Part, ...]
    ) -> Cheapest | None:
        least = min(light, heavy)
        if least >= self.below:
            return None
        if heavy <= light:
            return Cheapest(least, self._tree_of_parts(parts, self.part.everyone))
        return Cheapest(least, self._tree_of_light(place, self.part.everyone))

    # -- which sets remain ----------------------------------------------------------------------

    def _slack(self, demands: int, value: int) -> int:
        """Give the slack of a set below a heavy collector."""
        part = self.part
        inner = part.drop * (part.touched(demands) & ~self._boundary(demands)).bit_count()
        total = sum(self.prices[d] for d in bits(demands))
        return value - inner - total + self.proof.child[demands.bit_count()]

    def _boundary(self, demands: int) -> int:
        known = self.light.boundary.get(demands)
        if known is not None:
            return known
        part = self.part
        return part.touched(demands) & part.touched(part.everyone & ~demands)

    def _remains(self, node: int, demands: int, value: int) -> bool:
        if value >= UNKNOWN:
            return False
        under_light = self.away[node] + value
        return min(under_light, self.proof.bound + self._slack(demands, value)) < self.below

    def _away(self) -> list[int]:
        """Give for each node the least cost of the rest of a tree that has it below a light one.

        For the other sets of the tree it takes their lower bounds, `proof.values`.
        """
        light, proof, values = self.light, self.proof, self.proof.values
        away = [NEVER] * light.nodes
        for place in range(len(light.sets) - 1, -1, -1):
            demands, node = light.sets[place], place + 1
            self.budget.take(1 + len(light.keys[place]) + len(light.families[place]))
            if demands == self.part.everyone:
                rest = 0
            else:
                under_heavy = proof.bound + self._slack(demands, values[node]) - values[node]
                rest = min(away[node], under_heavy)
            rest += light.credit(demands)
            for price, key in zip(light.prices[place], light.keys[place], strict=True):
                away[key] = min(away[key], rest + price)
            for family in light.families[place]:
                outside = away[family.node]
                if outside >= UNKNOWN:
                    continue
                self.budget.take(len(family.firsts))
                for one, other in zip(family.firsts, family.others, strict=True):
                    away[one] = min(away[one], outside + values[other])
                    away[other] = min(away[other], outside + values[one])
        return away

    # -- heavy collectors -----------------------------------------------------------------------

    def _add(self, demands: int, boundary: int, value: int) -> None:
        """Add a set to the parts of heavy collectors, if its slack allows."""
        slack = self._slack(demands, value)
        if slack >= self.spare:
            return
        inner = self.part.touched(demands) & ~boundary
        cost = value - self.part.drop * inner.bit_count()
        self._add_part(_Part(demands, boundary, cost, 0, False, slack))

    def _add_part(self, entry: _Part) -> None:
        size, nothing = entry.demands.bit_count(), _Group(0, 0, 0, 0, 0, 0, 0, 0, 0, ())
        self.parts[size].append(entry)
        self.groups[size].append(replace(self._with(nothing, entry), slack=entry.slack))

    def _heavy(self, size: int) -> dict[int, tuple[int, tuple[_Part, ...]]]:
        """Find the heavy collectors with so many demands that remain; give value and parts."""
        best: dict[int, tuple[int, tuple[_Part, ...]]] = {}
        new: dict[tuple[int, ...], _Group] = {}
        for first in range(1, size):
            parts = self.parts[size - first]
            if not parts:
                continue
            for group in self.groups[first]:
                spare = self.spare - group.slack
                taken, last = self.part.alike.highest(group.demands), group.last
                for entry in parts:
                    self.budget.take()
                    if entry.slack >= spare:
                        break
                    if entry.demands & taken or entry.demands & -entry.demands < last:
                        continue
                    self.budget.take(GROUP_STEPS)
                    joined = self._joined(group, entry)
                    if joined is None:
                        continue
                    key = (
                        joined.demands,
                        joined.logs,
                        joined.wanted,
                        joined.weight,
                        joined.taken,
                        len(joined.parts),
                        joined.last,
                    )
                    known = new.get(key)
                    if known is None or joined.cost < known.cost:
                        new[key] = joined
        for group in new.values():
            self.groups[size].append(group)
            self._collector(group, best)
        return best

    def _add_served(self) -> None:
        """Add the demands as parts that a heavy collector serves."""
        part, finder = self.part, self.finder
        most = max(price - finder.served[d] for d, price in enumerate(self.prices))
        for demand in sorted(set(part.alike.first)):
            logs = part.needs[demand]
            weight = part.discard * part.weight[demand] - part.drop
            cost = (part.hop - part.discard) * part.weight[demand] * logs.bit_count()
            slack = most - (self.prices[demand] - finder.served[demand])
            if slack < self.spare:
                self._add_part(_Part(1 << demand, logs, cost, weight, True, slack))

    def _joined(self, group: _Group, entry: _Part) -> _Group | None:
        """Add a part to a group; None if its slack is too great."""
        joined, proof = self._with(group, entry), self.proof
        size, bag = joined.demands.bit_count(), max(joined.bag, self.finder.bag)
        if joined.served:
            allowed = proof.open[size][min(joined.served, SERVED)]
        else:
            allowed = proof.several[size]
        slack = joined.cost + allowed - sum(self.prices[d] for d in bits(joined.demands))
        slack += (joined.weight + self.part.drop * (len(joined.parts) - 1)) * bag
        return None if slack >= self.spare else replace(joined, slack=slack)

    def _with(self, group: _Group, entry: _Part) -> _Group:
        """Add a part to a group; the slack is still to be computed."""
        alike, wanted, taken, least = self.part.alike, group.wanted, group.taken, 0
        if entry.served:
            demand = entry.demands.bit_length() - 1
            least = alike.own[demand][(taken & alike.group[demand]).bit_count()]
            wanted, taken = wanted | entry.logs, alike.union(taken, entry.demands)
        return _Group(
            alike.union(group.demands, entry.demands),
            group.logs | entry.logs,
            wanted,
            group.cost + entry.cost - entry.weight * least,
            group.weight + entry.weight,
            group.served + entry.served,
            taken,
            group.own + least,
            group.slack,
            (*group.parts, entry),
        )

    def _collector(self, group: _Group, best: dict[int, tuple[int, tuple[_Part, ...]]]) -> None:
        """Price the heavy collector with these parts only, and note it if it is the cheapest."""
        part, bag = self.part, group.bag
        if bag < self.finder.bag:
            return  # a light one
        passed_on = part.drop * (group.logs & ~group.wanted).bit_count()
        cost = group.cost + (group.weight + part.drop * (len(group.parts) - 1)) * bag + passed_on
        demands = group.demands
        if demands == part.everyone:
            value = cost + self.finder.fixed
        else:
            boundary = self._boundary(demands)
            inner = (part.touched(demands) & ~boundary).bit_count()
            value = cost + part.drop * inner + part.passing(demands, boundary)
        if demands not in best or value < best[demands][0]:
            best[demands] = value, group.parts

    # -- the tree -------------------------------------------------------------------------------

    def _tree(self, demands: int, members: int) -> TreeNode:
        """Build the cheapest tree of a set, for members that are like it."""
        if demands in self.made:
            return self._tree_of_parts(self.made[demands], members)
        return self._tree_of_light(self.light.node[demands] - 1, members)

    def _tree_of_parts(self, parts: Sequence[_Part], members: int) -> TreeNode:
        return self._collector_of(members, [e.demands for e in parts if not e.served])

    def _tree_of_light(self, place: int, members: int) -> TreeNode:
        return self._collector_of(members, self.light.children(place, self.values))

    def _collector_of(self, members: int, below: Sequence[int]) -> TreeNode:
        children, left = [], members
        for demands in below:
            child = self._tree(demands, self.part.alike.like(left, demands))
            children.append(child)
            left &= ~child.below
        return TreeNode(members, left, tuple(children))
