"""What the checks of a deployment find: how bad it is, what is the case, and what to do. No I/O.

    REFUSE   a guarantee is broken, or may be at any moment: neither plans nor collectors start
    WARN     messages may be lost or delayed soon, or a process does not do its work
    NOTE     worth knowing; nothing is wrong

Invariant: each finding is one cause, with one sentence on the state and one on what to do.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from multicast.errors import TopicChanged, UnsafeCluster

_LINE_MAX = 90  # characters of a cause: it fits on a line of most terminals with its weight
_CLAUSE = re.compile(r"[;:.]? \(|[;:.] |, so |, and ")
_COMMAND = re.compile(r"'((?:amcast|kafka-)[^']*)'")


class Weight(enum.StrEnum):
    """How bad a finding is."""

    REFUSE = "refuse"
    WARN = "warn"
    NOTE = "note"


class Check(enum.StrEnum):
    """What was checked; of findings of one weight, those of the first check are the worst."""

    TOPIC_CHANGED = "topic made again"
    BROKER = "broker"
    PARTITION = "partition"
    DAMAGE = "damage"
    EPOCH = "epoch"
    COLLECTOR = "collector"
    AHEAD = "ordered ahead"
    TRANSACTION = "open transaction"
    CONSUMER = "consumer"
    CERTIFICATE = "certificate"
    RETENTION = "retention"
    UNCLEAN = "unclean election"
    IN_SYNC = "min in-sync replicas"
    COMPACTION = "compaction"
    COMPRESSION = "compression"
    FOREIGN = "foreign records"
    CLOCK = "clocks"
    REPLICATION = "replication"
    UNSEEN = "not checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause: `says` states what is the case about `about`, `do` what to do.

    `details` says in sentences what follows from it.
    """

    weight: Weight
    check: Check
    about: str
    says: str
    do: str
    details: tuple[str, ...] = ()

    @property
    def brief(self) -> str:
        """The state on one line, without its reasons where these are long, and a command if any."""
        text = self.says
        # Which right is missing stands in the last clause.
        while (
            self.check is not Check.UNSEEN
            and len(text) > _LINE_MAX
            and (cuts := [*_CLAUSE.finditer(text)])
        ):
            text = text[: cuts[-1].start()]
        command = _COMMAND.search(self.do)
        return " ".join(text.split()) + (f" → {command[1]}" if command else "")

    def __str__(self) -> str:
        """Join both sentences."""
        return f"{self.says}; {self.do}"


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by weight, then by check."""
    weights, checks = list(Weight), list(Check)
    return sorted(findings, key=lambda each: (weights.index(each.weight), checks.index(each.check)))


def refuse(findings: Iterable[Finding]) -> None:
    """Raise `TopicChanged` or `UnsafeCluster`, as the first is, with all findings to REFUSE."""
    worst = [finding for finding in findings if finding.weight is Weight.REFUSE]
    if worst:
        error = TopicChanged if worst[0].check is Check.TOPIC_CHANGED else UnsafeCluster
        raise error(". Besides, ".join(str(finding) for finding in worst))
