"""The exact search for the best tree of one component: dynamic programs over sets of demands.

Goes in: a `Measure`. Comes out: the cheapest tree there is, over *all* bags, or nothing where the
step budget would be exceeded. Budgets count steps, never seconds: same input, same answer.

A collector's price depends only on who is below it and on what its children order, so the best
tree for `below` is found once. Children need be considered only if their demands hang together
through logs that no one else needs: else they could be split and nobody would pay more.

    best(S) = min over families C1..Cm of disjoint such sets in S:  price(S, C1..Cm) + sum best(Ci)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from topology.planner.cost import NOWHERE, Measure, TreeNode, bits

FAMILIES_DEMANDS_MAX = 7  # 4,140 families for the largest set of 7: a second of Python at most
STEPS = 15_000_000
SETS_MAX = 36_000


class _Exhausted(Exception):
    """The step budget is used up."""


@dataclass(slots=True)
class Budget:
    """A number of steps that a search may take."""

    steps: int

    def spend(self, steps: int = 1) -> None:
        """Count steps; raises when none are left."""
        self.steps -= steps
        if self.steps < 0:
            raise _Exhausted


def hanging_together(measure: Measure, *, limit: int) -> list[int] | None:
    """List the sets worth a collector of their own, small ones first; None: more than `limit`.

    One demand with logs of its own, or several that are connected through logs inner to the set.
    """
    everyone = measure.component.everyone
    shared = [mask for mask in measure.readers if mask.bit_count() > 1]
    found = {mask for mask in measure.readers if mask.bit_count() == 1}
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
    found |= grown | {everyone}
    return sorted(found, key=lambda mask: (mask.bit_count(), mask))


def packed(measure: Measure, *, steps: int = STEPS, sets_max: int = SETS_MAX) -> TreeNode | None:
    """Find the cheapest tree where prices are plain; None where the budget does not suffice."""
    assert measure.plain, "limits and hosts bend prices: use families()"
    sets = hanging_together(measure, limit=sets_max)
    if sets is None:
        return None
    above = join_tree(measure)
    kind = _Packing if above is None else _TreePacking
    try:
        return kind(measure, sets, Budget(steps), above or []).solve()
    except _Exhausted:
        return None


def join_tree(measure: Measure) -> list[int] | None:
    """Find a join tree of the demands, as each one's parent (-1: the root); None: there is none.

    It is a spanning tree of greatest weight, where two demands weigh as many classes as they
    share: by Bernstein and Goodman it is a join tree iff one exists, that is iff the hypergraph is
    alpha-acyclic. Demands come in an order in which parents precede: see `_TreePacking`.
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
    # Each class's readers must be one subtree: one edge fewer than readers lies inside them.
    edges = sum(len(shared[n] & shared[parent[n]]) for n in range(demands) if parent[n] >= 0)
    if edges != sum(mask.bit_count() - 1 for mask in measure.readers):
        return None
    return parent


class _Packing:
    """best(S) as a weighted packing of children: a child saves its parent its inner classes."""

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
        """Give (a, b): taking the child's inner classes from a bag saves a + b * weight below."""
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
        """Fill the best gain within each reachable rest; a stack in place of deep recursion."""
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
    """The same over a join tree, where sets that hang together are subtrees.

    Disjoint subtrees of most gain are found in one pass from the leaves: what hangs below a chosen
    subtree is chosen apart. (They are an independent set of a chordal graph.)
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
        # (top demand, set, what it adds, what it adds by the weight of all below, hanging).
        self.entries: list[tuple[int, int, int, int, tuple[int, ...]]] = []
        # For each demand the entries that hold it, as bits: those inside a set are found at once.
        self.holding = [0] * demands
        self.everything = sum(self.measure.weight)
        self.gain: dict[int, tuple[int, int]] = {}
        return super().solve()

    def _shape(self, below: int) -> tuple[int, tuple[int, ...]]:
        """Give a subtree's top demand, and the demands that hang directly below it."""
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
            # What hangs below any subtree at this top gains at most what hangs below the top.
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
        """List the places of the entries whose sets lie inside `below`."""
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
        """Whether a set's own children gain as much without it, whatever it may hang below.

        Gains are linear in the weight of all below, so the lightest and the heaviest case decide;
        they do not fall with it, so what its children gained at the lightest they always gain.
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
    """Demands that need an order below a parent on some host, with so many levels left."""

    below: int
    parent: int
    levels: int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to make a state's collector: its host, its bag, and what is left to its children."""

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
    """List every choice of every state that can be reached from the root, the root first.

    Empty lists tell of states that no collector within the limits can serve. With `any_set`
    children need not hang together: where collectors are counted, splitting one may not be had.
    """
    everyone = measure.component.everyone
    sets = hanging_together(measure, limit=1 << everyone.bit_length()) or []
    if any_set:
        sets = list(range(1, everyone + 1))
    root = SearchState(everyone, NOWHERE, measure.levels_max)
    found: dict[SearchState, list[Choice]] = {}
    pending = [root]
    while pending:
        state = pending.pop()
        if state in found:
            continue
        found[state] = list(_choices_of(measure, state, sets, load_max))
        for choice in found[state]:
            pending.extend(child for child in choice.children if child not in found)
    return found


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
    """List every family of disjoint sets of `within` inside `below`, the empty one first."""
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
    """Give each state's best price with its choice; states that cannot be served are absent."""
    best: dict[SearchState, tuple[int, Choice]] = {}
    for state in sorted(choices, key=lambda s: (s.below.bit_count(), s.levels or 0)):
        for choice in choices[state]:
            if all(child in best for child in choice.children):
                price = choice.price + sum(best[child][0] for child in choice.children)
                if state not in best or price < best[state][0]:
                    best[state] = price, choice
    return best


def least_load(choices: dict[SearchState, list[Choice]]) -> int | None:
    """Give the load that the busiest collector has at least, in any tree; None: no tree at all."""
    best: dict[SearchState, int] = {}
    for state in sorted(choices, key=lambda s: (s.below.bit_count(), s.levels or 0)):
        for choice in choices[state]:
            if all(child in best for child in choice.children):
                load = max(choice.load, *(best[child] for child in choice.children), 0)
                best[state] = min(load, best.get(state, load))
    widest = max(choices, key=lambda s: s.below.bit_count())
    return best.get(widest)


def chosen_tree(picked: dict[SearchState, Choice], root: SearchState) -> TreeNode:
    """Assemble the tree that a choice for every reached state describes."""
    choice = picked[root]
    return TreeNode(
        below=root.below,
        served=choice.served,
        children=tuple(chosen_tree(picked, child) for child in choice.children),
        host=choice.host,
    )
