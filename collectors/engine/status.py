"""What is wrong with a collector's stream or logs, in sentences for `/status` and for the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from collectors.core.collector import Collector
from collectors.engine.assignment import Assignment

_log = logging.getLogger("amcast.collectors")


def troubles(assignment: Assignment, core: Collector) -> tuple[str, ...]:
    """Say what wrong order records have done to the collector's stream, or what logs have lost.

    Each sentence says what repairs it.
    """
    accepts = "run 'amcast topology recover --accept-loss'"
    lost = [
        f"log {assignment.plan.logs[log].name} has lost its messages from offset {first} on, and "
        f"nobody delivers it from there on; {accepts}"
        for log, first in sorted(core.lost.items())
    ]
    sentences = [
        f"log {assignment.plan.logs[log].name} is ordered {beyond} offsets beyond its end, which "
        f"is too far to fill"
        for log, beyond in sorted(core.too_far.items())
    ]
    if core.strayed:
        sentences.append("its stream contradicts its parent's, so it relays nothing more")
    told = [f"{sentence}; run 'amcast topology recover'" for sentence in sentences]
    if core.overtaken:
        topic = assignment.own.topic
        told.append(
            f"records of {topic} are deleted that readers of its last checkpoint need: it writes "
            f"new ones at once, but consumers that have not read what was deleted stop with "
            f"Trimmed; find what deletes it, and whether retention.ms of {topic} was lowered"
        )
    return tuple(f"collector {assignment.name}: {sentence}" for sentence in lost + told)


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
