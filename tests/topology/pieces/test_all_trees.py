"""The bound by pieces against every tree: never above the least, and equal for known shapes."""

import random
from dataclasses import replace

import pytest

from bench.harness.acyclic_interests import kinds, paired, services
from bench.harness.interests import acyclic, file_of, windows
from tests.topology.test_bound import STEPS, least_cost, random_part, uneven
from topology.planner.bound import FINE, _Problem, bounded
from topology.planner.boundaries import Budget
from topology.planner.cost import Measure, bits
from topology.planner.exact import SearchState, best_choices, choices
from topology.planner.hypergraph import reduced
from topology.planner.integer_program import LinearProgram, maximised, relaxed
from topology.planner.pieces.cheaper import CheaperTrees
from topology.planner.pieces.cuts import Pieces
from topology.planner.pieces.groups import JOINT
from topology.planner.pieces.proof import PieceBound, Shares
from topology.planner.pieces.search import Node, Search, bounded_by_pieces, levels
from topology.planner.pieces.shares import Flow
from topology.planner.solver import solve

LEVELS = [1, 2, 3, 5, 9]


def listed(part, level):
    """The pieces of a level, and those that may have a larger bag."""
    pieces = Pieces(part, level, Budget(STEPS))
    return pieces, [pieces.rate(pieces.touched(p.demands)) > level for p in pieces.pieces]


def random_shares(dice, bound):
    """Divide each expense of each group at random by the rules of `proof.py`, or not at all."""
    shares, drop = {}, bound.part.drop
    groups = {group.bag: group for some in bound.of for group in some}
    for group in groups.values():
        for kind in bound.kinds_of[group.bag]:
            if dice.random() < 0.3:
                continue
            members, logs = dict.fromkeys(group.members, 0), {}
            full = {log: drop * bound.all.rates[log] for log in bits(group.bag)}
            paid = {log: price for log, price in full.items() if group.paid >> log & 1}
            greedy = dice.random() < 0.3  # one member or log takes all that it may
            for load in range(bound.cap + 1):
                most = [drop * load, drop * max(load, group.rate) - sum(paid.values())][
                    kind == JOINT
                ]
                left = most - sum(members.values()) - sum(logs.values())
                if kind >= 0:
                    left = drop if load > kind else 0
                open_logs = [log for log in full if kind == JOINT and log not in paid]
                for other in dice.sample([*members, *(~log for log in open_logs)], len(members)):
                    more = left if greedy else dice.randint(0, left)
                    if other < 0:
                        more = min(more, full[~other] - logs.get(~other, 0))
                        logs = {**logs, ~other: logs.get(~other, 0) + more}
                    else:
                        members = {**members, other: members[other] + more}
                    left -= more
                shares[group.bag, load, kind] = Shares(members, logs | paid)
    return shares


def small_file(seed):
    """Six interests: with cycles; grown as a tree; or of few kinds and uneven rates.

    The last ones have hubs, hosts of guests and joints in their least trees.
    """
    dice = random.Random(seed)
    shape = seed % 4
    interests = {"C0": [0, 1]}
    next_log = 2
    rates = {}
    for number in range(1, 6):
        if shape == 0:
            interests[f"C{number}"] = dice.sample(range(7), dice.randint(2, 4))
        elif shape == 1:
            base = dice.choice(list(interests.values()))
            shared = dice.sample(base, dice.randint(1, min(2, len(base))))
            new = dice.randint(0, 2)
            interests[f"C{number}"] = [*shared, *range(next_log, next_log + new)]
            next_log += new
        else:
            some = dice.sample(range(shape + 1), dice.choice((1, 1, 2, 3)))
            interests[f"C{number}"] = [*some, *[10 + number] * dice.randint(0, 1)]
            rates = {f"P{log}": float(dice.randint(1, 6)) for log in range(4)}
    named = {name: [f"P{log}" for log in logs] for name, logs in interests.items()}
    used = {log for logs in named.values() for log in logs}
    return replace(file_of(named), rates={log: r for log, r in rates.items() if log in used})


