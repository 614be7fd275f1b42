"""The report on a history: verdicts, and witnesses in words.

`properties.py` decides which guarantees hold; this module makes the sentences that people read.

    holds        nothing in the history contradicts it
    violated     the witness says, in words, which deliveries contradict each other
    not checked  the history does not say enough to decide, and the reason says what is missing

Invariant: a verdict has a witness iff it is "violated", and a reason iff it is "not checked".
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from multicast.errors import AmcastError
from multicast.history import History, UnbrokenDeliveries, shown
from multicast.verification.acyclic import Step
from multicast.verification.index import HistoryIndex

HOLDS: Literal["holds"] = "holds"
VIOLATED: Literal["violated"] = "violated"
NOT_CHECKED: Literal["not checked"] = "not checked"
_NAMES_MAX = 5  # in a note, so that it fits on a line or two


@dataclass(frozen=True, slots=True)
class Edge:
    """A step of a cycle: one reading delivered one message before another."""

    consumer: str
    instance: str
    earlier: str
    earlier_sequence: int
    later: str
    later_sequence: int


@dataclass(frozen=True, slots=True)
class Witness:
    """A proof that a guarantee is violated: the kind of fault, and sentences that describe it.

    For a cycle also its steps: each begins with the message with which the one before ends.
    """

    kind: str
    sentences: tuple[str, ...]
    cycle: tuple[Edge, ...] = ()

    def __str__(self) -> str:
        return " ".join(self.sentences)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one guarantee. `note` says what was left out, or gives counts; or is ""."""

    guarantee: str
    verdict: Literal["holds", "violated", "not checked"]
    witness: Witness | None = None
    reason: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        assert (self.witness is not None) == (self.verdict == VIOLATED)
        assert bool(self.reason) == (self.verdict == NOT_CHECKED)


@dataclass(frozen=True, slots=True)
class Report:
    """The verdicts on all guarantees, in the README's order, and the size of the history."""

    verdicts: tuple[Verdict, ...]
    messages: int
    deliveries: int
    consumers: int
    readings: int

    @property
    def violations(self) -> tuple[Verdict, ...]:
        """The guarantees that do not hold."""
        return tuple(verdict for verdict in self.verdicts if verdict.verdict == VIOLATED)

    def to_json(self) -> dict[str, Any]:
        """Give the report as a JSON object."""
        return {"schema_version": 1} | asdict(self)


class OrderViolation(AmcastError):
    """A history violates a guarantee; `report` has every verdict and witness."""

    exit_code = 3

    def __init__(self, report: Report) -> None:
        self.report = report
        first = report.violations[0]
        super().__init__(f"{first.guarantee} is violated: {first.witness}")


def witness_of(kind: str, *sentences: str) -> Witness:
    """Make a witness from sentences."""
    return Witness(kind, sentences)


def delivered(history: History, reading: UnbrokenDeliveries, message: int) -> str:
    """Give the beginning of a sentence: who delivered which message, at which position."""
    position = reading.first + reading.messages.index(message)
    return f"{reading.name} delivered {history.name(message)} (position {position})"


def no_delivery(index: HistoryIndex) -> str:
    """Give the reason for not checking a history without deliveries; else ""."""
    return "" if index.history.deliveries else "the history has no delivery"


def names_of(title: str, names: list[str]) -> str:
    """Make a note about the first few of these names; "" if there are none."""
    more = ", ..." if len(names) > _NAMES_MAX else ""
    return f"{title}: {', '.join(map(shown, names[:_NAMES_MAX]))}{more}" if names else ""


def notes(*parts: str) -> str:
    """Join the notes that are not empty."""
    return "; ".join(part for part in parts if part)


def cycle_witness(kind: str, index: HistoryIndex, steps: tuple[Step, ...]) -> Witness:
    """Make a witness from a cycle, a sentence for each step; `Step.sequence` indexes readings."""
    history = index.history
    edges = []
    for step in steps:
        reading, sequence = history.readings[step.sequence], index.sequences[step.sequence]
        earlier, later = sequence[step.earlier], sequence[step.later]
        edges.append(
            Edge(
                consumer=reading.consumer,
                instance=reading.instance,
                earlier=history.messages[earlier],
                earlier_sequence=reading.first + reading.messages.index(earlier),
                later=history.messages[later],
                later_sequence=reading.first + reading.messages.index(later),
            )
        )
    sentences = [
        f"{history.readings[step.sequence].name} delivered {shown(edge.earlier)} (position "
        f"{edge.earlier_sequence}) before {shown(edge.later)} (position {edge.later_sequence})."
        for step, edge in zip(steps, edges, strict=True)
    ]
    return Witness(kind, tuple(sentences), tuple(edges))
