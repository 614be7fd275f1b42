"""The plots of the poster's experiment, and what the poster reported beside them, as numbers.

    point     one configuration with one data set: p50 in ms and MB/s for each consumer, by Spark
    times     the ordered arm's figure divided by that of plain Kafka in the same configuration

As on the poster, a point of a plot is the mean of all configurations of a topology; bars go from
the least to the greatest. The poster's drawings have no numbers in its text, so only its sentences
are drawn: 5 to 10 times the latency where messages are small, no increase where they are large, and
no decrease of throughput. It does not say where small ends: the band is at the least size alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.report.data import ClaimedRange, Plot, PlotLine, bytes_text

SMALL_TIMES = (5.0, 10.0)  # "For small msg_size the latency is increased by 5x to 10x"
LARGE_TIMES = 1.0  # "There is no latency increase for large msg_size."
RATE_TIMES = 1.0  # "There is no throughput decrease"
_WIDER = 1.3  # a claim about one place of a logarithmic axis is drawn from place / 1.3 on
_R_WIDER = 0.03  # of an axis of r, which goes from 0 to 1
_ORDERED = ("tree", "bottleneck")
_SIZES = {"tree": "height of the tree", "bottleneck": "consumers that share the bottleneck"}


@dataclass(frozen=True, slots=True)
class Point:
    """One arm of one configuration with one data set."""

    kind: str
    size: int
    arm: str
    bytes: int
    messages: int
    r: float
    p50_ms: float
    megabytes_per_s: float


def points(document: Mapping[str, Any]) -> list[Point]:
    """Combine Spark's rows to points; one with no rate (all messages in one poll) is left out."""
    latencies = {
        (row["run"], row["arm"]): row["p50_ms"]
        for row in document["pipeline"]["latencies"]
        if row["measure"] == "end_to_end"
    }
    rates = {
        (row["run"], row["arm"]): row["megabytes_per_s"]
        for row in document["pipeline"]["rates"]
        if row["measure"] == "delivered"
    }
    made = []
    for one in document["runs"]:
        # Spark adds the rates of all consumers; a tree has one of them.
        consumers = 1 if one["kind"] == "tree" else one["size"]
        for arm in ("plain", "ordered"):
            rate = rates.get((one["name"], arm))
            if rate is None:
                continue
            made.append(
                Point(
                    *(one["kind"], one["size"], arm, one["bytes"], one["messages"], one["r"]),
                    latencies[one["name"], arm],
                    rate / consumers,
                )
            )
    return made


def plots(document: Mapping[str, Any]) -> list[Plot]:
    """Make the plots: against bytes, r, tree height and bottleneck size; latency, throughput."""
    measured = points(document)
    divided = times(measured)
    made = [
        *_by_size(measured),
        *_against("bytes", "bytes of a message", divided, lambda point: float(point.bytes)),
        *_against("r", "r = log(messages) / log(bytes)", divided, lambda point: point.r),
        *(plot for kind in _ORDERED for plot in _by_configuration(kind, divided)),
    ]
    return [plot for plot in made if any(line.x for line in plot.lines)]


def times(measured: Iterable[Point]) -> list[Point]:
    """Divide each ordered point by the plain one of the same configuration and data set."""
    plain = {
        (point.kind, point.size, point.bytes, point.messages): point
        for point in measured
        if point.arm == "plain"
    }
    divided = []
    for point in measured:
        base = plain.get((point.kind, point.size, point.bytes, point.messages))
        if point.arm == "ordered" and base is not None:
            divided.append(
                Point(
                    *(point.kind, point.size, point.arm, point.bytes, point.messages, point.r),
                    point.p50_ms / base.p50_ms,
                    point.megabytes_per_s / base.megabytes_per_s,
                )
            )
    return divided


def _latency(point: Point) -> float:
    return point.p50_ms


def _rate(point: Point) -> float:
    return point.megabytes_per_s


_FIGURES: tuple[tuple[str, str, Callable[[Point], float]], ...] = (
    ("latency", "p50 end to end", _latency),
    ("throughput", "throughput of a consumer", _rate),
)


