"""`amcast bench pipeline`: compute figures of runs by Spark, and check their order independently.

Exit codes: 0 all holds, 1 a message was lost, 2 wrong input or Spark failed, 3 the order was
violated, 4 Kafka did not answer.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack, closing
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench.harness.interrupts import end_at_signals
from bench.pipeline.inputs import check_events, check_settings, claim, is_url
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin
from multicast.errors import AmcastError, UsageError
from topology.output import Output, OutputOption

if TYPE_CHECKING:  # it needs pyspark, which may be missing
    from bench.pipeline.sources import RunSource

_EXIT_VIOLATED = 3
app = typer.Typer()


@app.command()
def pipeline(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="Names of runs, as 'bench run --events' printed them."
        ),
    ],
    *,
    bootstrap: Annotated[
        str, typer.Option("--bootstrap", "-b", envvar="AMCAST_BOOTSTRAP", help="The cluster.")
    ],
    out: Annotated[
        str | None,
        typer.Option("--out", help="A folder or URL to keep the Parquet files in; default: none."),
    ] = None,
    master: Annotated[
        str, typer.Option("--master", help="Spark's master: local threads, or a cluster's URL.")
    ] = "local[2]",
    conf: Annotated[
        list[str] | None, typer.Option("--conf", help="A Spark setting, key=value; repeatable.")
    ] = None,
    kafka: Annotated[
        list[str] | None,
        typer.Option("--kafka", help="A Kafka client setting, key=value; repeatable."),
    ] = None,
    remove_topics: Annotated[
        bool, typer.Option("--remove-topics", help="Delete the runs' topics if all holds.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compute latencies, rates and losses of runs by Spark, and check their order."""
    _refuse_without_spark()
    from bench.pipeline.report import report  # noqa: PLC0415 - pyspark may be missing
    from bench.pipeline.session import spark  # noqa: PLC0415
    from bench.pipeline.sources import RunSource, arms  # noqa: PLC0415

    source = RunSource(bootstrap, tuple(runs), _pairs("--kafka", kafka))
    settings = _pairs("--conf", conf)
    _check(source)
    if out is not None and not is_url(out):
        claim(out)
    end_at_signals()
    with ExitStack() as stack:
        if out is None:
            out = stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-pipeline-"))
            kept = False
        else:
            out, kept = out if is_url(out) else str(Path(out).absolute()), True
        session = stack.enter_context(spark(master=master, settings=settings, progress=_say))
        document = report(session, source, out, progress=_say)
        topics = {arm.topic for arm in arms(session, source)} if remove_topics else set()
    if not kept:
        del document["out"]
    if output is Output.JSON:
        typer.echo(json.dumps(document, indent=1))
    else:
        _print(document)
    _end_if_wrong(document)
    if remove_topics:
        _remove(bootstrap, sorted(topics), runs)


def _check(source: RunSource) -> None:
    """Raise where the runs cannot be read; fails at once, while Spark retries for minutes."""
    check_settings(source.options)
    if source.options:  # they have Java's names, which our clients do not know
        return
    with (
        Admin(source.bootstrap) as admin,
        closing(open_driver("kafka-python", source.bootstrap)) as driver,
    ):
        check_events(admin, driver, source.runs)


def _end_if_wrong(document: dict[str, Any]) -> None:
    if not document["order"]["holds"]:
        raise typer.Exit(_EXIT_VIOLATED)
    if document["lost"]:
        raise typer.Exit(AmcastError.exit_code)


def _say(what: str) -> None:
    Console(stderr=True).print(f"{what} …", highlight=False)


def _remove(bootstrap: str, topics: list[str], runs: list[str]) -> None:
    ends = ("", ".groups", ".Msg-TO", ".topology", ".collectors", ".bells")
    with Admin(bootstrap) as admin:
        admin.delete_topics([topic + end for topic in topics for end in ends])
        admin.delete_topics([f"{run}.events" for run in runs])


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    settings = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{option} {text!r} is not a setting; write key=value")
        settings[key] = value
    return settings


_QUANTILES = ("p50_ms", "p99_ms", "p999_ms", "max_ms")


def _print(document: dict[str, Any]) -> None:
    console = Console(width=120)
    sides = ("run", "arm", "topology", "r", "size")
    table = Table(*sides, "latency")
    for column in ("count", *_QUANTILES):
        table.add_column(column, justify="right")
    for row in document["latencies"]:
        cells = [str(row[side]) for side in sides]
        figures = [f"{row[name]:.3f}" for name in _QUANTILES]
        table.add_row(*cells, row["measure"], str(row["count"]), *figures)
    console.print(table)
    for row in document["rates"]:
        where = " ".join(str(row[side]) for side in sides)
        rate = row["messages_per_s"]
        shown = "-" if rate is None else f"{rate:,.0f}/s, {row['megabytes_per_s']:,.1f} MB/s"
        typer.echo(f"{row['measure']} {where} B: {shown}")
    for row in document["losses"]:
        typer.echo(
            f"lost {row['run']} {row['arm']} {row['consumer']}: {row['lost']} of {row['due']}"
        )
    order = document["order"]
    void = ", ".join(f"{count} {why}" for why, count in order["void"].items()) or "none"
    typer.echo(
        f"order: {order['deliveries']} deliveries, {order['inversions']} inversions, "
        f"{order['unplaced']} without a place, {order['disagreements']} disagreements; "
        f"{order['runs']} runs, void records: {void}"
    )
    for witness in order["witnesses"]:
        typer.echo(f"VIOLATED {witness}")
    if not document["complete"]:
        typer.echo(
            "a run is not complete: missing messages may still arrive, and do not count as lost"
        )


def _refuse_without_spark() -> None:
    try:
        import_module("pyspark.sql")
    except ModuleNotFoundError as error:
        raise UsageError(
            "this command needs Spark, which is not installed: pip install 'amcast[spark]'"
        ) from error
