"""`amcast osn …`: run a node of the ordering service, and speak to one.

stdout is data; stderr says what happens. Envelopes and blocks in files and pipes stand one after
the other, each behind its length: 4 bytes, the most significant first.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import typer

from multicast.cli.options import Bootstrap, DriverName, Topic
from multicast.errors import AmcastError, TimedOut, UsageError
from multicast.settings import settings
from ordering_osn.api.channels import Status
from ordering_osn.api.grpc_server import NodeClient, StatusAnswer, TlsFiles
from ordering_osn.api.receipt_request import receipt_envelope
from ordering_osn.api.seek import ENDLESS, Position, seek_envelope
from ordering_osn.chain.transactions import Malformed, channel_header, transaction_id
from ordering_osn.cli import ledger
from ordering_osn.cli.inspection import describe
from ordering_osn.cli.ledger import Channel, Folder
from ordering_osn.cli.length_prefixed import LENGTH_BYTES, check, pieces
from ordering_osn.identity import SigningIdentity
from ordering_osn.node.joining import join as join_chain
from ordering_osn.node.serving import Address, Options, serve
from topology.output import Output, OutputOption

app = typer.Typer(
    no_args_is_help=True, help="Order transactions into blocks, as Hyperledger Fabric's orderer."
)
app.registered_commands += ledger.app.registered_commands


_LOG_LEVELS = ("error", "warning", "info", "debug")


class Fsync(enum.StrEnum):
    """What a block survives once it is written."""

    BLOCK = "block"
    NEVER = "never"


Msp = Annotated[
    Path, typer.Option("--msp", help="Who signs: an MSP folder, as Fabric's tools make.")
]
MspID = Annotated[str, typer.Option("--msp-id", help="The organisation's MSP ID, as OrdererMSP.")]
Node = Annotated[str, typer.Option("--node", "-n", help="The node to speak to, HOST:PORT.")]
Authority = Annotated[
    list[Path] | None,
    typer.Option("--tls-ca", help="TLS: who signs the other side's certificate (PEM); repeatable."),
]
Certificate = Annotated[
    Path | None, typer.Option("--tls-cert", help="TLS: the own certificate (PEM).")
]
Key = Annotated[Path | None, typer.Option("--tls-key", help="TLS: the own key (PEM).")]
ServerName = Annotated[
    str, typer.Option("--tls-name", help="TLS: the name in the node's certificate, if another.")
]


@app.command()
def run(
    *,
    folder: Folder,
    msp: Msp,
    msp_id: MspID,
    listen: Annotated[
        str, typer.Option("--listen", help="Where clients come, HOST:PORT; port 0: any free one.")
    ] = "127.0.0.1:7050",
    operations: Annotated[
        str,
        typer.Option("--operations", help="/healthz, /metrics, /logspec; HOST:PORT, or 'off'."),
    ] = "127.0.0.1:8443",
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    client_ca: Annotated[
        list[Path] | None,
        typer.Option("--client-ca", help="Demand of clients certificates that this signed (PEM)."),
    ] = None,
    operations_tls: Annotated[
        bool, typer.Option("--operations-tls", help="Operations speak TLS, with the same files.")
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer", help="Another node, for blocks the log no longer holds; repeatable."
        ),
    ] = None,
    tls_ca: Authority = None,
    tls_name: ServerName = "",
    fsync: Annotated[
        Fsync, typer.Option("--fsync", help="block: a written block survives a loss of power.")
    ] = Fsync.BLOCK,
    log_level: Annotated[
        str, typer.Option("--log-level", help="error, warning, info or debug")
    ] = "warning",
) -> None:
    """Run a node until it is told to stop (SIGTERM, Ctrl-C).

    It runs the chains of its folder ('amcast osn join'), those that are joined while it runs, and
    those that a system channel creates. Each channel is a partition of the topic. Prints its
    addresses on stderr.
    """
    if log_level not in _LOG_LEVELS:
        raise UsageError(f"--log-level {log_level!r} is none of {', '.join(_LOG_LEVELS)}")
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    if log_level != "debug":  # the clients report each attempt to reach a broker; we say the result
        for client in ("kafka", "amcast.librdkafka"):
            logging.getLogger(client).setLevel(logging.CRITICAL)
    server_tls = None
    if tls_cert is not None or tls_key is not None:
        server_tls = TlsFiles.read(tls_cert, tls_key, client_ca or ())
    elif client_ca or operations_tls:
        raise UsageError("TLS needs --tls-cert and --tls-key")
    options = Options(
        folder=folder,
        listen=_address(listen),
        operations=None if operations == "off" else _address(operations),
        signer=SigningIdentity.load(msp, msp_id),
        tls=server_tls,
        operations_tls=server_tls if operations_tls else None,
        peers=tuple(peer or ()),
        peers_tls=TlsFiles.read(tls_cert, tls_key, tls_ca) if tls_ca else None,
        peers_name=tls_name,
        fsync=fsync.value,
    )
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    asyncio.run(serve(chosen, options, _say))


@app.command()
def join(
    *,
    genesis_block: Annotated[
        Path, typer.Option("--genesis-block", "-b", help="As configtxgen makes it.")
    ],
    folder: Folder,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have the node of this folder run the channel of a genesis block; twice is once.

    A node that runs already begins within a second. The topic must have a partition that is called
    as the channel is. Ends with 5 where the folder has the channel with another genesis block.
    """
    try:
        raw = genesis_block.read_bytes()
    except OSError as error:
        raise UsageError(f"{genesis_block}: {error.strerror or error}") from error
    name = join_chain(folder, raw)
    if output is Output.JSON:
        typer.echo(json.dumps({"schema_version": 1, "channel": name, "folder": str(folder)}))
    else:
        typer.echo(f"joined {name}")


