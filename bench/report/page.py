"""Writes the report as one HTML page that needs no other file.

`page` takes the documents, the judged targets, and the plots with their drawings. Every text from a
document is escaped. The numbers of each drawing follow below it as a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from bench.report.data import Plot, PlotLine, figure_text, short
from bench.report.targets import PAIRS_MIN, Document, Judged, TargetVerdict

_SIGNS = {
    TargetVerdict.MET: ("yes", "✓ met"),
    TargetVerdict.MISSED: ("no", "✗ missed"),
    TargetVerdict.TOO_FEW: ("open", "? too few pairs"),
    TargetVerdict.NOT_MEASURED: ("open", "- not measured"),
}
STYLE = """
:root { color-scheme: light }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff; margin: 0 auto;
       max-width: 62rem; padding: 1rem }
h1, h2, h3 { line-height: 1.2 } h2 { margin-top: 2.5rem }
table { border-collapse: collapse; width: 100%; font-size: .875rem }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem;
         border-bottom: 1px solid #ccc }
td.number { text-align: right; font-variant-numeric: tabular-nums }
tbody th[scope=rowgroup] { background: #f1f3f5; border-top: 2px solid #888 }
code { font-size: .8125rem; overflow-wrap: anywhere }
.yes { color: #0b5d1e; font-weight: 600 } .no { color: #9b1c1c; font-weight: 600 }
.open { color: #5a4a00; font-weight: 600 } td.yes, td.no, td.open { white-space: nowrap }
figure { margin: 1.5rem 0 } figcaption { font-size: .875rem; color: #444 }
svg { width: 100%; height: auto } .wide { overflow-x: auto }
dt { font-weight: 600; float: left; clear: left; width: 11rem } dd { margin-left: 11.5rem }
"""


def page(
    documents: Mapping[str, Document], judged: Sequence[Judged], drawn: Sequence[tuple[Plot, str]]
) -> str:
    """Put the page together."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Ordered multicast and plain Kafka: measurements</title><style>{STYLE}</style>",
        "</head><body><main><h1>Ordered multicast and plain Kafka: measurements</h1>",
        _summary(judged),
        "<h2>Machine and versions</h2>",
        environment(documents),
        "<h2>Targets</h2>",
        _targets(judged),
        "<h2>Plots</h2>",
        *(figure(plot, drawing) for plot, drawing in drawn),
        "<h2>Workloads</h2>",
        _runs(documents),
        "</main></body></html>\n",
    ]
    return "\n".join(parts)


def _summary(judged: Sequence[Judged]) -> str:
    counted = [
        (sum(entry.verdict is verdict for entry in judged), verdict) for verdict in TargetVerdict
    ]
    text = ", ".join(f"{count} {verdict}" for count, verdict in counted if count)
    return (
        f"<p>Of {len(judged)} targets: <strong>{escape(text)}</strong>. A figure is the median of "
        f"pairs of rounds (at least {PAIRS_MIN}), run in turns in one run with the same client, "
        f"machine and broker; in brackets the least and the greatest pair. Latency counts from "
        f"the intended send time.</p>"
    )


def environment(documents: Mapping[str, Document]) -> str:
    """List machine, versions, commit and seeds; if documents differ, every distinct value."""
    facts: dict[str, dict[str, None]] = {}
    for document in documents.values():
        for key, value in _facts(document):
            facts.setdefault(key, {}).setdefault(value)
    items = [
        f"<dt>{escape(key)}</dt><dd>{'<br>'.join(escape(value) for value in values)}</dd>"
        for key, values in facts.items()
    ]
    return f"<dl>{''.join(items)}</dl>"


def _facts(document: Document) -> list[tuple[str, str]]:
    machine, versions = document.get("machine") or {}, document.get("versions") or {}
    source = document.get("source") or {}
    facts = [
        (key.replace("_", " "), str(machine[key]))
        for key in ("cpus", "cpu_model", "memory", "kernel")
        if machine.get(key)
    ]
    if versions:
        facts.append(
            ("versions", ", ".join(f"{name} {version}" for name, version in versions.items()))
        )
    if source.get("commit"):
        facts.append(("commit", source["commit"] + (" with changes" * bool(source["changed"]))))
    if "seed" in document:
        facts.append(("seed", str(document["seed"])))
    if document.get("began"):
        facts.append(("day", str(document["began"])[:10]))
    if document.get("quick"):
        facts.append(("note", "a quick run: fewer rounds and messages than the targets require"))
    return facts


def _targets(judged: Sequence[Judged]) -> str:
    rows = []
    for name, group in groupby(judged, key=lambda entry: entry.row):
        rows.append(f'<tbody><tr><th scope="rowgroup" colspan="5">{escape(name)}</th></tr>')
        for entry in group:
            css, verdict = _SIGNS[entry.verdict]
            why = "" if entry.error is None else f"<br>{escape(entry.error)}"
            rows.append(
                f'<tr><th scope="row">{escape(entry.target.text)}</th>'
                f"<td>{escape(entry.target.limit_text)}</td>"
                f'<td>{escape(figure_text(entry.figure))}{why}</td><td class="{css}">{verdict}</td>'
                f"<td><code>{escape(entry.command)}</code></td></tr>"
            )
        rows.append("</tbody>")
    return table(("target", "required", "measured", "verdict", "command"), rows)


def figure(plot: Plot, drawing: str) -> str:
    """Return a plot with its drawing, its note, and its numbers as a table."""
    about = f"{plot.title}: {plot.y_label} against {plot.x_label}; numbers below"
    return (
        f'<figure id="{escape(plot.name)}"><div role="img" aria-label="{escape(about)}">{drawing}'
        f"</div><figcaption>{escape(plot.note)}<details><summary>{escape(plot.title)}: the numbers"
        f"</summary>{_numbers(plot)}</details></figcaption></figure>"
    )


def _numbers(plot: Plot) -> str:
    """Return the plot's points: a row for each place on the x axis, a column for each line."""
    places = sorted({x for line in plot.lines for x in line.x})
    if plot.x_scale == "percentile":  # a line has about forty points, too many for a table
        places = [place for place in (0.0, 50.0, 90.0, 99.0, 99.9) if place <= places[-1]]
    rows = ["<tbody>"]
    for place in places:
        name = plot.ticks[int(place)].replace("\n", ", ") if plot.ticks else short(place)
        cells = "".join(f'<td class="number">{_point(line, place)}</td>' for line in plot.lines)
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    head = ("data set" if plot.ticks else plot.x_label, *(line.label for line in plot.lines))
    return table(head, [*rows, "</tbody>"])


def _point(line: PlotLine, place: float) -> str:
    """Return a line's value at a place of the x axis; of a curve, at the nearest place below."""
    below = [index for index, x in enumerate(line.x) if x <= place + 1e-9]
    curve = not line.low and len(line.x) > 12
    if not below or (not curve and place not in line.x):
        return ""
    index = below[-1] if curve else line.x.index(place)
    if not line.low:
        return short(line.y[index])
    full = " (cores full)" if line.hollow and line.hollow[index] else ""
    return f"{short(line.y[index])} ({short(line.low[index])} to {short(line.high[index])}){full}"


def _runs(documents: Mapping[str, Document]) -> str:
    rows = ["<tbody>"]
    for name, document in documents.items():
        workload = document.get("workload")
        what = "a small benchmark" if workload is None else _workload(workload, document)
        if document.get("error"):
            what += f'<br><span class="no">failed: {escape(str(document["error"]))}</span>'
        seconds = document.get("seconds")
        rows.append(
            f'<tr><th scope="row">{escape(name)}</th><td>{what}</td><td class="number">'
            f"{'' if seconds is None else f'{seconds:g}'}</td>"
            f"<td><code>{escape(str(document.get('command') or ''))}</code></td></tr>"
        )
    return table(("document", "what", "seconds", "command"), [*rows, "</tbody>"])


def _workload(workload: Mapping[str, Any], document: Document) -> str:
    load = workload["load"]
    rate = load if isinstance(load, str) else f"{load:g}/s"
    if "rate" in document:
        rate = f"{load} of {document['maximum']:,.0f}/s: {document['rate']:,.0f}/s"
    messages, warm_up = (
        document.get(key, workload[key]) for key in ("messages", "warm_up")
    )  # a workload at a share of the maximum rate: the document says how many messages it sent
    return escape(
        f"{workload['kind']} {workload['size']}, {workload['message_bytes']:,} B, {rate}, "
        f"{workload['pairs']} pairs of {messages:,} messages after {warm_up:,}; "
        f"{', '.join(workload['arms'])}"
    )


def table(head: Sequence[str], rows: Sequence[str]) -> str:
    """Return a table; its rows are HTML, its head is text."""
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(rows)
    return f'<div class="wide"><table><thead><tr>{columns}</tr></thead>{body}</table></div>'
