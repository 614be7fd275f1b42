"""The integer program, and the only file that knows PuLP.

Goes in: for each component the choices that may be made. Comes out: one choice a reached state,
with a proven bound. CBC, from PuLP's wheel, runs as one bounded sub-process with a fixed seed in a
directory that is removed; HiGHS may take its place. CBC is serial as it comes: `-threads 1` would
start a thread pool of one, whose waits cost ten seconds in one run of 150 (measured).

A variable z[c] says that choice c is made: *these demands are ordered by a collector with this
bag, on this host, and its children order those*. It is the program of DESIGN, section 2, by
columns instead of by rows:

    x_b  = sum of z[c] with bag b              each used bag, once
    y_bp = z[c] of p that names b as child     at most one parent, itself used; no cycle
    a_ib = z[c] that serves i                  each interest is served once
    pi   = all c with i below                  follows from `below`

A choice's bag is the least that keeps every log's collectors connected, so running intersection
holds by construction, and the price of c holds everything that the objective says of its bag.

    minimise    sum price[c] * z[c]
    exactly one choice for each component's root
    for each other state, as many choices as choices that name it as a child
    collectors_max, collectors_per_host_max: sums of z within the limit
"""

from __future__ import annotations

import math
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulp

from topology.interests import PlanLimits
from topology.planner.cost import NOWHERE, Measure
from topology.planner.exact import Choice, SearchState

SEED = 1
COEFFICIENT_MAX = 1_000.0  # prices are scaled so that the solver's tolerances suit them
SECONDS_MAX = 60.0  # the sub-process is bounded even where the caller sets no limit
SECONDS_GRACE = 10.0  # CBC looks at its clock between steps; past this it is killed


@dataclass(frozen=True, slots=True)
class Answer:
    """What the solver said. `status` is "optimal", "infeasible" or "unfinished"."""

    status: str
    objective: float
    picked: tuple[dict[SearchState, Choice], ...]


def solved(
    parts: Sequence[tuple[Measure, SearchState, Mapping[SearchState, Sequence[Choice]]]],
    *,
    limits: PlanLimits,
    solver: str = "cbc",
    time_limit_s: float | None = None,
) -> Answer:
    """Choose collectors for all components at once. Blocks for at most the time limit."""
    problem = pulp.LpProblem("collectors", pulp.LpMinimize)
    columns: list[tuple[int, Choice, Any]] = []
    terms = []
    values = [
        m.value(choice.price) for m, _, found in parts for c in found.values() for choice in c
    ]
    unit = max(values, default=1.0) / COEFFICIENT_MAX or 1.0
    for number, (measure, root, found) in enumerate(parts):
        entering: dict[SearchState, list[Any]] = {state: [] for state in found}
        leaving: dict[SearchState, list[Any]] = {state: [] for state in found}
        for state, options in found.items():
            for choice in options:
                variable = problem.add_variable(f"z{len(columns)}", 0, 1, pulp.LpBinary)
                columns.append((number, choice, variable))
                leaving[state].append(variable)
                terms.append((variable, measure.value(choice.price) / unit))
                for child in choice.children:
                    entering[child].append(variable)
        for state in found:
            needed = 1 if state == root else pulp.lpSum(entering[state])
            problem += pulp.lpSum(leaving[state]) == needed
    problem.setObjective(pulp.LpAffineExpression(terms))
    _limit_counts(problem, columns, limits)
    status, objective, answers = _run(problem, solver=solver, time_limit_s=time_limit_s)
    picked: tuple[dict[SearchState, Choice], ...] = tuple({} for _ in parts)
    if status == "optimal":
        for number, choice, variable in columns:
            if answers[variable.name] > 0.5:
                picked[number][choice.state] = choice
    return Answer(status, objective * unit, picked)


def _limit_counts(
    problem: Any, columns: Sequence[tuple[int, Choice, Any]], limits: PlanLimits
) -> None:
    if limits.collectors_max is not None:
        problem += pulp.lpSum(z for _, _, z in columns) <= limits.collectors_max, "collectors_max"
    if limits.collectors_per_host_max is not None:
        for host in sorted({choice.host for _, choice, _ in columns} - {NOWHERE}):
            there = pulp.lpSum(z for _, choice, z in columns if choice.host == host)
            problem += there <= limits.collectors_per_host_max, f"collectors_on_host_{host}"


# -- solvers --------------------------------------------------------------------------------


def _run(
    problem: Any, *, solver: str, time_limit_s: float | None
) -> tuple[str, float, Mapping[str, float]]:
    """Run a solver; give its verdict, objective and values by variable name."""
    seconds = SECONDS_MAX if time_limit_s is None else time_limit_s
    if solver == "highs":
        return _run_highs(problem, seconds)
    assert solver == "cbc", f"unknown solver {solver}"
    return _run_cbc(problem, seconds)


def _run_cbc(problem: Any, seconds: float) -> tuple[str, float, Mapping[str, float]]:
    reader = pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path)
    with tempfile.TemporaryDirectory(prefix="amcast-cbc-") as directory:
        model, answer = Path(directory) / "model.mps", Path(directory) / "model.sol"
        variables, names, rows, _ = problem.writeMPS(str(model), rename=True)
        command = [reader.path, str(model)]
        command += ["-randomSeed", str(SEED), "-randomCbcSeed", str(SEED)]
        command += ["-ratioGap", "0", "-allowableGap", "0", "-timeMode", "elapsed"]
        command += ["-sec", f"{max(1.0, seconds):.0f}", "-solve"]
        command += ["-printingOptions", "all", "-solution", str(answer)]
        try:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=seconds + SECONDS_GRACE,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return "unfinished", math.inf, {}  # too slow, killed, or not made for this machine
        if not answer.exists():
            return "unfinished", math.inf, {}
        status, values, *_ = reader.readsol_MPS(str(answer), problem, variables, names, rows)
        verdict = answer.read_text(encoding="ascii").split("\n", 1)[0]
    return _verdict(problem, status, values, finished=verdict.startswith("Optimal"))


def _run_highs(problem: Any, seconds: float) -> tuple[str, float, Mapping[str, float]]:
    solver = pulp.HiGHS(
        msg=False, timeLimit=seconds, gapRel=0.0, gapAbs=0.0, threads=1, random_seed=SEED
    )
    if not solver.available():
        raise ModuleNotFoundError("the solver highs needs the package highspy")
    status = problem.solve(solver)
    values = {variable.name: variable.varValue or 0.0 for variable in problem.variables()}
    finished = problem.sol_status == pulp.LpSolutionOptimal
    return _verdict(problem, status, values, finished=finished)


def _verdict(
    problem: Any, status: int, values: Mapping[str, float], *, finished: bool
) -> tuple[str, float, Mapping[str, float]]:
    if status == pulp.LpStatusInfeasible:
        return "infeasible", math.inf, {}
    if status != pulp.LpStatusOptimal or not finished:
        return "unfinished", math.inf, {}
    objective = sum(
        coefficient * values[variable.name] for variable, coefficient in problem.objective.items()
    )
    return "optimal", objective, values
