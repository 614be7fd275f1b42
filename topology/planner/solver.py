"""The planner: finds the cheapest plan for an interest file, with a proof or a gap to a bound.

Each component (connected interests; words: `hypergraph.py`) is solved by itself. Its form and the
limits decide the method, and no clock does, so the same input gives the same plan:

    every choice    up to seven demands (fewer with hosts): dynamic programming over all trees; the
                    integer program over the same choices (`exact.Choice`), if few, confirms it
    every bag       more demands over few classes of logs: dynamic programming over all bags
    least join tree acyclic interests: one collector for each demand, by a linear program
    heuristic       all others, and acyclic ones too: the best of several constructions, and a
                    proven lower bound; the cheaper tree of the two is taken

Only the integer program (`integer_program.py`) handles limits that couple collectors: on their
number, in all and per host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from topology.interests import InterestFile
from topology.planner.assembly import assembled
from topology.planner.bound import STEPS_MAX, UNDIVIDED_DEMANDS_MAX, bounded
from topology.planner.cost import NOWHERE, Measure, TreeNode
from topology.planner.exact import (
    BAG_STEPS_MAX,
    FAMILIES_DEMANDS_MAX,
    Choice,
    SearchState,
    best_choices,
    by_bags,
    by_bags_steps,
    choices,
    chosen_tree,
    least_load,
)
from topology.planner.heuristic import constructed
from topology.planner.hypergraph import reduced
from topology.planner.integer_program import solved
from topology.planner.join_tree import PHI_MIN, least_join_tree
from topology.tree import PHI_DEFAULT, Plan

# The price of a foreign message in hops. With 10 a tree may have up to ten hops more to avoid one
# foreign message; with 0.1 hops decide, and foreign work counts between trees of similar hops.
PHI = {"genuine": PHI_DEFAULT, "latency": 0.1, "balance": PHI_DEFAULT}
# The most choices of an integer program that only confirms the search. Larger components are left
# out: they take CBC long, and the search is exact without them.
CHOICES_MAX = 6_000
QUICK_EFFORT = 0.1  # of the search for a first tree; a bound that meets it ends the search
BALANCE_STEPS_MAX = 8  # halvings: the interval of possible loads shrinks to 1/256
BALANCE_EFFORT = 0.1  # of each step's search: with it they take as long as the last search
TOLERANCE = 1e-6  # relative; the program's prices are floating point, the search's are exact


class Infeasible(ValueError):
    """No tree keeps the limits; the message names the limit and what would be needed."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A plan, a proven lower `bound` of its cost, and the methods that found it."""

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
    """Find the cheapest plan for an interest file.

    `prefer` is "genuine" (phi 10), "latency" (phi 0.1) or "balance" (first the least load on the
    busiest collector, then phi 10). `phi` overrides the price of foreign work; `effort` multiplies
    all step budgets. The same input gives the same plan, byte for byte, unless `time_limit_s` stops
    a solver early. Raises `Infeasible` if a limit cannot be kept. Blocks; starts solver processes
    and waits for their end.
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
    """Find a plan as `plan` does; also give the proven bound and each part's method.

    `progress` is called with a sentence and the gap so far whenever one of them changes.
    """
    price = PHI[prefer] if phi is None else phi
    parts = _parts(interests, price)
    show = progress or (lambda _sentence, _gap: None)
    if prefer == "balance":
        _balance(parts)
    for number, part in enumerate(parts, start=1):
        interested = len(part.measure.component.demands)
        show(f"part {number} of {len(parts)}: {interested} interests", _gap(parts[: number - 1]))
        _solve_part(part, effort=effort, time_limit_s=time_limit_s)
        show(f"part {number} of {len(parts)}: {part.how}", _gap(parts[:number]))
    _confirm(parts, interests, solver=solver, time_limit_s=time_limit_s)
    show("done", _gap(parts))
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
    """One component and its tree, once found. `coupled`: a limit counts collectors of all parts.

    `bound` and `price` are integers of the search.
    """

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
        """The search state of the component's root collector."""
        return SearchState(self.measure.component.everyone, NOWHERE, self.measure.levels_max)

    def take(self, tree: TreeNode | None, how: str) -> None:
        """Take a tree, and how it was found, if it is cheaper than the one known."""
        if tree is None:
            return
        price = self.measure.priced(tree)
        if self.tree is None or price < self.price:
            self.tree, self.price, self.how = tree, price, how

    def best(self) -> TreeNode:
        """Give the tree, which must have been found."""
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


