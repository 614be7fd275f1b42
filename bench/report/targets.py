"""The performance targets, and the verdict of a run on each of them.

`judge` takes the documents of a run by name, as `amcast bench suite` writes them, and returns a
verdict for each target. No file and no clock is read here. `TABLE` below is the only place that
says which figures are required.

    figure        the median of the pairs of rounds, with the least and the greatest; or the one
                  number of a benchmark that compares nothing
    limit         the greatest allowed value of the figure, or the least
    too few       there is a figure, but of fewer pairs than a ratio needs
    not measured  there is no figure: the benchmark was not run, failed or lacks it
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The median of 7 pairs stays among the undisturbed ones even if 3 were disturbed. With ten times
# more, a suite would take hours instead of half an hour.
PAIRS_MIN = 7
P50 = "endToEndLatency50pct"
P99 = "endToEndLatency99pct"
RATE = "consumeRate"
PER_CPU = "consumeRatePerCpuSecond"
CPU_OF = "cpuSeconds."  # then the role

Document = Mapping[str, Any]


class TargetVerdict(enum.StrEnum):
    """What a run says about a target."""

    MET = "met"
    MISSED = "missed"
    TOO_FEW = "too few pairs"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure; `pairs` is 0 if it is not computed pair by pair."""

    median: float
    least: float
    greatest: float
    pairs: int


@dataclass(frozen=True, slots=True)
class Target:
    """One line of the table. `text` and `unit` are for people; `figure` is read in `document`."""

    text: str
    document: str
    limit: float
    unit: str
    figure: Callable[[Document], Figure]
    at_least: bool = False
    below: bool = False

    @property
    def limit_text(self) -> str:
        """Write the limit, for example "≤ 1.4 times plain"."""
        sign = "≥" if self.at_least else "<" if self.below else "≤"
        limit = f"{self.limit:,.0f}" if self.limit >= 1000 else f"{self.limit:.3g}"
        return f"{sign} {limit} {self.unit}"

    def met_by(self, value: float) -> bool:
        """Whether a value is within the limit."""
        if self.at_least:
            return value >= self.limit
        return value < self.limit if self.below else value <= self.limit


@dataclass(frozen=True, slots=True)
class TargetRow:
    """One row of the table, and its targets."""

    text: str
    targets: Sequence[Target]


@dataclass(frozen=True, slots=True)
class Judged:
    """A target as a run meets it; `command` repeats the measurement, `error` says why it failed."""

    row: str
    target: Target
    figure: Figure | None
    verdict: TargetVerdict
    command: str
    error: str | None


# -- figures of a document ----------------------------------------------------------------------


def ratio(figure: str, arm: str, base: str) -> Callable[[Document], Figure]:
    """Divide a figure of an arm by the same figure of another, pair by pair."""

    def taken(document: Document) -> Figure:
        arms = document["arms"]
        pairs = zip(arms[arm][figure], arms[base][figure], strict=True)
        return _spread([value / base_value for value, base_value in pairs])

    return taken


def level(document: Document) -> Figure:
    """Return how much each level of a tree beyond the first adds, in multiples of plain's p50."""
    arms = document["arms"]
    levels = document["workload"]["size"] - 1
    rounds = zip(*(arms[arm][P50] for arm in ("ordered", "single-root", "plain")), strict=True)
    return _spread([(deep - flat) / levels / plain for deep, flat, plain in rounds])


def cpu(arm: str, base: str) -> Callable[[Document], Figure]:
    """Divide the CPU time of all roles of an arm by that of another, pair by pair."""

    def taken(document: Document) -> Figure:
        sums = []
        for name in (arm, base):
            rounds = [
                values
                for role, values in document["arms"][name].items()
                if role.startswith(CPU_OF) and role != CPU_OF + "others"
            ]
            sums.append([sum(values) for values in zip(*rounds, strict=True)])
        return _spread([value / base_value for value, base_value in zip(*sums, strict=True)])

    return taken


def own(figure: str, arm: str) -> Callable[[Document], Figure]:
    """Take a figure of an arm without a comparison, round by round."""
    return lambda document: _spread(document["arms"][arm][figure])


def single(name: str) -> Callable[[Document], Figure]:
    """Take the one number of a benchmark that compares nothing."""

    def taken(document: Document) -> Figure:
        value = float(document["figures"][name])
        return Figure(value, value, value, 0)

    return taken


def _spread(values: Sequence[float]) -> Figure:
    return Figure(statistics.median(values), min(values), max(values), len(values))


# -- the table ----------------------------------------------------------------------------------

SMALL = ("100B", "1kB", "10kB")
RATES = (200, 2000)


def _latency(
    arm: str, p50: Mapping[int, float], p99: Mapping[int, float], large: float
) -> list[Target]:
    targets = []
    for size in SMALL:
        for rate in RATES:
            name, where = f"latency-{size}-{rate}", f"{_spaced(size)} at {rate:,}/s"
            for what, figure, limit in (("p50", P50, p50[rate]), ("p99", P99, p99[rate])):
                by = ratio(figure, arm, "plain")
                targets.append(Target(f"{what}, {where}", name, limit, "times plain", by))
    by = ratio(P50, arm, "plain")
    return [*targets, Target("p50, 1 MB at 20/s", "latency-1MB-20", large, "times plain", by)]


