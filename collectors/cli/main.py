"""`amcast collectors …`: run collectors, and see how they fare."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from multicast.cli.options import Bootstrap, DriverName, Topic
from multicast.control import ControlReader, ControlState, log_partition, stream_partition
from multicast.drivers import open_driver
from multicast.drivers.protocol import Driver
from multicast.errors import TimedOut, UsageError
from multicast.order import OrderStream
from multicast.settings import Settings, settings
from topology.output import Output, OutputOption
from topology.tree import Plan

app = typer.Typer(no_args_is_help=True, help="Run collectors, and see how they fare.")
_READ_S = 10.0


@app.command()
def run(
    *,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", help="This collector, and no share of the others; may be repeated."),
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Stand by for --node: act while nobody else does.")
    ] = False,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    web_port: Annotated[
        int | None, typer.Option("--web-port", help="For /healthz and /status; 0: any free one.")
    ] = None,
    log_level: Annotated[
        str, typer.Option("--log-level", help="crit, error, warn, info or debug")
    ] = "warn",
) -> None:
    """Run collectors in this process until it is told to stop (SIGTERM, Ctrl-C).

    All processes without --node share out the running epoch's collectors, and move them when one
    of them dies or joins; each stands by for others' and takes over within a second. Any number of
    processes may run the same collectors at once. Prints the address of its web pages on stderr.
    """
    if standby and not node:
        raise UsageError("--standby goes with --node; without it all is shared out, standbys too")
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    os.environ.update(
        AMCAST_BOOTSTRAP=chosen.bootstrap,
        AMCAST_TOPIC=chosen.topic,
        AMCAST_DRIVER=chosen.driver,
        AMCAST_NODES=",".join(node or []),
        AMCAST_STANDBY="on" if standby else "",
    )
    if web_port is not None:
        os.environ["AMCAST_WEB_PORT"] = str(web_port)
    if node:
        with control_of(chosen.driver, chosen.bootstrap, dict(chosen.client), chosen.topic) as both:
            _, state = both
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
) -> None:
    """Say for every collector of the running epoch how far it has ordered its logs."""
    plan, told = _nodes(settings(bootstrap=bootstrap, topic=topic, driver=driver))
    if output is Output.JSON:
        document = {"schema_version": 1, "topic": plan.topic, "epoch": plan.epoch}
        typer.echo(json.dumps({**document, "collectors": told}))
        return
    table = Table(title=f"topic {plan.topic}, epoch {plan.epoch}")
    for column in ("collector", "parent", "records", "void", "lag", "state"):
        table.add_column(
            column, justify="right" if column in ("records", "void", "lag") else "left"
        )
    for row in told:
        table.add_row(
            row["collector"],
            row["parent"] or "",
            str(row["records"]),
            str(row["void"]),
            str(row["lag"]),
            row["state"],
        )
    Console().print(table)


@app.command()
def lag(
    *,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say for every log how many of its offsets have no place in the order yet."""
    plan, told = _nodes(settings(bootstrap=bootstrap, topic=topic, driver=driver))
    rows: dict[str, int] = {}
    for row in told:
        rows.update(row["lag_by_log"])
    if output is Output.JSON:
        total = sum(rows.values())
        document = {"schema_version": 1, "topic": plan.topic, "epoch": plan.epoch, "total": total}
        typer.echo(json.dumps({**document, "logs": rows}))
        return
    typer.echo(f"total {sum(rows.values())}")
    for name, behind in rows.items():
        typer.echo(f"{name} {behind}")


def _nodes(chosen: Settings) -> tuple[Plan, list[dict[str, Any]]]:
    """Describe every collector of the running epoch."""
    with control_of(chosen.driver, chosen.bootstrap, dict(chosen.client), chosen.topic) as both:
        opened, state = both
        plan = state.plan()
        return plan, [describe(opened, state, plan, node.name) for node in plan.collectors]


def describe(driver: Driver, state: ControlState, plan: Plan, name: str) -> dict[str, Any]:
    """Read one collector's stream to its end, and compare it with its logs."""
    at = stream_partition(plan, name)
    end = driver.last_stable_offsets([at])[at]
    stream = state.stream(plan.epoch, name, below=end)
    plan = stream.plan
    void = _read_to(driver, stream, end)
    own = plan.own_logs(name)
    ends = driver.last_stable_offsets([log_partition(plan.log(log)) for log in own])
    behind = {
        log: max(0, ends[log_partition(plan.log(log))] - stream.state.positions[plan.number(log)])
        for log in own
    }
    waits = sum(behind.values())
    return {
        "collector": name,
        "parent": plan.collector(name).parent,
        "records": stream.state.count,
        "void": void,
        "lag": waits,
        "state": "frozen" if stream.state.frozen else "behind" if waits else "up to date",
        "lag_by_log": behind,
    }


def _read_to(driver: Driver, stream: OrderStream, end: int) -> int:
    """Read a stream to an offset; give how many records did not count.

    Raises `TimedOut` where nothing more comes though something must.
    """
    at = stream_partition(stream.plan, stream.collector)
    reader = driver.reader({at: stream.offset_next})
    counted, read = stream.state.count, 0
    try:
        while stream.offset_next < end:
            moved = reader.poll(_READ_S)
            if not moved:
                raise TimedOut(
                    f"the stream of collector {stream.collector} could not be read beyond offset "
                    f"{stream.offset_next} of {end} within {_READ_S:g} s"
                )
            for fetched in moved:
                for record in fetched.records:
                    read += stream.read(record.offset, record.value) is not None
                stream.passed(fetched.position)
    finally:
        reader.close()
    return read - (stream.state.count - counted)


@contextmanager
def control_of(
    driver: str, bootstrap: str, client: dict[str, str], topic: str
) -> Iterator[tuple[Driver, ControlState]]:
    """Open a driver, and read the control topic to its end; a context manager."""
    opened = open_driver(driver, bootstrap, client)
    try:
        control = ControlReader(opened, topic)
        try:
            yield opened, control.refresh()
        finally:
            control.close()
    finally:
        opened.close()
