"""Light collectors: all trees whose collectors have small bags, by dynamic programming over sets.

A collector is light if the rate of its bag is at most a level, and heavy otherwise. All rates are
multiples of one unit here, and a set of logs is a bit set with a bit for each unit, so that the
rate of a set is its number of bits.

    boundary   logs read inside and outside a set of demands; it is within the bag of the collector
               that orders the set, so only sets with a boundary of at most the level matter
    value      of a tree below a collector: the prices of its collectors, less what the parent is
               credited for the boundary (the entries that the child does not drop), plus a hop for
               each reader of the boundary

The number of sets with a small boundary is small: a search that decides demand by demand whether it
belongs to the set ends a branch as soon as logs of too great a rate are read on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from topology.planner.cost import bits

NEVER = 1 << 200  # more than any price: no light tree is known
# Levels took 0.58 to 1.05 times the steps that the level before let expect (ten inputs). A level
# that would have to take less than half of these is not begun: the budget would be lost on it.
MISJUDGED_MAX = 2


class Exhausted(Exception):
    """The budget of steps is used up."""


@dataclass(slots=True)
class Budget:
    """The steps that may still be taken. A step is one turn of an inner loop, about 1 us."""

    steps: int

    def take(self, steps: int = 1) -> None:
        """Take some steps; raises `Exhausted` if too few are left."""
        self.steps -= steps
        if self.steps < 0:
            raise Exhausted


@dataclass(frozen=True, slots=True)
class Restricted:
    """A connected part of a restricted problem, with the prices of hops and of foreign work.

    `readers` has a bit set of demands for each unit of rate. A hop of one unit of rate costs `hop`
    for each unit of a demand's weight; `discard` is the price of an entry that a consumer of weight
    one discards, and `drop` of one that a collector passes on or drops. No weight times `discard`
    is less than `drop`.
    """

    readers: tuple[int, ...]
    weight: tuple[int, ...]
    hop: int
    drop: int
    discard: int
    needs: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Compute the logs of each demand."""
        needs = [0] * len(self.weight)
        for number, mask in enumerate(self.readers):
            for demand in bits(mask):
                needs[demand] |= 1 << number
        object.__setattr__(self, "needs", tuple(needs))

    @property
    def everyone(self) -> int:
        """The set of all demands."""
        return (1 << len(self.weight)) - 1

    def touched(self, demands: int) -> int:
        """Give the logs that at least one demand of a set needs."""
        logs = 0
        for number in bits(demands):
            logs |= self.needs[number]
        return logs

    def passing(self, below: int, boundary: int) -> int:
        """Price one hop of the boundary's logs for all their readers below."""
        total = 0
        for number in bits(boundary):
            total += sum(self.weight[d] for d in bits(self.readers[number] & below))
        return total * self.hop

    def leaf(self, demand: int) -> int:
        """Price a collector that serves one demand only; it discards and passes on nothing."""
        return self.hop * self.weight[demand] * self.needs[demand].bit_count()


def connected_sets(part: Restricted, level: int, budget: Budget) -> Iterator[tuple[int, int, int]]:
    """List the connected sets of demands with a boundary of at most `level`.

    Each comes with its boundary and with the shared logs that it needs. Raises `Exhausted`.
    """
    shared = sum(1 << number for number, mask in enumerate(part.readers) if mask & (mask - 1))
    needs = [logs & shared for logs in part.needs]
    near = [0] * len(needs)
    for mask in part.readers:
        for demand in bits(mask):
            near[demand] |= mask
    before = 0
    for first, logs in enumerate(needs):
        pending = [(1 << first, (1 << first) - 1, logs, before, near[first])]
        before |= logs
        while pending:
            budget.take()
            inside, outside, ours, theirs, around = pending.pop()
            undecided = around & ~inside & ~outside
            if not undecided:
                yield inside, ours & theirs, ours
                continue
            chosen = _most_decisive(undecided, needs, ours, theirs)
            more, bit = needs[chosen], 1 << chosen
            if (ours & (theirs | more)).bit_count() <= level:
                pending.append((inside, outside | bit, ours, theirs | more, around))
            if ((ours | more) & theirs).bit_count() <= level:
                pending.append((inside | bit, outside, ours | more, theirs, around | near[chosen]))


