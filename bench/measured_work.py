"""Foreign work that a plan predicts, against what its running collectors have counted.

In go the counts of two moments and how far each log grew between them; out come both figures for
each collector. Predicted is the growth of the logs that the plan has the collector pass on or drop
(`topology/work.py`), measured the difference of its own counts. An *entry* is one offset that the
order names. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from collectors.reconfiguration.status_pages import CollectorCounts
from multicast.consuming.entries_read import ConsumerEntries
from topology.tree import Plan, Subscription
from topology.work import collector_work


@dataclass(frozen=True, slots=True)
class WorkRow:
    """Foreign entries of one collector or consumer in the window; None: not measured."""

    name: str
    passed_on_predicted: int
    passed_on_measured: int | None
    dropped_predicted: int
    dropped_measured: int | None


@dataclass(frozen=True, slots=True)
class MeasuredWork:
    """Predicted and measured foreign work of a running plan over a window of `seconds`.

    `missing` says in sentences which collectors are not measured, and why.
    """

    seconds: float
    collectors: tuple[WorkRow, ...]
    consumers: tuple[WorkRow, ...]
    missing: tuple[str, ...]

    @property
    def total(self) -> WorkRow:
        """The sum over the collectors that are measured, so that both figures are of the same."""
        rows = [row for row in self.collectors if row.passed_on_measured is not None]
        return WorkRow(
            "all measured",
            sum(row.passed_on_predicted for row in rows),
            sum(row.passed_on_measured or 0 for row in rows),
            sum(row.dropped_predicted for row in rows),
            sum(row.dropped_measured or 0 for row in rows),
        )


def measured_work(
    plan: Plan,
    growth: Mapping[str, int],
    before: Mapping[str, CollectorCounts],
    after: Mapping[str, CollectorCounts],
    consumers: Mapping[str, ConsumerEntries],
    *,
    seconds: float,
    missing: Sequence[str],
) -> MeasuredWork:
    """Compare over a window: `growth` is by log name, the counts at its ends by collector.

    `consumers` have, by name, what each consumer that reads a collector has counted.
    """
    sentences = list(missing)
    collectors = []
    for node in plan.collectors:
        work = collector_work(plan, node)
        first, last = before.get(node.name), after.get(node.name)
        passed_on = dropped = None
        if first is not None and last is not None and first.process == last.process:
            passed_on = sum(last.passed_on.values()) - sum(first.passed_on.values())
            dropped = sum(last.dropped.values()) - sum(first.dropped.values())
        elif first is not None and last is not None:
            sentences.append(f"not counted: {node.name}: another process took it over meanwhile")
        elif last is not None:
            sentences.append(f"not counted: {node.name}: it was not counted before the window")
        collectors.append(
            WorkRow(
                node.name,
                _sum(growth, work.passes_on),
                passed_on,
                _sum(growth, work.drops),
                dropped,
            )
        )
    readers = []
    for entry in plan.consumers:
        if entry.collector is not None:
            counted = consumers.get(entry.name)
            dropped = None if counted is None else sum(counted.dropped.values())
            predicted = _sum(growth, _dropped_by(plan, entry))
            passed_on = None if counted is None else 0
            readers.append(WorkRow(entry.name, 0, passed_on, predicted, dropped))
    return MeasuredWork(seconds, tuple(collectors), tuple(readers), tuple(sentences))


def _dropped_by(plan: Plan, entry: Subscription) -> frozenset[str]:
    """Give the logs whose entries a consumer reads in its collector's stream, and drops."""
    assert entry.collector is not None, "it reads a stream"
    wanted = {log.name for log in plan.logs_of(entry.interest)}
    return frozenset(plan.collector(entry.collector).bag) - wanted


def _sum(growth: Mapping[str, int], logs: frozenset[str]) -> int:
    return sum(growth.get(log, 0) for log in sorted(logs))


def measured_document(work: MeasuredWork) -> dict[str, Any]:
    """Give it as a JSON object; null stands for a figure that was not measured."""
    return {
        "unit": "entries",
        "seconds": work.seconds,
        "collectors": [asdict(row) for row in work.collectors],
        "all_measured": asdict(work.total),
        "consumers": [asdict(row) for row in work.consumers],
        "not_counted": list(work.missing),
    }
