"""Demands that are alike: sets of them are counted, not listed.

Demands are alike if they have the same weight and share the same logs, and each has as many logs of
its own. (Fifty services that read one common log, and each its own, are.) To exchange two of them
in a tree changes no price. So a search needs only one of all sets that differ by such exchanges:
the *first* one, which holds the lowest of each group of demands that are alike. Without this a
search lists 2 ** 50 sets of the fifty services, with it 51.

Two first sets *fit* together if no group has fewer demands than both hold of it; their union is
again a first set. If no demands are alike, all sets are first sets, to fit is to be disjoint, and
the union is the usual one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from topology.planner.cost import bits


class Alike:
    """The demands of a problem that are alike, and operations on first sets (bit sets)."""

    def __init__(self, weight: Sequence[int], needs: Sequence[int], shared: int) -> None:
        """Compare all demands by weight, shared logs, and number of own logs."""
        groups: dict[tuple[int, int, int], int] = {}
        for demand, logs in enumerate(needs):
            key = weight[demand], logs & shared, (logs & ~shared).bit_count()
            groups[key] = groups.get(key, 0) | 1 << demand
        self.groups = [group for group in groups.values() if group & (group - 1)]
        self.lower = [0] * len(weight)  # by demand, those of its group that are lower
        self.higher = [0] * len(weight)
        self.first = list(range(len(weight)))  # by demand, the lowest of its group
        for group in self.groups:
            for demand in bits(group):
                self.lower[demand] = group & ((1 << demand) - 1)
                self.higher[demand] = group & ~((2 << demand) - 1)
                self.first[demand] = (group & -group).bit_length() - 1

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

    def union(self, one: int, other: int) -> int:
        """Give the first set with the demands of two first sets that fit."""
        both = one & other
        result = one | other
        if both:
            for group, lowest in zip(self.groups, self._lowest, strict=True):
                if group & both:
                    held = (group & one).bit_count() + (group & other).bit_count()
                    result |= lowest[held]
        return result

    def like(self, members: int, demands: int) -> int:
        """Choose from any set of demands as many as a first set holds: the lowest of each group."""
        result = demands & ~self._all
        for group in self.groups:
            left = members & group
            for _ in range((group & demands).bit_count()):
                result |= left & -left
                left &= left - 1
        return result

    def even(self, prices: Sequence[int]) -> list[int]:
        """Give demands that are alike the same price, the mean of theirs, rounded down."""
        result = list(prices)
        for group in self.groups:
            mean = sum(prices[demand] for demand in bits(group)) // group.bit_count()
            for demand in bits(group):
                result[demand] = mean
        return result
