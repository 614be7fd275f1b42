"""The moves of the annealing: what they are said to cost, and what they cost."""

from __future__ import annotations

import random

import pytest

from bench.harness.acyclic_interests import grouped, paths
from tests.running.parts import sample
from tests.topology.test_optimal import NO_LIMITS, measures, random_file
from topology.interests import PlanLimits
from topology.planner import heuristic
from topology.planner.annealing import FAR_OFF, settled
from topology.planner.cost import TreeNode
from topology.planner.exact import SearchState, best_choices, choices
from topology.planner.heuristic import Annealing, constructed, gathered

LIMITS = {
    "none": NO_LIMITS,
    "levels": PlanLimits(levels_max=4),
    "load": PlanLimits(collector_rate_wanted=15.0),
}


def searches(seed: int, limits: PlanLimits, phi: float = 10.0, count: int = 9) -> list[Annealing]:
    made = []
    for measure in measures(random_file(seed, logs=12, count=count), limits, phi):
        search = Annealing(measure, hop=1)
        search.insert_all(range(len(measure.weight)))
        made.append(search)
    return made


def cost(search: Annealing) -> int:
    measure = search.measure
    return measure.priced(search.result()) // measure.tie_work


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("phi", sample([10.0, 0.1], of=1))
@pytest.mark.parametrize("seed", sample(range(4), of=1))
def test_each_place_changes_the_price_by_what_was_said(seed, phi, limits):
    dice = random.Random(seed)
    for search in searches(seed, limits, phi):
        tree = search.tree
        before = cost(search), tree.price()
        for _ in range(40):
            lifted = tree.lifted(dice.getrandbits(40))
            if lifted is None:
                continue
            node, old = lifted
            prices, nodes, _, was = tree.places(node, FAR_OFF, old)
            chosen = dice.choice([n for n, price in enumerate(prices) if price < FAR_OFF // 2])
            tree.put(node, 4 * nodes[chosen >> 2] + (chosen & 3))
            after = cost(search), tree.price()
            assert after[0] - before[0] == after[1] - before[1] == prices[chosen] - was
            before = after


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_windows_gain_in_the_whole_tree_what_they_gain_and_keep_the_levels(limits, monkeypatch):
    monkeypatch.setattr(heuristic, "WINDOW_ITEMS", 8)
    for search in searches(3, limits, count=30):
        tree = search.tree
        for number in range(0, len(search.items), 3):
            top, inside = search.window(number)
            small, keys = search.cut_out(top, inside)
            before = cost(search), tree.price(), small.price()
            search.anneal(small, 200, heuristic.MILD)
            search.put_back(top, inside, small, keys)
            gains = [
                old - new
                for old, new in zip(
                    before, (cost(search), tree.price(), small.price()), strict=True
                )
            ]
            assert gains[0] == gains[1] == gains[2] >= 0
        if limits.levels_max is not None:
            tree.count_levels(tree.root)
            assert tree.levels[tree.root] <= limits.levels_max


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("seed", sample(range(4), of=1))
def test_in_a_settled_tree_no_demand_has_a_better_place(seed, limits):
    for search in searches(seed, limits, count=20):
        tree = search.tree
        tree.root = tree.node(list(range(len(search.items))))  # one collector for all
        before = tree.price()

        settled(tree, nodes_max=heuristic.SETTLED_NODES_MAX, stopped=lambda: False)

        assert tree.price() < before
        for number, node in enumerate(tree.place):
            if len(tree.serves[node]) + len(tree.children[node]) == 1:
                continue
            lifted, old = tree.lift_item(number)
            prices, _, _, was = tree.places(lifted, 0, old)
            assert min(prices) == was
            tree.put(lifted, old)


@pytest.mark.slow
@pytest.mark.parametrize("phi", sample([1.0, 10.0, 0.1], of=1))
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("seed", sample(range(3), of=1))
def test_the_annealed_tree_of_six_interests_is_the_best_of_all(seed, limits, phi):
    for measure in measures(random_file(seed + 100, logs=10, count=6), limits, phi):
        root = SearchState(measure.component.everyone, -1, measure.levels_max)
        exact = best_choices(choices(measure))[root][0]
        made = constructed(measure)
        assert made is not None
        assert measure.cost(measure.priced(made)) == measure.cost(exact)


@pytest.mark.slow
def test_the_least_possible_load_is_kept():
    for measure in measures(random_file(2, logs=14, count=10)):
        measure.load_max = 2 * max(measure.loads)
        made = constructed(measure)
        assert made is not None
        assert measure.heaviest(made) <= measure.load_max


@pytest.mark.parametrize(
    ("file", "cost"), [(grouped(), 410), (paths(), 842)], ids=["services in groups", "paths"]
)
def test_what_shares_a_log_gets_a_collector_of_its_own_where_that_is_cheaper(file, cost):
    (measure,) = measures(file)
    everyone = measure.component.everyone
    annealed = constructed(measure, effort=0.05)
    assert annealed is not None
    assert measure.cost(measure.priced(annealed)) == cost
    single = TreeNode(everyone, everyone, ())
    made = gathered(measure, single)
    assert measure.priced(made) < measure.priced(single)
    assert sum(node.served for node in made.walk()) == everyone
    assert gathered(measure, made) == made
