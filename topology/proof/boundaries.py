"""Sets of demands with a small boundary: the candidates for what a light collector orders.

The boundary of a set is the logs read inside and outside it. All rates are multiples of one unit
here, and a set of logs is a bit set with a bit for each unit, so that the rate of a set is its
number of bits.

The number of sets with a small boundary is small: a search that decides demand by demand whether it
belongs to the set ends a branch as soon as logs of too great a rate are read on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from topology.planner.cost import bits
from topology.proof.alike import Alike

# Demands that share the same logs are taken for alike, whatever their own rates, if there were more
# first sets of them than this: what it costs of the bound is worth it only for many. The inputs
# `acyclic0` to `acyclic2` of `bench/harness/interests.py` have at most 8.
KINDS_SETS_MAX = 32


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

    A demand's own logs, which have no other reader, are only in the bag of its own collector, one
    hop from their leaders. So they are a number, `own`, and in no bit set; their hops are the same
    in all trees, and are not counted. They are given by `own_rates`, or as logs with
    one reader in `readers`; both are added.
    """

    readers: tuple[int, ...]
    weight: tuple[int, ...]
    hop: int
    drop: int
    discard: int
    own_rates: tuple[int, ...] = ()
    sets_max: int = KINDS_SETS_MAX
    needs: tuple[int, ...] = field(init=False)
    own: tuple[int, ...] = field(init=False)
    alike: Alike = field(init=False)

    def __post_init__(self) -> None:
        """Compute the shared logs of each demand, its own rate, and which demands are alike."""
        needs = [0] * len(self.weight)
        own = list(self.own_rates or needs)
        for number, mask in enumerate(self.readers):
            for demand in bits(mask):
                if mask & (mask - 1):
                    needs[demand] |= 1 << number
                else:
                    own[demand] += 1
        object.__setattr__(self, "needs", tuple(needs))
        object.__setattr__(self, "own", tuple(own))
        alike = Alike(self.weight, needs, own, sets_max=self.sets_max)
        object.__setattr__(self, "alike", alike)

    @property
    def everyone(self) -> int:
        """The set of all demands."""
        return (1 << len(self.weight)) - 1

    @property
    def shared(self) -> int:
        """The number of logs with two readers or more."""
        return sum(1 for mask in self.readers if mask & (mask - 1))

    def touched(self, demands: int) -> int:
        """Give the shared logs that at least one demand of a set needs."""
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
    """List the connected first sets of demands (`Alike`) with a boundary of at most `level`.

    Each comes with its boundary and with the shared logs that it needs. Raises `Exhausted`.
    """
    alike = part.alike
    needs = part.needs
    near = [0] * len(needs)
    for mask in part.readers:
        for demand in bits(mask):
            near[demand] |= mask
    before = passed = 0  # the logs of all demands that are lower, and what a set without them lacks
    for first, logs in enumerate(needs):
        pending = [(1 << first, passed, logs, before, near[first])]
        before |= logs
        if passed >> first & 1:
            continue
        passed |= 1 << first | alike.higher[first]
        while pending:
            budget.take()
            inside, outside, ours, theirs, around = pending.pop()
            undecided = around & ~inside & ~outside
            if not undecided:
                yield inside, ours & theirs, ours
                continue
            chosen = _most_decisive(undecided, needs, ours, theirs)
            more = needs[chosen]
            without = outside | 1 << chosen | alike.higher[chosen]
            joined = inside | 1 << chosen | alike.lower[chosen]
            if (ours & (theirs | more)).bit_count() <= level:
                pending.append((inside, without, ours, theirs | more, around))
            if ((ours | more) & theirs).bit_count() <= level:
                pending.append((joined, outside, ours | more, theirs, around | near[chosen]))


def small_boundaries(part: Restricted, level: int, budget: Budget) -> dict[int, int]:
    """List the first sets of demands (`Alike`) with a boundary of at most `level`.

    Each comes with its boundary. Single demands are always listed. Raises `Exhausted`.
    """
    small: dict[int, int] = {}
    touched: dict[int, int] = {}
    for demands, logs, ours in connected_sets(part, level, budget):
        small[demands], touched[demands] = logs, ours
    _add_unions(small, touched, level, budget)
    for demand in set(part.alike.first):
        small.setdefault(1 << demand, part.needs[demand])
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
