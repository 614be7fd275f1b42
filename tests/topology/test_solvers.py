"""The integer program against dynamic programming, and against a program of another form."""

from __future__ import annotations

import tempfile
from itertools import combinations

import pulp
import pytest

from tests.topology.test_plan import POSTER, interests
from topology.interests import PlanLimits
from topology.planner import integer_program
from topology.planner.cost import Measure
from topology.planner.exact import SearchState, best_choices, choices, chosen_tree
from topology.planner.hypergraph import logs_met
from topology.planner.reduction import reduced
from topology.planner.solver import plan

FILES = [
    interests(POSTER),
    interests({**POSTER, "C4": ["P1", "P5"]}),
    interests({"A": ["A"], "B": ["B"], "C": ["C"]}, ["AB", "AC", "BC"]),
    interests({f"C{n}": [f"P{(n + k) % 5}" for k in range(3)] for n in range(5)}),
]


@pytest.mark.parametrize("file", FILES)
def test_the_integer_program_finds_what_dynamic_programming_finds(file):
    problem = reduced(file)
    for part in problem.components:
        measure = Measure(part, rates=problem.rates, weights=problem.weights, phi=10.0)
        listed = choices(measure)
        root = SearchState(part.everyone, -1, None)
        answer = integer_program.solved([(measure, root, listed)], limits=PlanLimits())
        exact = best_choices(listed)[root][0]
        assert answer.status == "optimal"
        made = measure.priced(chosen_tree(answer.picked[0], root))
        assert measure.value(made) == pytest.approx(measure.value(exact))


def test_nothing_is_left_in_the_temporary_directory(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other tests plan beside this one
    plan(interests(POSTER, limits={"collectors_max": 2}))
    assert not list(tmp_path.iterdir())


def direct(edges: list[frozenset[str]], phi: float) -> float:
    """Solve a program by rows over its own candidate bags: x, y, a, paths, passed on and depths."""
    everything = sorted(frozenset().union(*edges))
    shared = {log for log in everything if sum(log in edge for edge in edges) > 1}
    bags = set(edges)
    for count in range(1, len(edges) + 1):
        for some in combinations(edges, count):
            bags.add(frozenset().union(*some) & shared)
            bags |= {frozenset().union(*some), frozenset.intersection(*some)}
    bags = sorted(bags - {frozenset()}, key=sorted)
    number = range(len(bags))
    pairs = [(b, p) for b in number for p in number if b != p and bags[b] & bags[p]]
    problem = pulp.LpProblem("direct", pulp.LpMinimize)
    x = [problem.add_variable(f"x{b}", 0, 1, pulp.LpBinary) for b in number]
    depth = [problem.add_variable(f"d{b}", 0, len(bags)) for b in number]
    y = {pair: problem.add_variable(f"y{pair[0]}_{pair[1]}", 0, 1, pulp.LpBinary) for pair in pairs}
    a = {}
    path = {}
    for i, edge in enumerate(edges):
        for b in number:
            path[i, b] = problem.add_variable(f"p{i}_{b}", 0, 1)
            if edge <= bags[b]:
                a[i, b] = problem.add_variable(f"a{i}_{b}", 0, 1, pulp.LpBinary)
    passing = {
        (b, log): problem.add_variable(f"r{b}_{log.replace('+', '_')}", 0, 1)
        for b in number
        for log in bags[b]
    }
    hops = pulp.lpSum(
        path[i, b] * len(bags[b] & edge) for i, edge in enumerate(edges) for b in number
    )
    foreign = (
        pulp.lpSum(passing.values())
        + pulp.lpSum(y[b, p] * len(bags[p] - bags[b]) for b, p in pairs)
        + pulp.lpSum(chosen * len(bags[b] - edges[i]) for (i, b), chosen in a.items())
    )
    for (b, log), passed_on in passing.items():
        serving = pulp.lpSum(a[i, b] for i, edge in enumerate(edges) if log in edge and (i, b) in a)
        problem += passed_on >= x[b] - serving
    problem.setObjective(
        hops + phi * foreign + 0.001 * pulp.lpSum(len(bags[b]) * x[b] for b in number)
    )
    for b in number:
        problem += pulp.lpSum(y[pair] for pair in pairs if pair[0] == b) <= x[b]
    for b, p in pairs:
        problem += y[b, p] <= x[p]
        problem += depth[b] >= depth[p] + 1 - (len(bags) + 1) * (1 - y[b, p])
    for log in everything:
        inside = pulp.lpSum(y[b, p] for b, p in pairs if log in bags[b] & bags[p])
        problem += inside == pulp.lpSum(x[b] for b in number if log in bags[b]) - 1
    for i, edge in enumerate(edges):
        problem += pulp.lpSum(a[i, b] for b in number if edge <= bags[b]) == 1
        for b in number:
            if edge <= bags[b]:
                problem += a[i, b] <= x[b]
                problem += path[i, b] >= a[i, b]
        for b, p in pairs:
            problem += path[i, p] >= path[i, b] + y[b, p] - 1
    problem.solve(pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path, msg=False, timeLimit=60))
    used = round(sum(variable.value() * len(bags[b]) for b, variable in enumerate(x)))
    return pulp.value(problem.objective) - 0.001 * used


@pytest.mark.parametrize("file", [FILES[0], FILES[2]])  # FILES[1] takes CBC half a minute
def test_the_program_by_columns_finds_what_the_program_by_rows_finds(file):
    edges = [frozenset(logs) for logs in logs_met(file).values()]
    assert plan(file).objective.cost == pytest.approx(direct(edges, 10.0))
