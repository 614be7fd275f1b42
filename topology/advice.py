"""What `amcast topology check` advises for a cyclic input: the least changes, in words.

`advised` takes an `InterestFile` and gives an `Advice`. What a change saves is not said: a plan for
the changed file says it. No I/O. Steps bound the search, and no clock does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from topology.acyclicity import is_acyclic
from topology.interests import InterestFile
from topology.planner.hypergraph import logs_met
from topology.repairs import NAMES_MAX, ChangeKind, loses, repairs, words

PROPOSED_MAX = 3  # of one kind; more alternatives do not help to choose


@dataclass(frozen=True, slots=True)
class Proposal:
    """Changes of one kind, in words, which made together make the interests acyclic.

    `loses`: some consumer gets fewer messages, or a set can no longer be addressed.
    """

    kind: ChangeKind
    changes: tuple[str, ...]
    names: int
    loses: bool

    @property
    def sentence(self) -> str:
        """All changes in one sentence, without a full stop."""
        return " and ".join(self.changes)


@dataclass(frozen=True, slots=True)
class Advice:
    """The proposals for a cyclic input.

    names_max     the search tried changes of up to so many names; 1 is exhaustive
    proposals     per kind up to `PROPOSED_MAX` of the fewest names found, those first that lose
                  nothing
    sets_cannot   no change of the destination sets makes it acyclic: proven, for the interests are
                  cyclic on the single partitions already
    """

    names_max: int
    proposals: tuple[Proposal, ...]
    sets_cannot: bool

    @property
    def sentence(self) -> str:
        """The least change in one sentence (of equal ones, one that loses nothing), or none."""
        if self.proposals:
            least = min(self.proposals, key=lambda proposal: (proposal.names, proposal.loses))
            return f"{least.sentence}: then the interests are acyclic"
        return f"no change of up to {self.names_max} names was found that removes every cycle"


def advised(interests: InterestFile) -> Advice:
    """Advise on a cyclic interest file."""
    single = logs_met(replace(interests, destinations=())).values()
    sets_cannot = not is_acyclic(frozenset(logs) for logs in single if len(logs) > 1)
    kinds = [ChangeKind.INTERESTS]
    if interests.destinations and not sets_cannot:
        kinds.append(ChangeKind.DESTINATIONS)
    proposals: list[Proposal] = []
    for kind in kinds:
        made = [
            Proposal(
                kind=kind,
                changes=words(interests, changes),
                names=len(changes),
                loses=loses(interests, changes),
            )
            for changes in repairs(interests, kind)
        ]
        proposals += sorted(made, key=lambda proposal: proposal.loses)[:PROPOSED_MAX]
    return Advice(NAMES_MAX, tuple(proposals), sets_cannot)