@app.command()
def broadcast(
    file: Annotated[
        Path | None, typer.Argument(help="Envelopes, each behind its length; default: stdin.")
    ] = None,
    *,
    node: Node,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until each stands in a block; needs --msp.")
    ] = False,
    msp: Annotated[Path | None, typer.Option("--msp", help="Who asks, with --wait.")] = None,
    msp_id: Annotated[str, typer.Option("--msp-id", help="Its organisation's MSP ID.")] = "",
    tls_ca: Authority = None,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    tls_name: ServerName = "",
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait for an answer.")
    ] = 60,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send signed envelopes to a node, to be ordered.

    With --wait prints a JSON line for each: its transaction ID, block and index. The first that is
    refused ends it, with 1. The first that stands in no block within --timeout ends it, too, with
    4: it may be ordered later.
    """
    if file is not None:  # before a node is asked
        if not file.is_file():
            raise UsageError(f"{file} is no file")
        check(file)
    tls = _client_tls(tls_ca, tls_cert, tls_key)
    asker = None
    if wait:
        if msp is None:
            raise UsageError("--wait needs --msp and --msp-id: who may read the channel")
        asker = SigningIdentity.load(msp, msp_id)
    client = NodeClient(node, tls=tls, name=tls_name)
    tls_hash = tls.tls_hash if tls else b""
    sent, refused = asyncio.run(_broadcast(client, file, asker, tls_hash, timeout))
    if output is Output.JSON and asker is None:
        typer.echo(json.dumps({"schema_version": 1, "ordered": sent, "refused": refused}))
    elif asker is None:
        typer.echo(f"{sent} accepted", err=True)
    if refused is not None:
        raise _Refused(f"envelope {sent} was answered {refused['status']}: {refused['info']}")


class _Refused(AmcastError):
    """A node did not take an envelope."""


async def _broadcast(
    client: NodeClient,
    file: Path | None,
    asker: SigningIdentity | None,
    tls_hash: bytes,
    timeout_s: float,
) -> tuple[int, dict[str, Any] | None]:
    """Send all; give how many were accepted, and the answer that ended it."""
    accepted = 0
    refused = None
    waits: list[tuple[str, str]] = []

    async def envelopes() -> AsyncIterator[bytes]:
        for raw in pieces(file):
            if asker is not None:
                waits.append(_named(raw))
            yield raw

    async with client:
        async for status, info in client.broadcast(envelopes(), timeout_s=timeout_s):
            if status != Status.SUCCESS:
                refused = {"status": status, "info": info}
                break
            accepted += 1
        if asker is not None:
            for channel, transaction in waits[:accepted]:
                request = receipt_envelope(
                    asker, channel, transaction, int(timeout_s * 1000),
                    tls_hash=tls_hash,
                )  # fmt: skip
                found = await client.wait(request, timeout_s=timeout_s + 5.0)
                typer.echo(json.dumps({"transaction": transaction, **found}))
                _refuse_unordered(transaction, found, timeout_s)
    return accepted, refused


def _refuse_unordered(transaction: str, receipt: dict[str, Any], timeout_s: float) -> None:
    """Raise where an accepted transaction has no receipt."""
    status, channel = receipt["status"], receipt["chain"]
    if status == Status.NOT_FOUND and channel is not None:
        raise TimedOut(
            f"transaction {transaction} was accepted, and stood in no block of {channel} within "
            f"{timeout_s:g} s; it may be ordered later: ask again, or see the node's /healthz"
        )
    if status != Status.SUCCESS:
        why = receipt.get("info") or "it does not say why"
        raise _Refused(f"the receipt of transaction {transaction} was refused: {status}: {why}")


def _named_status(answer: StatusAnswer) -> str:
    """Put a status into words."""
    name = next((one.name for one in Status if int(one) == int(answer)), "a status of no name")
    return f"{int(answer)} ({name})" + (f": {answer.info}" if answer.info else "")


@app.command()
def deliver(
    *,
    node: Node,
    channel: Channel,
    msp: Msp,
    msp_id: MspID,
    start: Annotated[
        str, typer.Option("--start", help="oldest, newest, next, or a block's number.")
    ] = "oldest",
    stop: Annotated[
        str, typer.Option("--stop", help="newest, a number, or 'never': go on as blocks come.")
    ] = "newest",
    raw: Annotated[
        bool, typer.Option("--raw", help="Blocks as they are, each behind its length.")
    ] = False,
    tls_ca: Authority = None,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    tls_name: ServerName = "",
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds to wait for a block.")
    ] = None,
) -> None:
    """Print a channel's blocks, as JSON lines or as they are.

    Ends with 1 where the node answers anything but SUCCESS.
    """
    tls = _client_tls(tls_ca, tls_cert, tls_key)
    request = seek_envelope(
        SigningIdentity.load(msp, msp_id),
        channel,
        _position(start),
        ENDLESS if stop == "never" else _position(stop),
        tls_hash=tls.tls_hash if tls else b"",
    )
    asyncio.run(_deliver(NodeClient(node, tls=tls, name=tls_name), request, timeout, raw=raw))


async def _deliver(
    client: NodeClient, request: bytes, timeout_s: float | None, *, raw: bool
) -> None:
    async with client:
        async for answer in client.deliver(request, timeout_s=timeout_s):
            if isinstance(answer, int):
                if isinstance(answer, StatusAnswer):
                    raise _Refused(f"the node answered {_named_status(answer)}")
            elif raw:
                sys.stdout.buffer.write(len(answer).to_bytes(LENGTH_BYTES, "big") + answer)
                sys.stdout.buffer.flush()
            else:
                typer.echo(json.dumps(describe(answer)))


def _named(envelope: bytes) -> tuple[str, str]:
    """Give an envelope's channel and transaction ID, by which it is found in a block."""
    try:
        return channel_header(envelope).channel_id, transaction_id(envelope)
    except Malformed:  # the node says what is wrong with it
        return "", ""


def _client_tls(
    authorities: list[Path] | None, certificate: Path | None, key: Path | None
) -> TlsFiles | None:
    if not authorities:
        if certificate or key:
            raise UsageError("TLS needs --tls-ca: who signs the node's certificate")
        return None
    return TlsFiles.read(certificate, key, authorities)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{text!r} is no address (HOST:PORT)")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _position(text: str) -> Position:
    if text in ("oldest", "newest", "next"):
        return text
    if not text.isdecimal() or int(text) > ENDLESS:
        raise UsageError(f"{text!r} is no block: give a number, oldest, newest or next")
    return int(text)


def _say(line: str) -> None:
    typer.echo(line, err=True)
