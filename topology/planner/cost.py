"""The cost of a tree in exact integers: the planner's objective, for all its searches.

`Measure` gives the price of one collector that orders a set of demands with given children, for a
reduced component, phi, limits and hosts. No search, no solver and no floating point here.

    below      the demands that a collector or its descendants serve
    served     the demands below that read this collector itself
    boundary   the log classes that demands below share with other demands
    inner      the log classes that only demands below need
    bag        boundary, and each inner class that is not inner to one child

Sets of demands and sets of log classes are bit sets. The bag is not a choice: given the tree and
the collector of each demand, it is the smallest that keeps each log's collectors connected. A log
more in a bag is never cheaper: at best it turns an entry that the collector drops into one that it
passes on. A search goes over laminar families of `below`.

Foreign work is counted where it is done, each once:

    pass on    a collector appends an entry that no consumer which reads it wants
    drop       a collector reads an entry of its parent's stream that is not in its own bag
    discard    a consumer reads an entry of its collector's stream that it does not want; weighted

What a child drops depends on its parent's bag and on its own boundary, which is all that the two
have in common. So it is charged to the parent, and the price of a collector depends only on the
sets of demands of it and of its children, not on what is above.

A price is an integer that combines three: the cost (hops + phi * foreign + phi * excess), the work
of the collectors (the rates of their bags), and their count. The last two only break ties.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from topology.interests import Hosts, PlanLimits
from topology.planner.reduction import Component, exact

NOWHERE = -1  # the host of a root's parent, and of each collector if no hosts are given


def bits(mask: int) -> Iterator[int]:
    """List the members of a bit set, smallest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass(frozen=True, slots=True)
class Scale:
    """The units of the integers: real cost = integer / `cost`, real rate = integer / `rates`."""

    rates: int
    weights: int
    phi: Fraction
    hops: int

    @property
    def cost(self) -> int:
        """The integer cost that equals 1.0 of the objective."""
        return self.rates * self.weights * self.phi.denominator * self.hops


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A collector of a tree in the search, with its subtree."""

    below: int
    served: int
    children: tuple[TreeNode, ...]
    host: int = NOWHERE

    def walk(self) -> Iterator[TreeNode]:
        """List the nodes of this subtree, parents before children."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(reversed(node.children))


