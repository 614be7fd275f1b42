"""The planner: an interest file goes in, the cheapest plan comes out, with its proof or its gap.

Each component is searched by the strongest means that its size allows, always the same for the
same input:

    every choice    up to six demands: dynamic programming over all trees, and the integer program
                    (integer_program.py) over all choices; both must find the same optimum
    packing         more demands where few sets hang together (chains, stars): exact, all bags
    heuristic       the rest: the best of several constructions and a proven lower bound

Limits that couple collectors (how many in all, how many on a host) are the program's alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from topology.interests import InterestFile
from topology.planner.assembly import assembled
from topology.planner.bound import GROUP_STEPS, bounded
from topology.planner.cost import NOWHERE, Measure, TreeNode
from topology.planner.exact import (
    FAMILIES_DEMANDS_MAX,
    SETS_MAX,
    STEPS,
    Choice,
    SearchState,
    best_choices,
    choices,
    chosen_tree,
    least_load,
    packed,
)
from topology.planner.heuristic import constructed
from topology.planner.hypergraph import reduced
from topology.planner.integer_program import solved
from topology.tree import Plan

PHI = {"genuine": 10.0, "latency": 0.1, "balance": 10.0}
CHOICES_MAX = 6_000
BALANCE_STEPS = 8
TOLERANCE = 1e-6  # relative; the program's prices are floating point, the search's are exact


class Infeasible(ValueError):
    """No tree keeps the limits; the sentence names the limit and what it would take."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A plan with how good it is known to be. `bound` is a proven lower bound of the cost."""

    plan: Plan
    bound: float
    how: tuple[str, ...]


def plan(
    interests: InterestFile,
    *,
    cluster_id: str = "",
    base_epoch: int = 0,
    epoch: int | None = None,
    prefer: str = "genuine",
    phi: float | None = None,
    time_limit_s: float | None = None,
    solver: str = "cbc",
    effort: float = 1.0,
) -> Plan:
    """Plan the cheapest tree for an interest file.

    `prefer` is "genuine" (phi 10), "latency" (phi 0.1) or "balance" (the busiest collector first);
    `phi` sets the price of foreign work itself, `effort` multiplies every budget of steps.
    Same input, same plan, byte for byte, unless `time_limit_s` cuts the integer program short.
    Raises `Infeasible` where a limit cannot hold. Blocks; starts and ends its own sub-processes.
    """
    return solve(
        interests,
        cluster_id=cluster_id,
        base_epoch=base_epoch,
        epoch=epoch,
        prefer=prefer,
        phi=phi,
        time_limit_s=time_limit_s,
        solver=solver,
        effort=effort,
    ).plan


def solve(
    interests: InterestFile,
    *,
    cluster_id: str = "",
    base_epoch: int = 0,
    epoch: int | None = None,
    prefer: str = "genuine",
    phi: float | None = None,
    time_limit_s: float | None = None,
    solver: str = "cbc",
    effort: float = 1.0,
    progress: Callable[[str, float], None] | None = None,
) -> Solution:
    """Plan as `plan` does, and tell the proven bound and how each part was solved.

    `progress` is called with a sentence and the gap so far each time that one of them changes.
    """
    price = PHI[prefer] if phi is None else phi
    parts = _parts(interests, price)
    tell = progress or (lambda _sentence, _gap: None)
    if prefer == "balance":
        _balance(parts)
    for number, part in enumerate(parts, start=1):
        interested = len(part.measure.component.demands)
        tell(f"part {number} of {len(parts)}: {interested} interests", _gap(parts[: number - 1]))
        _solve_part(part, effort=effort)
        tell(f"part {number} of {len(parts)}: {part.how}", _gap(parts[:number]))
    _confirm(parts, interests, solver=solver, time_limit_s=time_limit_s)
    tell("done", _gap(parts))
    document = assembled(
        interests,
        [(part.measure, part.best()) for part in parts],
        phi=price,
        gap=_gap(parts),
        cluster_id=cluster_id,
        base_epoch=base_epoch,
        epoch=base_epoch + 1 if epoch is None else epoch,
    )
    bound = sum(part.measure.cost(part.bound) for part in parts)
    return Solution(document, min(bound, document.objective.cost), tuple(p.how for p in parts))


