"""The node's own identity: a certificate and its key, read from a Fabric MSP folder."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from ordering_osn.identity.certificates import Certificate, PrivateKey, Unreadable
from ordering_osn.identity.errors import MalformedMsp
from ordering_osn.protos import SerializedIdentity

_log = logging.getLogger("amcast.osn.keys")
_NONCE_BYTES = 24  # as in Fabric


class SigningIdentity:
    """Signs blocks and requests (a `blocks.Signer`).

    `creator` is the serialized SerializedIdentity for signature headers; it holds the certificate
    as PEM, as does `certificate`.
    """

    def __init__(self, certificate: Certificate, key: PrivateKey, msp_id: str) -> None:
        if not certificate.has_key_of(key):
            raise MalformedMsp(f"the private key does not fit the certificate {certificate.name}")
        self.msp_id = msp_id
        self.name = certificate.name
        self.certificate: bytes = certificate.pem()
        self.creator: bytes = SerializedIdentity(
            mspid=msp_id, id_bytes=self.certificate
        ).SerializeToString()
        self._key = key

    @classmethod
    def load(cls, msp_folder: Path, msp_id: str) -> SigningIdentity:
        """Load the certificate in signcerts/ (exactly one) and the key in keystore/ that fits it.

        Raises `MalformedMsp`.
        """
        if not msp_id:
            raise MalformedMsp(
                f"the MSP ID of {msp_folder} is empty: nobody accepts its signatures"
            )
        certificates = _files(msp_folder / "signcerts")
        if len(certificates) != 1:
            raise MalformedMsp(
                f"{msp_folder / 'signcerts'} must hold one certificate, not {len(certificates)}"
            )
        try:
            certificate = Certificate(_read(certificates[0]))
        except Unreadable as error:
            raise MalformedMsp(f"{certificates[0]}: {error}") from error
        reasons = []
        for path in _files(msp_folder / "keystore"):
            try:
                key = PrivateKey(_read(path))
            except Unreadable as error:
                reasons.append(f"; {path.name}: {error}")
                continue
            if certificate.has_key_of(key):
                warn_if_others_read(path)
                return cls(certificate, key, msp_id)
        raise MalformedMsp(
            f"{msp_folder / 'keystore'} holds no private key of {certificates[0]}{''.join(reasons)}"
        )

    def sign(self, message: bytes) -> bytes:
        """Return the ECDSA signature over SHA-256 of `message`, low S, DER."""
        return self._key.sign(message)

    def nonce(self) -> bytes:
        """Return 24 random bytes for a signature header."""
        return secrets.token_bytes(_NONCE_BYTES)


def warn_if_others_read(key: Path) -> None:
    """Log a warning where the file of a key may be read or written by others."""
    if key.stat().st_mode & 0o077:
        _log.warning("%s holds a key, and others may read it: chmod 600 %s", key, key)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise MalformedMsp(f"cannot list {folder}: {error.strerror}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MalformedMsp(f"cannot read {path}: {error.strerror}") from error
