"""The figures and violations of one arm of a run, from what the ledgers of the nodes hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.osn.client import BUNDLES
from bench.osn.judge import ChainsVerdict, judge_chains
from bench.osn.money import Books, books
from bench.osn.reading import doubled, foreign, forks
from bench.osn.run import ArmOutcome
from multicast.errors import AmcastError

_WITNESSES_MAX = 5  # of each kind in a message: enough to see what is wrong


class BundlesViolated(AmcastError):
    """A guarantee of bundles is violated; the text holds the witnesses."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class JudgedArm:
    """What the judges found. `unexplained`: what is a violation in every arm."""

    name: str
    begun: int
    acknowledged: int
    verdict: ChainsVerdict
    books: Books
    forks: Sequence[str]
    unexplained: list[str]

    @property
    def violations(self) -> list[str]:
        """What must not occur: in bundles nothing; else what no kill of a client explains."""
        always = [*self.forks, *self.unexplained]
        if self.name != BUNDLES:
            return always
        money = [self.books.witness] if self.books.witness else []
        return [*self.verdict.witnesses, *money, *always]

    def figures(self) -> dict[str, Any]:
        """Return the figures by name."""
        return {
            "transfers_begun": self.begun,
            "transfers_acknowledged": self.acknowledged,
            "transfers_in_blocks": self.verdict.transfers,
            "torn": len(self.verdict.torn),
            "pairs": self.verdict.pairs,
            "pairs_agreeing": self.verdict.pairs - len(self.verdict.inverted),
            "acyclic": not self.verdict.cycle,
            "common_points": self.books.points,
            "common_points_off": self.books.points_off,
            "money": sum(self.books.balances.values()),
            "money_opened": self.books.opened,
            "balances": dict(self.books.balances),
            "forks": len(self.forks),
        }


def judged(outcome: ArmOutcome, *, voids: Sequence[int] = ()) -> JudgedArm:
    """Judge an arm. `voids`: transfers of which a node says that they are void, with the reason."""
    held = outcome.held
    unexplained = [
        f"lost: t{number} is acknowledged, and not in all of its chains"
        for number in outcome.missing
        if number not in voids
    ]
    unexplained += [*doubled(outcome.copies), *foreign(outcome.copies)]
    if outcome.arm.name == BUNDLES:
        unexplained += [
            f"no bundle: the block of {chain} has no metadata for {copy.unmarked[0]}"
            for chain, copy in held.items()
            if copy.unmarked
        ]
    return JudgedArm(
        outcome.arm.name,
        outcome.journal.begun,
        len(outcome.journal.acknowledged),
        judge_chains({chain: copy.parts for chain, copy in held.items()}),
        books({chain: copy.entries for chain, copy in held.items()}),
        forks(outcome.copies),
        unexplained,
    )


def refuse_violations(arms: Sequence[JudgedArm]) -> None:
    """Raise `BundlesViolated` with the first witnesses where there are any."""
    violations = [violation for arm in arms for violation in arm.violations]
    if violations:
        more = len(violations) - _WITNESSES_MAX
        shown = violations[:_WITNESSES_MAX] + ([f"and {more} more"] if more > 0 else [])
        raise BundlesViolated("\n".join(shown))
