"""The integer program; only this file imports PuLP.

From the possible choices of all components it picks one choice for each reached state, with a proof
of optimality. CBC, from PuLP's wheel, runs as one sub-process with a time limit and a fixed seed,
in a temporary directory. CBC is serial by default: `-threads 1` would start a thread pool of one,
which waited for ten seconds in one run of 150 (measured).

The variable z[c] means that choice c is made: *a collector with this bag, on this host, orders
these demands, and its children order those*. A program by rows would have these variables
instead:

    x_b  = sum of z[c] with bag b              each used bag, once
    y_bp = z[c] of p that names b as child     at most one parent, itself used; no cycle
    a_ib = z[c] that serves i                  each interest is served once
    pi   = all c with i below                  follows from `below`

A choice has the smallest bag that keeps each log's collectors connected, so running intersection
holds by construction; price[c] contains all terms of the objective for its bag.

    minimise    sum price[c] * z[c]
    exactly one choice for each component's root
    for each other state, as many choices as choices that name it as a child
    collectors_max, collectors_per_host_max: sums of z within the limit
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topology import extra
from topology.interests import PlanLimits
from topology.planner.cost import NOWHERE, Measure
from topology.planner.exact import Choice, SearchState

with extra("planner"):
    import pulp

SEED = 1  # any fixed number: equal inputs give equal plans
COEFFICIENT_MAX = 1_000.0  # prices are scaled to this, which suits the solver's tolerances
TIME_LIMIT_S = 60.0  # the sub-process must always end
GRACE_S = 10.0  # CBC checks its clock between steps only; after this time it is killed


@dataclass(frozen=True, slots=True)
class Answer:
    """The solver's result. `status` is "optimal", "infeasible" or "unfinished"."""

    status: str
    picked: tuple[dict[SearchState, Choice], ...]


def solved(
    parts: Sequence[tuple[Measure, SearchState, Mapping[SearchState, Sequence[Choice]]]],
    *,
    limits: PlanLimits,
) -> Answer:
    """Choose collectors for all components at once.

    Blocks for at most `TIME_LIMIT_S` and a grace period; then the status is "unfinished".
    """
    problem = pulp.LpProblem("collectors", pulp.LpMinimize)
    columns: list[tuple[int, Choice, Any]] = []
    terms = []
    values = [
        measure.value(choice.price)
        for measure, _, choices in parts
        for options in choices.values()
        for choice in options
    ]
    unit = max(values, default=1.0) / COEFFICIENT_MAX or 1.0
    for number, (measure, root, choices) in enumerate(parts):
        entering: dict[SearchState, list[Any]] = {state: [] for state in choices}
        leaving: dict[SearchState, list[Any]] = {state: [] for state in choices}
        for state, options in choices.items():
            for choice in options:
                variable = problem.add_variable(f"z{len(columns)}", 0, 1, pulp.LpBinary)
                columns.append((number, choice, variable))
                leaving[state].append(variable)
                terms.append((variable, measure.value(choice.price) / unit))
                for child in choice.children:
                    entering[child].append(variable)
        for state in choices:
            needed = 1 if state == root else pulp.lpSum(entering[state])
            problem += pulp.lpSum(leaving[state]) == needed
    problem.setObjective(pulp.LpAffineExpression(terms))
    _limit_counts(problem, columns, limits)
    status, answers = _run(problem)
    picked: tuple[dict[SearchState, Choice], ...] = tuple({} for _ in parts)
    if status == "optimal":
        for number, choice, variable in columns:
            if answers[variable.name] > 0.5:
                picked[number][choice.state] = choice
    return Answer(status, picked)


def _limit_counts(
    problem: Any, columns: Sequence[tuple[int, Choice, Any]], limits: PlanLimits
) -> None:
    if limits.collectors_max is not None:
        problem += pulp.lpSum(z for _, _, z in columns) <= limits.collectors_max, "collectors_max"
    if limits.collectors_per_host_max is not None:
        for host in sorted({choice.host for _, choice, _ in columns} - {NOWHERE}):
            there = pulp.lpSum(z for _, choice, z in columns if choice.host == host)
            problem += there <= limits.collectors_per_host_max, f"collectors_on_host_{host}"


# -- the solver -----------------------------------------------------------------------------


def _run(problem: Any) -> tuple[str, Mapping[str, float]]:
    """Run CBC; give the status, and the values by variable name."""
    reader = pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path)
    with tempfile.TemporaryDirectory(prefix="amcast-cbc-") as directory:
        model, answer = Path(directory) / "model.mps", Path(directory) / "model.sol"
        variables, names, rows, _ = problem.writeMPS(str(model), rename=True)
        if not _cbc_ran(reader.path, model, answer):
            return "unfinished", {}
        status, values, *_ = reader.readsol_MPS(str(answer), problem, variables, names, rows)
        finished = answer.read_text(encoding="ascii").startswith("Optimal")
    if status == pulp.LpStatusInfeasible:
        return "infeasible", {}
    return "optimal" if finished and status == pulp.LpStatusOptimal else "unfinished", values


def _cbc_ran(cbc: str, model: Path, answer: Path) -> bool:
    """Run CBC on a model file; whether it wrote its answer to a file."""
    command = [cbc, str(model)]
    command += ["-randomSeed", str(SEED), "-randomCbcSeed", str(SEED)]
    command += ["-ratioGap", "0", "-allowableGap", "0", "-timeMode", "elapsed"]
    command += ["-sec", f"{TIME_LIMIT_S:.0f}", "-solve"]
    command += ["-printingOptions", "all", "-solution", str(answer)]
    try:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIME_LIMIT_S + GRACE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False  # too slow, killed, or not made for this machine
    return answer.exists()