def least_boundaries(part: Restricted, level: int, budget: Budget) -> list[int]:
    """Give for each number of demands a lower bound of the rate of such a set's boundary.

    It is exact for connected sets up to `level`, `level + 1` for larger boundaries of theirs, and
    for other sets the least sum of such. Raises `Exhausted`.
    """
    count = len(part.weight)
    least = [0, *[level + 1] * (count - 1), 0]
    for demands, logs, _ in connected_sets(part, level, budget):
        size, rate = demands.bit_count(), logs.bit_count()
        # A set and its complement have the same boundary.
        for same in (size, count - size):
            least[same] = min(least[same], rate)
    for size in range(2, count):
        apart = (least[some] + least[size - some] for some in range(1, size // 2 + 1))
        least[size] = min(least[size], *apart)
    return [min(pair) for pair in zip(least, reversed(least), strict=True)]


def small_boundaries(part: Restricted, level: int, budget: Budget) -> dict[int, int]:
    """List the sets of demands with a boundary of at most `level`, each with its boundary.

    Single demands are always listed. Raises `Exhausted`.
    """
    small: dict[int, int] = {}
    touched: dict[int, int] = {}
    for demands, logs, ours in connected_sets(part, level, budget):
        small[demands], touched[demands] = logs, ours
    _add_unions(small, touched, level, budget)
    shared = sum(1 << number for number, mask in enumerate(part.readers) if mask & (mask - 1))
    for demand, logs in enumerate(part.needs):
        small.setdefault(1 << demand, logs & shared)
    return small


def _most_decisive(undecided: int, needs: Sequence[int], ours: int, theirs: int) -> int:
    """Pick the demand whose exclusion, or else inclusion, adds most to the boundary."""
    mine, other, best, chosen = ours & ~theirs, theirs & ~ours, -1, 0
    while undecided:
        low = undecided & -undecided
        undecided ^= low
        demand = low.bit_length() - 1
        logs = needs[demand]
        score = 3 * (logs & mine).bit_count() + (logs & other).bit_count()
        if score > best:
            best, chosen = score, demand
    return chosen


def _add_unions(small: dict[int, int], touched: dict[int, int], level: int, budget: Budget) -> None:
    """Add the unions of sets without a common log; their boundaries add up."""
    parts = sorted((logs.bit_count(), demands) for demands, logs in small.items() if logs)
    growing = [(rate, demands, demands & -demands) for rate, demands in parts]
    while growing:
        grown = []
        for rate, demands, low in growing:
            for more, other in parts:
                budget.take()
                if rate + more > level:
                    break
                if other & -other > low and not touched[demands] & touched[other]:
                    union = demands | other
                    if union not in small:
                        small[union] = small[demands] | small[other]
                        touched[union] = touched[demands] | touched[other]
                        grown.append((rate + more, union, other & -other))
        growing = grown


def _lowest_two(demands: int) -> int:
    """Give the two first demands of a set, or the only one."""
    rest = demands & (demands - 1)
    return demands & -demands | rest & -rest


def _smaller(demands: int, before: Mapping[int, Sequence[int]]) -> list[int]:
    """Collect the sets from `before` that may be parts of a set and contain its first demand.

    `before` has them by their two first demands, so those whose second one is outside are not met.
    """
    first = demands & -demands
    found = [*before.get(first, ())]
    for second in bits(demands ^ first):
        found += before.get(first | 1 << second, ())
    return found


class Family(NamedTuple):
    """Children of one collector: the set that they order, the logs they bring, their number."""

    below: int
    logs: int
    children: int


class LightCollectors:
    """All light collectors of a part, in the order in which a search can price them.

    `sets` lists the sets of demands, small ones first. `options[set]` gives pairs of a price and of
    the children (a set, a `Family`, or None) of a collector that orders the set.
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
            # The steps grow as the square of the number of sets.
            expected = lower.steps * len(self.boundary) ** 2 // len(lower.boundary) ** 2
            if expected > MISJUDGED_MAX * left:
                raise Exhausted
        self.sets = sorted(self.boundary, key=lambda demands: (demands.bit_count(), demands))
        self.inner = {
            demands: (part.touched(demands) & ~logs).bit_count()
            for demands, logs in self.boundary.items()
        }
        self.passing = {d: part.passing(d, logs) for d, logs in self.boundary.items()}
        self._options: dict[int, dict[int | Family | None, int]] = {d: {} for d in self.sets}
        self.families: dict[int, dict[Family, list[tuple[int | Family, int]]]] = {}
        self._extend(0, 0, 0, None, budget)
        before: dict[int, list[int]] = {}
        for demands in self.sets:
            self._add_families(demands, _smaller(demands, before), budget)
            before.setdefault(_lowest_two(demands), []).append(demands)
            for family in self.families.get(demands, ()):
                rate = family.logs.bit_count()
                self._options[demands][family] = part.drop * rate * (1 + family.children)
                self._extend(demands, family.logs, family.children, family, budget)
            if self.boundary[demands].bit_count() <= level:
                self._extend(demands, self.boundary[demands], 1, demands, budget)
        self.options = {demands: list(rows.items()) for demands, rows in self._options.items()}
        self.steps: int = left - budget.steps  # without those for the sets

    def _add_families(self, demands: int, smaller: Sequence[int], budget: Budget) -> None:
        """List the ways to divide a set among children, by the logs that they bring."""
        rows: dict[Family, list[tuple[int | Family, int]]] = {}
        outside, listed, level = ~demands, self.boundary, self.level
        budget.take(1 + len(smaller) // 16)
        for some in [s for s in smaller if not s & outside and demands ^ s in listed]:
            last = demands ^ some
            brought, families = listed[last], self.families.get(some, ())
            budget.take(1 + len(families))
            logs = listed[some] | brought
            if logs.bit_count() <= level:
                rows.setdefault(Family(demands, logs, 2), []).append((some, last))
            for family in families:
                logs = family.logs | brought
                if logs.bit_count() <= level:
                    rows.setdefault(Family(demands, logs, family.children + 1), []).append(
                        (family, last)
                    )
        if rows:
            self.families[demands] = rows

    def _extend(
        self, below: int, logs: int, count: int, key: int | Family | None, budget: Budget
    ) -> None:
        """List the collectors with these children that also serve some demands."""
        part, level, options = self.part, self.level, self._options
        near = [
            (1 << demand, needs, part.weight[demand])
            for demand, needs in enumerate(part.needs)
            if not below >> demand & 1 and (logs | needs).bit_count() <= level
        ]
        pending = [(0, below, logs, 0, 0, 0)]
        while pending:
            start, demands, bag, wanted, discards, fixed = pending.pop()
            for place in range(start, len(near)):
                bit, needs, weight = near[place]
                wider = bag | needs
                rate = wider.bit_count()
                if rate > level:
                    continue
                budget.take()
                own = needs.bit_count()
                served = wanted | needs
                more = discards + weight
                less = fixed + weight * own * (part.hop - part.discard)
                union = demands | bit
                pending.append((place + 1, union, wider, served, more, less))
                if union in options:
                    price = less + part.discard * more * rate
                    price += part.drop * (rate * (1 + count) - served.bit_count())
                    row = options[union]
                    if price < row.get(key, NEVER):
                        row[key] = price

    def credit(self, demands: int) -> int:
        """Give what is added to the price of a tree below a set to get its value."""
        return self.passing[demands] - self.part.drop * self.boundary[demands].bit_count()
