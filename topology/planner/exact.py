"""The exact search for the best tree of one small component: dynamic programs over sets of demands.

With the prices of a `Measure` both programs here find the cheapest tree over *all* bags. A
collector's price depends only on the demands below it and on the sets that its children order, so
the best tree for a set `below` is computed once:

    best(S) = min over families C1..Cm of disjoint sets in S:  price(S, C1..Cm) + sum best(Ci)

A child may be any set of demands, connected or not: a collector with a small bag is worth its
place above demands that have nothing in common but that bag, because what they would drop of a
larger stream is more. (A root that serves nobody can be the best one, for the same reason.)

`choices` lists every family, and `best_choices` the best: for few demands, with limits and hosts.
`by_bags` asks for each bag instead which demands can be below it: for few classes of logs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from topology.planner.cost import NOWHERE, Measure, TreeNode, bits

FAMILIES_DEMANDS_MAX = 7  # 21,146 families in all for 7: a second or two of Python
# Of `by_bags`: bags times pairs of a set and a subset, some 4 s of Python. It suffices for all
# eleven interests that four logs allow.
BAG_STEPS_MAX = 4_000_000


def by_bags_steps(measure: Measure) -> int:
    """Estimate the steps of `by_bags`: for each bag, all pairs of a set and a subset of it."""
    return (1 << len(measure.rate)) * int(3 ** len(measure.weight)) // 2


def by_bags(measure: Measure) -> TreeNode:
    """Find the cheapest tree for plain prices. Takes `by_bags_steps` steps."""
    assert measure.plain, "limits and hosts need every choice"
    return _Bags(measure).tree()


class _Bags:
    """best(S) as the least over bags B that hold the boundary of S.

    Under a given bag, what the children cost is a sum over children: each drops the rest of the
    bag. So the best way to divide the demands that the collector does not serve itself is a
    partition, found once for each bag and set:

        split(B, X) = min over the child C in X with the lowest demand of X:
                      drop(B, C) + best(C) + split(B, X without C)
    """

    def __init__(self, measure: Measure) -> None:
        self.measure = measure
        self.demands = len(measure.weight)
        bags = range(1 << len(measure.rate))
        self.load = [measure.load(bag) for bag in bags]
        everyone = measure.component.everyone
        self.boundary = [measure.boundary(below) for below in range(everyone + 1)]
        self.best: list[int] = [0] * (everyone + 1)
        self.chosen: list[tuple[int, int]] = [(0, 0)] * (everyone + 1)
        self.split: list[dict[int, tuple[int, int]]] = [{0: (0, 0)} for _ in bags]
        scale = measure.scale
        self.foreign = scale.phi.numerator * scale.hops * measure.tie_work

    def tree(self) -> TreeNode:
        for below in range(1, self.measure.component.everyone + 1):
            self._solve(below)
        return self._made(self.measure.component.everyone)

    def _solve(self, below: int) -> None:
        """Find best(below), and how each bag divides the set; all smaller sets are known."""
        low = below & -below
        proper = [child | low for child in _subsets(below ^ low)][1:]
        for bag, split in enumerate(self.split):
            options = [
                (cost, child)
                for child in proper
                if (cost := self._divided(bag, split, child, below)) is not None
            ]
            if options:
                split[below] = min(options)
        self.best[below], self.chosen[below] = min(self._collectors(below))
        for bag, split in enumerate(self.split):
            if not self.boundary[below] & ~bag:
                alone = self._child(bag, below), below
                split[below] = min(alone, split.get(below, alone))

    def _divided(
        self, bag: int, split: dict[int, tuple[int, int]], child: int, below: int
    ) -> int | None:
        others = split.get(below ^ child)
        if others is None or self.boundary[child] & ~bag:
            return None
        return self._child(bag, child) + others[0]

    def _child(self, bag: int, child: int) -> int:
        dropped = self.load[bag] - self.load[self.boundary[child]]
        return dropped * self.measure.scale.weights * self.foreign + self.best[child]

    def _collectors(self, below: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """List the prices of all collectors for a set, each with its bag and whom it serves."""
        measure = self.measure
        touched = measure.touching(below)
        for bag in _subsets(touched):
            if self.boundary[below] & ~bag:
                continue
            fixed = self._fixed(bag, below)
            inside = sum(1 << d for d in bits(below) if not measure.needs[d] & ~bag)
            for served in _subsets(inside):
                divided = self.split[bag].get(below ^ served)
                if divided is None or (not served and divided[1] == below):
                    continue
                wanted = measure.touching(served)
                discarded = sum(
                    measure.weight[d] * (self.load[bag] - measure.loads[d]) for d in bits(served)
                )
                passed_on = self.load[bag & ~wanted] * measure.scale.weights
                price = fixed + (passed_on + discarded) * self.foreign + divided[0]
                yield price, (bag, served)

    def _fixed(self, bag: int, below: int) -> int:
        """Give what depends on the bag and on the demands below it: hops, and the tie-breakers."""
        measure = self.measure
        hops = sum(
            measure.rate[n] * measure.weight_of(measure.readers[n] & below) for n in bits(bag)
        )
        near = measure.scale.phi.denominator * hops * measure.tie_work
        return near + self.load[bag] * measure.tie_nodes + 1

    def _made(self, below: int) -> TreeNode:
        bag, served = self.chosen[below]
        children, rest = [], below ^ served
        while rest:
            child = self.split[bag][rest][1]
            children.append(self._made(child))
            rest ^= child
        return TreeNode(below, served, tuple(children))


def _subsets(mask: int) -> Iterator[int]:
    """List all subsets of a bit set, itself first and the empty set last."""
    pick = mask
    while True:
        yield pick
        if not pick:
            return
        pick = (pick - 1) & mask


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
    bag: int
    children: tuple[SearchState, ...]
    price: int
    load: int

    @property
    def served(self) -> int:
        """The demands that read this collector."""
        return self.state.below & ~sum(child.below for child in self.children)


def choices(measure: Measure, *, load_max: int | None = None) -> dict[SearchState, list[Choice]]:
    """List all choices of all states that can be reached from the root, the root first.

    A state with an empty list cannot be served within the limits.
    """
    everyone = measure.component.everyone
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
                bag=bag,
                children=tuple(SearchState(child, host, left) for child in family),
                price=measure.price(below, family, bag=bag, host=host, parent=state.parent),
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
