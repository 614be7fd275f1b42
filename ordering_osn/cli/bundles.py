"""`amcast osn bundle|broadcast-multi|status`: make bundles, send them, and ask for their fate.

Files hold length-prefixed frames (`length_prefixed.py`): of envelopes, and of bundles. Answers
go to stdout as JSON lines.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from multicast.errors import AmcastError, UsageError
from ordering_osn.api.grpc_client import ANSWER_S
from ordering_osn.chain.bundles.bundle import (
    BadBundle,
    Bundle,
    encode_bundle,
    make_bundle,
    read_bundle,
)
from ordering_osn.chain.transactions import Malformed, channel_header
from ordering_osn.cli.length_prefixed import LENGTH_BYTES, check_frames, framed, frames, print_frame
from ordering_osn.cli.options import (
    Authority,
    Certificate,
    Key,
    Msp,
    MspID,
    Nodes,
    ServerName,
    Timeout,
    client_tls,
)
from ordering_osn.client import BundleIsVoid, BundlePlace, Client, ReportedFate
from ordering_osn.identity import SigningIdentity
from topology.files import write_bytes

app = typer.Typer()
_ID_BYTES = 32  # a SHA-256


class RefusedBundles(AmcastError):
    """Some bundles were refused, or are void; the text says how many, and the first reason."""


@app.command()
def bundle(
    *,
    part: Annotated[
        list[str],
        typer.Option("--part", help="CHAIN=FILE: an envelope for this chain; once for each chain."),
    ],
    msp: Msp,
    msp_id: MspID,
    out: Annotated[
        Path | None,
        typer.Option("--out", readable=False, help="The file to write; default: stdout."),
    ] = None,
    expiry: Annotated[
        int, typer.Option("--expiry", help="The last offset of the set's log; 0: it never expires.")
    ] = 0,
    expires_in: Annotated[
        int | None,
        typer.Option(
            "--expires-in",
            help="Instead: how many more records the set's log may have; needs --node.",
        ),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", "-n", help="With --expires-in: a node, HOST:PORT; repeatable."),
    ] = None,
    tls_ca: Authority = None,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    tls_name: ServerName = "",
    timeout: Timeout = ANSWER_S,
) -> None:
    """Make a bundle of one signed envelope for each chain, and sign it.

    A part's file holds one envelope: serialized, or as one length-prefixed frame. Writes one frame;
    'amcast osn broadcast-multi' sends a file of such frames. Prints the bundle ID on stderr. A
    bundle with --expires-in N counts in one of the next N records of its set's log, or never; a
    node says where the log ends now.
    """
    if expires_in is not None and (expiry or not node):
        raise UsageError("--expires-in needs a --node to ask, and no --expiry")
    envelopes: dict[str, bytes] = {}
    for entry in part:
        chain, found, file = entry.partition("=")
        if not (chain and found and file):
            raise UsageError(f"--part {entry!r} is not CHAIN=FILE")
        if chain in envelopes:
            raise UsageError(f"--part names chain {chain!r} twice; a bundle has one part for each")
        envelopes[chain] = _envelope(Path(file), chain)
    signer = SigningIdentity.load(msp, msp_id)
    if expires_in is not None and node:
        tls = client_tls(tls_ca, tls_cert, tls_key)
        client = Client(node, signer, tls=tls, name=tls_name, retry_s=timeout, answer_s=timeout)
        expiry = asyncio.run(_expiry(client, envelopes, expires_in))
    try:
        made = make_bundle(envelopes, signer=signer, expiry=expiry)
    except BadBundle as error:
        raise UsageError(f"no bundle of these parts: {error.info}") from error
    raw = encode_bundle(made)
    if out is None:
        print_frame(raw)
    else:
        try:
            write_bytes(out, framed(raw), force=True)
        except OSError as error:
            raise UsageError(f"{out}: {error.strerror or error}") from error
    until = f", until offset {expiry}" if expiry else ""
    typer.echo(f"bundle {made.id.hex()} for {', '.join(made.chains)}{until}", err=True)


def _envelope(file: Path, chain: str) -> bytes:
    """Read one envelope from a file; raises `UsageError`."""
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from error
    if int.from_bytes(raw[:LENGTH_BYTES], "big") == len(raw) - LENGTH_BYTES:
        raw = raw[LENGTH_BYTES:]
    try:
        named = channel_header(raw).channel_id
    except Malformed as error:
        raise UsageError(f"{file} does not hold one envelope: {error}") from error
    if named != chain:
        raise UsageError(f"{file} holds an envelope for channel {named!r}, not for {chain!r}")
    return raw


@app.command("broadcast-multi")
def broadcast_multi(
    file: Annotated[
        Path | None, typer.Argument(help="Length-prefixed bundles; default: stdin.")
    ] = None,
    *,
    node: Nodes,
    msp: Msp,
    msp_id: MspID,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until each is in blocks of all its chains, or void")
    ] = False,
    tls_ca: Authority = None,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    tls_name: ServerName = "",
    timeout: Timeout = ANSWER_S,
) -> None:
    """Send bundles to a node, which orders each in all its chains or in none.

    Prints a JSON line for each: its ID and the status, with --wait its fate. Exits with 1 where one
    is refused or void, and with 4 where an answer or a fate does not come within --timeout: such a
    bundle may still count; send the same file again. --msp signs the questions of --wait.
    """
    check_frames(file)
    made = list(_bundles(file))
    tls, signer = client_tls(tls_ca, tls_cert, tls_key), SigningIdentity.load(msp, msp_id)
    client = Client(node, signer, tls=tls, name=tls_name, retry_s=timeout, answer_s=timeout)
    failed = asyncio.run(_send(client, made, wait_s=timeout if wait else None))
    if failed:
        raise RefusedBundles(f"{len(failed)} of {len(made)} bundles failed; the first: {failed[0]}")


@app.command()
def status(
    bundle_id: Annotated[str, typer.Argument(metavar="ID", help="The bundle ID, 64 hex digits.")],
    *,
    node: Nodes,
    msp: Msp,
    msp_id: MspID,
    wait_s: Annotated[
        float, typer.Option("--wait", help="Seconds to wait for a final fate; 0: do not wait.")
    ] = 0.0,
    tls_ca: Authority = None,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    tls_name: ServerName = "",
    timeout: Timeout = ANSWER_S,
) -> None:
    """Print what a node knows of a bundle: unknown, accepted, void or committed, as JSON.

    The signer must be a reader of one of the bundle's chains.
    """
    try:
        named = bytes.fromhex(bundle_id)
    except ValueError:
        named = b""
    if len(named) != _ID_BYTES:
        raise UsageError(f"{bundle_id!r} is not a bundle ID: give {2 * _ID_BYTES} hex digits")
    tls, signer = client_tls(tls_ca, tls_cert, tls_key), SigningIdentity.load(msp, msp_id)
    client = Client(node, signer, tls=tls, name=tls_name, retry_s=timeout, answer_s=timeout)
    _print(named, _fate(asyncio.run(_status(client, named, wait_s))))


async def _expiry(client: Client, chains: Iterable[str], expires_in: int) -> int:
    async with client:
        return await client.expiry(chains, expires_in)


async def _status(client: Client, bundle_id: bytes, wait_s: float) -> ReportedFate:
    async with client:
        return await client.status(bundle_id, wait_s=wait_s)


async def _send(client: Client, made: Iterable[Bundle], *, wait_s: float | None) -> list[str]:
    """Send bundles one after the other, and print a line for each; give why some failed.

    Then wait `wait_s` for the fate of each that was accepted; None: do not wait.
    """
    failed: list[str] = []
    async with client:
        accepted: list[Bundle] = []
        for each in made:
            answer = await client.submit(each)
            if answer.accepted:
                accepted.append(each)
            else:
                of_chain = f", chain {answer.chain}" if answer.chain else ""
                failed.append(f"{each.id.hex()}: {answer.status}{of_chain}: {answer.info}")
            if wait_s is None or not answer.accepted:
                row = {"status": answer.status, "info": answer.info, "chain": answer.chain}
                _print(each.id, row)
        if wait_s is None:
            return failed
        for each in accepted:
            try:
                places = _places((await client.wait(each.id, wait_s)).places)
                _print(each.id, {"status": 200, "fate": "committed", "places": places})
            except BundleIsVoid as void:
                failed.append(str(void))
                _print(each.id, {"status": 200, "fate": "void", "info": str(void)})
    return failed


def _bundles(file: Path | None) -> Iterable[Bundle]:
    """Read the bundles of a file; raises `UsageError` before anything is sent."""
    for number, raw in enumerate(frames(file), start=1):
        try:
            yield read_bundle(raw)
        except BadBundle as error:
            raise UsageError(f"frame {number} is not a bundle: {error.info}") from error


def _print(bundle_id: bytes, row: dict[str, Any]) -> None:
    typer.echo(json.dumps({"bundle": bundle_id.hex(), **row}))


def _places(places: Iterable[BundlePlace]) -> dict[str, Any]:
    return {each.chain: {"block": each.block, "index": each.index} for each in places}


def _fate(fate: ReportedFate) -> dict[str, Any]:
    row: dict[str, Any] = {"fate": fate.kind}
    if fate.reason is not None:
        row |= {"reason": fate.reason.name, "chain": fate.chain}
    if fate.places:
        row["places"] = _places(fate.places)
    if fate.chains_not_covered:
        row["chains_not_covered"] = list(fate.chains_not_covered)
    return row
