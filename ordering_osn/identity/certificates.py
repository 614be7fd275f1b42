"""What one X.509 certificate says and checks, and the chains it has: the door to `cryptography`.

In: PEM or DER bytes of anybody. Out: plain values, or `Unreadable` with one sentence: no exception
of the library leaves this file. Nothing here knows an MSP, a policy or the time of day.

Rules taken from what Fabric gets from Go's crypto/x509: a parent must be a CA that may sign
certificates, within its path length, inside its time, without a critical extension that nobody
here understands; MD5 and SHA-1 certify nothing (the library refuses them); of the extended key
usages, where there are any, "any" or "server" must be one (Go's default, which Fabric leaves as it
is). Name constraints are not understood: such a CA is refused, never half obeyed.

Anybody can write a certificate's own signature in a second way (the other S) and so get other
bytes that are as valid. So a certificate is known by its `signed` part, never by all its bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

from ordering_osn.identity.errors import UntrustedIdentity

# Orders of the curves that Go's crypto/elliptic, hence every Fabric peer, knows.
_ORDERS = {
    "secp224r1": 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFF16A2E0B8F03E13DD29455C5C2A3D,
    "secp256r1": 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
    "secp384r1": int(
        "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF"
        "C7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973",
        16,
    ),
    "secp521r1": int(
        "01FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFA"
        "51868783BF2F966B7FCC0148F709A5D03BB5C9B8899C47AEBB6FB71E91386409",
        16,
    ),
}
_ECDSA = {"SHA2": ec.ECDSA(hashes.SHA256()), "SHA3": ec.ECDSA(hashes.SHA3_256())}
HASH_FAMILIES = tuple(sorted(_ECDSA))
_UNDERSTOOD = (
    ExtensionOID.AUTHORITY_KEY_IDENTIFIER,
    ExtensionOID.BASIC_CONSTRAINTS,
    ExtensionOID.CERTIFICATE_POLICIES,
    ExtensionOID.CRL_DISTRIBUTION_POINTS,
    ExtensionOID.EXTENDED_KEY_USAGE,
    ExtensionOID.KEY_USAGE,
    ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
    ExtensionOID.SUBJECT_KEY_IDENTIFIER,
)
_USAGES = (ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE, ExtendedKeyUsageOID.SERVER_AUTH)
_WRONG = (
    CryptographyDeprecationWarning,  # where warnings are errors, as in tests
    InvalidSignature,
    TypeError,
    UnsupportedAlgorithm,
    ValueError,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
# As Go's crypto/x509: a mesh of CAs that certify each other must not cost without bound.
SIGNATURE_CHECKS_MAX = 100


class Unreadable(Exception):
    """These bytes are no usable certificate, key, revocation list or signature: one sentence."""


def fingerprint(certificate: bytes) -> bytes:
    """SHA-256 of a certificate's DER (given as PEM or DER): what Deliver binds a TLS client by.

    Raises `UntrustedIdentity` where it is none.
    """
    try:
        return hashlib.sha256(Certificate(certificate).der).digest()
    except Unreadable as error:
        raise UntrustedIdentity(f"the TLS client presents {error}") from error


class Certificate:
    """One certificate's values. All of it is read at once, so a damaged part is found here."""

    def __init__(self, raw: bytes) -> None:
        """`raw` is PEM or DER; raises `Unreadable`."""
        try:
            pem = b"-----BEGIN" in raw
            load = x509.load_pem_x509_certificate if pem else x509.load_der_x509_certificate
            self._x509 = load(raw)
            self._read(self._x509)
        except _WRONG as error:
            raise Unreadable(f"no readable certificate ({_first_line(error)})") from error

    def _read(self, certificate: x509.Certificate) -> None:
        self.der: bytes = certificate.public_bytes(serialization.Encoding.DER)
        self.signed: bytes = certificate.tbs_certificate_bytes
        self.serial: int = certificate.serial_number
        if self.serial <= 0:
            raise ValueError("its serial number is not positive")
        self.not_before: datetime = certificate.not_valid_before_utc
        self.not_after: datetime = certificate.not_valid_after_utc
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        self.name: str = str(names[0].value) if names else f"serial number {self.serial:x}"
        self.units: tuple[str, ...] = tuple(
            str(unit.value)
            for unit in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
        )
        self.is_ca = False
        self.path_length: int | None = None
        self.signs_certificates = True
        self.usable = True
        self.key_id: bytes | None = None
        self.not_understood: str | None = None
        for extension in certificate.extensions:
            value = extension.value
            if isinstance(value, x509.BasicConstraints):
                self.is_ca, self.path_length = value.ca, value.path_length
            elif isinstance(value, x509.KeyUsage):
                self.signs_certificates = value.key_cert_sign
            elif isinstance(value, x509.ExtendedKeyUsage):
                self.usable = any(usage in _USAGES for usage in value)
            elif isinstance(value, x509.SubjectKeyIdentifier):
                self.key_id = value.digest
            binding = extension.critical or isinstance(value, x509.NameConstraints)
            if binding and extension.oid not in _UNDERSTOOD:
                self.not_understood = extension.oid.dotted_string
        self._key = certificate.public_key()

    def issued_by(self, parent: Certificate) -> bool:
        """Whether `parent`'s subject and key are this certificate's issuer and signer."""
        try:
            self._x509.verify_directly_issued_by(parent._x509)
        except _WRONG:
            return False
        return True

    def verifier(self, hash_family: str) -> Callable[[bytes, bytes], None]:
        """Give a check (message, signature) for this key; raise `Unreadable` where it cannot sign.

        The check itself raises `Unreadable` where the signature is not DER, not low S, or wrong.
        """
        key, algorithm = self._key, _ECDSA[hash_family]
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise Unreadable("its key is not an elliptic curve's, and no other kind signs here")
        if key.curve.name not in _ORDERS:
            raise Unreadable(f"its key is on {key.curve.name}, a curve that Fabric does not know")
        half = _ORDERS[key.curve.name] // 2

        def verify(message: bytes, signature: bytes) -> None:
            try:
                s = decode_dss_signature(signature)[1]
            except _WRONG as error:
                raise Unreadable("the signature is not a DER pair of numbers") from error
            if s > half:
                raise Unreadable("the signature's S is in the upper half: not the canonical form")
            try:
                key.verify(signature, message, algorithm)
            except _WRONG as error:
                raise Unreadable("the signature does not fit the key and the message") from error

        return verify

    def has_key_of(self, key: PrivateKey) -> bool:
        """Whether the private key is this certificate's."""
        return key.public == _public_bytes(self._key)

    def low(self, signer: Certificate) -> bytes:
        """Give its DER, an ECDSA signature in low S: how Fabric spells what it digests."""
        key = signer._key
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _ORDERS:
            return self.der
        order = _ORDERS[key.curve.name]
        try:
            r, s = decode_dss_signature(self._x509.signature)
        except ValueError:  # a root's own signature is never looked at otherwise
            return self.der
        if s <= order // 2:
            return self.der
        tail = len(_tagged(0x03, b"\x00" + self._x509.signature))
        start = self.der.index(self.signed)
        signature = _tagged(0x03, b"\x00" + encode_dss_signature(r, order - s))
        return _tagged(0x30, self.der[start:-tail] + signature)

    def pem(self) -> bytes:
        """As PEM in its usual form."""
        return self._x509.public_bytes(serialization.Encoding.PEM)

    def has_signed(self, revocations: Revocations) -> bool:
        """Whether this CA signed the revocation list."""
        try:
            return revocations.crl.is_signature_valid(self._key)  # type: ignore[arg-type]
        except _WRONG:
            return False