def small_components(seed):
    """Each component of a small file as a part, with the least cost of all trees."""
    problem = reduced(small_file(seed))
    phi = random.Random(seed).choice((10.0, 1.0, 0.3))
    for component in problem.components:
        measure = Measure(component, rates=problem.rates, weights=problem.weights, phi=phi)
        root = SearchState(component.everyone, -1, None)
        best, _ = best_choices(choices(measure))[root]
        whole = _Problem(measure)
        (part,) = whole._parts_of(range(len(whole.units)), measure.weight)
        least = best // measure.tie_work - whole._outside(measure.weight)
        yield part, int(least * FINE / whole.unit)


def whole(file):
    """The measure of interests that are one component."""
    problem = reduced(file)
    (component,) = problem.components
    return Measure(component, rates=problem.rates, weights=problem.weights, phi=10.0)


@pytest.mark.parametrize("seed", range(60))
def test_even_shares_prove_no_more_than_the_least_cost_and_leave_out_no_least_tree(seed):
    part, _ = random_part(seed)
    least = least_cost(part, part.drop)
    for level in LEVELS:
        pieces, heavy = listed(part, level)
        for below in (least + 1, least + 1 + 3 * part.drop):
            cuts, large = pieces.cuts, heavy
            for _ in range(3):
                proof = PieceBound(pieces, cuts, large)
                assert proof.bound(maximised) <= least
                cheaper = CheaperTrees(proof, below)
                cuts, large = [cut for _, cut in cheaper.cuts], cheaper.heavy


@pytest.mark.parametrize("seed", range(60))
def test_any_shares_prove_no_more_than_the_least_cost_and_leave_out_no_least_tree(seed):
    dice = random.Random(seed)
    for part, least in small_components(seed):
        for level in LEVELS:
            pieces, heavy = listed(part, level)
            cuts = pieces.cuts
            for _ in range(3):
                shares = random_shares(dice, PieceBound(pieces, cuts, heavy))
                proof = PieceBound(pieces, cuts, heavy, shares)
                prices = [dice.randint(0, 40 * part.drop) for _ in part.weight]
                found = proof.bound(maximised, dice.choice((None, prices)))
                assert found is None or found <= least
                if found is not None:
                    cheaper = CheaperTrees(proof, least + 1)
                    cuts, heavy = [cut for _, cut in cheaper.cuts], cheaper.heavy


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_programs_levels_and_branches_prove_no_more_than_the_least_cost(seed):
    for part, least in small_components(seed):
        for below in (least + 1, int(1.1 * least)):
            search, node, pieces = Search(Budget(STEPS // 10), below), Node([], []), None
            for level in range(1, 8):
                pieces = Pieces(part, level, search.budget, pieces, node.heavy)
                node = node.raised(pieces)
                search.bound(pieces, node)
                assert search.best <= least
                if not any(node.heavy):
                    break


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_shares_of_the_program_keep_the_rules(seed):
    for part, _ in small_components(seed):
        pieces, heavy = listed(part, 6)
        bound = PieceBound(pieces, pieces.cuts, heavy)
        bound.bound(maximised)
        expenses = {(bag, kind) for bag, kinds in bound.kinds_of.items() for kind in kinds}
        flow = Flow(bound, expenses, [cut for some in bound.cuts for cut in some])
        shares = flow.division(relaxed(flow.program)).shares
        groups = {group.bag: group for some in bound.of for group in some}
        for bag, kind in {(bag, kind) for bag, _, kind in shares}:
            group, drop, before = groups[bag], part.drop, Shares({}, {})
            paid = sum(drop * pieces.rates[log] for log in bits(group.paid))
            for load in range(bound.cap + 1):
                now = shares.get((bag, load, kind), Shares({}, {}))
                total = sum(now.members.values())
                logs = sum(price for log, price in now.logs.items() if not group.paid >> log & 1)
                assert all(now.members.get(n, 0) >= price for n, price in before.members.items())
                if kind >= 0:
                    assert total - sum(before.members.values()) <= (drop if load > kind else 0)
                elif load >= group.rate:
                    assert total + logs <= drop * load - (paid if kind == JOINT else 0)
                before = now


@pytest.mark.parametrize("seed", range(40))
def test_a_level_is_raised_to_the_last_one_that_lists_the_same_pieces_and_cuts(seed):
    part = uneven(seed, random_part(seed)[0], 12)
    pieces, level = None, 0
    while level < part.shared:
        lower, larger = pieces, [True] * len(pieces.pieces) if pieces else []
        pieces = Pieces(part, level + 1, Budget(STEPS), lower, larger)
        pieces.raise_level()
        assert level < pieces.level <= part.shared
        level = pieces.level
        direct = Pieces(part, level, Budget(STEPS), lower, larger)
        assert direct.around == pieces.around
        assert direct.pieces == pieces.pieces
        assert direct.cuts == pieces.cuts
        if level < part.shared:
            above = Pieces(part, level + 1, Budget(STEPS), lower, larger)
            assert set(above.around) > set(pieces.around)


@pytest.mark.parametrize("seed", range(12))
def test_levels_of_uneven_rates_prove_no_more_than_the_least_cost(seed):
    part = uneven(seed, random_part(seed)[0], 12)
    proven = list(levels(part, Budget(STEPS)))
    highest = [level.level for level in proven]
    assert sorted(set(highest)) == highest
    assert all(level.bound <= least_cost(part, part.drop) for level in proven)


def test_a_thousand_services_are_bounded_by_the_cost_of_their_least_tree():
    measure = whole(services(1000))
    assert measure.cost(bounded(measure).bound) == 3010


def test_sliding_windows_are_bounded_by_the_cost_of_their_least_tree():
    measure = whole(windows(50))
    assert measure.cost(bounded(measure, steps=2_000_000).bound) == 976


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "cost"),
    [(kinds(), 380), (paired(), 510), (acyclic(1), 901)],
    ids=["kinds", "pairs", "acyclic1"],
)
def test_shares_and_branches_prove_that_no_tree_is_cheaper(file, cost):
    found = solve(file)
    assert found.plan.objective.cost == cost
    assert found.bound == cost


