"""Draws the plots of a report as inline SVG; the only module that imports `matplotlib`.

`write_report` takes the documents of a run and its judged targets, and returns the text of an HTML
page that needs no other file. Texts in a drawing stay texts, so that they can be searched and
copied.
"""

from __future__ import annotations

import importlib
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.report.data import Plot, PlotLine, plots
from bench.report.page import page
from bench.report.targets import Document, Judged
from multicast.errors import UsageError

# The colours of Okabe and Ito, which the colour-blind can tell apart; markers and dashes differ.
_STYLES = {
    "plain": ("#000000", "o", "-"),
    "ordered": ("#0072B2", "s", "-"),
    "ordered-plain": ("#56B4E9", "D", "--"),
    "single-root": ("#009E73", "^", "-."),
    "one-partition": ("#E69F00", "v", ":"),
    "algorithm1": ("#D55E00", "X", "--"),
}
_OTHER = ("#CC79A7", "P", "-")
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "amcast",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_POINTS_MAX = 2  # so few show no trend
_PERCENTILES = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999)


def write_report(documents: Mapping[str, Document], judged: Sequence[Judged]) -> str:
    """Return the HTML page; raises `UsageError` if matplotlib is not installed."""
    drawn = [(plot, draw(plot)) for plot in plots(documents)]
    return page(documents, judged, drawn)


def draw(plot: Plot) -> str:
    """Draw a plot as an SVG element; its ids begin with the plot's name."""
    matplotlib, figures, ticker = map(_package, ("", ".figure", ".ticker"))
    with matplotlib.rc_context(_SETTINGS):
        figure = figures.Figure(figsize=(7.6, 4.2), layout="constrained")
        axes = figure.add_subplot()
        _lines(axes, plot)
        _axes(axes, plot, ticker)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(out.getvalue(), plot.name)


def _package(part: str) -> Any:
    try:
        return importlib.import_module(f"matplotlib{part}")
    except ImportError as error:
        raise UsageError("amcast bench report needs the package matplotlib; install it") from error


def _lines(axes: Any, plot: Plot) -> None:
    for line in plot.lines:
        colour, marker, dashes = _STYLES.get(line.arm, _OTHER)
        x, marker = line.x, marker if line.low else ""
        if plot.x_scale == "percentile":
            x = [_odds(percentile) for percentile in x]
        joined = dashes if _may_be_joined(plot, line) else "none"
        axes.plot(x, line.y, linestyle=joined, color=colour, linewidth=1.6)
        axes.plot([], [], linestyle=joined, marker=marker, color=colour, label=line.label)
        if line.low:
            spread = [
                [max(0.0, y - low) for y, low in zip(line.y, line.low, strict=True)],
                [max(0.0, high - y) for y, high in zip(line.y, line.high, strict=True)],
            ]
            axes.errorbar(
                x, line.y, yerr=spread, fmt="none", ecolor=colour, elinewidth=0.8, capsize=3
            )
            _markers(axes, line, colour, marker)


def _may_be_joined(plot: Plot, line: PlotLine) -> bool:
    """Whether something lies between the points: not between data sets, nor two sizes."""
    return not line.low or (not plot.ticks and len(line.x) > _POINTS_MAX)


def _markers(axes: Any, line: PlotLine, colour: str, marker: str) -> None:
    hollow = line.hollow or [False] * len(line.x)
    for face, wanted in ((colour, False), ("white", True)):
        indices = [index for index, is_hollow in enumerate(hollow) if is_hollow is wanted]
        axes.plot(
            [line.x[index] for index in indices],
            [line.y[index] for index in indices],
            marker,
            color=colour,
            markerfacecolor=face,
            linestyle="none",
            markersize=6,
        )


def _axes(axes: Any, plot: Plot, ticker: Any) -> None:
    axes.set_title(plot.title, loc="left", fontweight="bold")
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(ticker.FuncFormatter(_minor(plot)))
    every = [x for line in plot.lines for x in line.x]
    if plot.x_scale == "percentile":
        axes.set_xscale("log")
        shown = [
            percentile for percentile in _PERCENTILES if _odds(percentile) <= 2 * _odds(max(every))
        ]
        axes.set_xticks(
            [_odds(percentile) for percentile in shown],
            [f"{percentile:g} %" for percentile in shown],
        )
        axes.xaxis.set_minor_locator(ticker.NullLocator())
    elif plot.ticks:
        axes.set_xticks(range(len(plot.ticks)), plot.ticks, fontsize=8)
    elif plot.x_scale in ("log", "log2"):
        axes.set_xscale("log", base=2 if plot.x_scale == "log2" else 10)
        if plot.x_scale == "log2":
            axes.set_xticks(sorted(set(every)))
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.legend(frameon=False, fontsize=9)


def _minor(plot: Plot) -> Callable[[float, int], str]:
    """Label ticks between the powers of ten; the fewer decades, the more of them."""
    values = [y for line in plot.lines for y in (*line.y, *line.low, *line.high) if y > 0]
    decades = math.log10(max(values) / min(values))
    digits = "" if decades > 3 else "25" if decades > 1 else "2345678"
    return lambda value, _: f"{value:g}" if f"{value:e}"[0] in digits else ""


def _odds(percentile: float) -> float:
    """Return a percentile's place on the log axis: one message in so many is slower."""
    return 100 / max(1e-9, 100 - percentile)


def _inline(svg: str, name: str) -> str:
    """Keep only the SVG element, and prefix its ids: one page holds several drawings."""
    element = svg[svg.index("<svg") :].strip()
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    element = re.sub(r'\bid="', f'id="{name}-', element)
    element = re.sub(r'href="#', f'href="#{name}-', element)
    element = re.sub(r"url\(#", f"url(#{name}-", element)
    # The style sheet sets the width; the surrounding figure describes the picture.
    return re.sub(r' (width|height)="[^"]*pt"', "", element, count=2).replace(
        "<svg", '<svg aria-hidden="true"', 1
    )
