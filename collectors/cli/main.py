"""`amcast collectors`: run collectors, and show how far they have ordered their logs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from collectors.cli.cluster import control_of
from collectors.cli.consumers import (
    CONSUMER_COLUMNS,
    consumer_documents,
    consumer_row,
    consumers_of,
)
from collectors.core.epoch_change import losses_of
from collectors.doctor.facts import GroupFacts
from collectors.doctor.streams import now_ms, stream_records
from collectors.live.observer import observe
from collectors.reconfiguration.status_pages import (
    ENTRY_KINDS,
    CollectorCounts,
    ReportedCounts,
    reported_counts,
)
from multicast.cli.options import WAIT_RANGE, Bootstrap, DriverName, Topic
from multicast.control import ControlState, log_partition, stream_partition
from multicast.drivers.protocol import Driver
from multicast.errors import TimedOut, UsageError
from multicast.order.rule import NotCounted
from multicast.settings import Settings, settings
from topology.files import printable
from topology.output import Output, OutputOption
from topology.tree import Plan

app = typer.Typer(
    no_args_is_help=True,
    help="Run collectors, the processes that order messages, and show how far they are.",
)
_WIDTH_COLUMNS = 100  # of the table at least: a narrower one would cut off numbers
_WAIT_S = 60.0  # forty times what a deployment of 200 collectors takes (docs/operating.md)
_NUMBERS = ("records", "void", "lag")  # columns of `status`
Timeout = Annotated[
    float | None, typer.Option("--timeout", help="With --wait: seconds to wait.", **WAIT_RANGE)
]


@app.command()
def run(
    *,
    node: Annotated[
        list[str] | None, typer.Option("--node", help="Run only this collector; may be repeated.")
    ] = None,
    standby: Annotated[
        bool,
        typer.Option("--standby", help="Be a standby for --node: append while nobody else does."),
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Also read as every consumer of the plan, and check that."),
    ] = False,
    materialize: Annotated[
        list[str] | None,
        typer.Option(
            "--materialize", help="Also copy a consumer's messages: C1=TOPIC; repeatable."
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    web_port: Annotated[
        int | None, typer.Option("--web-port", help="Port of its pages [6066]; 0: any free.")
    ] = None,
    log_level: Annotated[
        Literal["crit", "error", "warn", "info", "debug"],
        typer.Option("--log-level", help="The least weight of what it logs to stderr."),
    ] = "warn",
) -> None:
    """Run collectors in this process until SIGTERM or Ctrl-C.

    All processes without --node share the running epoch's collectors among themselves, and share
    them again when a process joins or dies. Each is also a standby for collectors of the others,
    and takes over within a second. Several processes may run the same collector at once. Prints the
    address of its web pages to stderr.
    """
    if standby and not node:
        raise UsageError(
            "--standby goes with --node: name the collectors to stand by for; without --node the "
            "processes also share the standbys among themselves"
        )
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    os.environ.update(
        AMCAST_BOOTSTRAP=chosen.bootstrap,
        AMCAST_TOPIC=chosen.topic,
        AMCAST_DRIVER=chosen.driver,
        AMCAST_NODES=",".join(node or []),
        AMCAST_STANDBY="on" if standby else "",
        AMCAST_CHECK="on" if check else "",
        AMCAST_MATERIALIZE=",".join(materialize or []),
    )
    if web_port is not None:
        os.environ["AMCAST_WEB_PORT"] = str(web_port)
    if node:
        with control_of(chosen) as (_, state):
            for name in node:
                if not state.plan().has_collector(name):
                    raise UsageError(
                        f"epoch {state.epoch} of topic {chosen.topic} has no collector {name}"
                    )
    # The worker reads its settings from the environment when it is imported.
    from collectors.app import Worker, web_address  # noqa: PLC0415
    from collectors.app import app as worker_app  # noqa: PLC0415

    worker = Worker(worker_app, loglevel=log_level, quiet=True)
    sys.stderr.write(f"collectors of topic {chosen.topic}: http://{web_address()}/status\n")
    worker.execute_from_commandline()


@app.command()
def status(
    *,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    output: OutputOption = Output.TABLE,
    wait: Annotated[
        Literal["healthy"] | None, typer.Option("--wait", help="Wait until every collector is up.")
    ] = None,
    timeout: Timeout = None,
) -> None:
    """Show for each collector of the running epoch how far it has ordered its logs.

    "records", "void" and "lag" are read from the order itself; "lag" counts the stored messages
    that its order lacks. The entries appended, passed on, read and dropped are those that the
    process which runs the collector has counted since it started; "-" where it does not answer.
    "silent" means that nothing waits, and no process answers for the collector: perhaps none runs.
    "genuine" is the share of entries handled for an addressee. Below are the consumers: the
    messages that the last commit of each does not cover, and for how long it has stood.

    --wait healthy exits with 4 if a collector is not up after --timeout (60 s): its status page
    does not answer, more than a second of work waits, or a transaction holds up a log.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    if wait is not None:
        _wait_healthy(chosen, output, _WAIT_S if timeout is None else timeout)
        return
    if timeout is not None:
        raise UsageError("--timeout goes with --wait: without it nothing is waited for")
    plan, rows, counted, (consumers, unseen) = _describe_all(chosen)
    for row in rows:
        counts = counted.counts.get(row["collector"])
        row.update(_entries(counts))
        if counts is None and row["state"] == "up to date":
            row["state"] = "silent"
    if output is Output.JSON:
        document = {"schema_version": 1, "topic": plan.topic, "epoch": plan.epoch}
        missing = [*counted.missing, *unseen]
        document |= {
            "collectors": rows,
            "consumers": consumer_documents(consumers),
            "not_counted": missing,
        }
        typer.echo(json.dumps(document))
        return
    _show(plan, rows, consumers)
    losses = {log: first for row in rows for log, first in row["lost"].items()}
    lost = [
        f"log {log} has lost its messages from offset {first} on, and nobody delivers it from "
        f"there on; 'amcast topology recover' says more"
        for log, first in losses.items()
    ]
    for sentence in (*counted.missing, *unseen, *lost):
        sys.stderr.write(f"{sentence}\n")


