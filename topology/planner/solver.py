"""The planner: finds a cheap plan for an interest file, within seconds.

Each component (connected interests; words: `reduction.py`) is solved by itself. Its form and the
limits decide the method, and no clock does, so the same input and effort give the same plan:

    every choice   up to seven demands (fewer with hosts): dynamic programming over all trees; exact
    annealing      all others: the best of several constructions (`heuristic.py`)

Only the integer program (`integer_program.py`) handles limits that couple collectors: on their
number, in all and per host. How far a plan of annealing can be from the least: `topology/proof.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from topology.interests import InterestFile
from topology.planner.assembly import assembled
from topology.planner.cost import NOWHERE, Measure, TreeNode
from topology.planner.exact import (
    FAMILIES_DEMANDS_MAX,
    Choice,
    SearchState,
    best_choices,
    choices,
    chosen_tree,
)
from topology.planner.heuristic import constructed
from topology.planner.integer_program import TIME_LIMIT_S, solved
from topology.planner.reduction import reduced
from topology.planner.watch import Watch
from topology.tree import PHI_DEFAULT, Plan


class Infeasible(ValueError):
    """No tree keeps the limits; the message names the limit and what would be needed."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A plan, and its parts: interests that share no log with those of other parts."""

    plan: Plan
    parts: tuple[PlannedPart, ...]


def plan(interests: InterestFile, **options: Any) -> Plan:
    """Find a plan as `solve` does, with the same options."""
    return solve(interests, **options).plan


def solve(
    interests: InterestFile,
    *,
    cluster_id: str = "",
    base_epoch: int = 0,
    phi: float = PHI_DEFAULT,
    effort: float = 1.0,
    watch: Watch | None = None,
) -> Solution:
    """Find a cheap plan for an interest file.

    `phi` is the price of a foreign message in hops: with 10 a tree may have up to ten hops more to
    avoid one; with 0.1 hops decide, and foreign work counts between trees of similar hops. `effort`
    multiplies the number of moves. The same input and effort give the same plan, byte for byte,
    unless `watch` ends the search: then the plan is the best so far. The plan's gap is 0 if every
    part was searched exactly, else None. Raises `Infeasible` if a limit cannot be kept. Blocks;
    with limits on the number of collectors, starts a solver process and waits for its end.
    """
    parts = _parts(interests, phi)
    watch = watch or Watch()
    for number, part in enumerate(parts, start=1):
        interested = len(part.measure.component.demands)
        place = f"part {number} of {len(parts)}, " if len(parts) > 1 else ""
        watch.begin(f"{place}{interested} interests")
        _solve_part(part, effort=effort, watch=watch)
        watch.end(part.measure.cost(part.price))
    _couple(parts, interests)
    document = assembled(
        interests,
        [(part.measure, part.tree) for part in parts],
        phi=phi,
        gap=0.0 if all(part.exact for part in parts) else None,
        cluster_id=cluster_id,
        base_epoch=base_epoch,
    )
    return Solution(document, tuple(parts))


@dataclass(slots=True)
class PlannedPart:
    """One component and its tree, once found. `coupled`: a limit counts collectors of all parts.

    `price` is an integer of the search; `exact`: no tree that keeps the limits has a lower one.
    """

    measure: Measure
    coupled: bool
    choices: dict[SearchState, list[Choice]] | None = None
    tree: TreeNode = field(init=False)
    price: int = 0
    exact: bool = False
    how: str = ""

    @property
    def root(self) -> SearchState:
        """The search state of the component's root collector."""
        return SearchState(self.measure.component.everyone, NOWHERE, self.measure.levels_max)

    def take(self, tree: TreeNode, how: str, *, exact: bool) -> None:
        """Take a tree, and how it was found."""
        self.tree, self.price = tree, self.measure.priced(tree)
        self.how, self.exact = how, exact


def _parts(interests: InterestFile, phi: float) -> list[PlannedPart]:
    problem = reduced(interests)
    limits = interests.limits
    coupled = limits.collectors_max is not None or limits.collectors_per_host_max is not None
    parts = []
    for component in problem.components:
        measure = Measure(
            component,
            rates=problem.rates,
            weights=problem.weights,
            phi=phi,
            limits=limits,
            hosts=interests.hosts,
        )
        _refuse_heavy(measure)
        parts.append(PlannedPart(measure, coupled))
    return parts


