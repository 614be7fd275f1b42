"""The integer program; only this file imports PuLP.

From the possible choices of all components it picks one choice for each reached state, with a proof
of optimality. CBC, from PuLP's wheel, runs as one sub-process with a time limit and a fixed seed,
in a temporary directory; HiGHS can replace it. CBC is serial by default: `-threads 1` would start a
thread pool of one, which waited for ten seconds in one run of 150 (measured).

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

import math
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from topology import extra
from topology.interests import PlanLimits
from topology.planner.cost import NOWHERE, Measure
from topology.planner.exact import Choice, SearchState

with extra("planner"):
    import pulp

SEED = 1  # any fixed number: equal inputs give equal plans
COEFFICIENT_MAX = 1_000.0  # prices are scaled to this, which suits the solver's tolerances
TIME_LIMIT_S = 60.0  # if the caller sets none: the sub-process must always end
GRACE_S = 10.0  # CBC checks its clock between steps only; after this time it is killed


@dataclass(frozen=True, slots=True)
class Answer:
    """The solver's result. `status` is "optimal", "infeasible" or "unfinished"."""

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
    """Choose collectors for all components at once.

    Blocks for at most `time_limit_s` and a grace period; then the status is "unfinished".
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
    status, objective, answers = _run(problem, solver=solver, time_limit_s=time_limit_s)
    picked: tuple[dict[SearchState, Choice], ...] = tuple({} for _ in parts)
    if status == "optimal":
        for number, choice, variable in columns:
            if answers[variable.name] > 0.5:
                picked[number][choice.state] = choice
    return Answer(status, objective * unit, picked)


def maximised(
    count: int, objective: Mapping[int, float], rows: Sequence[tuple[Mapping[int, float], float]]
) -> list[float] | None:
    """Maximise a linear program over `count` free variables; None if the solver did not finish.

    Each row is the coefficients by variable, and the greatest sum. The answer is floating point:
    who needs a proof must check it.
    """
    problem = pulp.LpProblem("prices", pulp.LpMinimize)
    variables = [problem.add_variable(f"x{number}") for number in range(count)]
    problem.setObjective(pulp.LpAffineExpression((variables[n], -c) for n, c in objective.items()))
    for row, limit in rows:
        problem += pulp.LpAffineExpression((variables[n], c) for n, c in row.items()) <= limit
    status, _, answers = _run(problem, solver="cbc", time_limit_s=None)
    return [answers[x.name] for x in variables] if status == "optimal" else None


def _limit_counts(
    problem: Any, columns: Sequence[tuple[int, Choice, Any]], limits: PlanLimits
) -> None:
    if limits.collectors_max is not None:
        problem += pulp.lpSum(z for _, _, z in columns) <= limits.collectors_max, "collectors_max"
    if limits.collectors_per_host_max is not None:
        for host in sorted({choice.host for _, choice, _ in columns} - {NOWHERE}):
            there = pulp.lpSum(z for _, choice, z in columns if choice.host == host)
            problem += there <= limits.collectors_per_host_max, f"collectors_on_host_{host}"


# -- programs that others make --------------------------------------------------------------


@dataclass(slots=True)
class LinearProgram:
    """Columns from 0 to 1 with their costs, and rows of (column, coefficient) pairs.

    A row is (whether its sum must equal the limit, or else must not exceed it; pairs; limit).
    """

    costs: list[int] = field(default_factory=list)
    rows: list[tuple[bool, list[tuple[int, int]], int]] = field(default_factory=list)

    def column(self, cost: int) -> int:
        """Add a column, and give its number."""
        self.costs.append(cost)
        return len(self.costs) - 1

    def equal(self, pairs: list[tuple[int, int]], limit: int) -> None:
        """Add the row: sum = limit."""
        self.rows.append((True, pairs, limit))

    def at_most(self, pairs: list[tuple[int, int]], limit: int) -> None:
        """Add the row: sum <= limit."""
        self.rows.append((False, pairs, limit))


def minimised(
    program: LinearProgram, *, whole: Sequence[int] = (), time_limit_s: float | None = None
) -> list[float] | None:
    """Give the values of the columns of an optimum, in which those of `whole` are whole numbers.

    None if CBC did not finish in time, or found that there is no answer. Blocks as `solved` does.
    """
    answer = _solved(program, time_limit_s, whole=whole)
    return None if answer is None else answer.values


class Relaxed(NamedTuple):
    """An optimum: the value of each column, and by how much each row's limit raises the cost."""

    values: list[float]
    duals: list[float]


