"""What is told of a run of the nemesis: one JSON document, or a table and a few lines."""

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

SCHEMA_VERSION = 1
# Recovery p99 in seconds, by kind.
MARKS_S = {"collector-killed": 3.0, "leader-killed": 15.0}


def document(
    outcome: RunOutcome, *, seed: int, rate: float, folder: str | None, arguments: Sequence[str]
) -> dict[str, Any]:
    """Put all that a run gave into one object; `folder` is where the histories were kept."""
    counts = outcome.counts
    assert counts is not None
    assert outcome.report is not None
    made = Counter(one.planned.kind for one in outcome.struck)
    kinds = {}
    for kind, count in sorted(made.items()):
        figures = outcome.recovery.get(kind)
        told = {} if figures is None else asdict(figures)
        kinds[kind] = {**told, "count": count}
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "nemesis",
        "seed": seed,
        "rate": rate,
        "minutes": round(outcome.seconds / 60, 2),
        "quiet_share": round(outcome.quiet_seconds / max(outcome.seconds, 1e-9), 3),
        "faults": len(outcome.struck),
        "kinds": kinds,
        "marks": [_mark(outcome, kind, most_s) for kind, most_s in MARKS_S.items()],
        "totals": {
            **asdict(counts),
            "acknowledged": counts.accepted,
            "epochs": outcome.epochs,
            "violations": outcome.violations,
            "failures": len(outcome.wrong),
        },
        "verdicts": [asdict(verdict) for verdict in outcome.report.verdicts],
        "findings": [one._asdict() for one in outcome.findings],
        "unsafe": outcome.unsafe,
        "wrong": outcome.wrong,
        "struck": [
            {
                "kind": one.planned.kind,
                "number": one.planned.number,
                "whom": one.whom,
                "at_s": round(one.at_s, 3),
                "healed_s": round(one.healed_s, 3),
                "working_s": round(one.working_s, 3),
            }
            for one in outcome.struck
        ],
        "kept": folder,
        "command": " ".join(["amcast", "bench", "nemesis", *arguments]),
        "versions": facts.versions(outcome.kafka),
        **facts.at_start(),
    }


def _mark(outcome: RunOutcome, kind: str, most_s: float) -> dict[str, Any]:
    figures = outcome.recovery.get(kind)
    p99_s = None if figures is None else figures.p99_s
    met = None if p99_s is None else p99_s <= most_s
    return {"kind": kind, "p99_s_max": most_s, "p99_s": p99_s, "met": met}


def tell(told: Mapping[str, Any], console: Console) -> None:
    """Write a document as a table and lines."""
    table = Table()
    for column in ("fault", "count", "p50 s", "p99 s", "worst s", "never"):
        table.add_column(column, justify="left" if column == "fault" else "right")
    for kind, row in told["kinds"].items():
        times = [row.get(name) for name in ("p50_s", "p99_s", "worst_s")]
        shown = ["" if one is None else f"{one:.2f}" for one in times]
        table.add_row(kind, str(row["count"]), *shown, str(row.get("unrecovered", "")))
    console.print(table)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    for mark in told["marks"]:
        said = {True: "met", False: "NOT MET", None: "not measured"}[mark["met"]]
        took = "-" if mark["p99_s"] is None else f"{mark['p99_s']:.2f} s"
        say(f"{mark['kind']}: recovery p99 {took}, at most {mark['p99_s_max']:g} s: {said}")
    _tell_totals(told, say)
    for sentence in told["unsafe"]:
        say(f"VIOLATED {sentence}")
    for sentence in told["wrong"]:
        say(f"FAILED {sentence}")
    totals = told["totals"]
    say(f"{totals['violations']} violations, {totals['failures']} failures")
    if told["kept"]:
        say(f"histories and logs: {told['kept']}")


def _tell_totals(told: Mapping[str, Any], say: Callable[[str], None]) -> None:
    totals = told["totals"]
    say(
        f"{totals['acknowledged']:,} acknowledged, {totals['unknown']:,} unknown, "
        f"{totals['failed']:,} failed; {totals['deliveries']:,} deliveries, "
        f"{totals['epochs']} epochs"
    )
    say(
        f"{told['faults']} faults of {len(told['kinds'])} kinds in {told['minutes']:g} minutes, "
        f"{told['quiet_share']:.0%} quiet; seed {told['seed']}"
    )
    for verdict in told["verdicts"]:
        say(f"{verdict['guarantee']:<22} {verdict['verdict']:<12} {verdict['reason']}".rstrip())
        if verdict["witness"]:
            for sentence in verdict["witness"]["sentences"]:
                say(f"    {sentence}")
    for finding in told["findings"]:
        say(f"VIOLATED {finding['kind']}: {finding['sentence']}")


def tell_schedule(planned: Sequence[Planned], console: Console) -> None:
    """Write what a seed plans; `begins` is where the system recovers at once each time."""
    table = Table()
    for column in ("fault", "begins s", "kind", "holds s", "quiet s"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    for one in planned:
        times = [f"{one.hold_s:.1f}", f"{one.quiet_s:.1f}"]
        table.add_row(str(one.number), f"{one.at_s:.1f}", one.kind, *times)
    console.print(table)
