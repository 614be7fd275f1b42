"""The search of the trees that may still be cheaper, against every tree, and with the planner."""

import random
from dataclasses import replace

import pytest

from bench.harness.acyclic_interests import block_tree, intervals, nested, subtrees
from bench.harness.interests import file_of
from tests.topology.test_bound import STEPS, least_cost, random_part
from topology.check import check
from topology.interests import Hosts
from topology.planner.boundaries import Budget, Exhausted
from topology.planner.light import LightCollectors
from topology.planner.prices import DemandPrices
from topology.planner.remaining import RemainingTrees
from topology.planner.solver import solve


def search(part, level, prices, below, steps=STEPS):
    finder = DemandPrices(LightCollectors(part, level, Budget(STEPS)))
    budget = Budget(steps)
    return RemainingTrees(finder, prices or finder.served, below=below, budget=budget)


def cost_of(part, tree):
    """The cost of a tree by its definition, without the hops of own logs."""

    def inner(node):
        return {n for n, m in enumerate(part.readers) if m & node.below and not m & ~node.below}

    total = 0
    for node in tree.walk():
        touched = {n for n, mask in enumerate(part.readers) if mask & node.below}
        bag = touched.difference(*(inner(child) for child in node.children))
        wanted = {n for n in bag if part.readers[n] & node.served}
        total += part.drop * len(bag - wanted)
        for child in node.children:
            boundary = {n for n, m in enumerate(part.readers) if m & child.below} - inner(child)
            total += part.drop * len(bag - boundary)
        for demand, weight in enumerate(part.weight):
            if node.below >> demand & 1:
                total += part.hop * weight * sum(part.readers[n] >> demand & 1 for n in bag)
            if node.served >> demand & 1:
                needs = sum(part.readers[n] >> demand & 1 for n in bag)
                total += part.discard * weight * (len(bag) - needs)
    return total - part.own_hops


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(30))
def test_the_least_of_all_trees_is_found_with_any_prices_if_it_is_cheaper_than_the_known(
    seed, level
):
    part, _ = random_part(seed)
    least = least_cost(part, part.drop)
    dice = random.Random(seed)
    for prices in (None, [dice.randint(-20, 60) for _ in part.weight]):
        assert search(part, level, prices, least).cheapest() is None
        for known in (least + 1, least + 7, 1000 * least):
            found = search(part, level, prices, known).cheapest()
            assert found is not None
            assert found.cost == least == cost_of(part, found.tree)
            assert found.tree.below == part.everyone


def test_the_search_ends_when_its_steps_are_used_up():
    part, _ = random_part(1)
    with pytest.raises(Exhausted):
        search(part, 1, None, 1000 * least_cost(part, part.drop), steps=20).cheapest()


def test_the_best_tree_of_small_bags_is_the_least_if_all_bags_are_small():
    for seed in range(24):
        part, _ = random_part(seed)
        finder = DemandPrices(LightCollectors(part, len(part.readers), Budget(STEPS)))
        tree = finder.least_light_tree()
        assert cost_of(part, tree) == least_cost(part, part.drop)


def test_without_a_tree_of_small_bags_there_is_none():
    part, _ = random_part(0)
    assert DemandPrices(LightCollectors(part, 0, Budget(STEPS))).least_light_tree() is None


def test_a_tree_that_costs_nothing_is_proven_least():
    nested_too = {f"C{size}": [f"P{n}" for n in range(size)] for size in range(2, 11)}
    file = replace(file_of(nested_too), hosts=Hosts(("here",), ((0.0,),), {}))
    solution = solve(file, effort=0.1)
    assert solution.bound == solution.plan.objective.cost == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "cost"),
    [
        (intervals(1), 1204),
        (nested(1), 1632),
        (block_tree(1), 596),
        (subtrees(1), 927),
    ],
    ids=["intervals", "nested", "block tree", "subtrees"],
)
def test_fifty_acyclic_interests_are_proven_least(file, cost):
    solution = solve(file)
    check(solution.plan)
    assert solution.plan.objective.gap == 0
    assert solution.plan.objective.cost == solution.bound == cost
