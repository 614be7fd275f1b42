"""`amcast bench suite` and `report`: measure what the targets need; report it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.cli import refuse_files
from bench.harness.interrupts import end_at_signals
from bench.report import targets
from bench.report.data import collect, described
from bench.report.report import write_report
from bench.report.suite import chosen, run_suite
from multicast.errors import UsageError
from topology.files import write_text
from topology.output import ForceOption, Output, OutputOption

app = typer.Typer()


def _say(what: str) -> None:
    Console(stderr=True).print(what, highlight=False, markup=False)


@app.command()
def suite(
    *,
    out: Annotated[
        Path, typer.Option("--out", readable=False, help="The folder for the documents.")
    ],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Fewer workloads, rounds and messages, and no small benchmark: two minutes.",
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="A workload's name or a pattern (tree-*); may be repeated."),
    ] = None,
) -> None:
    """Run all workloads that the targets need on a new broker; write a document for each.

    Existing documents are kept, so an interrupted suite continues. Exit code 1: a workload failed;
    its document holds the error, and the next run of the suite repeats it.
    """
    entries, small = chosen(list(only or []), quick=quick)
    if not entries and not small:
        suite_text = "a quick suite" if quick else "the suite"
        raise UsageError(f"--only {', '.join(only or [])} names no workload of {suite_text}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{out}: {error.strerror or error}") from error
    end_at_signals()
    failed = run_suite(entries, small, out, quick=quick, progress=_say)
    if failed:
        _say(f"{len(failed)} of {len(entries) + len(small)} failed: {', '.join(failed)}")
        raise typer.Exit(1)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Documents, or folders of documents.")],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", readable=False, help="Write the HTML page here.")
    ] = None,
    force: ForceOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Judge a run by the targets; draw its plots into one HTML page that needs no other file."""
    refuse_files(out, force=force)
    documents = collect(runs)
    judged = targets.judge(documents)
    if out is not None:
        try:
            write_text(out, write_report(documents, judged), force=True)
        except OSError as error:
            raise UsageError(f"{out}: {error.strerror or error}") from error
    if output is Output.JSON:
        typer.echo(
            json.dumps(
                {"schema_version": 1, "marks": [described(entry) for entry in judged]}, indent=1
            )
        )
        return
    table = Table()
    for column in ("target", "required", "measured", "verdict"):
        table.add_column(column, overflow="fold")
    row = ""
    for entry in judged:
        if entry.row != row:
            row = entry.row
            table.add_section()
            table.add_row(f"[bold]{row}[/bold]")
        cells = described(entry)
        table.add_row(cells["mark"], cells["asked"], cells["said"], cells["verdict"])
    Console(width=130).print(table)
