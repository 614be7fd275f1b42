"""The files of one side of TLS, read and checked before gRPC or HTTP use them."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from multicast.errors import UsageError
from ordering_osn.identity import fingerprint, warn_if_others_read


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM bytes for one side of TLS. `authorities` are the CAs of the other side's certificates.

    A server with authorities requires a certificate of every client (mutual TLS).
    """

    certificate: bytes = b""
    key: bytes = b""
    authorities: bytes = b""

    @classmethod
    def read(
        cls,
        certificate: Path | None = None,
        key: Path | None = None,
        authorities: Iterable[Path] = (),
    ) -> Self:
        """Read and check the given files; raises `UsageError`, which names the file."""
        signers = list(authorities)
        try:
            read = cls(
                certificate.read_bytes() if certificate else b"",
                key.read_bytes() if key else b"",
                b"\n".join(path.read_bytes() for path in signers),
            )
        except OSError as error:
            raise UsageError(f"TLS: {error.filename}: {error.strerror}") from error
        if certificate is not None and key is not None:
            _check_pair(certificate, key)
            warn_if_others_read(key)
        for path in signers:
            _check_authority(path)
        return read

    @property
    def tls_hash(self) -> bytes:
        """SHA-256 of the certificate, for a client's channel headers under mutual TLS."""
        return fingerprint(self.certificate) if self.certificate else b""


def _check_pair(certificate: Path, key: Path) -> None:
    """Raise `UsageError` unless the key fits the certificate; gRPC would give no reason."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(
                f"TLS: {key} is not the key of the certificate {certificate}"
            ) from error
        raise UsageError(
            f"TLS: {certificate} and {key} must be a certificate and its key without a password, "
            f"in PEM: {error.reason or error}"
        ) from error


def _check_authority(path: Path) -> None:
    """Raise `UsageError` unless the file holds certificates in PEM."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError as error:
        raise UsageError(
            f"TLS: {path} holds no certificates in PEM: {error.reason or error}"
        ) from error
