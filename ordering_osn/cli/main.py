"""`amcast osn …`: run a node of the ordering service, and send requests to one.

Data goes to stdout, messages to stderr. In files and pipes envelopes and blocks are length-prefixed
frames (`length_prefixed.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from multicast.cli.options import Bootstrap, DriverName, Topic
from multicast.errors import UsageError
from multicast.settings import settings
from ordering_osn.api.grpc_client import ANSWER_S, NodeClient, host_and_port
from ordering_osn.api.tls_files import FollowedFiles, TlsFiles
from ordering_osn.cli import bundles, deliver, ledger
from ordering_osn.cli.ledger import Folder
from ordering_osn.cli.length_prefixed import check_frames
from ordering_osn.cli.options import (
    Authority,
    Certificate,
    Key,
    Msp,
    MspID,
    Node,
    ServerName,
    Timeout,
    client_tls,
)
from ordering_osn.cli.submission import EnvelopeRefused, Submission
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.identity import SigningIdentity
from ordering_osn.node.joining import join as join_chain
from ordering_osn.node.joining import warn_of_type
from ordering_osn.node.serving import Options, serve
from topology.output import Output, OutputOption

app = typer.Typer(
    no_args_is_help=True, help="Order transactions into blocks, as Hyperledger Fabric's orderer."
)
app.registered_commands += deliver.app.registered_commands
app.registered_commands += ledger.app.registered_commands
app.registered_commands += bundles.app.registered_commands


Listen = Annotated[
    str, typer.Option("--listen", help="Clients' address, HOST:PORT; port 0: any free port.")
]
OperationsAddress = Annotated[
    str, typer.Option("--operations", help="/healthz, /metrics, /logspec: HOST:PORT, or 'off'.")
]
ClientAuthority = Annotated[
    list[Path] | None,
    typer.Option(
        "--client-ca",
        help="Require client certificates: of this CA (PEM; repeatable), or of a TLS CA in a "
        "channel's config.",
    ),
]
OperationsTls = Annotated[
    bool,
    typer.Option(
        "--operations-tls",
        help="Serve operations over TLS, with the same files; metrics then need a --client-ca.",
    ),
]
OperationsAuthority = Annotated[
    list[Path] | None,
    typer.Option(
        "--operations-ca",
        help="Operators' CA (PEM): only its clients get metrics and set log levels; repeatable.",
    ),
]
Peers = Annotated[
    list[str] | None,
    typer.Option("--peer", help="Another node, for the blocks that it has; repeatable."),
]
AcceptLoss = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-loss",
        help="Once: a channel that goes on though Kafka lost what its blocks hold; repeatable.",
    ),
]
FsyncMode = Annotated[
    Literal["block", "never"],
    typer.Option(
        "--fsync", help="block: written blocks survive power cuts; never: process crashes only."
    ),
]
LogLevel = Annotated[
    Literal["error", "warning", "info", "debug"],
    typer.Option("--log-level", help="The least weight of what it logs."),
]


@app.command()
def run(
    *,
    folder: Folder,
    msp: Msp,
    msp_id: MspID,
    listen: Listen = "127.0.0.1:7050",
    operations: OperationsAddress = "127.0.0.1:8443",
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    client_ca: ClientAuthority = None,
    operations_tls: OperationsTls = False,
    operations_ca: OperationsAuthority = None,
    peer: Peers = None,
    tls_ca: Authority = None,
    tls_name: ServerName = "",
    fsync: FsyncMode = "block",
    accept_loss: AcceptLoss = None,
    log_level: LogLevel = "warning",
) -> None:
    """Run a node until SIGTERM or Ctrl-C.

    The node runs all channels of its folder: those added with 'amcast osn join', also while it
    runs, and those that a system channel creates. Each channel is the partition of the topic with
    the same name. Prints its addresses on stderr. Files of keys and certificates that change are
    read anew, at once after SIGHUP.
    """
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    if log_level != "debug":  # Kafka clients log each attempt to reach a broker; we log the result
        for client in ("kafka", "amcast.librdkafka"):
            logging.getLogger(client).setLevel(logging.CRITICAL)
    server_tls = operations_files = None
    follow = partial(_follow, tls_cert, tls_key)
    if tls_cert is not None or tls_key is not None:
        server_tls = follow("--tls-cert", client_ca or ())
        if operations_tls:
            operations_files = follow("--operations-tls", operations_ca or client_ca or ())
    elif client_ca or operations_tls:
        raise UsageError("--client-ca and --operations-tls need --tls-cert and --tls-key")
    if operations_ca and not operations_tls:
        raise UsageError("--operations-ca needs --operations-tls")
    for other in peer or ():
        host_and_port(other)
    options = Options(
        folder=folder,
        listen=host_and_port(listen),
        operations=None if operations == "off" else host_and_port(operations),
        signer=FollowedFiles(
            "--msp",
            [msp / "signcerts", msp / "keystore"],
            partial(SigningIdentity.load, msp, msp_id),
        ),
        tls=server_tls,
        operations_tls=operations_files,
        operators=bool(operations_ca),
        peers=tuple(peer or ()),
        peers_tls=follow("--tls-ca", tls_ca) if tls_ca else None,
        peers_name=tls_name,
        fsync=fsync,
        accept_loss=tuple(accept_loss or ()),
    )
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    asyncio.run(serve(chosen, options, partial(typer.echo, err=True)))


@app.command()
def join(
    *,
    genesis_block: Annotated[
        Path,
        typer.Option("--genesis-block", "-b", help="The genesis block, as configtxgen makes it."),
    ],
    folder: Folder,
    output: OutputOption = Output.TABLE,
) -> None:
    """Add a channel to a node's folder; again with the same genesis block does nothing.

    A running node starts the channel within a second. The topic must have a partition with the
    channel's name. Exits with 5 where the folder has the channel with another genesis block.
    """
    try:
        raw = genesis_block.read_bytes()
    except OSError as error:
        raise UsageError(f"{genesis_block}: {error.strerror or error}") from error
    name = join_chain(folder, raw)
    warn_of_type(ChannelConfig.from_block(raw))
    if output is Output.JSON:
        typer.echo(json.dumps({"schema_version": 1, "channel": name, "folder": str(folder)}))
    else:
        typer.echo(f"joined {name}")


@app.command()
def broadcast(
    file: Annotated[
        Path | None, typer.Argument(help="Length-prefixed envelopes; default: stdin.")
    ] = None,
    *,
    node: Node,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until each is in a block; needs --msp, --msp-id.")
    ] = False,
    msp: Annotated[
        Path | None, typer.Option("--msp", help="With --wait: the signer of the request.")
    ] = None,
    msp_id: Annotated[str, typer.Option("--msp-id", help="With --wait: the signer's MSP ID.")] = "",
    tls_ca: Authority = None,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    tls_name: ServerName = "",
    timeout: Timeout = ANSWER_S,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send signed envelopes to a node, which orders them.

    With --wait prints a JSON line for each: its transaction ID, block and index. Stops at the first
    envelope that is refused (exit code 1), and at the first that is in no block within --timeout
    (exit code 4): that one may still be ordered later.
    """
    check_frames(file)  # before the node is contacted
    tls = client_tls(tls_ca, tls_cert, tls_key)
    asker = None
    if wait:
        if msp is None:
            raise UsageError("--wait needs --msp and --msp-id of a reader of the channel")
        asker = SigningIdentity.load(msp, msp_id)
    client = NodeClient(node, tls=tls, name=tls_name)
    tls_hash = tls.tls_hash if tls else b""
    submission = Submission(client, file, asker=asker, tls_hash=tls_hash, timeout_s=timeout)
    sent, refused = asyncio.run(submission.run())
    if output is Output.JSON and asker is None:
        typer.echo(json.dumps({"schema_version": 1, "ordered": sent, "refused": refused}))
    elif asker is None:
        typer.echo(f"{sent} accepted", err=True)
    if refused is not None:
        raise EnvelopeRefused(
            f"envelope {sent} was answered {refused['status']}: {refused['info']}"
        )


def _follow(
    certificate: Path | None, key: Path | None, option: str, authorities: Sequence[Path]
) -> FollowedFiles[TlsFiles]:
    paths = [path for path in (certificate, key, *authorities) if path is not None]
    return FollowedFiles(option, paths, partial(TlsFiles.read, certificate, key, authorities))
