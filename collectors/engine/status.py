"""What an instance says about itself for `/status`, as JSON values.

They are taken without the core's lock, so figures of one moment may be a record apart.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from collectors.core.collector import Collector
from collectors.core.standby import Standby
from collectors.engine.assignment import Assignment
from collectors.engine.log_waits import LogWaits
from multicast.metrics.families import LatencyCounts

_log = logging.getLogger("amcast.collectors")


def progress_of(
    assignment: Assignment,
    core: Collector,
    role: Standby,
    starts: Mapping[int, int],
    *,
    appended_here: int,
    skips: int,
    fills: int,
    waits: LogWaits,
    append_s: LatencyCounts,
    now: float,
) -> dict[str, Any]:
    """Tell how far a core is; `starts` are the first offsets of its logs in the epoch.

    records         of the stream that counted, whoever wrote them
    appended_here   records that this instance has appended, counted or not
    fills           holes that the core wanted filled; for some of them a skip was appended
    ordered_early   offsets that were in the order before they were in their log
    lags            offsets of each log whose top this is, not ordered yet
    stable_lag      records of logs with an open transaction
    ordered         offsets of each log since the epoch's start
    lost            of each log that has lost its end, the first offset that is lost
    """
    ahead = core.ahead
    lags = {log: max(0, -ahead.get(log, 0)) for log in sorted(core.own.own)}
    since, still = waits.since, waits.still_since
    logs = assignment.plan.logs
    positions = dict(core.own.state.positions)
    return {
        "parent": assignment.plan.collector(assignment.name).parent,
        "acting": role.acting,
        "takeovers": role.takeovers,
        "frozen": core.frozen,
        "records": core.own.count,
        "appended_here": appended_here,
        "pending": core.pending,
        "lag": core.lag,
        "early": core.early,
        "skips": skips,
        "fills": fills,
        "ordered_early": waits.early,
        "append_seconds": {"counts": tuple(append_s.counts), "sum": append_s.sum_s},
        "lags": {logs[log].name: lag for log, lag in lags.items()},
        "lag_seconds": {
            logs[log].name: now - since[log] if lag and log in since else 0.0
            for log, lag in lags.items()
        },
        "stable_lag": {logs[log].name: waits.stable_lag.get(log, 0) for log in lags},
        "transaction_seconds": {
            logs[log].name: now - still[log] if log in still else 0.0 for log in lags
        },
        "held": [logs[log].name for log in sorted(core.held)],
        "lost": {logs[log].name: first for log, first in sorted(core.lost.items())},
        "troubles": list(troubles(assignment, core)),
        "void": {reason.name.lower(): count for reason, count in core.void.items()},
        "ordered": {
            logs[log].name: position - starts[log] for log, position in sorted(positions.items())
        },
    }


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