class Measure:
    """Prices collectors of one component. All its results are exact, but `cost` and `value`."""

    def __init__(
        self,
        component: Component,
        *,
        rates: int,
        weights: int,
        phi: float | Fraction,
        limits: PlanLimits | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        limits = limits or PlanLimits()
        self.component = component
        self.readers = [entry.readers for entry in component.classes]
        self.rate = [entry.rate for entry in component.classes]
        self.weight = [demand.weight for demand in component.demands]
        self.needs = [0] * len(component.demands)  # the classes of each demand, a bit set
        for number, mask in enumerate(self.readers):
            for demand in bits(mask):
                self.needs[demand] |= 1 << number
        self.loads = [self.load(classes) for classes in self.needs]
        self.readers_weight = [self.weight_of(mask) for mask in self.readers]
        table, factor = _latencies(component, hosts)
        self.hosts: tuple[int, ...] = tuple(range(len(hosts.names))) if hosts else (NOWHERE,)
        self._link, self._entry = table
        self.scale = Scale(
            rates=rates,
            weights=weights,
            phi=phi if isinstance(phi, Fraction) else exact(phi),
            hops=factor,
        )
        rate_max = limits.collector_rate_max
        wanted = limits.collector_rate_wanted
        self.load_max = None if rate_max is None else int(exact(rate_max) * rates)
        self.load_wanted = None if wanted is None else int(exact(wanted) * rates)
        self.levels_max = limits.levels_max
        # A collector that serves nobody has two children or more, so there are at most twice as
        # many collectors as demands.
        nodes = 2 * len(component.demands) + 1
        self.tie_nodes = nodes + 1
        self.tie_work = (nodes * sum(self.rate) + 1) * self.tie_nodes

    def cheapest_hop(self) -> int:
        """Give the least cost of a hop, in units of 1 / `scale.hops`."""
        return min(cell for row in (*self._link, *self._entry) for cell in row)

    def typical_hops(self) -> list[int]:
        """List costs to take for all hops before collectors have hosts: the least, and the mean.

        In units of 1 / `scale.hops`.
        """
        cells = [cell for row in self._link for cell in row]
        return sorted({self.cheapest_hop(), sum(cells) // len(cells)})

    def weight_of(self, demands: int) -> int:
        """Sum the weights of a set of demands."""
        return sum(self.weight[number] for number in bits(demands))

    def load(self, classes: int) -> int:
        """Sum the rates of a set of classes; of a bag, it is the load of its collector."""
        return sum(self.rate[number] for number in bits(classes))

    def touching(self, demands: int) -> int:
        """Give the classes that at least one demand of the set needs."""
        classes = 0
        for number in bits(demands):
            classes |= self.needs[number]
        return classes

    def boundary(self, below: int) -> int:
        """Give the classes that demands of the set share with demands outside it."""
        outside = ~below
        return sum(1 << n for n in bits(self.touching(below)) if self.readers[n] & outside)

    def bag(self, below: int, children: Sequence[int]) -> int:
        """Give the classes in the bag of a collector with children that order those sets."""
        classes = self.touching(below)
        for child in children:
            classes &= self.boundary(child) | ~self.touching(child)
        return classes

    def price(
        self,
        below: int,
        children: Sequence[int],
        *,
        bag: int | None = None,
        host: int = NOWHERE,
        parent: int = NOWHERE,
    ) -> int:
        """Give the price of one collector, with what its children and consumers drop of its stream.

        `children` are the sets that its children order; `bag` is theirs and its own, if known.
        """
        bag = self.bag(below, children) if bag is None else bag
        hops, foreign, load = self._terms(below, children, bag, host=host, parent=parent)
        phi = self.scale.phi
        far = phi.numerator * self.scale.hops
        cost = phi.denominator * hops + far * foreign
        if self.load_wanted is not None and load > self.load_wanted:
            cost += (load - self.load_wanted) * far * self.scale.weights
        return cost * self.tie_work + load * self.tie_nodes + 1

    def terms(
        self, below: int, children: Sequence[int], *, host: int = NOWHERE, parent: int = NOWHERE
    ) -> tuple[Fraction, Fraction, Fraction]:
        """Give a collector's hops, foreign work and excess load in the objective's own units."""
        bag = self.bag(below, children)
        hops, foreign, load = self._terms(below, children, bag, host=host, parent=parent)
        unit = self.scale.rates * self.scale.weights
        wanted = load if self.load_wanted is None else self.load_wanted
        return (
            Fraction(hops, unit * self.scale.hops),
            Fraction(foreign, unit),
            Fraction(max(0, load - wanted), self.scale.rates),
        )

    def _terms(
        self, below: int, children: Sequence[int], bag: int, *, host: int, parent: int
    ) -> tuple[int, int, int]:
        """Give hops and foreign work as integers of rate times weight, and the load of the bag."""
        served = below & ~sum(children)
        load, hops = self.load(bag), 0
        for number in bits(bag):
            inside = self.readers[number] & below
            own = self.readers_weight[number]
            if inside != self.readers[number]:
                own = self.weight_of(inside)
                hop = self._link[parent][host]
            else:
                hop = self._entry[number][host]
            hops += self.rate[number] * own * hop
        passed_on = self.load(bag & ~self.touching(served))
        dropped = sum(load - self.load(self.boundary(child)) for child in children)
        discarded = sum(self.weight[d] * (load - self.loads[d]) for d in bits(served))
        return hops, (passed_on + dropped) * self.scale.weights + discarded, load

    def cost(self, price: int) -> float:
        """Give the objective's cost that a price contains, without the tie-breakers."""
        return float(Fraction(price // self.tie_work, self.scale.cost))

    def value(self, price: int) -> float:
        """Give a price in the objective's unit, with the tie-breakers, for the integer program."""
        return float(Fraction(price, self.tie_work * self.scale.cost))

    def priced(self, node: TreeNode, parent: int = NOWHERE) -> int:
        """Give the price of a whole tree."""
        total, pending = 0, [(node, parent)]
        while pending:
            entry, above = pending.pop()
            children = [child.below for child in entry.children]
            total += self.price(entry.below, children, host=entry.host, parent=above)
            pending.extend((child, entry.host) for child in entry.children)
        return total

    def heaviest(self, node: TreeNode) -> int:
        """Give the load of the busiest collector of a tree."""
        return max(
            self.load(self.bag(entry.below, [child.below for child in entry.children]))
            for entry in node.walk()
        )


def _latencies(
    component: Component, hosts: Hosts | None
) -> tuple[tuple[list[list[int]], list[list[int]]], int]:
    """Give the hop costs between hosts and from leaders as integers, and their denominator.

    Without hosts each hop costs 1.
    """
    if hosts is None:
        return ([[1]], [[1] for _ in component.classes]), 1
    count = len(hosts.names)
    matrix = [[exact(cell) for cell in row] for row in hosts.latency]
    mean = [sum((row[to] for row in matrix), Fraction()) / count for to in range(count)]
    place = {name: number for number, name in enumerate(hosts.names)}
    entries = [
        mean if entry.leader is None else matrix[place[entry.leader]] for entry in component.classes
    ]
    everything = [cell for row in (*matrix, mean) for cell in row]
    factor = math.lcm(*(cell.denominator for cell in everything))
    links = [[int(cell * factor) for cell in row] for row in matrix]
    return (links, [[int(cell * factor) for cell in row] for row in entries]), factor