@pytest.mark.parametrize(
    ("file", "cost"), [(kinds(), 380), (paired(), 510)], ids=["kinds", "pairs"]
)
def test_if_only_a_dearer_tree_is_known_the_bound_is_not_above_the_cheaper_one(file, cost):
    problem = _Problem(whole(file))
    (part,) = problem._parts_of(range(len(problem.units)), problem.measure.weight)
    fixed = problem._outside(problem.measure.weight)
    least = int((cost * problem.measure.scale.cost - fixed) * FINE / problem.unit)
    found = bounded_by_pieces(part, Budget(STEPS // 4), below=int(1.05 * least))
    assert 0.97 * least <= found <= least


def test_a_bound_by_pieces_never_exceeds_the_cost_of_the_known_tree():
    part, _ = random_part(3)
    least = least_cost(part, part.drop)
    for below in (1, least // 2, least):
        assert bounded_by_pieces(part, Budget(STEPS), below=below) == below


def test_without_steps_the_bound_is_what_any_tree_costs():
    part, _ = random_part(3)
    leaves = sum(part.leaf(demand) for demand in range(len(part.weight)))
    assert bounded_by_pieces(part, Budget(0)) == leaves


def test_a_relaxed_program_gives_values_and_what_each_limit_costs():
    program = LinearProgram()
    cheap, dear = program.column(2), program.column(5)
    program.equal([(cheap, 1), (dear, 1)], 3)  # three in all
    program.at_most([(cheap, 1)], 2)  # two of them cheap
    answer = relaxed(program)
    assert answer.values == pytest.approx([2, 1])
    assert answer.duals == pytest.approx([5, -3])