class Revocations:
    """One certificate revocation list."""

    def __init__(self, raw: bytes) -> None:
        """`raw` is PEM or DER; raises `Unreadable`, also where it does not name its CA's key."""
        try:
            pem = b"-----BEGIN" in raw
            self.crl = x509.load_pem_x509_crl(raw) if pem else x509.load_der_x509_crl(raw)
            issuer = self.crl.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier)
            self.issuer_key_id: bytes | None = issuer.value.key_identifier
        except x509.ExtensionNotFound as error:
            raise Unreadable("a revocation list without an authority key identifier") from error
        except _WRONG as error:
            raise Unreadable(f"no readable revocation list ({_first_line(error)})") from error

    def names(self, serial: int) -> bool:
        """Whether the certificate with this serial number is revoked."""
        return self.crl.get_revoked_certificate_by_serial_number(serial) is not None


class PrivateKey:
    """An ECDSA key that signs as Fabric does: SHA-256, low S, DER."""

    def __init__(self, raw: bytes) -> None:
        """`raw` is PEM without a password; raises `Unreadable`."""
        try:
            key = serialization.load_pem_private_key(raw, password=None)
        except _WRONG as error:
            raise Unreadable(f"no readable private key ({_first_line(error)})") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name not in _ORDERS:
            raise Unreadable("the private key is not on a curve that Fabric knows")
        self._key = key
        self._order = _ORDERS[key.curve.name]
        self.public = _public_bytes(key.public_key())

    def sign(self, message: bytes) -> bytes:
        """Sign SHA-256 of `message`."""
        signature = self._key.sign(message, _ECDSA["SHA2"])
        r, s = decode_dss_signature(signature)
        if s <= self._order // 2:
            return signature
        return encode_dss_signature(r, self._order - s)