def relaxed(program: LinearProgram, *, time_limit_s: float | None = None) -> Relaxed | None:
    """Minimise a program whose columns have no upper limit, and need not be whole numbers.

    None as for `minimised`.
    """
    return _solved(program, time_limit_s, whole=None)


def _solved(
    program: LinearProgram, time_limit_s: float | None, *, whole: Sequence[int] | None
) -> Relaxed | None:
    unit = max(program.costs, default=1) / COEFFICIENT_MAX or 1.0
    with tempfile.TemporaryDirectory(prefix="amcast-cbc-") as directory:
        model, answer = Path(directory) / "model.mps", Path(directory) / "model.sol"
        model.write_text("\n".join(_mps(program, unit, whole)) + "\n", encoding="ascii")
        if not _cbc_ran(model, answer, TIME_LIMIT_S if time_limit_s is None else time_limit_s):
            return None
        verdict, *lines = answer.read_text(encoding="ascii").split("\n")
    if not verdict.startswith("Optimal"):
        return None
    relaxed = Relaxed([0.0] * len(program.costs), [0.0] * len(program.rows))
    for line in lines:
        words = line.split()  # number, name, value, reduced cost of a column or dual of a row
        if len(words) == 4 and words[1].startswith("x"):
            relaxed.values[int(words[1][1:])] = float(words[2])
        elif len(words) == 4 and words[1].startswith("r"):
            relaxed.duals[int(words[1][1:])] = float(words[3]) * unit
    return relaxed


def _mps(program: LinearProgram, unit: float, whole: Sequence[int] | None) -> list[str]:
    """Write a program in the free MPS format: its columns are x0, x1, ..., its rows r0, r1, ...

    `whole` are those of whole numbers; columns are at most 1 unless it is None.
    """
    cells: list[list[str]] = [[] for _ in program.costs]
    for number, (_, pairs, _) in enumerate(program.rows):
        for column, coefficient in pairs:
            cells[column].append(f" x{column} r{number} {coefficient}")
    lines = ["NAME model FREE", "ROWS", " N cost"]
    lines += [f" {'E' if equal else 'L'} r{n}" for n, (equal, _, _) in enumerate(program.rows)]
    lines.append("COLUMNS")
    for column, cost in enumerate(program.costs):
        lines += [f" x{column} cost {cost / unit!r}", *cells[column]]
    lines.append("RHS")
    lines += [f" RHS r{n} {limit}" for n, (_, _, limit) in enumerate(program.rows) if limit]
    if whole is not None:
        lines.append("BOUNDS")
        binary = set(whole)
        for column in range(len(program.costs)):
            bound = f" BV BND x{column}" if column in binary else f" UP BND x{column} 1"
            lines.append(bound)
    return [*lines, "ENDATA"]


# -- solvers --------------------------------------------------------------------------------


def _run(
    problem: Any, *, solver: str, time_limit_s: float | None
) -> tuple[str, float, Mapping[str, float]]:
    """Run a solver; give the status, the objective, and the values by variable name."""
    seconds = TIME_LIMIT_S if time_limit_s is None else time_limit_s
    if solver == "highs":
        return _run_highs(problem, seconds)
    assert solver == "cbc", f"unknown solver {solver}"
    return _run_cbc(problem, seconds)


def _run_cbc(problem: Any, seconds: float) -> tuple[str, float, Mapping[str, float]]:
    reader = pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path)
    with tempfile.TemporaryDirectory(prefix="amcast-cbc-") as directory:
        model, answer = Path(directory) / "model.mps", Path(directory) / "model.sol"
        variables, names, rows, _ = problem.writeMPS(str(model), rename=True)
        if not _cbc_ran(model, answer, seconds):
            return "unfinished", math.inf, {}
        status, values, *_ = reader.readsol_MPS(str(answer), problem, variables, names, rows)
        verdict = answer.read_text(encoding="ascii").split("\n", 1)[0]
    return _verdict(problem, status, values, finished=verdict.startswith("Optimal"))


def _cbc_ran(model: Path, answer: Path, seconds: float) -> bool:
    """Run CBC on a model file; whether it wrote its answer to a file."""
    command = [pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path).path, str(model)]
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
            timeout=seconds + GRACE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False  # too slow, killed, or not made for this machine
    return answer.exists()


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
