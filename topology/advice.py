"""What `amcast topology check` advises for a cyclic input: the least changes, and what each saves.

`advised` takes an `InterestFile` and gives an `Advice`. The savings are differences between the
cheapest plan now and the cheapest plan after the change. To plan each change again would take
minutes for large inputs: then the proposals have no figures. No I/O; steps, not clocks, bound all
searches but that of the planner for small inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from topology.interests import InterestFile
from topology.planner.hypergraph import is_acyclic, logs_met
from topology.planner.solver import Infeasible, solve
from topology.repairs import (
    NAMES_MAX,
    Change,
    ChangeKind,
    RepairAction,
    applied,
    cover_of,
    names_needed,
    repairs,
)

PROPOSED_MAX = 3  # of one kind; more alternatives do not help to choose
# Distinct interests: the planner is exact and quick up to here, and it is called up to 120 times.
PRICED_DEMANDS_MAX = 7


@dataclass(frozen=True, slots=True)
class PlanPrice:
    """The cost of the cheapest plan found, and its foreign entries (per second, or per round)."""

    cost: float
    foreign: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """Changes of one kind, in words, to be made together; `after` is None if not priced."""

    kind: ChangeKind
    changes: tuple[str, ...]
    names: int
    acyclic: bool
    after: PlanPrice | None

    @property
    def sentence(self) -> str:
        """All changes in one sentence, without a full stop."""
        return " and ".join(self.changes)


@dataclass(frozen=True, slots=True)
class Advice:
    """The proposals for a cyclic input.

    names_needed  so many names must change at the least (proven)
    proposals     make it acyclic; per kind up to `PROPOSED_MAX`, those of fewest names found, in
                  the order of their cost
    most          if there are no proposals: of the single changes that remove the witness, the one
                  with the cheapest plan (the first tried if nothing is priced)
    sets_cannot   no change of the destination sets makes it acyclic: proven, for the interests are
                  cyclic on the single partitions already
    now           the price before any change; None: the input is too large to price each change
    """

    names_needed: int
    names_max: int
    proposals: tuple[Proposal, ...]
    most: Proposal | None
    sets_cannot: bool
    now: PlanPrice | None

    @property
    def sentence(self) -> str:
        """The least change in one sentence, or that there is none."""
        if self.proposals:
            least = min(self.proposals, key=lambda proposal: (proposal.names, *_order(proposal)))
            return f"{least.sentence}: then the interests are acyclic"
        if self.most is None:
            return "no change of a single name removes the cycle shown"
        return (
            f"{self.most.sentence}: this removes the cycle shown, but no change of up to "
            f"{self.names_max} names was found that removes every cycle"
        )


def advised(interests: InterestFile) -> Advice:
    """Advise on a cyclic interest file.

    Calls the planner up to 120 times for small inputs, and blocks meanwhile.
    """
    needed = names_needed(interests)
    names_max = NAMES_MAX if needed <= NAMES_MAX else 1
    sets_cannot = not _acyclic(replace(interests, destinations=()))
    kinds = [ChangeKind.INTERESTS]
    if interests.destinations and not sets_cannot:
        kinds.append(ChangeKind.DESTINATIONS)
    results = {kind: repairs(interests, kind, names_max=names_max) for kind in kinds}
    now = _price(interests) if _small(interests) else None
    proposals: list[Proposal] = []
    for kind, result in results.items():
        made = [_proposal(interests, kind, changes, now) for changes in result.complete]
        proposals += sorted(made, key=_order)[:PROPOSED_MAX]
    most = None
    if not proposals:
        towards = [
            _proposal(interests, kind, (change,), now)
            for kind, result in results.items()
            for change in result.towards
        ]
        most = min(towards, key=_order, default=None)
    return Advice(needed, NAMES_MAX, tuple(proposals), most, sets_cannot, now)


def _small(interests: InterestFile) -> bool:
    return len(set(logs_met(interests).values())) <= PRICED_DEMANDS_MAX


def _acyclic(interests: InterestFile) -> bool:
    return is_acyclic(frozenset(logs) for logs in logs_met(interests).values() if len(logs) > 1)


def _order(proposal: Proposal) -> tuple[float, float]:
    after = proposal.after
    return (0.0, 0.0) if after is None else (after.cost, after.foreign)


def _price(interests: InterestFile) -> PlanPrice | None:
    """Plan, and give the price; None if a limit of the file cannot be kept."""
    try:
        objective = solve(interests).plan.objective
    except Infeasible:
        return None
    return PlanPrice(objective.cost, objective.foreign)


def _proposal(
    interests: InterestFile, kind: ChangeKind, changes: Sequence[Change], now: PlanPrice | None
) -> Proposal:
    changed = applied(interests, changes)
    return Proposal(
        kind=kind,
        changes=tuple(_words(changed, changes)),
        names=sum(change.names for change in changes),
        acyclic=_acyclic(changed),
        after=None if now is None else _price(changed),
    )


def _words(changed: InterestFile, changes: Iterable[Change]) -> Iterable[str]:
    for change in changes:
        match change.action:
            case RepairAction.TAKE:
                yield f"let {change.subject} also take {change.name}"
            case RepairAction.LEAVE:
                yield f"let {change.subject} no longer take {change.name}"
            case RepairAction.UNDECLARE:
                cover = cover_of(changed, change.subject)
                after = f"its messages go to {cover}" if cover else "it then takes no messages"
                yield f"do not declare {change.subject} ({after})"
            case RepairAction.MERGE:
                names = {*change.subject.split("+"), *change.name.split("+")}
                union = "+".join(sorted(names))
                yield f"declare {union} instead of {change.subject} and {change.name}"
