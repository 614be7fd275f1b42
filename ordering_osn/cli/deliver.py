"""`amcast osn deliver`: one channel's blocks, or the transactions of several channels in one order.

Data goes to stdout as JSON lines, or with `--raw` as length-prefixed frames (`length_prefixed.py`):
serialized blocks, or serialized `MultiEntry`s (`wire/multichain.proto`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated

import typer

from multicast.errors import AmcastError, UsageError
from ordering_osn.api.channels import Status
from ordering_osn.api.grpc_client import NodeClient, StatusAnswer
from ordering_osn.api.seek import ENDLESS, Position, seek_envelope
from ordering_osn.cli.inspection import describe, describe_entry
from ordering_osn.cli.length_prefixed import print_frame
from ordering_osn.cli.options import (
    Authority,
    Certificate,
    Key,
    Msp,
    MspID,
    Nodes,
    ServerName,
    client_tls,
)
from ordering_osn.client import Client, RequestRefused
from ordering_osn.client.client import RETRY_S
from ordering_osn.client.messages import NEVER, NEWEST, OLDEST, encode_entry
from ordering_osn.identity import SigningIdentity

app = typer.Typer()

ChannelNames = Annotated[
    list[str],
    typer.Option(
        "--channel", "-c", help="The channel's ID; repeatable: several are read in one order."
    ),
]


class _Refused(AmcastError):
    """A node refused a request for blocks or entries; the text has its status and the reason."""


@app.command()
def deliver(
    *,
    node: Nodes,
    channel: ChannelNames,
    msp: Msp,
    msp_id: MspID,
    start: Annotated[
        str,
        typer.Option(
            "--start",
            help="oldest, newest, next, or a block number; of several channels: oldest, newest, or "
            "the cursor of an entry, to continue behind it.",
        ),
    ] = OLDEST,
    stop: Annotated[
        str,
        typer.Option(
            "--stop",
            help="newest, never (wait for more), or, of one channel, a block number.",
        ),
    ] = NEWEST,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Print serialized blocks or entries, length-prefixed."),
    ] = False,
    tls_ca: Authority = None,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    tls_name: ServerName = "",
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds to wait for each block or entry.")
    ] = None,
) -> None:
    """Print a channel's blocks, or the transactions of several channels in one order.

    Each block, or each transaction with its cursor, is a JSON line; a bundle is one line with its
    parts. Give the last line's cursor as --start to continue behind it, at any node. Exits with 1
    where a node's answer is not SUCCESS, and with 4 where nothing comes within --timeout.
    """
    if len(set(channel)) < len(channel):
        twice = next(name for name in channel if channel.count(name) > 1)
        raise UsageError(f"--channel names {twice!r} twice; name each channel once")
    tls = client_tls(tls_ca, tls_cert, tls_key)
    signer = SigningIdentity.load(msp, msp_id)
    if len(channel) > 1:
        begins = _entry_start(start)
        client = Client(node, signer, tls=tls, name=tls_name, retry_s=timeout or RETRY_S)
        asyncio.run(_deliver_several(client, channel, begins, stop, timeout, raw=raw))
        return
    if len(node) > 1:
        raise UsageError("one channel is read at one node: give one --node")
    request = seek_envelope(
        signer,
        channel[0],
        _position(start),
        ENDLESS if stop == NEVER else _position(stop),
        tls_hash=tls.tls_hash if tls else b"",
    )
    asyncio.run(_deliver(NodeClient(node[0], tls=tls, name=tls_name), request, timeout, raw=raw))


# -- one channel -----------------------------------------------------------------------------------


async def _deliver(
    client: NodeClient, request: bytes, timeout_s: float | None, *, raw: bool
) -> None:
    async with client:
        async for answer in client.deliver(request, timeout_s=timeout_s):
            if isinstance(answer, int):
                if isinstance(answer, StatusAnswer):
                    raise _refused(int(answer), answer.info)
            elif raw:
                print_frame(answer)
            else:
                typer.echo(json.dumps(describe(answer)))


def _position(text: str) -> Position:
    if text in ("oldest", "newest", "next"):
        return text
    if not text.isdecimal() or int(text) > ENDLESS:
        raise UsageError(f"{text!r} is not a block: give a number, oldest, newest or next")
    return int(text)


# -- several channels ------------------------------------------------------------------------------


async def _deliver_several(
    client: Client,
    chains: Sequence[str],
    start: str | bytes,
    stop: str,
    timeout_s: float | None,
    *,
    raw: bool,
) -> None:
    """Print entries up to the stop. A lost connection continues behind the last entry."""
    entries = client.deliver(chains, start, stop=stop, timeout_s=timeout_s)
    async with client, aclosing(entries) as stream:
        try:
            async for entry in stream:
                if raw:
                    print_frame(encode_entry(entry))
                else:
                    typer.echo(json.dumps(describe_entry(entry)))
        except RequestRefused as refused:
            raise _refused(refused.status, refused.info) from refused


def _entry_start(text: str) -> str | bytes:
    """Read the start of several channels: a word, or a cursor in hex digits."""
    if text in (OLDEST, NEWEST):
        return text
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} is no start for several channels: give oldest, newest, or the cursor of an "
            "entry"
        ) from error


# -- both ------------------------------------------------------------------------------------------


def _refused(status: int, info: str) -> _Refused:
    """Name a status as number, name and, where the node gave one, the reason."""
    name = next((each.name for each in Status if each == status), "unknown status")
    return _Refused(f"the node answered {status} ({name})" + (f": {info}" if info else ""))
