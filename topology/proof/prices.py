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

Any prices give a valid bound. Good ones come from a linear program, which a solver may solve
inexactly: the pass is in integers and proves the bound whatever the solver says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from topology.planner.cost import bits
from topology.proof.light import NEVER, UNKNOWN, LightCollectors

SERVED = 4  # a collector that serves this many demands or more may pass on nothing
SOLVED_MAX = 4  # programs for one proof; the violated rows of each are added to the next
ROWS_PER_SIZE = 4  # the most violated sets of each size become rows of the program
SLACK = 1e-6  # of the linear program, in units of `drop`
# Up to so many demands the program begins with a row for each two sizes of sets that a heavy
# collector may join. With more it has those in which one of the sets is small, and others as soon
# as they are violated: 256 demands have 49,000 such rows.
ALL_SIZES_MAX, SMALL_SIZE_MAX = 64, 16
# How far a price may move in one round, in units of `drop`; half as far after a round that proves
# no more. Without it the prices jump, as in each cutting plane method, and need more rounds.
STRIDE = 4.0

Row = tuple[dict[int, float], float]  # coefficients by variable; their sum is at most the number
Solver = Callable[[int, dict[int, float], Sequence[Row]], Sequence[float] | None]


class Priced(NamedTuple):
    """The greatest bound that was proven, and the prices that prove it."""

    bound: int
    prices: Sequence[int]


@dataclass(frozen=True, slots=True)
class Proof:
    """A proven bound, and what limits it.

    `values` has a lower bound of the value of each node of `LightCollectors`. The sets whose node
    is in `heavy` have it under a heavy collector. By the size of a set: the `excess` of a heavy
    collector, of a `child`, of `several` children, and of parts of which some are served (`open`,
    by their number up to `SERVED`). `root` is the least cost with a light root.
    """

    bound: int
    values: list[int]
    heavy: set[int]
    excess: list[int]
    child: list[int]
    several: list[int]
    open: list[list[int]]
    root: int


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

    def proven(self, prices: Sequence[int]) -> Proof:
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
        values, heavy = self._unknown(), set[int]()
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
                if size > 1 and under < value:
                    value = under
                    heavy.add(place)  # the node of the set
                values[place] = value
                if value < UNKNOWN:
                    child[size] = max(child[size], total - value + inner)
        bound = sum(prices) - excess[self.count] + self.fixed
        return Proof(min(bound, root), values, heavy, excess, child, several, open_, root)

    @cached_property
    def _pure(self) -> list[int]:
        """The least value of each node over all trees with light collectors only."""
        values = self._unknown()
        for place in range(len(self.light.sets)):
            values[place + 1] = self.light.least(place, values)
        return values

    def values_of_light_trees(self) -> dict[int, int]:
        """Give the least value of each listed set over all trees with light collectors only."""
        named = zip(self.light.sets, self._pure[1:], strict=False)
        return {demands: value for demands, value in named if value < UNKNOWN}

    def _unknown(self) -> list[int]:
        """Give the values of all nodes before any is known; nothing costs nothing."""
        return [0, *[NEVER] * (self.light.nodes - 1)]

    # -- the linear program -----------------------------------------------------------------------

    def best(self, solve: Solver, *, rounds: int, start: Sequence[int] | None = None) -> Priced:
        """Look for the prices with the greatest bound; `solve` maximises a linear program.

        The bound is not less than what the prices `start` prove, for instance those of the level
        below.
        """
        program = _Program(self)
        shares = zip(self.served, self._shares(), strict=True)
        prices = [price + part for price, part in shares] if start is None else start
        proof = self.proven(prices)
        best = Priced(proof.bound, prices)
        if start is not None:
            program.add_rows(prices, proof)
        stride = STRIDE
        for number in range(rounds):
            near = None if start is None and number == 0 else (best.prices, stride)
            answer = program.improved(solve, near)
            if answer is None:
                break
            proof = self.proven(answer)
            better = proof.bound > best.bound
            if better:
                best = Priced(proof.bound, answer)
            else:
                stride /= 2
            if not program.add_rows(answer, proof) and not better:
                break
        return best

    def _shares(self) -> list[int]:
        """Give the first prices: as if one heavy collector served everyone."""
        return [self.part.drop * self.bag for _ in range(self.count)]


