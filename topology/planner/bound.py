"""A proven lower bound on the cost of any tree, for parts that are too large to search exactly.

Goes in: a `Measure`. Comes out: a cost that no tree can undercut. Any tree for all demands becomes,
with some demands left out and bags shrunk to what the others need, a tree for those others in which
none of them pays more. So the demands are divided into groups, each group is solved exactly as if
it were alone, and the sum of the groups' best costs bounds the whole. Limits only raise costs, so
they are left aside; with hosts every hop is taken at the cheapest link.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from topology.planner.cost import Measure, bits
from topology.planner.exact import packed
from topology.planner.hypergraph import Component, LogClass

GROUP_STEPS = 2_000_000
GROUP_SIZES = (64, 40, 30, 22, 15)  # the largest whose first group is solved is taken for all
MANY, GROUP_SIZES_OF_MANY = 200, (15,)  # the bound stays a matter of seconds


def bounded(measure: Measure, *, group_steps: int = GROUP_STEPS) -> int:
    """Give a price that no tree of the component undercuts, in the measure's whole numbers."""
    cheapest = measure.cheapest_hop()
    if cheapest == 0:
        return 0
    phi = measure.scale.phi * Fraction(measure.scale.hops, cheapest)
    pending: list[list[int]] = []
    for size in GROUP_SIZES if len(measure.weight) < MANY else GROUP_SIZES_OF_MANY:
        pending = _groups(measure, size)
        if packed(_alone(measure, pending[0], phi), steps=group_steps) is not None:
            break
    total = Fraction()
    while pending:
        group = pending.pop()
        alone = _alone(measure, group, phi)
        tree = packed(alone, steps=group_steps)
        if tree is not None:
            total += Fraction(alone.priced(tree) // alone.tie_work, alone.scale.cost)
        else:
            middle = len(group) // 2
            pending.extend((group[middle:], group[:middle]))
    unit = Fraction(cheapest, measure.scale.hops)
    return int(total * unit * measure.scale.cost) * measure.tie_work


def _groups(measure: Measure, largest: int) -> list[list[int]]:
    """Gather demands that share most: the more a group has in common, the more it must pay."""
    groups: list[list[int]] = []
    left = dict.fromkeys(range(len(measure.weight)))
    while left:
        common = dict.fromkeys(left, 0)
        held: set[int] = set()
        group: list[int] = []
        while common and len(group) < largest:
            taken = max(common, key=common.__getitem__)
            del common[taken], left[taken]
            group.append(taken)
            for number in measure.classes_of[taken]:
                if number not in held:
                    held.add(number)
                    for demand in bits(measure.readers[number]):
                        if demand in common:
                            common[demand] += measure.rate[number]
        groups.append(group)
    return groups


def _alone(measure: Measure, group: Sequence[int], phi: Fraction) -> Measure:
    """Make the problem of a few demands alone: logs that now have equal readers are merged."""
    rates: dict[int, int] = {}
    for place, demand in enumerate(group):
        for number in measure.classes_of[demand]:
            rates[number] = rates.get(number, 0) | 1 << place
    merged: dict[int, int] = {}
    for number, mask in rates.items():
        merged[mask] = merged.get(mask, 0) + measure.rate[number]
    component = Component(
        demands=tuple(measure.component.demands[demand] for demand in group),
        classes=tuple(LogClass((), mask, rate, None) for mask, rate in sorted(merged.items())),
    )
    assert all(any(mask >> place & 1 for mask in merged) for place in bits(component.everyone))
    return Measure(component, rates=measure.scale.rates, weights=measure.scale.weights, phi=phi)
