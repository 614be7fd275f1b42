"""What `amcast topology check` advises for a cyclic input: the least changes, and what each saves.

`advised` takes an `InterestFile` and gives an `Advice`. What a change saves is the difference
between the plan now and the plan after it, and how the latter is found depends on the size:

    planned     up to `PLANNED_DEMANDS_MAX` distinct interests: the changes that save most in the
                same tree are planned again
    same tree   up to `PRICED_CONSUMERS_MAX` consumers: the tree of the plan now, with the smallest
                bags that the changed interests need; another tree may save more
    none        more consumers: the changes are listed without figures

No I/O. Steps bound all searches, and no clock does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from topology.changes import with_interests
from topology.check import figures
from topology.interests import InterestFile
from topology.planner.hypergraph import is_acyclic, logs_by_partition, logs_met, residue
from topology.planner.solver import Infeasible, solve
from topology.repairs import (
    NAMES_MAX,
    Change,
    ChangeKind,
    RepairAction,
    applied,
    loses,
    names_needed,
    repairs,
    words,
)
from topology.tree import Plan

PROPOSED_MAX = 3  # of one kind; more alternatives do not help to choose
PLANNED_DEMANDS_MAX = 7  # the planner tries every tree up to here: 0.3 s for up to 24 changes
PRICED_CONSUMERS_MAX = 64  # to price a change in the same tree takes 3 ms for so many
EFFORT = 0.1  # of the plan now, if changes are priced in its tree: `check` should answer in seconds
SINGLE_MAX = 1_000  # single changes that are priced to find the one that saves most: 3 s


class Pricing(StrEnum):
    """How the plans after a change are found."""

    PLANNED = "planned"
    SAME_TREE = "same tree"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class PlanPrice:
    """The cost of a plan, and its foreign entries as the objective weighs them."""

    cost: float
    foreign: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """Changes of one kind, in words, to be made together; `after` is None if not priced.

    `loses`: some consumer gets fewer messages, or a set can no longer be addressed.
    """

    kind: ChangeKind
    changes: tuple[str, ...]
    names: int
    acyclic: bool
    loses: bool
    after: PlanPrice | None

    @property
    def sentence(self) -> str:
        """All changes in one sentence, without a full stop."""
        return " and ".join(self.changes)


@dataclass(frozen=True, slots=True)
class Advice:
    """The proposals for a cyclic input.

    names_needed  so many names must change at the least (proven)
    names_max     the search tried changes of up to so many names; 1 is exhaustive
    proposals     make it acyclic; per kind up to `PROPOSED_MAX`, those of fewest names found, the
                  cheapest plans first; one of them loses nothing, if there is such a change
    most          if there are no proposals: the single change after which the plan is cheapest, and
                  the cheapest that loses nothing; not acyclic
    sets_cannot   no change of the destination sets makes it acyclic: proven, for the interests are
                  cyclic on the single partitions already
    now           the price before any change; None: not priced
    """

    names_needed: int
    names_max: int
    proposals: tuple[Proposal, ...]
    most: tuple[Proposal, ...]
    sets_cannot: bool
    pricing: Pricing
    now: PlanPrice | None

    @property
    def sentence(self) -> str:
        """The least change in one sentence (of equal ones, one that loses nothing), or none."""
        if self.proposals:
            least = min(self.proposals, key=lambda p: (p.names, p.loses, *_order(p)))
            return f"{least.sentence}: then the interests are acyclic"
        if self.names_needed > self.names_max:
            return (
                f"none of up to {self.names_max} names: at least {self.names_needed} names must "
                f"change, because so many cycles have no partition in common"
            )
        return f"no change of up to {self.names_max} names was found that removes every cycle"


def advised(interests: InterestFile) -> Advice:
    """Advise on a cyclic interest file. Calls the planner, and blocks meanwhile."""
    needed = names_needed(interests)
    sets_cannot = not _acyclic(replace(interests, destinations=()))
    kinds = [ChangeKind.INTERESTS]
    if interests.destinations and not sets_cannot:
        kinds.append(ChangeKind.DESTINATIONS)
    prices = _Prices(interests)
    proposals: list[Proposal] = []
    if needed <= NAMES_MAX:
        for kind in kinds:
            made = [prices.proposal(kind, changes) for changes in repairs(interests, kind)]
            proposals += _best(prices.planned(made, PROPOSED_MAX))
    most = () if proposals else prices.most()
    return Advice(
        needed, NAMES_MAX, tuple(proposals), most, sets_cannot, prices.pricing, prices.now
    )


def _best(made: Sequence[Proposal]) -> list[Proposal]:
    """Give the cheapest proposals; the last gives way to the cheapest that loses nothing."""
    made = sorted(made, key=_order)
    best = made[:PROPOSED_MAX]
    harmless = next((proposal for proposal in made if not proposal.loses), None)
    if harmless is not None and all(proposal.loses for proposal in best):
        best[-1] = harmless
    return best


def _order(proposal: Proposal) -> tuple[bool, float, float]:
    after = proposal.after
    return (True, 0.0, 0.0) if after is None else (False, after.cost, after.foreign)


def _acyclic(interests: InterestFile) -> bool:
    return is_acyclic(frozenset(logs) for logs in logs_met(interests).values() if len(logs) > 1)


class _Priced(NamedTuple):
    proposal: Proposal
    changed: InterestFile


class _Prices:
    """Prices changes of one interest file, in the way that its size allows."""

    def __init__(self, interests: InterestFile) -> None:
        self.interests = interests
        self.plan: Plan | None = None
        self.pricing = Pricing.NONE
        if len(set(logs_met(interests).values())) <= PLANNED_DEMANDS_MAX:
            self.pricing = Pricing.PLANNED
        elif len(interests.consumers) <= PRICED_CONSUMERS_MAX:
            self.pricing = Pricing.SAME_TREE
        if self.pricing is not Pricing.NONE:
            self.plan = _planned(interests, EFFORT if self.pricing is Pricing.SAME_TREE else 1.0)
        if self.plan is None:  # a limit of the file cannot be kept, or it is too large
            self.pricing = Pricing.NONE
        self.now = None if self.plan is None else _price(self.plan)

    def proposal(self, kind: ChangeKind, changes: Sequence[Change]) -> _Priced:
        """Describe changes, with their price in the same tree."""
        changed = applied(self.interests, changes)
        plan = None if self.plan is None else with_interests(self.plan, changed)
        proposal = Proposal(
            kind=kind,
            changes=words(self.interests, changes),
            names=sum(change.names for change in changes),
            acyclic=_acyclic(changed),
            loses=loses(self.interests, changes),
            after=None if plan is None else _price(plan),
        )
        return _Priced(proposal, changed)

    def planned(self, made: Sequence[_Priced], count: int) -> list[Proposal]:
        """Plan the most promising changes again, if this is affordable; leave out the others.

        Twice as many as the `count` that will be shown, and as many that lose nothing.
        """
        if self.pricing is not Pricing.PLANNED:
            return [priced.proposal for priced in made]
        ranked = sorted(range(len(made)), key=lambda number: _order(made[number].proposal))
        harmless = [number for number in ranked if not made[number].proposal.loses]
        proposals = []
        for number in sorted({*ranked[: 2 * count], *harmless[: 2 * count]}):
            proposal, changed = made[number]
            plan = _planned(changed, 1.0)
            proposals.append(replace(proposal, after=None if plan is None else _price(plan)))
        return proposals

    def most(self) -> tuple[Proposal, ...]:
        """Give the single changes that save most, of all that concern a cyclic log."""
        if self.plan is None or self.now is None:
            return ()
        made = []
        for number, (kind, change) in enumerate(_single(self.interests, self.plan)):
            if number >= SINGLE_MAX:
                break
            made.append(self.proposal(kind, (change,)))
        proposals = self.planned(made, 1)
        saving = sorted(
            (p for p in proposals if p.after is not None and p.after.cost < self.now.cost),
            key=_order,
        )
        harmless = [proposal for proposal in saving if not proposal.loses]
        return tuple(dict.fromkeys([*saving[:1], *harmless[:1]]))


def _planned(interests: InterestFile, effort: float) -> Plan | None:
    try:
        return solve(interests, effort=effort).plan
    except Infeasible:
        return None


def _price(plan: Plan) -> PlanPrice:
    price = figures(plan)
    return PlanPrice(price.cost, price.foreign)


def _single(interests: InterestFile, plan: Plan) -> Iterator[tuple[ChangeKind, Change]]:
    """List single changes of what is cyclic: all that take something away, and the useful others.

    Only a log that a consumer or its collector drops is one that it may usefully take.
    """
    met = {name: frozenset(logs) for name, logs in logs_met(interests).items()}
    rest = residue(edge for edge in met.values() if len(edge) > 1)
    cyclic = frozenset(log for edge in rest for log in edge)
    for log in sorted(cyclic):
        if "+" in log:
            yield ChangeKind.DESTINATIONS, Change(RepairAction.UNDECLARE, log)
    holding = logs_by_partition(interests)
    names = [name for name in interests.partitions if not cyclic.isdisjoint(holding[name])]
    for entry in plan.consumers:
        if entry.collector is None:
            continue
        read = set(plan.collector(entry.collector).bag)
        above = plan.collector(entry.collector).parent
        read.update(plan.collector(above).bag if above is not None else ())
        for name in names:
            if name in entry.interest and len(entry.interest) > 1:
                yield ChangeKind.INTERESTS, Change(RepairAction.LEAVE, entry.name, name)
            elif name not in entry.interest and not read.isdisjoint(holding[name]):
                yield ChangeKind.INTERESTS, Change(RepairAction.TAKE, entry.name, name)