def _show(plan: Plan, rows: list[dict[str, Any]], consumers: Iterable[GroupFacts]) -> None:
    """Show a table of collectors, and one of consumers if there are any."""
    title = f"topic {plan.topic}, epoch {plan.epoch}"
    table = Table(title=title, box=None, pad_edge=False)
    for column in ("collector", "parent", *_NUMBERS, *ENTRY_KINDS, "genuine", "state"):
        is_text = column in ("collector", "parent", "state")
        table.add_column(column.replace("_", " "), justify="left" if is_text else "right")
    for row in rows:
        entries, share = row["entries"], row["genuineness"]
        table.add_row(
            row["collector"],
            row["parent"] or "",
            *(str(row[column]) for column in _NUMBERS),
            *("-" if entries is None else str(sum(entries[kind].values())) for kind in ENTRY_KINDS),
            "-" if share is None else f"{share:.1%}",
            row["state"],
        )
    console = Console(markup=False, emoji=False)
    console.width = max(console.width, _WIDTH_COLUMNS)
    console.print(table)
    table = Table(box=None, pad_edge=False)
    for column in CONSUMER_COLUMNS:
        table.add_column(column)
    for group in consumers:
        table.add_row(*(Text(printable(cell)) for cell in consumer_row(group, now_ms())))
    if consumers:
        console.print("", table)


