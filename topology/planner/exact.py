"""The exact search for the best tree of one component: dynamic programs over sets of demands.

With the prices of a `Measure` it finds the cheapest tree over *all* bags, or gives None if the step
budget does not suffice. Budgets count steps, not seconds: the same input gives the same answer.

A collector's price depends only on the demands below it and on the sets that its children order,
so the best tree for a set `below` is computed once. Only connected sets can be children: sets of
demands that are connected through logs which no other demand needs. Any other set could be split
into two children at no cost.

    best(S) = min over families C1..Cm of disjoint such sets in S:  price(S, C1..Cm) + sum best(Ci)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from topology.planner.cost import NOWHERE, Measure, TreeNode, bits

FAMILIES_DEMANDS_MAX = 7  # 4,140 families for the largest set of 7: a second of Python at most
# The budgets of the packing. They decide which parts are solved exactly, and bound the time and
# memory of an attempt that fails; ten times more takes up to ten times longer (`--effort`).
STEPS_MAX = 15_000_000
SETS_MAX = 36_000


class _Exhausted(Exception):
    """The step budget is used up."""


@dataclass(slots=True)
class Budget:
    """The number of steps that a search may still take."""

    steps: int

    def spend(self, steps: int = 1) -> None:
        """Count steps; raises `_Exhausted` if none are left."""
        self.steps -= steps
        if self.steps < 0:
            raise _Exhausted


def connected_sets(measure: Measure, *, limit: int) -> list[int] | None:
    """List the sets worth a collector of their own, small ones first; None: more than `limit`.

    A set is a demand with logs of its own, or demands connected through logs inner to the set.
    """
    everyone = measure.component.everyone
    shared = [mask for mask in measure.readers if mask.bit_count() > 1]
    single = {mask for mask in measure.readers if mask.bit_count() == 1}
    touching = [[m for m in shared if m >> d & 1] for d in range(everyone.bit_length())]
    pending = sorted(set(shared))
    grown = set(pending)
    while pending:
        below = pending.pop()
        if len(grown) > limit:
            return None
        for demand in range(everyone.bit_length()):
            if below >> demand & 1:
                for mask in touching[demand]:
                    wider = below | mask
                    if wider not in grown:
                        grown.add(wider)
                        pending.append(wider)
    sets = single | grown | {everyone}
    return sorted(sets, key=lambda mask: (mask.bit_count(), mask))


def packed(
    measure: Measure, *, steps: int = STEPS_MAX, sets_max: int = SETS_MAX
) -> TreeNode | None:
    """Find the cheapest tree for plain prices; None if the budget does not suffice."""
    assert measure.plain, "with limits or hosts, prices are not linear: use families()"
    sets = connected_sets(measure, limit=sets_max)
    if sets is None:
        return None
    above = join_tree(measure)
    kind = _Packing if above is None else _TreePacking
    try:
        return kind(measure, sets, Budget(steps), above or []).solve()
    except _Exhausted:
        return None


def join_tree(measure: Measure) -> list[int] | None:
    """Find a join tree of the demands, as the list of parents (-1: the root); None: there is none.

    It is a maximum spanning tree, where the weight of two demands is the number of classes that
    they share. By Bernstein and Goodman it is a join tree if and only if one exists, that is, if
    and only if the hypergraph is alpha-acyclic.
    """
    demands = len(measure.weight)
    shared = [set(classes) for classes in measure.classes_of]
    parent = [-1] * demands
    nearest = [len(shared[0] & shared[number]) for number in range(demands)]
    link = [0] * demands
    waiting = set(range(1, demands))
    while waiting:
        taken = max(sorted(waiting), key=lambda number: nearest[number])
        waiting.discard(taken)
        parent[taken] = link[taken]
        for number in sorted(waiting):
            weight = len(shared[taken] & shared[number])
            if weight > nearest[number]:
                nearest[number], link[number] = weight, taken
    # The readers of each class must be one subtree: it has one edge fewer than readers.
    edges = sum(len(shared[n] & shared[parent[n]]) for n in range(demands) if parent[n] >= 0)
    if edges != sum(mask.bit_count() - 1 for mask in measure.readers):
        return None
    return parent


class _Packing:
    """best(S) as a weighted packing: each child saves its parent the child's inner classes."""

    def __init__(self, measure: Measure, sets: list[int], budget: Budget, above: list[int]) -> None:
        self.measure, self.sets, self.budget, self.above = measure, sets, budget, above
        self.best: dict[int, int] = {}
        self.chosen: dict[int, tuple[int, ...]] = {}
        self.saving: dict[int, tuple[int, int]] = {}

    def solve(self) -> TreeNode:
        measure = self.measure
        for below in self.sets:
            self.budget.spend()
            saved, children = self._pack(below)
            full = measure.price(below, measure.touching(below))
            self.best[below] = full - saved
            self.chosen[below] = children
            self._keep(below)
        return self._tree(measure.component.everyone)

    def _keep(self, below: int) -> None:
        self.saving[below] = self._saving(below)

    def _saving(self, child: int) -> tuple[int, int]:
        """Give (a, b): without the child's inner classes a bag costs a + b * weight below less."""
        measure = self.measure
        phi, inner = measure.scale.phi, measure.inner(child)
        load = measure.load(inner)
        own = sum(measure.rate[n] * measure.readers_weight[n] for n in inner)
        near, far = phi.denominator, phi.numerator
        return (
            (near - far) * own * measure.tie_work + load * measure.tie_nodes,
            far * load * measure.tie_work,
        )

    def _pack(self, below: int) -> tuple[int, tuple[int, ...]]:
        weight = self.measure.weight_of(below)
        starting: dict[int, list[tuple[int, int]]] = {}
        for child, price in self.best.items():
            if not child & ~below:
                constant, slope = self.saving[child]
                gain = constant + slope * weight - price
                if gain > 0:
                    starting.setdefault(child & -child, []).append((child, gain))
        memo: dict[int, tuple[int, int]] = {0: (0, 0)}
        self._fill(below, starting, memo)
        children, rest = [], below
        while rest:
            child = memo[rest][1]
            if child:
                children.append(child)
                rest ^= child
            else:
                rest &= rest - 1
        return memo[below][0], tuple(children)

    def _fill(
        self,
        below: int,
        starting: dict[int, list[tuple[int, int]]],
        memo: dict[int, tuple[int, int]],
    ) -> None:
        """Compute the best gain of each reachable rest, with a stack instead of recursion."""
        pending = [below]
        while pending:
            rest = pending[-1]
            if rest in memo:
                pending.pop()
                continue
            fitting = [pair for pair in starting.get(rest & -rest, ()) if not pair[0] & ~rest]
            self.budget.spend(len(fitting) + 1)
            missing = [rest ^ child for child, _ in fitting if rest ^ child not in memo]
            if rest & (rest - 1) not in memo:
                missing.append(rest & (rest - 1))
            if missing:
                pending.extend(missing)
                continue
            best, taken = memo[rest & (rest - 1)][0], 0
            for child, gain in fitting:
                value = gain + memo[rest ^ child][0]
                if value > best:
                    best, taken = value, child
            memo[rest] = best, taken
            pending.pop()

    def _tree(self, below: int) -> TreeNode:
        children = self.chosen[below]
        served = below & ~sum(children)
        return TreeNode(below, served, tuple(self._tree(child) for child in children))