def _by_size(measured: Sequence[Point]) -> list[Plot]:
    """Draw absolute figures of the poster's three topologies against the size of a message."""
    shown = {
        "plain": [point for point in measured if point.kind == "plain"],
        **{
            kind: [point for point in measured if (point.kind, point.arm) == (kind, "ordered")]
            for kind in _ORDERED
        },
    }
    return [
        Plot(
            f"poster-{name}",
            f"{name.capitalize()} against message size",
            "bytes of a message",
            f"{what}, {'ms' if name == 'latency' else 'MB/s'}",
            [
                _mean(arm, some, lambda point: float(point.bytes), figure)
                for arm, some in shown.items()
            ],
            "The poster's three topologies. A point is the mean of all configurations and numbers "
            "of messages; bars: the least and the greatest.",
            x_scale="log",
        )
        for name, what, figure in _FIGURES
    ]


def _against(
    key: str, x_label: str, divided: Sequence[Point], x: Callable[[Point], float]
) -> list[Plot]:
    return [
        Plot(
            f"poster-{name}-times-by-{key}",
            f"{name.capitalize()}, ordered over plain, against {'r' if key == 'r' else 'size'}",
            x_label,
            f"{what}, times plain",
            [
                _mean(kind, [point for point in divided if point.kind == kind], x, figure)
                for kind in _ORDERED
            ],
            "Divided by plain Kafka in the same configuration. A point is the mean of all "
            "configurations; bars: the least and the greatest.",
            x_scale="linear" if key == "r" else "log",
            reported=_claims(name, key, [x(point) for point in divided]),
        )
        for name, what, figure in _FIGURES
    ]


def _claims(name: str, key: str, places: Sequence[float]) -> list[ClaimedRange]:
    """Give the poster's sentences at their places on an axis of bytes or of r."""
    if not places:
        return []
    least, greatest = min(places), max(places)

    def around(place: float) -> tuple[float, float]:
        return (
            (place - _R_WIDER, place + _R_WIDER) if key == "r" else (place / _WIDER, place * _WIDER)
        )

    if name == "throughput":
        return [
            ClaimedRange(
                "the poster: no decrease",
                *(around(least)[0], around(greatest)[1], RATE_TIMES, RATE_TIMES),
            )
        ]
    small, large = (greatest, least) if key == "r" else (least, greatest)
    return [
        ClaimedRange("the poster: small messages", *around(small), *SMALL_TIMES),
        ClaimedRange("the poster: large messages", *around(large), LARGE_TIMES, LARGE_TIMES),
    ]


def _by_configuration(kind: str, divided: Sequence[Point]) -> list[Plot]:
    """Draw the ratios against the size of a topology, for the smallest and largest messages."""
    of_kind = [point for point in divided if point.kind == kind]
    if not of_kind:
        return []
    sizes = [point.bytes for point in of_kind]
    heights = [float(point.size) for point in of_kind]
    ends = (min(heights), max(heights))
    made = []
    for name, what, figure in _FIGURES:
        lines = []
        for arm, wanted in (("small", min(sizes)), ("large", max(sizes))):
            some = [point for point in of_kind if point.bytes == wanted]
            line = _mean(arm, some, lambda point: float(point.size), figure)
            lines.append(replace(line, rate=bytes_text(wanted)))
        claims = [ClaimedRange("the poster: no decrease", *ends, RATE_TIMES, RATE_TIMES)]
        if name == "latency":
            claims = [
                ClaimedRange("the poster: small messages", *ends, *SMALL_TIMES),
                ClaimedRange("the poster: large messages", *ends, LARGE_TIMES, LARGE_TIMES),
            ]
        made.append(
            Plot(
                f"poster-{name}-times-by-{kind}",
                f"{name.capitalize()}, ordered over plain, against {kind} size",
                _SIZES[kind],
                f"{what}, times plain",
                lines,
                "Divided by plain Kafka in the same configuration. Bars: numbers of messages. The "
                'poster: "different configurations show no clear trend".',
                x_scale="log2",
                reported=claims,
            )
        )
    return made


def _mean(
    arm: str,
    some: Sequence[Point],
    x: Callable[[Point], float],
    figure: Callable[[Point], float],
) -> PlotLine:
    """Make the line of the means at each x."""
    line = PlotLine(arm, [], [])
    for place in sorted({x(point) for point in some}):
        values = [figure(point) for point in some if x(point) == place]
        line.x.append(place)
        line.y.append(statistics.mean(values))
        line.low.append(min(values))
        line.high.append(max(values))
    return line
