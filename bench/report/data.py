"""Turns the documents of a run into the plots of a report, as plain numbers.

This module does not draw (`report.py`) and writes no HTML (`page.py`). A plot without any measured
figure is left out.

    document    one file of a run, under the name that `targets.py` uses
    line        one arm's points; `low` and `high` are the least and the greatest of the rounds
    hollow      a point that was measured while all cores were busy: the machine limited it, perhaps
                not the arm
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.cli import read_json
from bench.harness.histogram import Latencies
from bench.report.targets import P50, RATE, Document, Figure, Judged
from multicast.errors import UsageError

ARM_NAMES = {
    "plain": "plain Kafka",
    "ordered": "ordered, tickets",
    "ordered-plain": "ordered, plain producer",
    "single-root": "ordered, single root",
    "one-partition": "one partition",
    "algorithm1": "Algorithm 1, kafka-python",
}
# The share of all cores above which a point is drawn hollow. Below it the cores were idle for a
# tenth of the time or more, so the machine was not the limit.
_BUSY_SHARE = 0.9
_CDF = ("latency-100B-200", "latency-100B-2000", "latency-10kB-200", "latency-1MB-20")


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One arm's points in a plot."""

    arm: str
    x: list[float]
    y: list[float]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    hollow: list[bool] = field(default_factory=list)
    rate: str = ""  # only in plots that hold several rates

    @property
    def label(self) -> str:
        """Name the line in the legend."""
        name = ARM_NAMES.get(self.arm, self.arm)
        return f"{name}, {self.rate}" if self.rate else name


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot. `ticks` label 0, 1, 2 … of the x axis."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: Sequence[PlotLine]
    note: str
    x_scale: str = "linear"  # linear, log, log2, percentile
    ticks: Sequence[str] = ()


def collect(paths: Sequence[Path]) -> dict[str, Document]:
    """Read documents, and folders of documents, by name.

    Raises `UsageError` if a file cannot be read, if two documents have one name, or if there is
    none. Files in a folder that are no documents are skipped.
    """
    documents: dict[str, Document] = {}
    for path in paths:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        for file in files:
            document = read_json(file)
            name = _name(document)
            if name is None:
                if path.is_dir():
                    continue
                raise UsageError(f"{file}: not a document of amcast bench")
            if name in documents:
                raise UsageError(f"{file}: there is another document of {name} among the inputs")
            documents[name] = document
    if not documents:
        raise UsageError(f"no document of amcast bench in {', '.join(map(str, paths))}")
    return documents


def _name(document: Any) -> str | None:
    if not isinstance(document, dict) or document.get("schema_version") != 1:
        return None
    workload = document.get("workload")
    named = workload.get("name") if isinstance(workload, dict) else document.get("benchmark")
    return named if isinstance(named, str) else None


def described(judged: Judged) -> dict[str, Any]:
    """Turn a judged target into JSON values; `said` is its figure as text."""
    figure = judged.figure
    return {
        "row": judged.row,
        "mark": judged.target.text,
        "asked": judged.target.limit_text,
        "limit": judged.target.limit,
        "unit": judged.target.unit,
        "median": None if figure is None else round(figure.median, 4),
        "least": None if figure is None else round(figure.least, 4),
        "greatest": None if figure is None else round(figure.greatest, 4),
        "pairs": None if figure is None else figure.pairs,
        "said": figure_text(figure),
        "verdict": str(judged.verdict),
        "document": judged.target.document,
        "command": judged.command,
        "error": judged.error,
    }


def figure_text(figure: Figure | None) -> str:
    """Write a figure with its spread, for people."""
    if figure is None:
        return "-"
    if not figure.pairs:
        return short(figure.median)
    spread = f"{short(figure.least)} to {short(figure.greatest)}"
    return f"{short(figure.median)} ({spread}; {figure.pairs} pairs)"


def short(value: float) -> str:
    """Write three significant digits; from 1,000 on, all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def plots(documents: Mapping[str, Document]) -> list[Plot]:
    """Make all plots for which there are figures."""
    measured = {
        name: document
        for name, document in documents.items()
        if "error" not in document and "arms" in document
    }
    made = [
        *_cdfs(measured),
        _by_size(measured),
        _backlog(measured),
        _poster(measured, "poster-latency", "Latency of the poster's data sets", P50),
        _poster(measured, "poster-throughput", "Throughput of the poster's data sets", RATE),
        *_by_topology(measured),
    ]
    return [plot for plot in made if any(line.x for line in plot.lines)]


# -- each plot ----------------------------------------------------------------------------------


def _cdfs(documents: Mapping[str, Document]) -> Iterator[Plot]:
    for name in _CDF:
        document = documents.get(name)
        if document is None:
            continue
        lines = []
        for arm, figures in document["arms"].items():
            encoded = figures.get("aggregatedEndToEndLatencyHistogram")
            if encoded is None:
                continue
            latencies = Latencies()
            latencies.add(encoded)
            percentiles = _percentiles(latencies.count)
            lines.append(PlotLine(arm, percentiles, latencies.percentile(percentiles)))
        workload = document["workload"]
        yield Plot(
            f"cdf-{name}",
            f"Latency, {bytes_text(workload['message_bytes'])} at {workload['load']:,.0f}/s",
            "percentile",
            "end to end, ms",
            lines,
            "All rounds of an arm together, from the intended send time to the delivery; one "
            "partition set of two, one collector. A line ends at its slowest message.",
            x_scale="percentile",
        )


def _percentiles(count: int) -> list[float]:
    """Return percentiles evenly spaced on the plot's axis, 1 / (1 - p), up to the last message."""
    percentiles = [0.0]
    step = 10 ** (1 / 12)
    odds = step
    while odds < count:
        percentiles.append(100 * (1 - 1 / odds))
        odds *= step
    return [*percentiles, 100 * (1 - 1 / count)] if count > 1 else percentiles