class Authorities:
    """The CAs of one organisation: `roots` are trusted as they stand, the others through them."""

    def __init__(self, roots: Sequence[Certificate], intermediates: Sequence[Certificate]) -> None:
        self.roots, self.intermediates = tuple(roots), tuple(intermediates)
        self._trusted = {root.signed for root in roots}

    def chain(self, leaf: Certificate) -> tuple[Certificate, ...]:
        """From the certificate to a root; raises `Unreadable` unless there is exactly one chain.

        Time is that of the certificate's issue: when it ends is not a matter of its chain.
        """
        if leaf.not_understood is not None:
            raise Unreadable(f"it has an extension ({leaf.not_understood}) that is not understood")
        if leaf.signed in self._trusted:
            return (leaf,)
        checks = [0]
        chains: list[tuple[Certificate, ...]] = []
        for chain in self._above((leaf,), leaf.not_before + timedelta(seconds=1), checks):
            chains.append(chain)
            if len(chains) > 1:
                raise Unreadable("it has more than one chain to the organisation's roots")
        if not chains:
            raise Unreadable("no chain of valid CAs leads to the organisation's roots")
        if not all(certificate.usable for certificate in chains[0]):
            raise Unreadable("its extended key usage, or a CA's, does not allow it")
        return chains[0]

    def _above(
        self, below: tuple[Certificate, ...], time: datetime, checks: list[int]
    ) -> Iterator[tuple[Certificate, ...]]:
        for parent in (*self.roots, *self.intermediates):
            in_chain = any(parent.signed == lower.signed for lower in below)
            if in_chain or not _may_certify(parent, below, time):
                continue
            checks[0] += 1
            if checks[0] > SIGNATURE_CHECKS_MAX:
                raise Unreadable("its chain takes too many signature checks")
            if not below[-1].issued_by(parent):
                continue
            if parent.signed in self._trusted:
                yield (*below, parent)
            else:
                yield from self._above((*below, parent), time, checks)


def _may_certify(parent: Certificate, below: tuple[Certificate, ...], time: datetime) -> bool:
    return (
        parent.is_ca
        and parent.signs_certificates
        and parent.not_understood is None
        and parent.not_before <= time <= parent.not_after
        and (parent.path_length is None or len(below) - 1 <= parent.path_length)
    )


def _tagged(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _public_bytes(key: object) -> bytes:
    encoded: bytes = key.public_bytes(  # type: ignore[attr-defined]
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
