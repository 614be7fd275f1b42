"""The planner against brute force over all bags and all trees, and its parts against each other."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import reduce
from itertools import combinations, permutations
from operator import or_

import pytest

from tests.running.parts import sample
from tests.topology.test_plan import interests
from topology.check import check, figures
from topology.interests import Hosts, InterestFile, PlanLimits
from topology.planner.cost import Measure, TreeNode
from topology.planner.exact import SearchState, best_choices, choices
from topology.planner.heuristic import constructed, greedy
from topology.planner.reduction import reduced
from topology.planner.solver import solve
from topology.planner.watch import Watch
from topology.proof import bounded, proven
from topology.tree import InvalidPlan

NO_LIMITS = PlanLimits()
# -- brute force ----------------------------------------------------------------------------
#
# All trees: a collector serves some of the interests below it, and its children divide the others,
# in every possible way. Its own arithmetic, on sets of logs as bits: `needed` is a list of pairs of
# an interest and a weight; each log has rate 1. The bags are the smallest that keep each log's
# collectors connected; `test_a_log_more_in_a_bag_is_never_cheaper` says why that is enough.


def least(phi: float, needed: list[tuple[int, float]]) -> float:
    """Give the least cost of all trees."""
    everyone = (1 << len(needed)) - 1
    touched, boundary, weight = [0], [0], [0.0]
    for below in range(1, everyone + 1):
        inside = [needed[n] for n in range(len(needed)) if below >> n & 1]
        outside = [needed[n][0] for n in range(len(needed)) if not below >> n & 1]
        touched.append(reduce(or_, (mask for mask, _ in inside)))
        boundary.append(touched[-1] & reduce(or_, outside, 0))
        weight.append(sum(w for _, w in inside))
    best = [0.0] * (everyone + 1)

    def collector(below: int, served: int, bag: int, dropped: int) -> float:
        size = bag.bit_count()
        hops = sum(
            w * (mask & bag).bit_count() for n, (mask, w) in enumerate(needed) if below >> n & 1
        )
        discarded = sum(
            w * (size - mask.bit_count()) for n, (mask, w) in enumerate(needed) if served >> n & 1
        )
        passed_on = (bag & ~touched[served]).bit_count()
        return hops + phi * (passed_on + dropped + discarded)

    def divided(below: int, left: int, served: int, children: tuple[int, ...], spent: float):
        if spent >= best[below]:
            return  # what is missing costs nothing less
        if left:
            low, others = left & -left, left & (left - 1)
            for more in subsets(others):
                if low | more != below:
                    rest, child = others ^ more, low | more
                    divided(below, rest, served, (*children, child), spent + best[child])
            return
        bag = touched[below]
        for child in children:
            bag &= ~(touched[child] & ~boundary[child])
        dropped = sum(bag.bit_count() - boundary[child].bit_count() for child in children)
        best[below] = min(best[below], spent + collector(below, served, bag, dropped))

    for below in range(1, everyone + 1):
        best[below] = float("inf")
        for served in subsets(below):
            divided(below, below ^ served, served, (), 0.0)
    return best[everyone]


def subsets(mask: int):
    pick = mask
    while True:
        yield pick
        if not pick:
            return
        pick = (pick - 1) & mask


def hypergraphs(logs: int, edges_max: int):
    """List the sets of interests that differ in more than the names of logs."""
    masks = [mask for mask in range(1 << logs) if mask.bit_count() > 1]
    renamings = [
        {mask: sum(1 << p[b] for b in range(logs) if mask >> b & 1) for mask in masks}
        for p in permutations(range(logs))
    ]
    seen = set()
    for count in range(1, edges_max + 1):
        for edges in combinations(masks, count):
            if min(tuple(sorted(r[e] for e in edges)) for r in renamings) == edges:
                seen.add(edges)
    return sorted(seen)


def as_file(edges) -> InterestFile:
    names = "abcde"
    return interests(
        {
            f"C{number}": [names[b] for b in range(5) if mask >> b & 1]
            for number, mask in enumerate(edges)
        }
    )


def connected(edges) -> bool:
    parts = []
    for edge in edges:
        met = [part for part in parts if part & edge]
        parts = [part for part in parts if not part & edge] + [reduce(or_, met, edge)]
    return len(parts) == 1


def test_the_brute_force_gives_costs_that_were_worked_out_by_hand():
    # One collector: two hops. The poster: see docs/planner.md. A triangle: C reads the collector of
    # all three logs for 3 hops and drops one; A and B read collectors below it.
    assert least(10.0, [(0b11, 1)]) == 2
    assert least(10.0, [(0b00111, 1), (0b01110, 1), (0b11100, 1)]) == 33


@pytest.mark.slow
@pytest.mark.parametrize("phi", sample([1.0, 10.0, 0.1], of=1))
def test_every_hypergraph_on_four_logs_is_planned_at_the_least_cost_of_all_bags_and_trees(phi):
    every = [edges for edges in hypergraphs(4, 5) if connected(edges)]
    assert len(every) > 50
    for edges in every:
        solution = solve(as_file(edges), phi=phi)
        expected = least(phi, [(mask, 1) for mask in edges])
        assert solution.plan.objective.cost == pytest.approx(expected), edges
        assert solution.plan.objective.gap == 0
        check(solution.plan)


@pytest.mark.parametrize("seed", sample(range(40), of=4))
def test_a_log_more_in_a_bag_is_never_cheaper(seed):
    plan = solve(random_file(seed, logs=7, count=5)).plan
    dice = random.Random(seed)
    cost = figures(plan).cost
    for node in plan.collectors:
        for log in plan.logs:
            wider = replace(node, bag=(*node.bag, log.name))
            others = tuple(wider if n is node else n for n in plan.collectors)
            try:
                changed = replace(plan, collectors=dice.sample(others, len(others)))
            except InvalidPlan:
                continue  # the log's collectors would not be connected
            assert figures(changed).cost >= cost - 1e-9


def random_file(
    seed: int, *, logs: int, count: int, size: tuple[int, int] = (2, 4)
) -> InterestFile:
    dice = random.Random(seed)
    names = [f"P{number:02}" for number in range(logs)]
    file = interests({f"C{n}": dice.sample(names, dice.randint(*size)) for n in range(count)})
    consumers = tuple(
        replace(entry, weight=dice.choice([0.5, 1.0, 2.0])) for entry in file.consumers
    )
    rates = {name: dice.choice([0.25, 1.0, 7.5]) for name in file.partitions}
    return replace(file, consumers=consumers, rates=rates)


def measures(
    file: InterestFile, limits: PlanLimits = NO_LIMITS, phi: float = 10.0
) -> list[Measure]:
    problem = reduced(replace(file, limits=limits))
    return [
        Measure(part, rates=problem.rates, weights=problem.weights, phi=phi, limits=limits)
        for part in problem.components
    ]


@pytest.mark.parametrize("seed", sample(range(12), of=2))
def test_every_choice_lies_between_the_bound_and_the_heuristic(seed):
    for measure in measures(random_file(seed, logs=6, count=5)):
        root = SearchState(measure.component.everyone, -1, None)
        exact = best_choices(choices(measure))[root][0]
        assert bounded(measure) <= measure.cost(exact) + 1e-9
        assert measure.priced(constructed(measure)) >= exact


@pytest.mark.parametrize("seed", sample(range(6), of=1))
def test_the_heuristic_is_near_the_optimum_and_no_worse_than_one_root_or_the_greedy_start(seed):
    for measure in measures(random_file(seed, logs=12, count=7, size=(3, 5))):
        root = SearchState(measure.component.everyone, -1, None)
        exact = measure.cost(best_choices(choices(measure))[root][0])
        made = measure.cost(measure.priced(constructed(measure)))
        everyone = measure.component.everyone
        single = TreeNode(everyone, everyone, ())
        assert exact <= made <= 1.005 * exact
        assert made <= measure.cost(measure.priced(single))
        assert made <= measure.cost(measure.priced(greedy(measure)))


def test_fifty_sliding_windows_cost_what_their_join_tree_costs():
    windows = {f"C{n:02}": [f"P{n + k:02}" for k in range(4)] for n in range(50)}
    plan = proven(solve(interests(windows), effort=0.2))
    assert plan.objective.cost == 976
    assert 0 < plan.objective.gap < 0.5
    check(plan)


def test_a_large_cyclic_part_gets_no_gap_but_with_a_proof_and_the_same_plan_twice():
    file = random_file(1, logs=40, count=30, size=(3, 6))
    first, second = solve(file, effort=0.1), solve(file, effort=0.1)
    assert first.plan.canonical() == second.plan.canonical()
    assert first.plan.objective.gap is None
    check(first.plan)
    plan = proven(first)
    assert 0 < plan.objective.gap < 1
    assert replace(plan, objective=first.plan.objective) == first.plan
    check(plan)
    stopped = proven(first, watch=Watch(stopped=lambda: True)).objective.gap
    assert plan.objective.gap <= stopped < 1


def test_limits_are_kept_in_parts_too_large_for_every_choice():
    file = random_file(2, logs=14, count=10, size=(3, 4))
    one_root = solve(file, phi=0.01, effort=0.1).plan
    assert len(one_root.collectors) == 1
    genuine = solve(file, effort=0.1).plan
    loads = [sum(file.rate(log) for log in node.bag) for node in genuine.collectors]
    limits = PlanLimits(collector_rate_max=1.1 * max(loads), levels_max=4)
    limited = solve(replace(file, limits=limits), phi=0.01, effort=0.1).plan
    check(limited)
    assert limited.objective.cost > one_root.objective.cost


def test_hosts_are_given_in_parts_too_large_for_every_choice():
    file = random_file(2, logs=14, count=10, size=(3, 4))
    hosts = Hosts(("a", "b"), ((1.0, 5.0), (5.0, 1.0)), dict.fromkeys(file.partitions, "b"))
    plan = solve(replace(file, hosts=hosts), effort=0.1).plan
    check(plan)
    assert {node.host for node in plan.collectors} == {"b"}
