"""Reports a run of the nemesis: as one JSON document, or as a table and a few lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.harness import facts
from bench.nemesis.run import RunOutcome
from bench.nemesis.schedule import Planned
from bench.nemesis.waits import BOUND_S, SETTLE_S, TIMES

SCHEMA_VERSION = 1
# The greatest recovery time, 99th percentile, by kind of fault. A policy, not a protocol bound: an
# hour on two loaded cores measured 0.3 s and 8.2 s (docs/nemesis.md).
TARGETS_S = {"collector-killed": 3.0, "leader-killed": 15.0}


def document(
    outcome: RunOutcome, *, seed: int, rate: float, folder: str | None, arguments: Sequence[str]
) -> dict[str, Any]:
    """Put the whole outcome into one JSON object; `folder` holds the histories, if kept."""
    counts = outcome.counts
    assert counts is not None
    assert outcome.report is not None
    made = Counter(fault.planned.kind for fault in outcome.injected)
    kinds = {}
    for kind, count in sorted(made.items()):
        figures = outcome.recovery.get(kind)
        recovery = {} if figures is None else asdict(figures)
        kinds[kind] = {**recovery, "count": count, "waits": outcome.waits.kinds.get(kind, {})}
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "nemesis",
        "seed": seed,
        "rate": rate,
        "minutes": round(outcome.seconds / 60, 2),
        "quiet_share": round(outcome.quiet_seconds / max(outcome.seconds, 1e-9), 3),
        "faults": len(outcome.injected),
        "kinds": kinds,
        "marks": [_target(outcome, kind, most_s) for kind, most_s in TARGETS_S.items()],
        "totals": {
            **asdict(counts),
            "acknowledged": counts.accepted,
            "epochs": outcome.epochs,
            "violations": outcome.violations,
            "failures": len(outcome.wrong),
            "starved_share": round(outcome.waits.starved_share, 3),
        },
        "verdicts": [asdict(verdict) for verdict in outcome.report.verdicts],
        "findings": [finding._asdict() for finding in outcome.findings],
        "unsafe": outcome.unsafe,
        "wrong": outcome.wrong,
        "struck": [
            {
                "kind": fault.planned.kind,
                "number": fault.planned.number,
                "whom": fault.victim,
                "at_s": round(fault.at_s, 3),
                "healed_s": round(fault.healed_s, 3),
                "working_s": round(fault.working_s, 3),
            }
            for fault in outcome.injected
        ],
        "kept": folder,
        "command": " ".join(["amcast", "bench", "nemesis", *arguments]),
        "versions": facts.versions(outcome.kafka),
        **facts.at_start(),
    }


def _target(outcome: RunOutcome, kind: str, most_s: float) -> dict[str, Any]:
    figures = outcome.recovery.get(kind)
    p99_s = None if figures is None else figures.p99_s
    met = None if p99_s is None else p99_s <= most_s
    return {"kind": kind, "p99_s_max": most_s, "p99_s": p99_s, "met": met}


def tell(document: Mapping[str, Any], console: Console) -> None:
    """Print a document as a table and lines."""
    table = Table()
    heads = ["fault", "count", "p50 s", "p99 s", "worst s", "never"]
    for column in (*heads, *(f"wait {name}" for name in TIMES)):
        table.add_column(column, justify="left" if column == "fault" else "right")
    for kind, row in document["kinds"].items():
        figures = [row.get(name) for name in ("p50_s", "p99_s", "worst_s")]
        shown = ["" if seconds is None else f"{seconds:.2f}" for seconds in figures]
        shown += [str(row.get("unrecovered", "")), *(_waits(row["waits"].get(n)) for n in TIMES)]
        table.add_row(kind, str(row["count"]), *shown)
    console.print(table)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    for mark in document["marks"]:
        verdict = {True: "met", False: "NOT MET", None: "not measured"}[mark["met"]]
        took = "-" if mark["p99_s"] is None else f"{mark['p99_s']:.2f} s"
        say(f"{mark['kind']}: recovery p99 {took}, at most {mark['p99_s_max']:g} s: {verdict}")
    _tell_totals(document, say)
    for sentence in document["unsafe"]:
        say(f"VIOLATED {sentence}")
    for sentence in document["wrong"]:
        say(f"FAILED {sentence}")
    totals = document["totals"]
    say(f"{totals['violations']} violations, {totals['failures']} failures")
    if document["kept"]:
        say(f"histories and logs: {document['kept']}")


def _waits(figures: Mapping[str, Any] | None) -> str:
    """Show p50, p99 and the worst, in milliseconds."""
    if figures is None or not figures["messages"]:
        return ""
    return " / ".join(f"{1000 * figures[name]:.0f}" for name in ("p50_s", "p99_s", "worst_s"))


def _tell_totals(document: Mapping[str, Any], say: Callable[[str], None]) -> None:
    totals = document["totals"]
    say(
        f"{totals['acknowledged']:,} acknowledged, {totals['unknown']:,} unknown, "
        f"{totals['failed']:,} failed; {totals['deliveries']:,} deliveries, "
        f"{totals['epochs']} epochs"
    )
    say(
        f"waits: p50 / p99 / worst in ms, before, within {SETTLE_S:g} s after, and later; at most "
        f"{BOUND_S:g} s; threads waited for a core {totals['starved_share']:.0%} of the time"
    )
    say(
        f"{document['faults']} faults of {len(document['kinds'])} kinds "
        f"in {document['minutes']:g} minutes, "
        f"{document['quiet_share']:.0%} quiet; seed {document['seed']}"
    )
    for verdict in document["verdicts"]:
        say(f"{verdict['guarantee']:<22} {verdict['verdict']:<12} {verdict['reason']}".rstrip())
        if verdict["witness"]:
            for sentence in verdict["witness"]["sentences"]:
                say(f"    {sentence}")
    for finding in document["findings"]:
        say(f"VIOLATED {finding['kind']}: {finding['sentence']}")


def tell_schedule(planned: Sequence[Planned], console: Console) -> None:
    """Print the schedule of a seed; column "begins" assumes that every recovery is immediate."""
    table = Table()
    for column in ("fault", "begins s", "kind", "holds s", "quiet s"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    for fault in planned:
        times = [f"{fault.hold_s:.1f}", f"{fault.quiet_s:.1f}"]
        table.add_row(str(fault.number), f"{fault.at_s:.1f}", fault.kind, *times)
    console.print(table)
