"""The files of one side of TLS, read and checked before gRPC or HTTP use them; and files followed.

What changes of a node's identity and TLS is read anew, without a restart. What cannot be used
leaves the last in force, is logged once, and is shown by a metric. Connections that are open stay
as they are. No clock: `serving.py` says when to look.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from multicast.errors import UsageError
from ordering_osn.identity import fingerprint, warn_if_others_read

_log = logging.getLogger("amcast.osn.renewal")
_Read = TypeVar("_Read")


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


class FollowedFiles(Generic[_Read]):
    """The files of an option, read once, and again when they have changed.

    `used` are what takes each new reading (`current`), in this order; one may refuse it by an
    error. `trouble` says why the files as they are now are not in force; empty: they are.
    """

    def __init__(self, option: str, paths: Sequence[Path], read: Callable[[], _Read]) -> None:
        """Read the files, or the files in these folders; raises what `read` raises."""
        self.option, self._paths, self._read = option, paths, read
        self.used: list[Callable[[_Read], None]] = []
        self.trouble = ""
        self._state = self._look()
        self.current = read()

    def renew(self, *, anyhow: bool = False) -> None:
        """Read and use the files if they have changed, or `anyhow`; raises nothing."""
        state = self._look()
        if state == self._state and not (anyhow or self.trouble):
            return
        try:
            read = self._read()
            if state != self._look():
                return  # a key and its certificate may be of different times: the next look sees
            for use in self.used:
                use(read)
        except Exception as error:  # noqa: BLE001 - no file may end the node's looks
            trouble = f"{self.option} and what goes with it: {error}; what was in force stays so"
            if anyhow or trouble != self.trouble:
                _log.error("%s", trouble)
            self.trouble = trouble  # which may end without a change of the files: tried again
        else:
            self.current, self.trouble = read, ""
            _log.warning("%s and what goes with it: read anew", self.option)
        self._state = state

    def _look(self) -> list[tuple[Any, ...]]:
        """Give what tells files that have changed from those before."""
        looked = []
        for path in self._paths:
            with suppress(OSError):  # it is missing, which the reading says
                for file in sorted(path.iterdir()) if path.is_dir() else [path]:
                    state = file.stat()
                    looked.append((file, state.st_mtime_ns, state.st_size, state.st_ino))
        return looked
