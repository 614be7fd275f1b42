"""`amcast local`: a real Kafka cluster on this machine, without Docker.

stdout carries the bootstrap address, the status or the log; stderr reports progress.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from multicast.cli.options import WAIT_RANGE
from multicast.errors import ClusterUnreachable, UsageError
from multicast.local.cluster import DEFAULT_DIRECTORY, DEFAULT_VERSION, ClusterStatus, LocalCluster
from multicast.local.installation import install
from multicast.local.jars import versions
from multicast.local.secure import add_user, client_of, grant, settings_of
from topology.output import Output, OutputOption

app = typer.Typer(name="local", no_args_is_help=True, add_completion=False)

Directory = Annotated[
    Path,
    typer.Option(
        "--dir",
        envvar="AMCAST_LOCAL_DIR",
        help="The folder of the cluster's data, logs and cluster.json.",
        file_okay=False,
    ),
]


def _say(text: str) -> None:
    typer.echo(text, err=True)


@app.callback()
def local() -> None:
    """Run a real Kafka cluster on this machine (KRaft, loopback only, no Docker)."""
    # kafka-python logs every failed attempt to connect; the command reports the result.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)


def _cluster(directory: Path) -> LocalCluster:
    return LocalCluster(directory, outlives=True, progress=_say)


@app.command()
def up(
    *,
    directory: Directory = DEFAULT_DIRECTORY,
    brokers: Annotated[
        int | None,
        typer.Option(help="1 or 3. With 3, every topic is replicated, and one broker may fail."),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            envvar="AMCAST_KAFKA_VERSION",
            help=f"Kafka's version: {', '.join(versions())}; for a new cluster {DEFAULT_VERSION}.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Broker 1's port; the others take the next ones. Default: free ports.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            help="Seconds to wait for the brokers, not counting the download.",
            **{**WAIT_RANGE, "min": 1},
        ),
    ] = 60.0,
    secure: Annotated[
        bool, typer.Option("--secure", help="A new cluster with TLS, passwords and rights.")
    ] = False,
) -> None:
    """Start the cluster, or its brokers that are down, and print its bootstrap address.

    The first start downloads Kafka's jars into the user's cache. Later starts keep the data. A
    cluster that is running stays as it is.
    """
    cluster = LocalCluster(
        directory,
        brokers=brokers,
        version=version,
        port=port,
        outlives=True,
        secure=secure,
        start_timeout_s=timeout,
        progress=_say,
    )
    started = cluster.start()
    if not started:
        _say(f"already running: Kafka {cluster.version} in {cluster.directory}")
    if client_of(cluster.directory):
        _say(f"settings of the operator, for your folder: {settings_of(cluster.directory)}")
    typer.echo(cluster.bootstrap)


@app.command()
def user(
    name: Annotated[str, typer.Argument(help="The user, as in User:NAME of the rights.")],
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    rights: Annotated[
        typer.FileText | None,
        typer.Option("--rights", help="What 'amcast generate acls' printed; -: from stdin."),
    ] = None,
) -> None:
    """Let a user sign in to a cluster of --secure; prints the file of his settings.

    He gets a new password, and these rights.
    """
    cluster = _cluster(directory)
    if not client_of(cluster.directory):
        raise UsageError(f"the cluster in {cluster.directory} is not secure: up --secure makes one")
    file = add_user(cluster.directory, cluster.bootstrap, name)
    if rights is not None:
        grant(cluster.directory, install(cluster.version, progress=_say), rights)
    typer.echo(file)


@app.command()
def status(directory: Directory = DEFAULT_DIRECTORY, output: OutputOption = Output.TABLE) -> None:
    """Show the cluster and its brokers; exit code 4 unless all brokers run and are registered."""
    cluster = _cluster(directory).status()
    if output is Output.JSON:
        typer.echo(json.dumps(_document(cluster), indent=2))
    else:
        _print_table(cluster)
    if cluster.state != "running":
        raise ClusterUnreachable(f"the cluster in {cluster.directory} is {cluster.state}")


@app.command()
def down(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    wipe: Annotated[
        bool, typer.Option("--wipe", help="Also delete the data: everything that `up` created.")
    ] = False,
) -> None:
    """Stop all brokers of the cluster. The data is kept unless --wipe is given."""
    cluster = _cluster(directory)
    stopped = cluster.stop()
    what = f"{len(stopped)} broker(s) stopped" if stopped else "not running"
    if wipe and cluster.status().state != "absent":
        cluster.wipe()
        what += ", data removed"
    _say(f"{what}: {cluster.directory}")


def _document(status: ClusterStatus) -> dict[str, object]:
    brokers = [dataclasses.asdict(broker) | {"log": str(broker.log)} for broker in status.brokers]
    return {
        "schema_version": 1,
        **dataclasses.asdict(status),
        "directory": str(status.directory),
        "brokers": brokers,
    }


def _print_table(status: ClusterStatus) -> None:
    if status.state == "absent":
        return
    typer.echo(f"Kafka {status.version}, {status.state}, cluster {status.cluster_id}")
    for each in status.brokers:
        process = "" if each.pid is None else f", process {each.pid}"
        typer.echo(f"broker {each.broker_id} at {each.address}: {each.state}{process}; {each.log}")