def _wait_healthy(chosen: Settings, output: Output, timeout_s: float) -> None:
    """Wait until every collector of the running epoch is up; raises `TimedOut`, which says why."""
    deadline = time.monotonic() + timeout_s
    with closing(observe(chosen)) as observer:
        observer.first(timeout_s)
        while (unhealthy := observer.look(lambda picture: picture.unhealthy)) or observer.error:
            if not observer.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                states = "; ".join(f"{name} is {state}" for name, state in unhealthy.items())
                why = observer.error or states
                raise TimedOut(f"not all collectors are up after {timeout_s:g} s: {why}")
        plan = observer.look(lambda picture: picture.plan)
    names = [node.name for node in plan.collectors]
    if output is Output.JSON:
        head = {"schema_version": 1, "topic": plan.topic, "epoch": plan.epoch}
        typer.echo(json.dumps({**head, "healthy": True, "collectors": names}))
    else:
        typer.echo(f"epoch {plan.epoch}: all {len(names)} collectors up")


def _entries(counts: CollectorCounts | None) -> dict[str, Any]:
    """Give the part of a collector's row that its process has counted."""
    if counts is None:
        return {"counted_at": None, "entries": None, "genuineness": None}
    return {
        "counted_at": counts.page,
        "entries": {kind: dict(getattr(counts, kind)) for kind in ENTRY_KINDS},
        "genuineness": counts.genuineness,
    }


@app.command()
def lag(
    *,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show for each log how many of its offsets some collector's order lacks.

    It has not ordered them yet, or not relayed them from its parent.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    plan, rows, *_ = _describe_all(chosen, counted=False)
    lags: dict[str, int] = {}
    for row in rows:
        for log, waits in row["lag_by_log"].items():
            lags[log] = max(lags.get(log, 0), waits)
    if output is Output.JSON:
        total = sum(lags.values())
        document = {"schema_version": 1, "topic": plan.topic, "epoch": plan.epoch, "total": total}
        typer.echo(json.dumps({**document, "logs": lags}))
        return
    typer.echo(f"total {sum(lags.values())}")
    for name, behind in lags.items():
        typer.echo(f"{name} {behind}")


def _describe_all(
    chosen: Settings, *, counted: bool = True
) -> tuple[
    Plan, list[dict[str, Any]], ReportedCounts, tuple[tuple[GroupFacts, ...], tuple[str, ...]]
]:
    """Describe each collector of the running epoch; give what their processes have `counted`.

    Then consumers, too.
    """
    with control_of(chosen) as (opened, state):
        plan = state.plan()
        rows = [describe(opened, state, plan, node.name) for node in plan.collectors]
        if not counted:
            return plan, rows, ReportedCounts({}, ()), ((), ())
        return plan, rows, reported_counts(state), consumers_of(opened, state, chosen)


def describe(driver: Driver, state: ControlState, plan: Plan, name: str) -> dict[str, Any]:
    """Read one collector's stream to its end, and compare it with the ends of its bag's logs.

    "lag_by_log" counts, of each log in the bag, the offsets that were stored before and are not in
    the stream: those that the collector has not ordered, or not relayed from its parent. "lost"
    gives the first lost offset of each log that has lost its end. Raises
    `TimedOut` if the stream cannot be read to its end.
    """
    logs = {log: log_partition(plan.log(log)) for log in plan.collector(name).bag}
    ends = driver.last_stable_offsets(list(logs.values()))
    partition = stream_partition(plan, name)
    end = driver.last_stable_offsets([partition])[partition]
    stream = state.stream(plan.epoch, name, below=end)
    plan = stream.plan
    read = stream_records(driver, stream, end)
    void = sum(isinstance(judged, NotCounted) for _, judged in read)
    behind = {
        log: max(0, ends[place] - stream.state.positions[plan.number(log)])
        for log, place in logs.items()
    }
    waits = sum(behind.values())
    losses = losses_of(state, plan.epoch, [stream])
    lost = {log: losses[log] for log in logs if log in losses}
    frozen = stream.state.frozen
    states = {"frozen": frozen, "lost": lost, "behind": waits, "up to date": True}
    return {
        "collector": name,
        "parent": plan.collector(name).parent,
        "records": stream.count,
        "void": void,
        "lag": waits,
        "state": next(state for state, is_so in states.items() if is_so),
        "lag_by_log": behind,
        "lost": lost,
    }
