"""`amcast bench run` and `amcast bench compare`: measure against plain Kafka, compare results."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench.comparison import compare as comparing
from bench.comparison.run import run as measure
from bench.comparison.workload import BACKLOG, InvalidWorkload, Workload, load
from bench.harness.figures import spelled
from bench.harness.interrupts import end_at_signals
from multicast.errors import UsageError
from topology.files import (
    FileExists,
    is_written_in_place,
    refuse_existing_of,
    why_unreadable,
    write_text,
)
from topology.output import ForceOption, Output, OutputOption

app = typer.Typer(no_args_is_help=True, help="Measure against plain Kafka; compare measurements.")


def refuse_files(*files: Path | None, force: bool) -> None:
    """Raise `UsageError` if a file that a command is to write exists or cannot be written.

    With `force` a file may exist. A command calls this before it measures for minutes.
    """
    try:
        refuse_existing_of(files, force=force)
    except FileExists as error:
        raise UsageError(str(error)) from error
    for file in files:
        if file is None or is_written_in_place(file):
            continue
        if file.is_dir():
            raise UsageError(f"{file} is a directory")
        try:
            with TemporaryFile(dir=file.absolute().parent):
                pass
        except OSError as error:
            raise UsageError(f"{file} cannot be written: {error.strerror or error}") from error


@app.command()
def run(
    workload: Annotated[
        str, typer.Argument(help="A workload file, or the name of a packaged workload.")
    ],
    *,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", "-b", help="The cluster to measure on; default: a new one."),
    ] = None,
    brokers: Annotated[
        int, typer.Option("--brokers", help="Of a new cluster; topics are on all.", min=1, max=5)
    ] = 1,
    pairs: Annotated[
        int | None, typer.Option("--pairs", help="Rounds of each arm; default: the file's.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value, overrides the file; may be repeated."),
    ] = None,
    events: Annotated[
        bool,
        typer.Option(
            "--events",
            help="Clients write events for 'bench pipeline'; topics without payload are kept.",
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", readable=False, help="Write the JSON document here.")
    ] = None,
    force: ForceOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run a workload on a real broker, the arms in turns; print latencies, rates and ratios."""
    if bootstrap is not None and brokers > 1:
        raise UsageError("--brokers is for a new cluster; --bootstrap names another")
    settings = list(changes or [])
    if pairs is not None:
        settings.append(f"pairs={pairs}")
    refuse_files(out, force=force)
    end_at_signals()
    chosen = read_workload(workload, settings)
    name = _events_name(chosen, bootstrap) if events else None
    say = Console(stderr=True)
    document = measure(
        chosen,
        bootstrap=bootstrap,
        brokers=brokers,
        events=name,
        progress=lambda what: say.print(f"{what} …", highlight=False),
    )
    if name is not None:
        say.print(f"now: amcast bench pipeline {name} -b {bootstrap}", highlight=False)
    text = json.dumps(document, indent=1)
    if out is not None:
        try:
            write_text(out, text + "\n", force=True)
        except OSError as error:
            raise UsageError(f"{out}: {error.strerror or error}") from error
    if output is Output.JSON:
        typer.echo(text)
    else:
        _print_result(document)


