"""The exact search for the best tree of one small component: dynamic programming over sets.

With the prices of a `Measure` it finds the cheapest tree over *all* bags. A collector's price
depends only on the demands below it and on the sets that its children order, so the best tree for a
set `below` is computed once:

    best(S) = min over families C1..Cm of disjoint sets in S:  price(S, C1..Cm) + sum best(Ci)

A child may be any set of demands, connected or not: a collector with a small bag is worth its
place above demands that have nothing in common but that bag, because what they would drop of a
larger stream is more. (A root that serves nobody can be the best one, for the same reason.)

`choices` lists every family, and `best_choices` the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from topology.planner.cost import NOWHERE, Measure, TreeNode

FAMILIES_DEMANDS_MAX = 7  # 21,146 families in all for 7: a second or two of Python


@dataclass(frozen=True, slots=True)
class SearchState:
    """Demands that need an order, with the parent's host, and the number of levels left."""

    below: int
    parent: int
    levels: int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """One possible collector for a state: its host, its load, and the states of its children."""

    state: SearchState
    host: int
    children: tuple[SearchState, ...]
    price: int
    load: int


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


def best_choices(
    choices: dict[SearchState, list[Choice]],
    *,
    value: Callable[[Choice], int] = lambda choice: choice.price,
    fold: Callable[[Iterable[int]], int] = sum,
) -> dict[SearchState, tuple[int, Choice]]:
    """Give each state's best price and choice; states that cannot be served are left out.

    The price of a tree folds the values of its choices.
    """
    best: dict[SearchState, tuple[int, Choice]] = {}
    for state in sorted(choices, key=lambda s: (s.below.bit_count(), s.levels or 0)):
        for choice in choices[state]:
            if all(child in best for child in choice.children):
                price = fold((value(choice), *(best[child][0] for child in choice.children)))
                if state not in best or price < best[state][0]:
                    best[state] = price, choice
    return best


def chosen_tree(picked: dict[SearchState, Choice], root: SearchState) -> TreeNode:
    """Build the tree from the chosen choices of all reached states."""
    choice = picked[root]
    return TreeNode(
        below=root.below,
        served=root.below & ~sum(child.below for child in choice.children),
        children=tuple(chosen_tree(picked, child) for child in choice.children),
        host=choice.host,
    )
