"""What `amcast topology` prints: tables for people, JSON documents for programs.

This file formats values; it decides nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from topology import draw
from topology.changes import FigureChange
from topology.check import TreeFigures
from topology.interests import InterestFile
from topology.measured_work import MeasuredWork, WorkRow
from topology.planner.solver import Solution
from topology.safety import SafetyVerdict
from topology.tree import PRICING, Plan

SCHEMA_VERSION = 1  # of the JSON documents; it rises when a field changes its meaning

# Fixed, so that a table that is piped to a file does not depend on the terminal; the tables of the
# documents fit into it.
WIDTH_COLUMNS = 100


class PlanProgress(Protocol):
    """A callback for the planner's progress."""

    def __call__(self, sentence: str, gap: float, /) -> None:
        """Show what the planner does now, and the relative gap so far (0 to 1)."""


def written(document: object) -> str:
    """Give the text of one JSON document, as `-o json` prints it."""
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def show(text: str) -> None:
    """Print text to stdout, ended by one line feed."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; all columns but the first are numbers or short words."""
    grid = Table(box=None, pad_edge=False)
    for number, name in enumerate(columns):
        grid.add_column(name, justify="right" if number else "left")
    for row in rows:
        grid.add_row(*row)
    console = Console(file=sys.stdout, width=WIDTH_COLUMNS, highlight=False, color_system=None)
    console.print(grid)


def tree(plan: Plan, figures: TreeFigures) -> None:
    """Print the tree, and the cost of each consumer's order."""
    show(draw.text_tree(plan, figures))
    show("")
    table(
        ("consumer", "reads", "levels", "hops", "foreign", "genuine"),
        [
            (
                share.consumer,
                entry.collector or "its one log",
                str(share.levels),
                f"{share.hops:g}",
                f"{share.foreign:g}",
                f"{share.genuineness:.0%}",
            )
            for share, entry in zip(figures.shares, plan.consumers, strict=True)
        ],
    )
    show("")


def objective(plan: Plan, figures: TreeFigures) -> None:
    """Print the plan's objective in one line: cost, hops, foreign work, bound."""
    promised = plan.objective
    over = f" + {plan.phi:g} * {figures.excess:g} over the wanted rate" if figures.excess else ""
    if promised.version == PRICING:
        proof = "proven least" if promised.gap == 0 else f"gap {promised.gap:.1%}"
        bound = f"bound {promised.cost * (1 - promised.gap):g}, {proof}"
    else:
        bound = f"planned by version {promised.version} of the objective, so no bound is known"
    show(
        f"cost {figures.cost:g} = {figures.hops:g} hops + {plan.phi:g} * {figures.foreign:g} "
        f"foreign{over} · {bound} · {figures.genuineness:.0%} genuine"
    )


def foreign_work(work: MeasuredWork) -> None:
    """Print the running plan's foreign work in a window, predicted and measured."""
    show(f"foreign work of the running plan in {work.seconds:.1f} s, in entries")
    rows = [*work.collectors, work.total] if work.collectors else []
    table(
        ("collector", "relayed: predicted", "measured", "dropped: predicted", "measured"),
        [_work_row(row) for row in rows],
    )
    dropped = sum(row.dropped_predicted for row in work.consumers)
    show(
        f"consumers drop {dropped} as predicted; not measured, because they report no counts "
        f"(Consumer.entries())"
    )
    for sentence in work.missing:
        show(sentence)
    show("")


def _work_row(row: WorkRow) -> tuple[str, ...]:
    figures = (
        row.relayed_predicted,
        row.relayed_measured,
        row.dropped_predicted,
        row.dropped_measured,
    )
    return (row.name, *("-" if figure is None else str(figure) for figure in figures))


def solved(solution: Solution, seconds: float) -> None:
    """Print to stderr how the plan was found, and in what time."""
    how = ", ".join(sorted(set(solution.how))) or "no collector is needed"
    sys.stderr.write(f"planned in {seconds:.2f} s: {how}\n")


def comparison(changes: Sequence[str], rows: Sequence[FigureChange]) -> None:
    """Print what changes, and each figure that differs, before and after."""
    if not changes:
        show("nothing moves")
    for sentence in changes:
        show(sentence)
    differing = [row for row in rows if row.before != row.after]
    if differing:
        show("")
        table(
            ("figure", "before", "after"),
            [(row.what, _figure(row.before), _figure(row.after)) for row in differing],
        )


def comparison_document(changes: Sequence[str], rows: Sequence[FigureChange]) -> dict[str, Any]:
    """Give the comparison as a JSON object; it lists equal figures, too."""
    return {
        "schema_version": SCHEMA_VERSION,
        "changes": list(changes),
        "figures": [{"what": r.what, "before": r.before, "after": r.after} for r in rows],
    }


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def verdict(interests: InterestFile, safety: SafetyVerdict) -> None:
    """Print whether the interests are acyclic and pairwise safe, and if not, why."""
    count = len(interests.consumers)
    if safety.acyclic:
        show(f"acyclic: the interests of {count} consumers can be their own collectors (genuine)")
        show("pairwise safe: yes, one place for each pair of logs is enough in every execution")
        return
    assert safety.witness is not None, "what is not acyclic has a witness"
    show("not acyclic: some collector must know logs that not all of its readers take")
    if safety.pairwise_safe:
        show("pairwise safe: yes, one place for each pair of logs is enough in every execution")
    else:
        show("pairwise safe: no, each pair of logs in one place does not prevent a cycle")
    show(f"because {safety.witness.sentence}")
    show(f"least change: {safety.least_change}")


def verdict_document(interests: InterestFile, safety: SafetyVerdict) -> dict[str, Any]:
    """Give the verdict as a JSON object."""
    witness = safety.witness
    return {
        "schema_version": SCHEMA_VERSION,
        "input_hash": interests.input_hash,
        "consumers": len(interests.consumers),
        "acyclic": safety.acyclic,
        "pairwise_safe": safety.pairwise_safe,
        "witness": None
        if witness is None
        else {
            "logs": list(witness.logs),
            "consumers": list(witness.consumers),
            "sentence": witness.sentence,
        },
        "least_change": safety.least_change,
    }


@contextmanager
def progress() -> Iterator[PlanProgress]:
    """Show a progress bar with the gap on stderr; show nothing if stderr is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _sentence, _gap: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("planning", total=1.0)

        def update(sentence: str, gap: float, /) -> None:
            words = f"{sentence} · gap {gap:.1%}"
            bar.update(task, description=words, completed=1.0 - gap)

        yield update
