"""Options that several commands of `amcast osn` have, and the TLS files that they name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from multicast.errors import UsageError
from ordering_osn.api.tls_files import TlsFiles

Msp = Annotated[
    Path, typer.Option("--msp", help="The signer: an MSP folder, as Fabric's tools make it.")
]
MspID = Annotated[
    str, typer.Option("--msp-id", help="The signer's MSP ID, such as Org1MSP or OrdererMSP.")
]
Node = Annotated[str, typer.Option("--node", "-n", help="The node's address, HOST:PORT.")]
Nodes = Annotated[
    list[str],
    typer.Option("--node", "-n", help="A node's address, HOST:PORT; repeatable: tried in turn."),
]
Authority = Annotated[
    list[Path] | None,
    typer.Option("--tls-ca", help="TLS: a CA of the other side's certificate (PEM); repeatable."),
]
Certificate = Annotated[
    Path | None, typer.Option("--tls-cert", help="TLS: this side's certificate (PEM).")
]
Key = Annotated[Path | None, typer.Option("--tls-key", help="TLS: this side's key (PEM).")]
ServerName = Annotated[
    str,
    typer.Option("--tls-name", help="TLS: the name in the node's certificate, if not its host."),
]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait for an answer.")]


def client_tls(
    authorities: list[Path] | None, certificate: Path | None, key: Path | None
) -> TlsFiles | None:
    """Read a client's TLS files; None where no authority is named. Raises `UsageError`."""
    if authorities:
        return TlsFiles.read(certificate, key, authorities)
    if certificate or key:
        raise UsageError("TLS needs --tls-ca, a CA of the node's certificate")
    return None