def _by_size(documents: Mapping[str, Document]) -> Plot:
    names = ("latency-100B-200", "latency-1kB-200", "latency-10kB-200", "latency-1MB-20")
    given = [documents[name] for name in names if name in documents]
    return Plot(
        "latency-by-size",
        "Latency against message size",
        "bytes of a message",
        "p50 end to end, ms",
        _lines(given, P50, lambda document: float(document["workload"]["message_bytes"])),
        "Open loop, one collector, 200 messages/s (20/s at 1 MB); the poster's figure, next to its "
        "Algorithm 1. Bars: least and greatest round.",
        x_scale="log",
    )


def _backlog(documents: Mapping[str, Document]) -> Plot:
    given = [document for name, document in documents.items() if name.startswith("backlog-")]
    return Plot(
        "throughput-by-size",
        "Throughput of delivery from a backlog against message size",
        "bytes of a message",
        "MB/s",
        _lines(
            given, RATE, lambda document: float(document["workload"]["message_bytes"]), _megabytes
        ),
        "One consumer reads messages that are already stored and ordered. Bars: least and greatest "
        "round.",
        x_scale="log",
    )


def _poster(documents: Mapping[str, Document], name: str, title: str, figure: str) -> Plot:
    given = [
        document
        for document_name, document in documents.items()
        if document_name.startswith("poster-")
    ]
    given.sort(
        key=lambda document: (
            document["workload"]["message_bytes"],
            document["workload"]["messages"],
        )
    )
    places = {document["workload"]["name"]: float(index) for index, document in enumerate(given)}
    latency = figure == P50
    return Plot(
        name,
        title,
        "number of messages x bytes of a message, and r = log(number) / log(bytes)",
        "p50 end to end, ms" if latency else "MB/s",
        _lines(given, figure, lambda document: places[document["workload"]["name"]],
               _as_it_is if latency else _megabytes),
        "Sent as fast as possible, as in the poster: most of the latency is time in the queue. "
        "Bars: least and greatest round.",
        ticks=[
            f"{entry['workload']['messages']:,} x "
            f"{bytes_text(entry['workload']['message_bytes'])}\n"
            f"r = {entry['r']:.2f}"
            for entry in given
        ],
    )  # fmt: skip


def _by_topology(documents: Mapping[str, Document]) -> Iterator[Plot]:
    labels = {
        "tree": ("height of the tree", "Latency by tree height"),
        "bottleneck": ("consumers that share the partition", "Latency by bottleneck size"),
    }
    for kind, (x_label, title) in labels.items():
        given = [document for name, document in documents.items() if name.startswith(f"{kind}-")]
        given.sort(key=lambda document: int(document["workload"]["size"]))
        yield Plot(
            f"latency-by-{kind}",
            title,
            x_label,
            "p50 end to end, ms",
            _lines_by_rate(given),
            f"100 B, open loop. Bars: least and greatest round. Hollow points: more than "
            f"{_BUSY_SHARE:.0%} of all cores were busy, so the machine was the limit.",
            x_scale="log2",
        )


def _lines_by_rate(given: Sequence[Document]) -> list[PlotLine]:
    """Make a line for each arm and rate: latencies at different rates are not comparable."""
    rates = sorted({float(document["workload"]["load"]) for document in given}, reverse=True)
    lines = []
    for rate in rates:
        alike = [document for document in given if document["workload"]["load"] == rate]
        at_rate = _lines(alike, P50, lambda document: float(document["workload"]["size"]))
        lines += [replace(line, rate=f"{rate:g}/s") for line in at_rate]
    return lines


# -- lines --------------------------------------------------------------------------------------


def _as_it_is(value: float, _: Document) -> float:
    return value


def _megabytes(value: float, document: Document) -> float:
    return float(value * document["workload"]["message_bytes"] / 1e6)


def _lines(
    documents: Sequence[Document], figure: str, x: Any, turn: Any = _as_it_is
) -> list[PlotLine]:
    """Make a line for each arm, in the order of x; a figure that a document lacks is left out."""
    lines: dict[str, PlotLine] = {}
    for document in sorted(documents, key=x):
        for arm, figures in document["arms"].items():
            values = [turn(value, document) for value in figures.get(figure, ())]
            if not values:
                continue
            line = lines.setdefault(arm, PlotLine(arm, [], []))
            line.x.append(x(document))
            line.y.append(statistics.median(values))
            line.low.append(min(values))
            line.high.append(max(values))
            line.hollow.append(_busy(document, figures))
    return [lines[arm] for arm in ARM_NAMES if arm in lines]


def _busy(document: Document, figures: Mapping[str, Any]) -> bool:
    cores = document.get("machine", {}).get("cpus") or 1
    return float(figures.get("aggregatedBusyCores", 0.0)) > _BUSY_SHARE * cores


def bytes_text(count: int) -> str:
    """Write a number of bytes in the greatest unit below it."""
    for unit, size in (("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:g} {unit}"
    return f"{count} B"
