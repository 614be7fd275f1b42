"""A proven lower bound of the cost of any tree, for components too large for the exact search.

Take any tree for all demands, leave out some demands, and reduce the bags to what the others need:
the result is a tree for these others, in which none of them pays more. So the demands are divided
into groups, each group is solved exactly by itself, and the sum of the groups' least costs is a
lower bound. Limits only raise costs and are ignored; with hosts each hop costs as much as the
cheapest link.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from topology.planner.cost import Measure, bits
from topology.planner.exact import packed
from topology.planner.hypergraph import Component, LogClass

# The packing's budget for one group. A group that exceeds it is halved, which makes the bound
# looser; ten times more makes the bound tighter and up to ten times slower.
GROUP_STEPS_MAX = 2_000_000
GROUP_SIZES = (64, 40, 30, 22, 15)  # the first size whose first group is solved is taken for all
# From this many demands on, only small groups are tried, so that the bound takes seconds.
MANY_DEMANDS, GROUP_SIZES_OF_MANY = 200, (15,)


def bounded(measure: Measure, *, group_steps: int = GROUP_STEPS_MAX) -> int:
    """Give a lower bound of the price of any tree of the component, as an integer of `measure`."""
    cheapest = measure.cheapest_hop()
    if cheapest == 0:
        return 0
    phi = measure.scale.phi * Fraction(measure.scale.hops, cheapest)
    pending: list[list[int]] = []
    for size in GROUP_SIZES if len(measure.weight) < MANY_DEMANDS else GROUP_SIZES_OF_MANY:
        pending = _groups(measure, size)
        if packed(_restricted(measure, pending[0], phi), steps=group_steps) is not None:
            break
    total = Fraction()
    while pending:
        group = pending.pop()
        restricted = _restricted(measure, group, phi)
        tree = packed(restricted, steps=group_steps)
        if tree is not None:
            price = restricted.priced(tree) // restricted.tie_work
            total += Fraction(price, restricted.scale.cost)
        else:
            middle = len(group) // 2
            pending.extend((group[middle:], group[:middle]))
    unit = Fraction(cheapest, measure.scale.hops)
    return int(total * unit * measure.scale.cost) * measure.tie_work


def _groups(measure: Measure, largest: int) -> list[list[int]]:
    """Group demands that share much: the more a group has in common, the higher its least cost."""
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


def _restricted(measure: Measure, group: Sequence[int], phi: Fraction) -> Measure:
    """Restrict the problem to a group of demands; logs that then have equal readers are merged."""
    readers: dict[int, int] = {}
    for place, demand in enumerate(group):
        for number in measure.classes_of[demand]:
            readers[number] = readers.get(number, 0) | 1 << place
    merged: dict[int, int] = {}
    for number, mask in readers.items():
        merged[mask] = merged.get(mask, 0) + measure.rate[number]
    component = Component(
        demands=tuple(measure.component.demands[demand] for demand in group),
        classes=tuple(LogClass((), mask, rate, None) for mask, rate in sorted(merged.items())),
    )
    assert all(any(mask >> place & 1 for mask in merged) for place in bits(component.everyone))
    return Measure(component, rates=measure.scale.rates, weights=measure.scale.weights, phi=phi)
