"""`amcast verify`: judges the guarantees on a history, for people and for scripts.

stdout carries the verdicts, as a table or as one JSON document. Invalid input raises. Every verdict
is printed, also "not checked": no gap is silent. `properties.py` defines what is checked; this file
opens the files.

    exit code 0   nothing in the history contradicts a guarantee
              2   the input is invalid
              3   a guarantee is violated
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import IO, Annotated

import typer

from multicast.cli.options import Bootstrap, DriverName, Topic, partitions_of
from multicast.consuming.subscription import SubscriptionRequest
from multicast.drivers import open_driver
from multicast.errors import UsageError
from multicast.history import LINE_BYTES_MAX, History, HistoryBuilder, HistoryError, read
from multicast.properties import OrderViolation, Report, Verdict, check_all
from multicast.settings import settings
from multicast.verification.from_cluster import replayed
from topology.output import Output, OutputOption
from topology.tree import InvalidPlan, Plan

app = typer.Typer()
OtherProducers = Annotated[
    bool,
    typer.Option(
        "--other-producers", help="Messages may come from producers that wrote no history."
    ),
]

STDIN = Path("-")
INDENT = "    "
_GZIP = b"\x1f"  # the first byte of gzip, with which no line of a history begins
_COLOURS = {
    "holds": typer.colors.GREEN,
    "violated": typer.colors.RED,
    "not checked": typer.colors.YELLOW,
}


@app.command()
def verify(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help="Histories of one run, as send --history and receive --history write them "
            "(also gzipped); - for stdin.",
            show_default=False,
        ),
    ] = None,
    *,
    plan: Annotated[
        list[Path] | None,
        typer.Option(
            help="A plan file: it gives interests, and says who may work on which log. "
            "Repeat the option for each epoch.",
            show_default=False,
        ),
    ] = None,
    other_producers: OtherProducers = False,
    output: OutputOption = Output.TABLE,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", "-n", help="Replay this consumer from the cluster; repeatable."),
    ] = None,
    interest: Annotated[
        list[str] | None,
        typer.Option("--interest", "-i", help="Replay these partitions (P1,P3); repeatable."),
    ] = None,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
) -> None:
    """Check every guarantee on a history; exit code 3 if one is violated.

    The history is read from FILES that 'amcast send' and 'amcast receive' have written with
    --history; or, with --name and --interest, replayed from a running system. The whole history is
    held in memory, without payloads.
    """
    consumers = [SubscriptionRequest.of(consumer, None) for consumer in name or ()]
    consumers += [SubscriptionRequest.of(None, partitions_of(each)) for each in interest or ()]
    if bool(files) == bool(consumers):
        raise UsageError(
            "name the histories to verify (- for stdin), or consumers of a running system "
            "(--name, --interest)"
        )
    if files:
        history = history_of_files(files, plans=plan or (), other_producers=other_producers)
    else:
        chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
        with closing(open_driver(chosen.driver, chosen.bootstrap, chosen.client)) as opened:
            history = replayed(opened, chosen.topic, consumers)
    judge(history, output)


def history_of_files(
    files: Sequence[Path], *, plans: Sequence[Path], other_producers: bool
) -> History:
    """Read the histories of one run; every file once.

    Raises `HistoryError` ("file:line: ...") for a malformed line or an unreadable file,
    `UsageError` for a file that is named twice or a file that is not a plan.
    """
    builder = HistoryBuilder()
    seen: set[Path] = set()
    for path in files:
        resolved = path if path == STDIN else path.resolve()
        if resolved in seen:
            raise UsageError(f"{path} is named twice; name each history once")
        seen.add(resolved)
        _read_file(path, builder)
    return builder.history(
        plans=[_read_plan(path) for path in plans], other_producers=other_producers
    )


def judge(history: History, output: Output) -> None:
    """Print the verdicts on a history; exit with code 3 if one is "violated"."""
    report = check_all(history)
    if output is Output.JSON:
        typer.echo(json.dumps(report.to_json()))
    else:
        for verdict in report.verdicts:
            _print_verdict(verdict)
        _print_counts(report)
    if report.violations:
        raise typer.Exit(OrderViolation.exit_code)


def _print_verdict(verdict: Verdict) -> None:
    more = verdict.witness.kind if verdict.witness else verdict.reason or verdict.note
    word = f"{verdict.verdict:<12}" if more else verdict.verdict
    line = f"{verdict.guarantee:<22} {typer.style(word, fg=_COLOURS[verdict.verdict])} {more}"
    typer.echo(line.rstrip())
    if verdict.witness:
        for sentence in verdict.witness.sentences:
            typer.echo(f"{INDENT}{sentence}")


def _print_counts(report: Report) -> None:
    unchecked = sum(1 for verdict in report.verdicts if verdict.verdict == "not checked")
    typer.echo(
        f"{report.deliveries} deliveries of {report.messages} messages in {report.readings} "
        f"readings of {report.consumers} consumers; guarantees violated: {len(report.violations)}, "
        f"not checked: {unchecked}"
    )


def _read_file(path: Path, builder: HistoryBuilder) -> None:
    try:
        if path == STDIN:
            _read_lines(sys.stdin.buffer, "stdin", builder)
            return
        with path.open("rb") as raw:
            lines = gzip.GzipFile(fileobj=raw) if raw.peek(1)[:1] == _GZIP else raw
            _read_lines(lines, str(path), builder)
    except (OSError, EOFError, zlib.error) as wrong:
        why = wrong.strerror if isinstance(wrong, OSError) and wrong.strerror else wrong
        raise HistoryError(f"{path} cannot be read: {why}") from wrong


def _read_lines(lines: IO[bytes] | gzip.GzipFile, source: str, builder: HistoryBuilder) -> None:
    # A line without a line feed must not fill the memory.
    read(iter(partial(lines.readline, LINE_BYTES_MAX + 1), b""), builder, source=source)


def _read_plan(path: Path) -> Plan:
    try:
        return Plan.parse(path.read_bytes())
    except OSError as wrong:
        raise UsageError(f"{path} cannot be read: {wrong.strerror or wrong}") from wrong
    except InvalidPlan as wrong:
        raise UsageError(f"{path} is not a plan: {wrong}") from wrong
