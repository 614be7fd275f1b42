"""The planner against brute force over all bags and all trees, and its parts against each other."""

from __future__ import annotations

import random
from functools import cache
from itertools import combinations, permutations, product
from operator import itemgetter

import pytest

from tests.topology.test_plan import interests
from topology.check import check
from topology.interests import Hosts, InterestFile
from topology.planner.bound import bounded
from topology.planner.cost import Measure, TreeNode
from topology.planner.exact import SearchState, best_choices, choices, join_tree, packed
from topology.planner.heuristic import constructed, greedy
from topology.planner.hypergraph import reduced
from topology.planner.solver import solve

# -- brute force ----------------------------------------------------------------------------
#
# A forest is given by the collector at which each log enters (a partition of the logs), by the
# parents, and by the parent's logs that each collector keeps: any of them, not only useful ones.


def partitions(items: list[int]):
    if not items:
        yield []
        return
    first, *rest = items
    for others in partitions(rest):
        yield [1 << first, *others]
        for place, block in enumerate(others):
            yield [*others[:place], block | 1 << first, *others[place + 1 :]]


def forests(count: int):
    """List parent vectors (-1: a root) without cycles, each with an order of parents first."""
    for parents in product(range(-1, count), repeat=count):
        ordered: list[int] = []
        left = list(range(count))
        while left:
            ready = [n for n in left if parents[n] == -1 or parents[n] in ordered]
            if not ready:
                break
            ordered += ready
            left = [n for n in left if n not in ready]
        if not left:
            yield parents, ordered


def subsets(mask: int):
    pick = mask
    while True:
        yield pick
        if not pick:
            return
        pick = (pick - 1) & mask


@cache
def all_costs(logs: int, phi: float) -> tuple[tuple[int, ...], tuple[tuple[float, ...], ...]]:
    """Give for each forest the least cost of serving each set of two or more logs."""
    wanted = tuple(mask for mask in range(1 << logs) if mask.bit_count() > 1)
    costs: set[tuple[float, ...]] = set()
    price = {
        bag: [(bag & j).bit_count() + phi * (bag & ~j).bit_count() for j in wanted]
        for bag in range(1 << logs)
    }

    def grow(order, parents, blocks, bags, paths, best):  # noqa: PLR0917
        if not order:
            costs.add(best)
            return
        node, *rest = order
        above = parents[node]
        for kept in subsets(bags[above]) if above >= 0 else (0,):
            bag = blocks[node] | kept
            path = [a + b for a, b in zip(paths[above], price[bag], strict=True)]
            served = [
                min(b, p) if j & ~bag == 0 else b
                for j, b, p in zip(wanted, best, path, strict=True)
            ]
            grow(
                rest,
                parents,
                blocks,
                {**bags, node: bag},
                {**paths, node: path},
                tuple(served),
            )

    nothing = [0.0] * len(wanted)
    for blocks in partitions(list(range(logs))):
        for parents, ordered in forests(len(blocks)):
            start = tuple([float("inf")] * len(wanted))
            grow(ordered, parents, blocks, {}, {-1: nothing}, start)
    return wanted, tuple(sorted(costs))


def least(logs: int, phi: float, needed: list[tuple[int, int]]) -> float:
    wanted, costs = all_costs(logs, phi)
    place = {mask: number for number, mask in enumerate(wanted)}
    weights = [weight for _, weight in needed]
    of_these = itemgetter(
        *(place[mask] for mask, _ in needed), 0
    )  # one more, so that it gives a tuple for a single one, too
    return min(
        sum(w * cost for w, cost in zip(weights, picked, strict=False))
        for picked in set(map(of_these, costs))
    )


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


def as_file(edges, weights=None) -> InterestFile:
    names = "abcde"
    document = interests(
        {
            f"C{number}": [names[b] for b in range(5) if mask >> b & 1]
            for number, mask in enumerate(edges)
        }
    )
    if weights is None:
        return document
    consumers = tuple(
        type(entry)(entry.name, entry.interest, float(weight))
        for entry, weight in zip(document.consumers, weights, strict=True)
    )
    return type(document)(document.topic, document.partitions, (), consumers)


@pytest.mark.slow
@pytest.mark.parametrize("phi", [10.0, 1.0, 0.1])
def test_every_hypergraph_on_four_logs_is_planned_at_the_least_cost_of_all_bags_and_trees(phi):
    every = hypergraphs(4, 4)
    assert len(every) > 50
    for edges in every:
        solution = solve(as_file(edges), phi=phi)
        expected = least(4, phi, [(mask, 1) for mask in edges])
        assert solution.plan.objective.cost == pytest.approx(expected), edges
        check(solution.plan)


@pytest.mark.slow
def test_random_hypergraphs_on_five_logs_are_planned_at_the_least_cost_of_all_bags_and_trees():
    dice = random.Random(5)
    masks = [mask for mask in range(32) if mask.bit_count() > 1]
    for _ in range(200):
        edges = dice.sample(masks, dice.randint(2, 4))
        weights = [dice.randint(1, 3) for _ in edges]
        solution = solve(as_file(edges, weights))
        expected = least(5, 10.0, list(zip(edges, weights, strict=True)))
        assert solution.plan.objective.cost == pytest.approx(expected), (edges, weights)
        check(solution.plan)


# -- the parts against each other -------------------------------------------------------------


def random_file(
    seed: int, *, logs: int, count: int, size: tuple[int, int] = (2, 4)
) -> InterestFile:
    dice = random.Random(seed)
    names = [f"P{number:02}" for number in range(logs)]
    file = interests({f"C{n}": dice.sample(names, dice.randint(*size)) for n in range(count)})
    consumers = tuple(
        type(entry)(entry.name, entry.interest, dice.choice([0.5, 1.0, 2.0]))
        for entry in file.consumers
    )
    rates = {name: dice.choice([0.25, 1.0, 7.5]) for name in file.partitions}
    return type(file)(file.topic, file.partitions, (), consumers, rates)


