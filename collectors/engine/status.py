"""What an instance says about itself for `/status`: a frozen snapshot, and its JSON values.

A snapshot is taken without the core's lock, so figures of one moment may be a record apart.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from collectors.collector import Collector
from collectors.engine.assignment import Assignment
from topology.tree import Plan

_log = logging.getLogger("amcast.collectors")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an instance that has begun is. The names of the fields are those of `/status`."""

    parent: str | None
    acting: bool
    takeovers: int
    frozen: bool
    records: int  # of the stream that counted, whoever wrote them
    appended_here: int  # records that this instance has appended, counted or not
    pending: int
    reads_back: bool
    lag: int
    early: int
    announcements: int
    skips: int
    held: Sequence[str]
    troubles: Sequence[str]
    void: Mapping[str, int]
    ordered: Mapping[str, int]  # offsets of each log since the epoch's start


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One instance at one moment; `progress` is None until it has begun."""

    node: str
    epoch: int
    begun: bool
    role: str
    progress: Progress | None

    def to_json(self) -> dict[str, Any]:
        """Give the values as `/status` shows them, in one flat object."""
        values = asdict(self)
        progress = values.pop("progress")
        return values | (progress or {})


def positions_by_log(plan: Plan, core: Collector, starts: Mapping[int, int]) -> dict[str, int]:
    """Give by name how many offsets of each log are ordered since the epoch's start."""
    positions = dict(core.own.state.positions)
    return {
        plan.logs[number].name: position - starts[number]
        for number, position in sorted(positions.items())
    }


def troubles(assignment: Assignment, core: Collector) -> tuple[str, ...]:
    """Say what wrong order records have done to the collector's stream, and what repairs it."""
    sentences = [
        f"log {assignment.plan.logs[log].name} is ordered {beyond} offsets beyond its end, which "
        f"is too far to fill"
        for log, beyond in sorted(core.too_far.items())
    ]
    if core.strayed:
        sentences.append(
            "its stream does not say what its parent's says, so it relays nothing more"
        )
    return tuple(
        f"collector {assignment.name}: {sentence}; run 'amcast topology recover'"
        for sentence in sentences
    )


class TroubleLog:
    """Logs the troubles of one instance, whenever there are more than at the last look."""

    def __init__(self) -> None:
        self._known = 0

    def look(self, sentences: Sequence[str]) -> None:
        """Log all of these if they are more than before."""
        if len(sentences) > self._known:
            for sentence in sentences:
                _log.warning("%s", sentence)
        self._known = len(sentences)
