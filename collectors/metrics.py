"""The page `/metrics` of a collectors' process, in Prometheus' text format 0.0.4.

It shows what `/status` shows, so nothing is counted twice. All names begin with
`amcast_collectors_`, and as those of the ordering service they get no suffix `_total`. The counters
are of this process since its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_ENTRIES = {
    "appended": "Order entries appended by this process to the collector's stream",
    "passed_on": "Of the entries appended, those that no consumer of the collector wants",
    "read": "Order entries read by this process in the stream of the collector's parent",
    "dropped": "Of the entries read, those of logs outside the collector's bag",
}


def exposition(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Write the metrics of these collectors; each is described as in `nodes` of `/status`."""
    return "".join(f"{line}\n" for line in _lines(nodes))


def _lines(nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from _head("acting", "1 if this process appends what is due, else 0", "gauge")
    for node in nodes:
        yield _sample("acting", {}, node, int(bool(node.get("acting"))))
    for kind, text in _ENTRIES.items():
        yield from _head(f"entries_{kind}", text, "counter")
        for node in nodes:
            for log, count in node.get("entries", {}).get(kind, {}).items():
                yield _sample(f"entries_{kind}", {"log": log}, node, count)


def _head(name: str, text: str, kind: str) -> Iterator[str]:
    yield f"# HELP amcast_collectors_{name} {text}"
    yield f"# TYPE amcast_collectors_{name} {kind}"


def _sample(name: str, labels: Mapping[str, str], node: Mapping[str, Any], value: int) -> str:
    all_labels = {"collector": node["node"], "epoch": str(node["epoch"]), **labels}
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in all_labels.items())
    return f"amcast_collectors_{name}{{{inside}}} {value}"


def _escaped(text: str) -> str:
    """Escape a label's value as Prometheus' format asks."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