def measures(file: InterestFile, phi: float = 10.0) -> list[Measure]:
    problem = reduced(file)
    return [
        Measure(part, rates=problem.rates, weights=problem.weights, phi=phi)
        for part in problem.components
    ]


@pytest.mark.parametrize("seed", range(12))
def test_packing_every_choice_and_the_bound_agree_where_all_can_be_had(seed):
    for measure in measures(random_file(seed, logs=9, count=6)):
        exact = measure.priced(packed(measure))
        listed = choices(measure)
        root = SearchState(measure.component.everyone, -1, None)
        assert best_choices(listed)[root][0] == exact
        any_set = choices(measure, any_set=True)
        assert measure.cost(best_choices(any_set)[root][0]) == measure.cost(exact)
        assert bounded(measure) <= exact
        assert measure.priced(constructed(measure)) >= exact


@pytest.mark.parametrize("seed", range(6))
def test_the_heuristic_is_near_the_optimum_and_no_worse_than_one_root_or_the_greedy_start(seed):
    for measure in measures(random_file(seed, logs=20, count=11, size=(3, 5))):
        exact = measure.cost(measure.priced(packed(measure)))
        made = measure.cost(measure.priced(constructed(measure)))
        everyone = measure.component.everyone
        single = TreeNode(everyone, everyone, ())
        assert exact <= made <= 1.25 * exact
        assert made <= measure.cost(measure.priced(single))
        assert made <= measure.cost(measure.priced(greedy(measure)))


def chain(count: int) -> dict[str, list[str]]:
    return {f"C{n:02}": [f"P{2 * n + k:02}" for k in range(3)] for n in range(count)}


def star(count: int) -> dict[str, list[str]]:
    centre = [f"s{number}" for number in range(count)]
    return {
        "centre": centre,
        **{f"ray{number}": [f"s{number}", f"p{number}", f"q{number}"] for number in range(count)},
    }


def test_a_chain_of_32_is_planned_exactly_and_its_tree_is_not_a_chain():
    solution = solve(interests(chain(32)))
    assert (solution.plan.objective.cost, solution.plan.objective.gap) == (2406, 0)
    check(solution.plan)


@pytest.mark.slow
def test_a_star_is_planned_exactly():
    solution = solve(interests(star(8)))
    assert (solution.plan.objective.cost, solution.plan.objective.gap) == (600, 0)
    check(solution.plan)


def test_nested_interests_are_planned_exactly():
    solution = solve(interests({f"C{n}": [f"P{k}" for k in range(n + 2)] for n in range(6)}))
    assert solution.plan.objective.gap == 0
    check(solution.plan)


def test_all_pairs_of_eight_chains_share_a_root_that_holds_only_what_is_shared():
    names = "ABCDEFGH"
    pairs = list(combinations(names, 2))
    solution = solve(interests({name: [name] for name in names}, pairs))
    assert solution.plan.objective.gap == 0
    root = solution.plan.collectors[0]
    assert set(root.bag) == {"+".join(pair) for pair in pairs}
    assert len(solution.plan.collectors) == 9
    check(solution.plan)


def test_a_join_tree_is_found_exactly_where_interests_are_acyclic():
    assert all(join_tree(measure) is not None for measure in measures(interests(chain(9))))
    cyclic = interests({"X": "AB", "Y": "BC", "Z": "CA"})
    assert all(join_tree(measure) is None for measure in measures(cyclic))


@pytest.mark.slow
def test_a_large_cyclic_part_gets_a_gap_and_the_same_plan_twice():
    file = random_file(1, logs=40, count=30, size=(3, 6))
    first, second = solve(file), solve(file)
    assert first.plan.canonical() == second.plan.canonical()
    assert 0 < first.plan.objective.gap < 1
    assert first.bound <= first.plan.objective.cost
    check(first.plan)


def test_limits_are_kept_in_parts_too_large_for_every_choice():
    file = random_file(2, logs=14, count=10, size=(3, 4))
    one_root = solve(file, phi=0.01).plan
    assert len(one_root.collectors) == 1
    genuine = solve(file).plan
    loads = [sum(file.rate(log) for log in node.bag) for node in genuine.collectors]
    limits = type(file.limits)(collector_rate_max=1.1 * max(loads), levels_max=4)
    limited = solve(type(file)(**{**parts(file), "limits": limits}), phi=0.01).plan
    check(limited)
    assert limited.objective.cost > one_root.objective.cost


def test_hosts_are_given_in_parts_too_large_for_every_choice():
    file = random_file(2, logs=14, count=10, size=(3, 4))
    hosts = Hosts(("a", "b"), ((1.0, 5.0), (5.0, 1.0)), dict.fromkeys(file.partitions, "b"))
    plan = solve(type(file)(**{**parts(file), "hosts": hosts})).plan
    check(plan)
    assert {node.host for node in plan.collectors} == {"b"}


def parts(file: InterestFile) -> dict[str, object]:
    return {name: getattr(file, name) for name in file.__dataclass_fields__}


def test_the_optimum_may_need_a_bag_that_is_no_interest_and_no_union_of_interests():
    solution = solve(interests({"W": "ab", "X": "ac", "Y": "abd", "Z": "acd"}))
    assert solution.plan.objective.cost == 56, "63 with unions of interests over shared logs only"
    assert ("a", "d") in {node.bag for node in solution.plan.collectors}