def _refuse_heavy(measure: Measure) -> None:
    """Raise `Infeasible` for an interest that exceeds `collector_rate_max` by itself."""
    if measure.load_max is None:
        return
    for number, demand in enumerate(measure.component.demands):
        load = measure.loads[number]
        if load > measure.load_max:
            raise Infeasible(
                f"collector_rate_max = {measure.load_max / measure.scale.rates:g} cannot be kept: "
                f"consumer {demand.consumers[0]} alone needs "
                f"{load / measure.scale.rates:g} messages/s in one collector"
            )


def _solve_part(part: PlannedPart, *, effort: float, watch: Watch) -> None:
    """Find the best tree of one component, or a good one."""
    measure = part.measure
    demands = len(measure.component.demands)
    if demands <= _demands_max(measure):
        part.choices = choices(measure, load_max=measure.load_max)
        best = best_choices(part.choices)
        if part.root not in best:
            raise Infeasible(_why_none(part))
        picked = {state: choice for state, (_, choice) in best.items()}
        part.take(chosen_tree(picked, part.root), "every choice", exact=True)
        return
    if part.coupled:
        raise Infeasible(
            f"collectors_max and collectors_per_host_max can be used for parts of up to "
            f"{_demands_max(measure)} distinct interests, but the part of consumer "
            f"{measure.component.demands[0].consumers[0]} has {demands}; remove these limits"
        )
    tree = constructed(measure, effort=effort, watch=watch)
    if tree is None:
        raise Infeasible(
            f"no tree was found that keeps {_limits_of(part)}; the search is not exact, so raise "
            f"the limits, or search longer with --effort"
        )
    part.take(tree, "annealing", exact=False)


def _demands_max(measure: Measure) -> int:
    """Give the largest number of demands for which all choices are listed; hosts multiply them."""
    hosts = len(measure.hosts)
    return FAMILIES_DEMANDS_MAX - (0 if hosts == 1 else 1 if hosts == 2 else 2)


def _why_none(part: PlannedPart) -> str:
    """Name the hard limit that no tree of this part can keep."""
    measure = part.measure
    names = ", ".join(demand.consumers[0] for demand in measure.component.demands)
    free = best_choices(choices(measure), value=lambda choice: choice.load, fold=max)
    needed = "there is no tree at all"
    if part.root in free:
        load = f"{free[part.root][0] / measure.scale.rates:g} at the least"
        needed = f"the busiest collector handles {load} messages/s"
    return f"{_limits_of(part)} cannot be kept for {names}: with these levels {needed}"


def _limits_of(part: PlannedPart) -> str:
    measure = part.measure
    limits = []
    if measure.load_max is not None:
        limits.append(f"collector_rate_max = {measure.load_max / measure.scale.rates:g}")
    if measure.levels_max is not None:
        limits.append(f"levels_max = {measure.levels_max}")
    return " and ".join(limits)


def _couple(parts: Sequence[PlannedPart], interests: InterestFile) -> None:
    """If limits couple the parts, choose all their collectors anew, by the integer program."""
    if not any(part.coupled for part in parts):
        return
    answer = solved(
        [(part.measure, part.root, part.choices or {}) for part in parts], limits=interests.limits
    )
    if answer.status == "infeasible":
        raise Infeasible(_why_coupled(interests, parts))
    if answer.status != "optimal":
        raise Infeasible(
            f"the integer program did not finish within {TIME_LIMIT_S:g} s; remove the limits on "
            f"counts of collectors"
        )
    for part, picked in zip(parts, answer.picked, strict=True):
        part.take(chosen_tree(picked, part.root), "integer program", exact=True)


def _why_coupled(interests: InterestFile, parts: Sequence[PlannedPart]) -> str:
    limits = interests.limits
    names = [
        f"{name} = {limit}"
        for name in ("collectors_max", "collectors_per_host_max")
        if (limit := getattr(limits, name)) is not None
    ]
    return (
        f"{' and '.join(names)} cannot be kept: the interests form {len(parts)} parts without a "
        f"common log, and each needs a collector of its own, within the other limits"
    )
