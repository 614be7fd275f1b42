"""Writes the page of the poster's experiment: what it reported, beside what was measured here.

The page needs no other file. Every text from the document is escaped.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape

from bench.report.data import Plot, bytes_text, short
from bench.report.page import STYLE, environment, figure, table
from bench.report.poster_plots import Point, points, times
from bench.report.targets import Document

_TITLE = "The poster's experiment, repeated"
_LAYOUT = """
body { max-width: 76rem }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(30rem, 1fr)); gap: 0 2rem }
.plots figure { margin: .5rem 0 }
"""
_NOT_STATED = (
    "Absolute latencies and rates: its text has none, so none are drawn beside ours.",
    (
        "The machine, the brokers, the replication, and how fast producers sent. Here they send as "
        "fast as they can."
    ),
    (
        "Which sizes are small, and which large: its band is drawn at the least and greatest size "
        "measured here."
    ),
    "What its latency is: the figures here are the median from the send time to the delivery.",
    (
        "Where r ≥ 10 occurs: within its own ranges (10² to 10⁴ messages of 10⁴ to 10⁷ bytes) r is "
        "at most 1."
    ),
)


def poster_page(document: Document, drawn: Sequence[tuple[Plot, str]]) -> str:
    """Put the page together."""
    order = document["pipeline"]["order"]
    verdict = (
        "no violation"
        if order["holds"]
        else f"VIOLATED: {order['inversions']} inversions, {order['unplaced']} without a place, "
        f"{order['disagreements']} disagreements"
    )
    failed = "".join(
        f'<li class="no">{escape(one["name"])}: {escape(one["error"])}</li>'
        for one in document["failed"]
    )
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_TITLE}</title><style>{STYLE}{_LAYOUT}</style></head><body><main>",
        f"<h1>{_TITLE}</h1>",
        (
            f"<p>Plain Kafka, and ordered multicast through trees of growing height and through "
            f"bottlenecks of growing size. Spark computed every figure from the "
            f"{document['pipeline']['events']:,} events of producers and consumers, and judged the "
            f"order of {order['deliveries']:,} deliveries: <strong>{verdict}</strong>.</p>"
        ),
        "<h2>What the poster reported, and what was measured here</h2>",
        _claims(times(points(document))),
        "<h2>Figures</h2>",
        f'<div class="plots">{"".join(figure(plot, drawing) for plot, drawing in drawn)}</div>',
        "<h2>What the poster does not state</h2>",
        f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in _NOT_STATED)}</ul>",
        f"<h2>Not measured: failures</h2><ul>{failed}</ul>" if failed else "",
        "<h2>Machine and versions</h2>",
        environment({"poster": document}),
        (
            f"<p><code>{escape(document['command'])}</code>, {document['seconds']:g} s, "
            f"{document['pairs']} rounds of each arm, in turns.</p>"
        ),
        "</main></body></html>\n",
    ]
    return "\n".join(parts)


def _claims(divided: Sequence[Point]) -> str:
    """Tabulate the poster's sentences and the same figures here."""
    sizes = sorted({point.bytes for point in divided})
    latencies = {size: [point.p50_ms for point in divided if point.bytes == size] for size in sizes}
    rates = [point.megabytes_per_s for point in divided]
    rows = []
    if sizes:
        small, large = sizes[0], sizes[-1]
        rows = [
            ("For small msg_size the latency is increased by 5x to 10x",
             f"{bytes_text(small)}: {_spread(latencies[small])} times plain"),
            ("There is no latency increase for large msg_size",
             f"{bytes_text(large)}: {_spread(latencies[large])} times plain"),
            ("There is no throughput decrease when the Kafka is expanded with TO across partitions",
             f"all sizes: {_spread(rates)} times plain"),
        ]  # fmt: skip
    cells = [
        f'<tr><th scope="row">“{escape(said)}”</th><td>{escape(here)}</td></tr>'
        for said, here in rows
    ]
    return table(
        ("the poster", "here: mean of all configurations (least to greatest)"),
        ["<tbody>", *cells, "</tbody>"],
    )


def _spread(values: Sequence[float]) -> str:
    return f"{short(statistics.mean(values))} ({short(min(values))} to {short(max(values))})"
