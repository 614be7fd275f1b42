"""Prices of demands: what proves a lower bound where collectors are heavy.

`LightCollectors` lists all collectors with bags up to a level exactly. The others are heavy: their
bags have a rate of `level + 1` at least. A heavy collector with c parts (children, and demands that
it serves) costs at least

    drop * ((c - 1) * bag + what it passes on)     of this tree's total, and a sum over its parts

because the total of a tree can be written so: foreign work is the sum, over the collectors, of
(parts - 1) times the bag and of what is passed on, plus a sum over the demands, which is fixed. (A
collector's bag is what its set of demands touches, without the inner logs of its children.)

Let each demand have any price u(d), and let A(k) be an excess for sets of k demands. If

    value(S) - drop * inner(S) >= u(S) - A(|S|)

for the children of a heavy collector, the sum of its parts gives the same inequality for the set
that it orders, with A(|S|) from the least of all numbers of parts and sizes. So a single pass over
sizes computes the smallest A for which the inequality holds for all trees: for a set in the list
from its light collectors, whose children have smaller sets, or from a heavy one; for all other sets
from a heavy collector. For the set of all demands the inequality is the bound.

Any prices give a valid bound. `best` looks for good ones among those that three numbers give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from topology.planner.cost import bits
from topology.proof.light import NEVER, UNKNOWN, LightCollectors

SERVED = 4  # a collector that serves this many demands or more may pass on nothing
STRIDES = 8, 4, 2, 1  # of the search for prices, in sixteenths
STRIDES_LATER = 2, 1  # from the numbers of a lower level on


class Numbers(NamedTuple):
    """What all prices follow from, in sixteenths: the parts of three sums.

    A heavy bag for each demand, what the demand adds if a heavy collector serves it, and how many
    more logs than the mean it needs. The first prices are as if one heavy collector served all.
    """

    bag: int = 16
    served: int = 16
    needs: int = 0


class DemandPrices:
    """Finds prices for the demands of one part, and proves bounds with them."""

    def __init__(self, light: LightCollectors) -> None:
        self.light, self.part = light, light.part
        part = self.part
        self.count = len(part.weight)
        self.bag = light.level + 1  # of a heavy collector, at least
        # Any demand of a group may be in the place of another.
        self.loads = [
            logs.bit_count() + rates[-1]
            for logs, rates in zip(part.needs, part.alike.own, strict=True)
        ]
        self.served = [self._served(demand) for demand in range(self.count)]
        self.fixed = part.drop * part.shared
        # One hop of a boundary that is too large for the list.
        self.outer = part.hop * min(part.weight) * self.bag
        self.inner = [part.drop * light.inner[demands] for demands in light.sets]

    def _served(self, demand: int) -> int:
        """Give what a demand that a heavy collector serves adds to its cost, without its part."""
        part, needs, weight = self.part, self.part.needs[demand], self.part.weight[demand]
        more = (part.discard * weight - part.drop) * max(0, self.bag - self.loads[demand])
        return (part.hop * weight - part.drop) * needs.bit_count() + more

    def passed_on(self, served: int) -> int:
        """Give the least rate that a heavy collector passes on if it serves so many."""
        return 0 if served >= SERVED else max(0, self.bag - served * max(self.loads))

    # -- the proof ------------------------------------------------------------------------------

    def proven(self, prices: Sequence[int]) -> int:
        """Prove a bound with these prices, in exact integers.

        Demands that are alike get the same price, because only first sets are listed.
        """
        light, part = self.light, self.part
        prices = part.alike.even(prices)
        drop, low = part.drop, -NEVER
        served = max(price - self.served[d] for d, price in enumerate(prices))
        child = [low] * (self.count + 1)  # A(k)
        several = [low] * (self.count + 1)  # of two or more children
        excess = [low] * (self.count + 1)  # of a heavy collector
        open_ = [[low] * (SERVED + 1) for _ in range(self.count + 1)]  # by demands served so far
        open_[1][1] = served
        values = [0, *[NEVER] * (light.nodes - 1)]  # nothing costs nothing
        root, place = NEVER, 0
        for size in range(1, self.count + 1):
            if size > 1:
                several[size] = max(
                    max(child[size - k], several[size - k]) + child[k] - drop * self.bag
                    for k in range(1, size)
                )
                before = [max(child[size - 1], several[size - 1]), *open_[size - 1][1:]]
                before_last = max(before[-2:])
                for number in range(1, SERVED + 1):
                    best = before_last if number == SERVED else before[number - 1]
                    open_[size][number] = best + served - drop * self.bag
                excess[size] = several[size] - drop * self.passed_on(0)
                for number in range(1, SERVED + 1):
                    here = open_[size][number] - drop * self.passed_on(number)
                    excess[size] = max(excess[size], here)
                child[size] = excess[size] - self.outer
            while place < len(light.sets) and light.sets[place].bit_count() == size:
                demands, inner = light.sets[place], self.inner[place]
                value = light.least(place, values)
                place += 1
                if demands == part.everyone:
                    root = value
                    continue
                total = sum(prices[d] for d in bits(demands))
                under = total - excess[size] + light.passing[demands] + inner
                if size > 1:
                    value = min(value, under)
                values[place] = value  # the node of the set
                if value < UNKNOWN:
                    child[size] = max(child[size], total - value + inner)
        return min(root, sum(prices) - excess[self.count] + self.fixed)

    # -- the search for prices --------------------------------------------------------------------

    def prices(self, numbers: Numbers) -> list[int]:
        """Give the prices that follow from three numbers."""
        part, count = self.part, self.count
        needs = [logs.bit_count() for logs in part.needs]
        total = sum(needs)
        return [
            (numbers.bag * part.drop * self.bag + numbers.served * served) // 16
            + numbers.needs * part.drop * (count * logs - total) // (16 * count)
            for served, logs in zip(self.served, needs, strict=True)
        ]

    def best(
        self, start: Numbers | None = None, *, stopped: Callable[[], bool]
    ) -> tuple[int, Numbers]:
        """Look for the greatest bound, from the numbers of a lower level on; also give its numbers.

        One number changes at a time as long as that proves more, then by half as much; none once
        `stopped` says so.
        """
        best = start or Numbers()
        bound = self.proven(self.prices(best))
        for stride in STRIDES if start is None else STRIDES_LATER:
            for name in Numbers._fields:
                for change in (stride, -stride):
                    while not stopped():
                        other = best._replace(**{name: getattr(best, name) + change})
                        more = self.proven(self.prices(other))
                        if more <= bound:
                            break
                        best, bound = other, more
        return bound, best