def _solve_part(part: _Part, *, effort: float, time_limit_s: float | None) -> None:
    """Find the best tree of one component, and its bound."""
    measure = part.measure
    demands = len(measure.component.demands)
    if demands <= _demands_max(measure):
        part.choices = choices(measure, load_max=part.load_max)
        best = best_choices(part.choices)
        if part.root not in best:
            raise Infeasible(_why_none(part))
        part.price = part.bound = best[part.root][0]
        part.tree = chosen_tree({state: choice for state, (_, choice) in best.items()}, part.root)
        part.how = "every choice"
        return
    if part.coupled:
        raise Infeasible(
            f"collectors_max and collectors_per_host_max can be used for parts of up to "
            f"{_demands_max(measure)} distinct interests, but the part of consumer "
            f"{measure.component.demands[0].consumers[0]} has {demands}; remove these limits"
        )
    plain = measure.plain and part.load_max is None
    if plain and by_bags_steps(measure) <= BAG_STEPS_MAX * effort:
        part.tree = by_bags(measure)
        part.price = part.bound = measure.priced(part.tree)
        part.how = "every bag"
        return
    _search_part(part, effort=effort, plain=plain, time_limit_s=time_limit_s)


def _search_part(part: _Part, *, effort: float, plain: bool, time_limit_s: float | None) -> None:
    """Find a good tree of a large component and a bound; if they meet, nothing more is searched."""
    measure = part.measure
    if plain and measure.scale.phi >= PHI_MIN:
        part.take(least_join_tree(measure, time_limit_s=time_limit_s), "least join tree")
    large = len(measure.weight) > UNDIVIDED_DEMANDS_MAX  # then a quick search takes nearly as long
    first = effort if large else effort * QUICK_EFFORT
    part.take(constructed(measure, load_max=part.load_max, effort=first), "heuristic")
    found = bounded(measure, steps=int(STEPS_MAX * effort), known=part.tree)
    part.bound = found.bound
    part.take(found.tree, "small bags")
    if part.tree is not None and measure.cost(part.price) <= measure.cost(part.bound):
        part.how += ", proven least of all trees"
        return
    if not large:
        part.take(constructed(measure, load_max=part.load_max, effort=effort), "heuristic")
    if part.tree is None:
        raise Infeasible(
            f"no tree was found that keeps {_limits_of(part)}; the search is not exact, so raise "
            f"the limits, or search longer with --effort"
        )


def _demands_max(measure: Measure) -> int:
    """Give the largest number of demands for which all choices are listed; hosts multiply them."""
    hosts = len(measure.hosts)
    return FAMILIES_DEMANDS_MAX - (0 if hosts == 1 else 1 if hosts == 2 else 2)


def _why_none(part: _Part) -> str:
    """Name the hard limit that no tree of this part can keep."""
    measure = part.measure
    names = ", ".join(demand.consumers[0] for demand in measure.component.demands)
    free = least_load(choices(measure))
    needed = "there is no tree at all"
    if free is not None:
        load = f"{free / measure.scale.rates:g} at the least"
        needed = f"the busiest collector handles {load} messages/s"
    return f"{_limits_of(part)} cannot be kept for {names}: with these levels {needed}"


def _limits_of(part: _Part) -> str:
    measure = part.measure
    limits = []
    if part.load_max is not None:
        limits.append(f"collector_rate_max = {part.load_max / measure.scale.rates:g}")
    if measure.levels_max is not None:
        limits.append(f"levels_max = {measure.levels_max}")
    return " and ".join(limits)


def _balance(parts: Sequence[_Part]) -> None:
    """Limit all loads to the least possible load of the busiest collector; then cost decides."""
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
    """Find a low load of the busiest collector by halving the interval.

    The interval begins at the load of the heaviest interest, and ends at that of the first tree.
    """
    measure = part.measure
    tree = constructed(measure, load_max=part.load_max, effort=BALANCE_EFFORT)
    if tree is None:
        return None
    low, high = max(measure.loads), measure.heaviest(tree)
    for _ in range(BALANCE_STEPS_MAX):
        middle = (low + high) // 2
        tree = constructed(measure, load_max=middle, effort=BALANCE_EFFORT)
        if tree is None:
            low = middle + 1
        else:
            high = min(high, measure.heaviest(tree))
        if low >= high:
            break
    return high


def _confirm(
    parts: Sequence[_Part], interests: InterestFile, *, solver: str, time_limit_s: float | None
) -> None:
    """Solve the integer program: it decides if limits couple choices, else it confirms a result."""
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
            raise Infeasible(
                "the integer program did not finish in time; give a longer --time-limit"
            )
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
    """Pick the parts with listed choices; leave out the largest until `choices_max` is kept."""
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
        f"{' and '.join(names)} cannot be kept: the interests form {len(parts)} parts without a "
        f"common log, and each needs a collector of its own, within the other limits"
    )


def _gap(parts: Sequence[_Part]) -> float:
    """Give the relative distance between the cost and its proven bound."""
    cost = sum(part.measure.cost(part.price) for part in parts)
    bound = sum(part.measure.cost(part.bound) for part in parts)
    return 0.0 if cost <= bound else (cost - bound) / cost