@dataclass(slots=True)
class _Part:
    """One component on its way to a tree. `bound` and `price` are the search's whole numbers."""

    measure: Measure
    load_max: int | None
    coupled: bool
    choices: dict[SearchState, list[Choice]] | None = None
    tree: TreeNode | None = None
    price: int = 0
    bound: int = 0
    how: str = ""

    @property
    def root(self) -> SearchState:
        """The state that the component's root collector answers."""
        return SearchState(self.measure.component.everyone, NOWHERE, self.measure.levels_max)

    def best(self) -> TreeNode:
        """Give the tree; only after it was found."""
        assert self.tree is not None, "a part was not solved"
        return self.tree


def _parts(interests: InterestFile, phi: float) -> list[_Part]:
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
        parts.append(_Part(measure, measure.load_max, coupled))
    return parts


def _refuse_heavy(measure: Measure) -> None:
    """Refuse an interest that is alone too much for one collector."""
    if measure.load_max is None:
        return
    for number, demand in enumerate(measure.component.demands):
        load = measure.load(measure.classes_of[number])
        if load > measure.load_max:
            raise Infeasible(
                f"collector_rate_max = {measure.load_max / measure.scale.rates:g} cannot hold: "
                f"consumer {demand.consumers[0]} alone needs "
                f"{load / measure.scale.rates:g} messages/s in one collector"
            )


def _solve_part(part: _Part, *, effort: float) -> None:
    """Find the best tree of one component, with its bound."""
    measure = part.measure
    demands = len(measure.component.demands)
    if demands <= _demands_max(measure):
        # Where collectors or their excess are counted, splitting one in two may cost something.
        counted = part.coupled or measure.load_wanted is not None
        part.choices = choices(measure, load_max=part.load_max, any_set=counted)
        best = best_choices(part.choices)
        if part.root not in best:
            raise Infeasible(_why_none(part))
        part.price = part.bound = best[part.root][0]
        part.tree = chosen_tree({state: choice for state, (_, choice) in best.items()}, part.root)
        part.how = "every choice"
        return
    if part.coupled:
        raise Infeasible(
            f"collectors_max and collectors_per_host_max are kept for parts of up to "
            f"{_demands_max(measure)} distinct interests; the part of consumer "
            f"{measure.component.demands[0].consumers[0]} has {demands}"
        )
    if measure.plain and part.load_max is None:
        part.tree = packed(measure, steps=int(STEPS * effort), sets_max=int(SETS_MAX * effort))
    if part.tree is not None:
        part.price = part.bound = measure.priced(part.tree)
        part.how = "packing, exact"
        return
    part.tree = constructed(measure, load_max=part.load_max, effort=effort)
    if part.tree is None:
        raise Infeasible(
            f"no tree was found that keeps {_limits_of(part)}; the search is not exact"
        )
    part.price, part.bound = (
        measure.priced(part.tree),
        bounded(measure, group_steps=int(GROUP_STEPS * effort)),
    )
    part.how = "heuristic"


def _demands_max(measure: Measure) -> int:
    """Tell up to how many demands every choice is listed: hosts multiply them."""
    hosts = len(measure.hosts)
    return FAMILIES_DEMANDS_MAX - (0 if hosts == 1 else 1 if hosts == 2 else 2)


def _why_none(part: _Part) -> str:
    """Name the hard limit that no tree of this part can keep."""
    measure = part.measure
    names = ", ".join(demand.consumers[0] for demand in measure.component.demands)
    free = least_load(choices(measure))
    needed = "no tree at all" if free is None else f"{free / measure.scale.rates:g} at the least"
    return (
        f"{_limits_of(part)} cannot hold for {names}: "
        f"with these levels the busiest collector handles {needed} messages/s"
    )