class _Program:
    """The linear program for the prices: a row for each step of the proof, in units of `drop`.

    Variables: the prices, A(k) of children, the excess of a served demand, of several children, of
    collectors in the making, of heavy collectors, and the bound.
    """

    def __init__(self, owner: DemandPrices) -> None:
        self.owner = owner
        self.unit = float(owner.part.drop)
        self.names: dict[tuple[str, int, int], int] = {}
        self.rows: list[Row] = []
        self.taken: set[tuple[int, tuple[int, ...]]] = set()
        self._structure()
        self.pure = owner.values_of_light_trees()
        self.pure.pop(owner.part.everyone, None)
        for demands in self.pure:
            if demands.bit_count() <= 2:
                self._pure_row(demands)

    def _price(self, demand: int) -> int:
        """Give the variable of a demand's price; all that are alike have one."""
        return self._of("price", self.owner.part.alike.first[demand])

    def _of(self, name: str, size: int = 0, number: int = 0) -> int:
        return self.names.setdefault((name, size, number), len(self.names))

    def _row(self, limit: float, *terms: tuple[int, float]) -> None:
        row: dict[int, float] = {}
        for variable, factor in terms:
            row[variable] = row.get(variable, 0.0) + factor
        self.rows.append((row, limit))

    def _structure(self) -> None:
        """Write the recursion of `DemandPrices.proven` over sizes."""
        owner, count = self.owner, self.owner.count
        for demand in range(count):
            self._price(demand)
        served = self._of("served")
        for demand, price in enumerate(owner.served):
            self._row(price / self.unit, (self._price(demand), 1), (served, -1))
        self._row(0.0, (served, 1), (self._of("open", 1, 1), -1))
        # Nothing changes if t is added to each price, and k * t to each A(k). With no A fixed, some
        # answers of CBC were near 1e11, and their rounding cost more than the whole bound.
        self._row(0.0, (self._of("child", 1), 1))
        self._row(0.0, (self._of("child", 1), -1))
        for size in range(2, count + 1):
            several, excess = self._of("several", size), self._of("excess", size)
            for k in range(1, size if count <= ALL_SIZES_MAX else min(size, SMALL_SIZE_MAX + 1)):
                if k <= size - k:
                    self._joining(size, k, "child")
                if size - k >= 2:
                    self._joining(size, k, "several")
            self._row(float(owner.passed_on(0)), (several, 1), (excess, -1))
            self._serving(size, served, excess)
            if size < count:
                self._row(self._least_passing(size), (excess, 1), (self._of("child", size), -1))
        prices = [(self._price(demand), -1.0) for demand in range(count)]
        fixed = owner.fixed / self.unit
        self._row(fixed, (self._of("bound"), 1), (self._of("excess", count), 1), *prices)

    def _joining(self, size: int, last: int, rest: str) -> None:
        """Write that a heavy collector joins a child of `last` demands to one or several others."""
        pair = (self._of(rest, size - last), 1.0), (self._of("child", last), 1.0)
        bag = float(self.owner.bag)
        self._row(bag, *pair, (self._of("several", size), -1))

    def _add_joining(self, values: Sequence[float]) -> bool:
        """Add the most violated row of each size that the program left out; whether there is one.

        The last child is the smallest one, as all can be joined in this order.
        """
        owner, added = self.owner, False
        if owner.count <= ALL_SIZES_MAX:
            return False
        child, several = (
            [values[self._of(name, size)] for size in range(2, owner.count)]
            for name in ("child", "several")
        )
        for size in range(2 * SMALL_SIZE_MAX + 2, owner.count + 1):
            limit = values[self._of("several", size)] + SLACK
            over, last, rest = max(
                (values_of[size - k - 2] + child[k - 2] - owner.bag, k, name)
                for k in range(SMALL_SIZE_MAX + 1, size // 2 + 1)
                for values_of, name in ((child, "child"), (several, "several"))
            )
            if over > limit:
                self._joining(size, last, rest)
                added = True
        return added

    def _serving(self, size: int, served: int, excess: int) -> None:
        """Write how a heavy collector serves one demand more than before."""
        bag = float(self.owner.bag)
        for number in range(1, SERVED + 1):
            here = self._of("open", size, number)
            states = [("open", number - 1)] if number > 1 else [("child", 0), ("several", 0)]
            states += [("open", SERVED)] if number == SERVED else []
            for name, state in states:
                if name == "child" or size - 1 >= (2 if name == "several" else state):
                    before = self._of(name, size - 1, state)
                    self._row(bag, (before, 1), (served, 1), (here, -1))
            self._row(float(self.owner.passed_on(number)), (here, 1), (excess, -1))

    def _least_passing(self, size: int) -> float:
        light = self.owner.light
        here = [light.passing[d] for d in light.sets if d.bit_count() == size]
        return min([self.owner.outer, *here]) / self.unit

    def _pure_row(self, demands: int) -> None:
        """Add that a set under light collectors is worth at least its price less its excess."""
        light, size = self.owner.light, demands.bit_count()
        self.taken.add((demands, ()))
        limit = self.pure[demands] / self.unit - light.inner[demands]
        prices = [(self._price(d), 1.0) for d in bits(demands)]
        self._row(limit, *prices, (self._of("child", size), -1))

    def improved(self, solve: Solver, near: tuple[Sequence[int], float] | None) -> list[int] | None:
        """Solve the program until nothing that was left out violates it; give the prices, or None.

        `near`: each price is within a distance, in units of `drop`, of those given.
        """
        light = self.owner.light
        around = [] if near is None else self._around(*near)
        values: Sequence[float] = ()
        for _ in range(SOLVED_MAX):
            answer = solve(len(self.names), {self._of("bound"): 1.0}, [*self.rows, *around])
            if answer is None:
                return None
            values = answer
            worst: dict[int, list[tuple[float, int]]] = {}
            for demands, value in self.pure.items():
                size = demands.bit_count()
                total = sum(values[self._price(d)] for d in bits(demands))
                limit = value / self.unit - light.inner[demands]
                over = total - values[self._of("child", size)] - limit
                if over > SLACK and (demands, ()) not in self.taken:
                    worst.setdefault(size, []).append((-over, demands))
            if not self._add_joining(values) and not worst:
                break
            for rows in worst.values():
                for _, demands in sorted(rows)[: 16 * ROWS_PER_SIZE]:
                    self._pure_row(demands)
        return [round(values[self._price(d)] * self.unit) for d in range(self.owner.count)]

    def _around(self, prices: Sequence[int], distance: float) -> list[Row]:
        """Give the rows that keep prices near others, but for a number that is added to all."""
        rows: list[Row] = []
        added = self._of("added")
        for demand, price in enumerate(prices):
            variable = self._price(demand)
            rows.append(({variable: 1.0, added: 1.0}, price / self.unit + distance))
            rows.append(({variable: -1.0, added: -1.0}, distance - price / self.unit))
        return rows

    def add_rows(self, prices: Sequence[int], proof: Proof) -> bool:
        """Add rows for sets with heavy collectors below light ones; whether there were new ones."""
        owner, light, added = self.owner, self.owner.light, False
        by_size: dict[int, list[tuple[int, int]]] = {}
        for place, demands in enumerate(light.sets):
            value = proof.values[place + 1]
            # A set with its pure value has no heavy collector below.
            if place + 1 not in proof.heavy and value < self.pure.get(demands, UNKNOWN):
                total = sum(prices[d] for d in bits(demands))
                total += owner.part.drop * light.inner[demands]
                by_size.setdefault(demands.bit_count(), []).append((value - total, place))
        for size, rows in by_size.items():
            for _, place in sorted(rows)[:ROWS_PER_SIZE]:
                demands = light.sets[place]
                row = {self._of("child", size): -1.0}
                for demand in bits(demands):
                    price = self._price(demand)
                    row[price] = row.get(price, 0.0) + 1.0
                limit = float(-light.inner[demands])
                added |= self._mixed_row(
                    place, proof.values[place + 1], proof, prices, (row, limit)
                )
        last = len(light.sets) - 1  # all demands, if a light root is possible
        if proof.root < UNKNOWN:
            row = {self._of("bound"): 1.0}
            added |= self._mixed_row(last, proof.root, proof, prices, (row, 0.0))
        return added

    def _mixed_row(
        self, place: int, value: int, proof: Proof, prices: Sequence[int], row: Row
    ) -> bool:
        """Add that a set under light collectors with heavy ones below is worth what these are."""
        light, (terms_of, limit) = self.owner.light, row
        heavy = light.heavy_below(place, proof.values, proof.heavy)
        key = light.sets[place], tuple(heavy)
        if not heavy or key in self.taken:
            return False
        self.taken.add(key)
        terms, fixed = list(terms_of.items()), value
        for other in heavy:
            fixed -= sum(prices[d] for d in bits(other)) - proof.excess[other.bit_count()]
            terms.extend((self._price(d), -1.0) for d in bits(other))
            terms.append((self._of("excess", other.bit_count()), 1.0))
        self._row(limit + fixed / self.unit, *terms)
        return True
