"""Demands that are alike: sets of them are counted, not listed.

Demands are alike if they have the same weight, share the same logs, and have own logs of the same
rate. (Fifty services that read one common log, and each its own, are.) To exchange two of them
in a tree changes no price. So a search needs only one of all sets that differ by such exchanges:
the *first* one, which holds the lowest of each group of demands that are alike. Without this a
search lists 2 ** 50 sets of the fifty services, with it 51.

If many demands share the same logs, they are taken for alike even if the rates of their own logs
differ. Own logs count only in the bag of the collector that serves their demand. So the demands of
a group that one collector serves are charged the least own rates of the group, as many as they are:
no tree costs less than that.

Two first sets *fit* together if no group has fewer demands than both hold of it; their union is
again a first set. If no demands are alike, all sets are first sets, to fit is to be disjoint, and
the union is the usual one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from topology.planner.cost import bits


class Alike:
    """The demands of a problem that are alike, and operations on first sets (bit sets)."""

    def __init__(
        self, weight: Sequence[int], needs: Sequence[int], own: Sequence[int], *, sets_max: int
    ) -> None:
        """Compare all demands by weight, shared logs, and the rate of own logs.

        The rate does not matter if there were more first sets than `sets_max` of those demands
        that share the same logs.
        """
        kinds: dict[tuple[int, int], dict[int, int]] = {}
        for demand, key in enumerate(zip(weight, needs, strict=True)):
            rates = kinds.setdefault(key, {})
            rates[own[demand]] = rates.get(own[demand], 0) | 1 << demand
        masks: list[int] = []
        for rates in kinds.values():
            many = math.prod(1 + mask.bit_count() for mask in rates.values()) > sets_max
            masks += [sum(rates.values())] if many else rates.values()
        self.groups = [mask for mask in masks if mask & (mask - 1)]
        self.lower = [0] * len(weight)  # by demand, those of its group that are lower
        self.higher = [0] * len(weight)
        self.group = [1 << demand for demand in range(len(weight))]  # by demand, all of its group
        self.first = list(range(len(weight)))  # by demand, the lowest of its group
        # By demand, the own rates of its group, ascending.
        self.own: list[tuple[int, ...]] = [(rate,) for rate in own]
        for group in self.groups:
            rates_of = tuple(sorted(own[demand] for demand in bits(group)))
            for demand in bits(group):
                self.lower[demand] = group & ((1 << demand) - 1)
                self.higher[demand] = group & ~((2 << demand) - 1)
                self.group[demand] = group
                self.first[demand] = (group & -group).bit_length() - 1
                self.own[demand] = rates_of

    @cached_property
    def _all(self) -> int:
        return sum(self.groups)

    @cached_property
    def _lowest(self) -> list[list[int]]:
        """For each group, and each number, so many of its lowest demands."""
        lowest = []
        for group in self.groups:
            lowest.append([0])
            for demand in bits(group):
                lowest[-1].append(lowest[-1][-1] | 1 << demand)
        return lowest

    def highest(self, demands: int) -> int:
        """Give as many of the highest demands of each group as a first set holds of it.

        Another first set fits if it has none of these.
        """
        if not demands & self._all:
            return demands
        result = demands & ~self._all
        for group, lowest in zip(self.groups, self._lowest, strict=True):
            result |= group & ~lowest[(group & ~demands).bit_count()]
        return result

    def union(self, demands: int, others: int) -> int:
        """Give the first set with the demands of two first sets that fit."""
        both = demands & others
        result = demands | others
        if both:
            for group, lowest in zip(self.groups, self._lowest, strict=True):
                if group & both:
                    held = (group & demands).bit_count() + (group & others).bit_count()
                    result |= lowest[held]
        return result

    def even(self, prices: Sequence[int]) -> list[int]:
        """Give demands that are alike the same price, the mean of theirs, rounded down."""
        result = list(prices)
        for group in self.groups:
            mean = sum(prices[demand] for demand in bits(group)) // group.bit_count()
            for demand in bits(group):
                result[demand] = mean
        return result