class _TreePacking(_Packing):
    """The same packing over a join tree, in which connected sets are subtrees.

    One pass from the leaves finds the disjoint subtrees with the greatest gain, because the parts
    below a chosen subtree are independent of each other. (Such subtrees are an independent set of a
    chordal graph.)
    """

    def solve(self) -> TreeNode:
        demands = len(self.above)
        self.under: list[list[int]] = [[] for _ in range(demands)]
        order = [0]
        for number, parent in enumerate(self.above):
            if parent >= 0:
                self.under[parent].append(number)
        for number in order:
            order.extend(self.under[number])
        self.place = {number: place for place, number in enumerate(order)}
        self.order = order
        self.hanging: dict[int, tuple[int, ...]] = {}
        # (top demand, set, constant gain, gain by weight below the parent, demands hanging below).
        self.entries: list[tuple[int, int, int, int, tuple[int, ...]]] = []
        # For each demand a bit set of the entries that hold it, to find those inside a set quickly.
        self.holding = [0] * demands
        self.everything = sum(self.measure.weight)
        self.gain: dict[int, tuple[int, int]] = {}
        return super().solve()

    def _shape(self, below: int) -> tuple[int, tuple[int, ...]]:
        """Give a subtree's top demand, and the demands directly below the subtree."""
        members = list(bits(below))
        top = min(members, key=self.place.__getitem__)
        hanging = [u for number in members for u in self.under[number] if not below >> u & 1]
        return top, tuple(hanging)

    def _pack(self, below: int) -> tuple[int, tuple[int, ...]]:
        weight = self.measure.weight_of(below)
        gaining: list[list[tuple[int, int, tuple[int, ...]]]] = [[] for _ in self.order]
        for place in self._inside(below):
            top, child, constant, slope, hanging = self.entries[place]
            gain = constant + slope * weight
            if gain > 0:
                gaining[top].append((gain, child, hanging))
        most = [0] * len(self.order)
        taken = [0] * len(self.order)
        for number in reversed([n for n in self.order if below >> n & 1]):
            # The parts below a subtree with this top gain at most what those below the top gain.
            base = value = sum(most[u] for u in self.under[number])
            pick = 0
            for gain, child, hanging in reversed(gaining[number]):
                if gain + base > value:
                    total = gain + sum(map(most.__getitem__, hanging))
                    if total > value:
                        value, pick = total, child
            most[number], taken[number] = value, pick
        top, self.hanging[below] = self._shape(below)
        children, pending = [], [top]
        while pending:
            number = pending.pop()
            pick = taken[number]
            children.extend([pick] if pick else [])
            following = self.hanging[pick] if pick else self.under[number]
            pending.extend(u for u in following if below >> u & 1)
        return most[top], tuple(sorted(children))

    def _inside(self, below: int) -> Iterator[int]:
        """List the indices of the entries with sets inside `below`."""
        outside = 0
        for number in bits(self.measure.component.everyone & ~below):
            outside |= self.holding[number]
        inside = ((1 << len(self.entries)) - 1) & ~outside
        self.budget.spend(len(self.entries) // 20 + inside.bit_count())
        digits = f"{inside:b}"[::-1]
        place = digits.find("1")
        while place >= 0:
            yield place
            place = digits.find("1", place + 1)

    def _keep(self, below: int) -> None:
        super()._keep(below)
        constant, slope = self.saving[below]
        constant -= self.best[below]
        self.gain[below] = constant, slope
        if not self._dominated(below):
            top, hanging = self._shape(below)
            for number in bits(below):
                self.holding[number] |= 1 << len(self.entries)
            self.entries.append((top, below, constant, slope, hanging))

    def _dominated(self, below: int) -> bool:
        """Whether a set's own children always gain as much without the set itself.

        Gains are linear in the weight below the parent, so it is enough to compare the least and
        the greatest weight. Gains never fall with that weight, so children that gain at the least
        weight gain at every weight.
        """
        constant, slope = self.gain[below]
        instead = [self.gain[child] for child in self.chosen[below]]
        lightest = self.measure.weight_of(below)
        return all(
            constant + slope * weight <= sum(a + b * weight for a, b in instead)
            for weight in (lightest, self.everything)
        )


# -- every choice, for small components with limits and hosts ---------------------------------


@dataclass(frozen=True, slots=True)
class SearchState:
    """Demands that need an order, with the parent's host, and the number of levels left."""

    below: int
    parent: int
    levels: int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """One possible collector for a state: its host, its bag, and the states of its children."""

    state: SearchState
    host: int
    bag: tuple[int, ...]
    children: tuple[SearchState, ...]
    price: int
    load: int

    @property
    def served(self) -> int:
        """The demands that read this collector."""
        return self.state.below & ~sum(child.below for child in self.children)


def choices(
    measure: Measure, *, load_max: int | None = None, any_set: bool = False
) -> dict[SearchState, list[Choice]]:
    """List all choices of all states that can be reached from the root, the root first.

    A state with an empty list cannot be served within the limits. With `any_set`, children need not
    be connected sets: if collectors are counted, splitting one may be impossible.
    """
    everyone = measure.component.everyone
    sets = connected_sets(measure, limit=1 << everyone.bit_length()) or []
    if any_set:
        sets = list(range(1, everyone + 1))
    root = SearchState(everyone, NOWHERE, measure.levels_max)
    listed: dict[SearchState, list[Choice]] = {}
    pending = [root]
    while pending:
        state = pending.pop()
        if state in listed:
            continue
        listed[state] = list(_choices_of(measure, state, sets, load_max))
        for choice in listed[state]:
            pending.extend(child for child in choice.children if child not in listed)
    return listed


def _choices_of(
    measure: Measure, state: SearchState, sets: list[int], load_max: int | None
) -> Iterator[Choice]:
    below = state.below
    within = [child for child in sets if child != below and not child & ~below]
    if state.levels == 1:
        within = []
    left = None if state.levels is None else state.levels - 1
    for family in families(below, within):
        bag = measure.bag(below, family)
        load = measure.load(bag)
        if load_max is not None and load > load_max:
            continue
        for host in measure.hosts:
            yield Choice(
                state=state,
                host=host,
                bag=tuple(bag),
                children=tuple(SearchState(child, host, left) for child in family),
                price=measure.price(below, bag, host=host, parent=state.parent),
                load=load,
            )


def families(below: int, within: list[int]) -> Iterator[tuple[int, ...]]:
    """List all families of disjoint sets of `within` inside `below`, the empty family first."""
    starting: dict[int, list[int]] = {}
    for child in within:
        starting.setdefault(child & -child, []).append(child)

    def rest_of(rest: int) -> Iterator[tuple[int, ...]]:
        if not rest:
            yield ()
            return
        yield from rest_of(rest & (rest - 1))
        for child in starting.get(rest & -rest, ()):
            if not child & ~rest:
                for others in rest_of(rest ^ child):
                    yield (child, *others)

    return rest_of(below)


def best_choices(choices: dict[SearchState, list[Choice]]) -> dict[SearchState, tuple[int, Choice]]:
    """Give each state's best price and choice; states that cannot be served are left out."""
    best: dict[SearchState, tuple[int, Choice]] = {}
    for state in sorted(choices, key=lambda s: (s.below.bit_count(), s.levels or 0)):
        for choice in choices[state]:
            if all(child in best for child in choice.children):
                price = choice.price + sum(best[child][0] for child in choice.children)
                if state not in best or price < best[state][0]:
                    best[state] = price, choice
    return best


def least_load(choices: dict[SearchState, list[Choice]]) -> int | None:
    """Give the least possible load of the busiest collector; None: there is no tree."""
    best: dict[SearchState, int] = {}
    for state in sorted(choices, key=lambda s: (s.below.bit_count(), s.levels or 0)):
        for choice in choices[state]:
            if all(child in best for child in choice.children):
                load = max(choice.load, *(best[child] for child in choice.children), 0)
                best[state] = min(load, best.get(state, load))
    widest = max(choices, key=lambda s: s.below.bit_count())
    return best.get(widest)


def chosen_tree(picked: dict[SearchState, Choice], root: SearchState) -> TreeNode:
    """Build the tree from the chosen choices of all reached states."""
    choice = picked[root]
    return TreeNode(
        below=root.below,
        served=choice.served,
        children=tuple(chosen_tree(picked, child) for child in choice.children),
        host=choice.host,
    )