def _limits_of(part: _Part) -> str:
    measure = part.measure
    limits = []
    if part.load_max is not None:
        limits.append(f"collector_rate_max = {part.load_max / measure.scale.rates:g}")
    if measure.levels_max is not None:
        limits.append(f"levels_max = {measure.levels_max}")
    return " and ".join(limits)


def _balance(parts: Sequence[_Part]) -> None:
    """Let no collector handle more than the busiest one must: then the cost decides."""
    loads = []
    for part in parts:
        if len(part.measure.component.demands) <= _demands_max(part.measure):
            loads.append(least_load(choices(part.measure, load_max=part.load_max)))
        else:
            loads.append(_lightest(part))
    if loads and None not in loads:
        for part in parts:
            part.load_max = max(load for load in loads if load is not None)


def _lightest(part: _Part) -> int | None:
    """Halve the way from the heaviest interest to one root until the busiest is light."""
    measure = part.measure
    tree = constructed(measure, load_max=part.load_max)
    if tree is None:
        return None
    low, high = max(map(measure.load, measure.classes_of)), measure.heaviest(tree)
    for _ in range(BALANCE_STEPS):
        tree = constructed(measure, load_max=(low + high) // 2)
        if tree is None:
            low = (low + high) // 2 + 1
        else:
            high = min(high, measure.heaviest(tree))
        if low >= high:
            break
    return high


def _confirm(
    parts: Sequence[_Part], interests: InterestFile, *, solver: str, time_limit_s: float | None
) -> None:
    """Solve the integer program: it decides where limits couple choices, and confirms elsewhere."""
    coupled = any(part.coupled for part in parts)
    small = _listed(parts, choices_max=None if coupled else CHOICES_MAX)
    if not small:
        return
    answer = solved(
        [(part.measure, part.root, part.choices or {}) for part in small],
        limits=interests.limits,
        solver=solver,
        time_limit_s=time_limit_s,
    )
    if answer.status == "infeasible":
        raise Infeasible(_why_coupled(interests, parts))
    if answer.status != "optimal":
        if coupled:
            raise Infeasible("the integer program did not finish; raise its time limit")
        return
    if coupled:
        for part, picked in zip(small, answer.picked, strict=True):
            part.tree = chosen_tree(picked, part.root)
            part.price = part.bound = part.measure.priced(part.tree)
            part.how = "integer program"
        return
    expected = sum(part.measure.value(part.price) for part in small)
    slack = TOLERANCE * max(1.0, expected)
    assert answer.objective >= expected - slack, (
        f"the integer program found {answer.objective}, dynamic programming {expected}"
    )
    if answer.objective <= expected + slack:
        for part in small:
            part.how = "every choice, confirmed by the integer program"


def _listed(parts: Sequence[_Part], *, choices_max: int | None) -> list[_Part]:
    """Take the parts whose choices are listed; the largest are left out of too large a program."""
    size = {
        n: sum(map(len, p.choices.values())) for n, p in enumerate(parts) if p.choices is not None
    }
    while choices_max is not None and sum(size.values()) > choices_max:
        del size[max(size, key=size.__getitem__)]
    return [parts[number] for number in size]


def _why_coupled(interests: InterestFile, parts: Sequence[_Part]) -> str:
    limits = interests.limits
    names = [
        f"{name} = {limit}"
        for name, limit in (
            ("collectors_max", limits.collectors_max),
            ("collectors_per_host_max", limits.collectors_per_host_max),
        )
        if limit is not None
    ]
    return (
        f"{' and '.join(names)} cannot hold: the interests fall into {len(parts)} parts that "
        f"share no log, each with a collector of its own, within the other limits"
    )


def _gap(parts: Sequence[_Part]) -> float:
    """Give the relative distance between the cost and its proven bound."""
    cost = sum(part.measure.cost(part.price) for part in parts)
    bound = sum(part.measure.cost(part.bound) for part in parts)
    return 0.0 if cost <= bound else (cost - bound) / cost
