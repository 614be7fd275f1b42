"""What a metric is called and means, apart from any client library.

A process's metrics are a tuple of `MetricFamily`; the table in docs/metrics.md is made from these.
Names follow Prometheus' rules: base units, `_total` at the end of counters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

# Seconds. The default buckets of Prometheus' clients, from 1 ms on: an append takes a few.
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class MetricKind(Enum):
    """The type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric: its name, type, labels and meaning."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    text: str


class LatencyCounts:
    """Counts durations by bucket. `observe` is called by one thread at a time, the rest by any."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)  # the last one: longer than all buckets
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def add(self, other: LatencyCounts) -> None:
        """Count all durations of another one, too."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s

    def copy(self) -> LatencyCounts:
        """Give the counts as they are now."""
        copied = LatencyCounts()
        copied.add(self)
        return copied


def table(families: Iterable[MetricFamily]) -> str:
    """Write the table of docs/metrics.md."""
    rows: list[Sequence[str]] = [("metric", "type", "labels", "meaning"), ("---",) * 4]
    rows += [
        (f"`{each.name}`", each.kind.value, ", ".join(each.labels), each.text) for each in families
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