@app.command()
def compare(
    old: Annotated[Path, typer.Argument(help="The result to compare with.")],
    new: Annotated[Path, typer.Argument(help="The result to judge.")],
    *,
    max_regression: Annotated[
        float, typer.Option("--max-regression", help="How many times worse a figure may be.")
    ] = 1.25,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare two results of one workload. Exit code 1: a figure regressed too far."""
    try:
        rows = comparing.compare(read_json(old), read_json(new), max_regression=max_regression)
    except comparing.Incomparable as error:
        raise UsageError(f"{old} and {new}: {error}") from error
    worse = [row for row in rows if row.regression]
    if output is Output.JSON:
        document = {"schema_version": 1, "max_regression": max_regression}
        typer.echo(json.dumps({**document, "rows": [asdict(row) for row in rows]}))
    else:
        table = Table()
        for column in ("arm", "figure", "old", "new", "times worse", ""):
            numeric = column in ("old", "new", "times worse")
            table.add_column(column, justify="right" if numeric else "left")
        for row in rows:
            noise = "in the spread" if row.change > max_regression else "ok"
            verdict = "REGRESSION" if row.regression else noise
            change = f"{row.change:.3f}"
            table.add_row(row.arm, row.name, f"{row.old:.4g}", f"{row.new:.4g}", change, verdict)
        Console(width=110).print(table)
    if worse:
        raise typer.Exit(1)


def _events_name(workload: Workload, bootstrap: str | None) -> str:
    """Name a run whose clients write events; raises `UsageError` if they would be of no use."""
    if bootstrap is None:
        raise UsageError(
            "--events needs --bootstrap: without it the broker ends with the run, and the events "
            "are lost"
        )
    if workload.load == BACKLOG:
        raise UsageError(
            "--events measures from the send time, and a backlog is sent before the measurement; "
            "choose another workload"
        )
    return f"{workload.name}-{datetime.now(UTC):%Y%m%d%H%M%S}"


def read_workload(name: str, changes: list[str]) -> Workload:
    """Read a workload file or a packaged workload, with changed settings; raises `UsageError`."""
    path = Path(name)
    try:
        if path.suffix == ".toml" or path.exists():
            text = path.read_text(encoding="utf-8-sig")
        else:
            folder = resources.files("bench").joinpath("workloads")
            known = sorted(
                file.name.removesuffix(".toml")
                for file in folder.iterdir()
                if file.name.endswith(".toml")
            )
            if name not in known:
                raise UsageError(f"there is no workload {name}; known: {', '.join(known)}")
            text = folder.joinpath(f"{name}.toml").read_text(encoding="utf-8")
        return load(text, name=name, changes=changes)
    except InvalidWorkload as error:
        raise UsageError(f"{name}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} cannot be read: {why_unreadable(error)}") from error


def read_json(file: Path) -> Any:
    """Read a file of JSON; raises `UsageError`."""
    try:
        return json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{file}: not JSON: {error}") from error


_COLUMNS = {
    "p50 ms": "aggregatedEndToEndLatency50pct",
    "p99 ms": "aggregatedEndToEndLatency99pct",
    "max ms": "aggregatedEndToEndLatencyMax",
    "ack p50": "aggregatedPublishLatency50pct",
    "late p50": "aggregatedPublishDelayLatency50pct",
    "sent/s": "aggregatedPublishRate",
    "delivered/s": "aggregatedConsumeRate",
    "delivered/CPU s": "aggregatedConsumeRatePerCpuSecond",
}
_ROLES = ("producers", "consumers", "collectors", "brokers", "others")


def _print_result(document: dict[str, Any]) -> None:
    workload = document["workload"]
    load_ = workload["load"] if isinstance(workload["load"], str) else f"{workload['load']:g}/s"
    typer.echo(
        f"{workload['name']}: {workload['kind']} {workload['size']}, "
        f"{workload['message_bytes']} B, {load_}, "
        f"{workload['pairs']} pairs of {workload['messages']} messages, "
        f"{document['seconds']:g} s in all"
    )
    table = Table()
    table.add_column("arm")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for arm, figures in document["arms"].items():
        cells = (figures.get(key) for key in _COLUMNS.values())
        table.add_row(arm, *("" if cell is None else spelled(cell) for cell in cells))
    console = Console(width=120)
    console.print(table)
    for arm, figures in document["arms"].items():
        spent = [
            f"{role} {figures[f'aggregatedCpuSeconds.{role}']:.2f}"
            for role in _ROLES
            if figures.get(f"aggregatedCpuSeconds.{role}")
        ]
        typer.echo(f"CPU seconds per round, {arm}: {', '.join(spent)}")
    for arm, ratios in document["ratios"].items():
        for name, ratio in ratios.items():
            typer.echo(
                f"{arm} / {document['base']}  {name} {ratio['median']:.3f} "
                f"({ratio['least']:.3f} to {ratio['greatest']:.3f})"
            )
