"""The least join tree against all join trees, and the program that finds it."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, product

import pytest

from bench.baselines.trees import rooted
from bench.harness.acyclic_interests import triangles
from bench.harness.interests import acyclic, chain, hubs
from tests.running.parts import sample
from tests.topology.test_plan import interests
from topology.check import check
from topology.planner import integer_program
from topology.planner.bound import bounded
from topology.planner.cost import Measure, TreeNode
from topology.planner.hypergraph import reduced
from topology.planner.join_tree import join_edges, least_join_tree
from topology.planner.solver import solve


def measures(file, phi=10.0):
    problem = reduced(file)
    return [
        Measure(part, rates=problem.rates, weights=problem.weights, phi=phi)
        for part in problem.components
    ]


def random_acyclic(dice, count=5):
    """Interests that each take some partitions of one before it, with rates and weights."""
    wanted, fresh = [["P0", "P1", "P2"]], 3
    for _ in range(count - 1):
        base = dice.choice(wanted)
        size = dice.randint(1, len(base))
        new = [f"P{fresh + n}" for n in range(dice.randint(0, 2))]
        fresh += len(new)
        wanted.append([*dice.sample(base, size), *new])
    rates = {f"P{n}": dice.choice([0.1, 1, 3]) for n in range(fresh)}
    file = interests({f"C{n}": interest for n, interest in enumerate(wanted)}, rates=rates)
    weighted = tuple(replace(c, weight=dice.choice([0.5, 1.0, 2.0])) for c in file.consumers)
    return replace(file, consumers=weighted)


def join_trees(measure):
    """List all trees whose collectors are the demands, also below a separator as root."""
    needs = measure.needs
    demands = range(len(needs))
    below = [0, *sorted({needs[a] & needs[b] for a, b in join_edges(measure)})]
    for parents in rooted(len(needs)):
        yield parents, 0
    for bag, parents in product(below[1:], product(range(len(needs) + 1), repeat=len(needs))):
        if bag not in needs and parents.count(len(needs)) > 1:
            whole = tuple(d if parents[d] == len(needs) else parents[d] for d in demands)
            if all(_top(whole, d) is not None for d in demands):
                yield whole, bag


def _top(parents, start):
    for _ in parents:
        if parents[start] == start:
            return start
        start = parents[start]
    return None


def tree_of(parents, bag):
    def made(number):
        children = [made(c) for c, above in enumerate(parents) if above == number != c]
        return TreeNode(1 << number | sum(c.below for c in children), 1 << number, tuple(children))

    tops = [made(number) for number, above in enumerate(parents) if above == number]
    if not bag:
        return tops[0]
    return TreeNode(sum(top.below for top in tops), 0, tuple(tops))


def is_join_tree(measure, tree, bag):
    """Whether each collector reads just the logs of its demand, and the root above them `bag`."""
    for node in tree.walk():
        wanted = measure.touching(node.served) if node.served else bag
        if measure.bag(node.below, [child.below for child in node.children]) != wanted:
            return False
    return True


@pytest.mark.parametrize("phi", sample([1.0, 10.0, 0.1], of=1))
def test_no_join_tree_is_cheaper_than_the_least_one(phi):
    dice = random.Random(int(10 * phi))
    seen = 0
    for _ in range(12):
        for measure in measures(random_acyclic(dice, 4), phi):
            if len(measure.needs) < 2:
                continue
            trees = [
                tree
                for parents, bag in join_trees(measure)
                if is_join_tree(measure, tree := tree_of(parents, bag), bag)
            ]
            best = min(measure.priced(tree) for tree in trees) // measure.tie_work
            assert measure.priced(least_join_tree(measure)) // measure.tie_work == best
            seen += 1
    assert seen > 5, "too few parts had several demands"


def test_fifty_sliding_windows_cost_976():
    file = interests({f"C{k:02}": [f"P{k + n:02}" for n in range(4)] for k in range(50)})
    (measure,) = measures(file)
    assert measure.cost(measure.priced(least_join_tree(measure))) == 976


def test_a_root_that_serves_nobody_makes_a_chain_cheaper():
    (measure,) = measures(chain(32))
    tree = least_join_tree(measure)
    assert tree.served == 0
    assert measure.cost(measure.priced(tree)) == 738


def test_acyclic_interests_whose_least_tree_has_a_bag_in_no_interest_are_planned_with_it():
    solution = solve(hubs(2, 5), effort=0.5)
    check(solution.plan)
    assert solution.plan.objective.gap == 0
    root = next(spec for spec in solution.plan.collectors if spec.parent is None)
    assert set(root.bag) == {"a", "x0", "x1"}
    (measure,) = measures(hubs(2, 5))
    assert solution.plan.objective.cost < measure.cost(measure.priced(least_join_tree(measure)))


def without_vertices(edges):
    """Give R of `docs/planner-bounds.md`: the least cost, but for the weight times the vertices."""
    return 3 * 140 * len(edges) + 10 * len(edges) // 3 * (15 + 9)


def test_the_tree_of_a_partition_into_triangles_costs_what_the_proof_says():
    groups = [(0, 1, 2), (2, 3, 4)]
    edges = [pair for group in groups for pair in combinations(group, 2)]
    (measure,) = measures(triangles(edges))
    numbers = {demand.consumers[0]: n for n, demand in enumerate(measure.component.demands)}
    children = []
    for group in groups:
        names = [f"v{u}-v{v}-{copy}" for u, v in combinations(group, 2) for copy in range(3)]
        leaves = [TreeNode(1 << numbers[name], 1 << numbers[name], ()) for name in names]
        children.append(TreeNode(sum(leaf.below for leaf in leaves), 0, tuple(leaves)))
    everyone, served = measure.component.everyone, 1 << numbers["all"]
    cost = measure.cost(measure.priced(TreeNode(everyone, served, tuple(children))))
    assert cost - 15 * max(measure.weight) / measure.scale.weights == without_vertices(edges)


@pytest.mark.campaign
def test_without_a_partition_into_triangles_the_planner_finds_a_dearer_tree():
    edges = list(combinations(range(4), 2))
    solution = solve(triangles(edges), effort=0.02)
    check(solution.plan)
    weight = max(consumer.weight for consumer in triangles(edges).consumers)
    assert solution.plan.objective.cost - 15 * weight == without_vertices(edges) + 30


def test_cyclic_interests_have_no_join_tree():
    (measure,) = measures(interests({"X": ["A", "B"], "Y": ["B", "C"], "Z": ["C", "A"]}))
    assert join_edges(measure) is None
    assert least_join_tree(measure) is None


def test_fractional_columns_are_made_whole():
    """An odd cycle of pairs of which one each may be taken: halves are better than whole ones."""
    program = integer_program.LinearProgram()
    columns = [program.column(1) for _ in range(3)]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        program.at_most([(columns[one], -1), (columns[other], -1)], -1)
    assert sum(integer_program.minimised(program)) == pytest.approx(1.5)
    assert sum(integer_program.minimised(program, whole=columns)) == pytest.approx(2)


def test_a_program_without_an_answer_gives_none():
    program = integer_program.LinearProgram()
    program.equal([(program.column(1), 1)], 2)
    assert integer_program.minimised(program) is None


@pytest.mark.slow
@pytest.mark.campaign
def test_the_planner_takes_the_least_join_tree_if_it_is_cheaper():
    solution = solve(acyclic(0), effort=0.1)
    check(solution.plan)
    assert solution.plan.objective.cost <= 1244


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("shape", ["chain", "windows"])
def test_a_least_join_tree_that_meets_the_bound_is_proven_least_of_all_trees(shape):
    windows = {f"C{k:02}": [f"P{k + n:02}" for n in range(4)] for k in range(50)}
    file = chain(32) if shape == "chain" else interests(windows)
    (measure,) = measures(file)
    tree = least_join_tree(measure)
    assert measure.cost(measure.priced(tree)) == measure.cost(bounded(measure).bound)