def _backlog(size: str, limit: float) -> Target:
    by = ratio(RATE, "ordered", "plain")
    return Target(_spaced(size), f"backlog-{size}", limit, "times plain", by, at_least=True)


def _spaced(size: str) -> str:
    digits = size.rstrip("kMB")
    return f"{digits} {size[len(digits) :]}"


def _over_algorithm1() -> list[Target]:
    rate, p50 = ratio(RATE, "ordered", "algorithm1"), ratio(P50, "ordered", "algorithm1")
    return [
        Target("throughput, delivery from a backlog, 100 B", "algorithm1-backlog", 5.0,
             "times Algorithm 1", rate, at_least=True),
        Target("throughput, producer and all saturated, 100 B", "algorithm1-saturate", 5.0,
             "times Algorithm 1", rate, at_least=True),
        Target("p50, 100 B at 200/s", "latency-100B-200", 1 / 3, "times Algorithm 1", p50),
        Target("p50, saturated, 100 B", "algorithm1-saturate", 1 / 3, "times Algorithm 1", p50),
    ]  # fmt: skip


TABLE = (
    TargetRow(
        "one collector, open loop, against plain Kafka",
        _latency("ordered", {200: 1.2, 2000: 1.5}, {200: 1.5, 2000: 1.8}, 1.05),
    ),
    TargetRow(
        "the same for messages of plain Kafka producers (no tickets)",
        _latency("ordered-plain", {200: 1.7, 2000: 2.0}, {200: 2.5, 2000: 2.5}, 1.15),
    ),
    TargetRow(
        "the first row at 10 % of plain Kafka's maximum rate",
        [
            Target(f"p50, {_spaced(size)}", f"tenth-{size}", 1.5, "times plain",
                 ratio(P50, "ordered", "plain"))
            for size in (*SMALL, "1MB")
        ],
    ),
    TargetRow(
        "each further level of the tree, 200/s",
        [
            Target(f"p50, a tree of {size}", f"tree-{size}", 0.4, "times plain, more a level",
            level) for size in (2, 4)
        ],
    ),
    TargetRow(
        "throughput of ordered delivery from a backlog, `batches()`",
        [_backlog(size, 0.90) for size in ("100B", "1kB", "10kB", "100kB", "1MB")],
    ),
    TargetRow(
        "throughput from producer to consumer, both saturated",
        [
            Target("100 B", "algorithm1-saturate", 0.90, "times plain",
                   ratio(RATE, "ordered", "plain"), at_least=True)
        ],
    ),
    TargetRow(
        "CPU of a message, of clients, collector and broker",
        [
            Target(f"{_spaced(size)} at 2,000/s", f"latency-{size}-2000", 1.2, "times plain",
                   cpu("ordered", "plain"))
            for size in SMALL
        ],
    ),
    TargetRow(
        "ordered delivery, 100 B, fast driver, `batches()`",
        [
            Target("all threads of the consumer", "backlog-100B", 400_000.0,
                 "messages per CPU second", own(PER_CPU, "ordered"), at_least=True)
        ],
    ),
    TargetRow(
        "collector CPU",
        [
            Target("at 100,000 messages/s of 100 B", "collector-cpu", 0.25, "of a core",
                 single("share_at_100k")),
            Target("idle", "collector-cpu", 0.01, "of a core", single("idle_share"), below=True),
        ],
    ),
    TargetRow(
        "against Algorithm 1 as the poster has it (per message, kafka-python, same machine)",
        _over_algorithm1(),
    ),
    TargetRow(
        'against "put it all into one partition", consumers that want a third of it',
        [
            Target("throughput per consumer, 1 kB", "thirds", 1.5, "times one partition",
                 ratio(RATE, "ordered", "one-partition"), at_least=True)
        ],
    ),
)  # fmt: skip


# -- the verdict --------------------------------------------------------------------------------


def judge(documents: Mapping[str, Document]) -> list[Judged]:
    """Judge every target, in the table's order, by the documents of a run."""
    return [
        _judge(row, target, documents.get(target.document))
        for row in TABLE
        for target in row.targets
    ]


def _judge(row: TargetRow, target: Target, document: Document | None) -> Judged:
    command = f"amcast bench suite --out DIR --only {target.document}"
    figure, error = None, None
    if document is not None:
        if "benchmark" in document:
            command = str(document.get("command") or command)
        error = document.get("error")
        try:
            figure = target.figure(document)
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as lacking:
            error = error or f"the document lacks {lacking}"
    return Judged(row.text, target, figure, _verdict(target, figure), command, error)


def _verdict(target: Target, figure: Figure | None) -> TargetVerdict:
    if figure is None:
        return TargetVerdict.NOT_MEASURED
    if 0 < figure.pairs < PAIRS_MIN:
        return TargetVerdict.TOO_FEW
    return TargetVerdict.MET if target.met_by(figure.median) else TargetVerdict.MISSED
