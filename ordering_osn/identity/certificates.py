"""X.509 certificates, keys, revocation lists and chains; the only module over `cryptography`.

It reads untrusted PEM or DER bytes into plain values, or raises `Unreadable`; no exception of the
library leaves this module. It knows no MSP, no policy and no clock.

The rules are those that Fabric gets from Go's crypto/x509:

    - A parent is a CA that may sign certificates, within its path length and its validity period,
      without a critical extension that is unknown here.
    - Signatures over MD5 and SHA-1 do not count (the library refuses them).
    - Extended key usages, if any, include "any" or "server": Go's default, which Fabric keeps.
    - PEM, keys, names and signature algorithms are ones that Go reads (`encoding.py`).

Stricter than Go: name constraints, and rules about policies, are refused, because they are not
implemented; so are RSA-PSS, and URIs other than plain ones.

Anyone can rewrite the signature of a certificate with the other S and get different bytes that are
as valid. So certificates are compared by their `signed` part, never by all their bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

from ordering_osn.identity.encoding import (
    check_certificate,
    check_identifier,
    check_revocations,
    from_pem,
)
from ordering_osn.identity.errors import UntrustedIdentity
from topology import extra

with extra("osn"):
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.utils import (
        decode_dss_signature,
        encode_dss_signature,
    )
    from cryptography.x509.oid import (
        ExtendedKeyUsageOID,
        ExtensionOID,
        NameOID,
        SignatureAlgorithmOID,
    )

# The orders of the curves that Go's crypto/elliptic, and so every Fabric peer, supports.
_ORDERS = {
    curve.name: curve().group_order
    for curve in (ec.SECP224R1, ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
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
# Rules that Go follows and this module does not: refused even where they are not critical.
_BINDING = (
    ExtensionOID.INHIBIT_ANY_POLICY,
    ExtensionOID.NAME_CONSTRAINTS,
    ExtensionOID.POLICY_CONSTRAINTS,
    ExtensionOID.POLICY_MAPPINGS,
)
_NEVER_CRITICAL = (  # Go reads no certificate in which they are
    ExtensionOID.AUTHORITY_INFORMATION_ACCESS,
    ExtensionOID.AUTHORITY_KEY_IDENTIFIER,
    ExtensionOID.SUBJECT_KEY_IDENTIFIER,
)
_SIGNED_BY_CURVES = (
    SignatureAlgorithmOID.ECDSA_WITH_SHA1,
    SignatureAlgorithmOID.ECDSA_WITH_SHA256,
    SignatureAlgorithmOID.ECDSA_WITH_SHA384,
    SignatureAlgorithmOID.ECDSA_WITH_SHA512,
)
_VERIFIED = (
    *_SIGNED_BY_CURVES[1:],
    SignatureAlgorithmOID.ED25519,
    SignatureAlgorithmOID.RSA_WITH_SHA256,
    SignatureAlgorithmOID.RSA_WITH_SHA384,
    SignatureAlgorithmOID.RSA_WITH_SHA512,
)
_RSA_BITS_MIN, _RSA_EXPONENT_MAX = 1024, 2**31 - 1
_PLAIN_URI = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:([A-Za-z0-9_.:-]+|"
    r"//[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*(:\d{1,5})?(/[A-Za-z0-9_./-]*)?)\Z",
    re.ASCII,
)
_USAGES = (ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE, ExtendedKeyUsageOID.SERVER_AUTH)
_WRONG = (
    InvalidSignature,
    LookupError,
    TypeError,
    UnsupportedAlgorithm,
    ValueError,
    Warning,  # of the library, where these are errors, as in tests
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
# As in Go's crypto/x509: bounds the cost of CAs that certify each other in many ways.
SIGNATURE_CHECKS_MAX = 100
_A_SECOND = timedelta(seconds=1)  # Fabric looks at a certificate a second after it begins
_NOT_USABLE = "its extended key usage, or a CA's, allows neither any use nor servers"


class Unreadable(Exception):
    """The bytes are not a usable certificate, key, revocation list or signature."""


@lru_cache  # each stream of a TLS client asks
def fingerprint(certificate: bytes) -> bytes:
    """Return SHA-256 of a certificate's DER; Deliver binds requests to a TLS client by it.

    `certificate` is PEM or DER. Raises `UntrustedIdentity` where it cannot be read.
    """
    try:
        return hashlib.sha256(Certificate(certificate).der).digest()
    except Unreadable as error:
        raise UntrustedIdentity(f"the TLS client presents {error}") from error


class Certificate:
    """One certificate. All parts are decoded at once, so a damaged part raises here."""

    def __init__(self, raw: bytes) -> None:
        """`raw` is PEM or DER; raises `Unreadable`."""
        try:
            der = from_pem(raw, "CERTIFICATE") if b"-----BEGIN" in raw else raw
            self._x509 = x509.load_der_x509_certificate(der)
            self._read(self._x509)
        except _WRONG as error:
            raise Unreadable(f"no readable certificate ({_first_line(error)})") from error

    @classmethod
    def from_pem(cls, raw: bytes) -> Certificate:
        """Read PEM, and refuse DER; raises `Unreadable`."""
        if b"-----BEGIN" not in raw:
            raise Unreadable("no PEM certificate")
        return cls(raw)

    def _read(self, certificate: x509.Certificate) -> None:
        self.der: bytes = certificate.public_bytes(serialization.Encoding.DER)
        self.signed: bytes = certificate.tbs_certificate_bytes
        self.issuer, self.subject, self.key = check_certificate(self.der)
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
        self.other_names: bytes | None = None
        if len(certificate.extensions) and certificate.version is not x509.Version.v3:
            raise ValueError("it has extensions, and is not of version 3")
        for extension in certificate.extensions:
            self._read_extension(extension)
        for identifier in _identifiers(certificate):
            check_identifier(identifier.dotted_string)
        self._key = certificate.public_key()
        _check_key(self._key)
        self.algorithm = certificate.signature_algorithm_oid

    def _read_extension(self, extension: x509.Extension[x509.ExtensionType]) -> None:
        value, identifier = extension.value, extension.oid
        understood = identifier in _UNDERSTOOD
        if extension.critical and identifier in _NEVER_CRITICAL:
            raise ValueError(f"its extension {identifier.dotted_string} is critical")
        if isinstance(value, x509.BasicConstraints):
            self.is_ca, self.path_length = value.ca, value.path_length
        elif isinstance(value, x509.KeyUsage):
            self.signs_certificates = value.key_cert_sign
        elif isinstance(value, x509.ExtendedKeyUsage):
            self.usable = any(usage in _USAGES for usage in value)
        elif isinstance(value, x509.SubjectKeyIdentifier):
            self.key_id = value.digest
        elif isinstance(value, x509.SubjectAlternativeName):
            self.other_names = value.public_bytes()
            understood = _reads_other_names(value)
        elif isinstance(value, x509.CertificatePolicies):
            _check_policies([policy.policy_identifier for policy in value])
        if identifier in _BINDING or (extension.critical and not understood):
            self.not_understood = identifier.dotted_string

    def issued_by(self, parent: Certificate) -> bool:
        """Whether `parent` issued this certificate: its subject is the issuer, its key signed."""
        if self.issuer != parent.subject or self.algorithm not in _VERIFIED:
            return False
        try:
            self._x509.verify_directly_issued_by(parent._x509)
        except _WRONG:
            return False
        return True

    @property
    def certifies_itself(self) -> bool:
        """Whether it may stand as a root: one with an ECDSA signature is its own CA."""
        if self.algorithm not in _SIGNED_BY_CURVES:
            return True
        return self.signs_certificates and self.issued_by(self)

    @property
    def certifies_members(self) -> bool:
        """Whether its key is of a kind that Fabric takes from a CA of members: ECDSA or RSA."""
        return isinstance(self._key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey)

    def is_in(self, chain: Iterable[Certificate]) -> bool:
        """Whether Go takes it for a CA of the chain: the same subject, key, alternative names."""
        for lower in chain:
            if (self.subject, self.key) != (lower.subject, lower.key):
                continue
            if self.other_names is None or lower.other_names is None:
                return self.other_names is lower.other_names
            if self.other_names == lower.other_names:
                return True
        return False

    def verifier(self, hash_family: str) -> Callable[[bytes, bytes], None]:
        """Return a function that checks (message, signature) with this key.

        Raises `Unreadable` where the key is not one that Fabric signs with. The function raises
        `Unreadable` where the signature is not DER, not low S, or wrong.
        """
        key, algorithm = self._key, _ECDSA[hash_family]
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise Unreadable(
                "its key is not an elliptic-curve key, the only kind that is supported"
            )
        if key.curve.name not in _ORDERS:
            raise Unreadable(
                f"its key is on the curve {key.curve.name}, which Fabric does not support"
            )
        half = _ORDERS[key.curve.name] // 2

        def verify(message: bytes, signature: bytes) -> None:
            try:
                s = decode_dss_signature(signature)[1]
            except _WRONG as error:
                raise Unreadable("the signature is not a pair of numbers in DER") from error
            if s > half:
                raise Unreadable("the signature is not canonical: its S is in the upper half")
            try:
                key.verify(signature, message, algorithm)
            except _WRONG as error:
                raise Unreadable("the signature does not fit the key and the message") from error

        return verify

    def has_key_of(self, key: PrivateKey) -> bool:
        """Whether `key` is this certificate's private key."""
        return key.public == _public_bytes(self._key)

    def low(self, signer: Certificate) -> bytes:
        """Return its DER with an ECDSA signature in low S, the form that Fabric digests."""
        key = signer._key
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _ORDERS:
            return self.der
        order = _ORDERS[key.curve.name]
        try:
            r, s = decode_dss_signature(self._x509.signature)
        except ValueError:  # nothing else checks a root's own signature
            return self.der
        if s <= order // 2:
            return self.der
        tail = len(tagged(0x03, b"\x00" + self._x509.signature))
        start = self.der.index(self.signed)
        signature = tagged(0x03, b"\x00" + encode_dss_signature(r, order - s))
        return tagged(0x30, self.der[start:-tail] + signature)

    def pem(self) -> bytes:
        """Return the certificate as PEM."""
        return self._x509.public_bytes(serialization.Encoding.PEM)

    def has_signed(self, revocations: Revocations) -> bool:
        """Whether this CA signed the revocation list. As in Go, here SHA-1 counts, too."""
        crl, key = revocations.crl, self._key
        try:
            if not isinstance(crl.signature_hash_algorithm, hashes.SHA1):
                return crl.is_signature_valid(key)  # type: ignore[arg-type]
            digest = crl.signature_hash_algorithm
            if isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(crl.signature, crl.tbs_certlist_bytes, ec.ECDSA(digest))
            elif isinstance(key, rsa.RSAPublicKey):
                form = padding.PKCS1v15()
                key.verify(crl.signature, crl.tbs_certlist_bytes, form, digest)
        except _WRONG:
            return False
        return True


class Revocations:
    """One certificate revocation list."""

    def __init__(self, raw: bytes) -> None:
        """`raw` is PEM or DER; raises `Unreadable`, also where it lacks its CA's key identifier."""
        try:
            der = from_pem(raw, "X509 CRL") if raw.startswith(b"-----BEGIN") else raw
            self.crl = x509.load_der_x509_crl(der)
            check_revocations(self.crl.tbs_certlist_bytes)
            if self.crl.signature_algorithm_oid in _SIGNED_BY_CURVES:
                decode_dss_signature(self.crl.signature)
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
    """An ECDSA key that signs in Fabric's form: SHA-256, low S, DER."""

    def __init__(self, raw: bytes) -> None:
        """`raw` is PEM without a password; raises `Unreadable`."""
        try:
            key = serialization.load_pem_private_key(raw, password=None)
        except _WRONG as error:
            raise Unreadable(f"no readable private key ({_first_line(error)})") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name not in _ORDERS:
            raise Unreadable("the private key is not on a curve that Fabric supports")
        self._key = key
        self._order = _ORDERS[key.curve.name]
        self.public = _public_bytes(key.public_key())

    def sign(self, message: bytes) -> bytes:
        """Return the signature over SHA-256 of `message`."""
        signature = self._key.sign(message, _ECDSA["SHA2"])
        r, s = decode_dss_signature(signature)
        if s <= self._order // 2:
            return signature
        return encode_dss_signature(r, self._order - s)


class Authorities:
    """The CAs of one organisation: `roots` are trusted, `intermediates` only through a root."""

    def __init__(self, roots: Sequence[Certificate], intermediates: Sequence[Certificate]) -> None:
        self.roots, self.intermediates = _distinct(roots), _distinct(intermediates)
        self._trusted = {root.signed for root in roots}

    def chain(self, leaf: Certificate) -> tuple[Certificate, ...]:
        """Return the chain from the certificate to a root.

        Raises `Unreadable` unless there is exactly one. CAs must be valid at the time of the
        certificate's issue; its own expiry is checked elsewhere (`msp.expires_at`).
        """
        if leaf.not_understood is not None:
            raise Unreadable(
                f"it has a critical extension ({leaf.not_understood}) that is not supported"
            )
        if leaf.not_after < leaf.not_before + _A_SECOND:
            raise Unreadable("it ends within a second of its begin")
        if leaf.signed in self._trusted:
            if not leaf.usable:
                raise Unreadable(_NOT_USABLE)
            return (leaf,)
        checks = [0]
        chains: list[tuple[Certificate, ...]] = []
        for chain in self._above((leaf,), leaf.not_before + _A_SECOND, checks):
            chains.append(chain)
            if len(chains) > 1:
                raise Unreadable("it has more than one chain to the organisation's roots")
        if not chains:
            raise Unreadable("no chain of valid CAs leads to the organisation's roots")
        if not all(certificate.usable for certificate in chains[0]):
            raise Unreadable(_NOT_USABLE)
        return chains[0]

    def _above(
        self, below: tuple[Certificate, ...], time: datetime, checks: list[int]
    ) -> Iterator[tuple[Certificate, ...]]:
        for number, parent in enumerate((*self.roots, *self.intermediates)):
            if parent.subject != below[-1].issuer:
                continue
            checks[0] += 1
            if checks[0] > SIGNATURE_CHECKS_MAX:
                raise Unreadable(
                    f"its chain takes too many signature checks (over {SIGNATURE_CHECKS_MAX})"
                )
            if parent.is_in(below) or not _may_certify(parent, below, time):
                continue
            if not below[-1].issued_by(parent):
                continue
            if number < len(self.roots):
                yield (*below, parent)
            else:
                yield from self._above((*below, parent), time, checks)


def _distinct(certificates: Iterable[Certificate]) -> tuple[Certificate, ...]:
    """Keep each CA once, as Go's pools do: one that is listed twice makes no second chain."""
    return tuple({certificate.der: certificate for certificate in certificates}.values())


def _may_certify(parent: Certificate, below: tuple[Certificate, ...], time: datetime) -> bool:
    return (
        parent.is_ca
        and parent.signs_certificates
        and parent.not_understood is None
        and parent.not_before <= time <= parent.not_after
        and (parent.path_length is None or len(below) - 1 <= parent.path_length)
    )


def _identifiers(certificate: x509.Certificate) -> Iterator[x509.ObjectIdentifier]:
    """Yield the object identifiers that Go reads as numbers."""
    yield certificate.signature_algorithm_oid
    yield from (part.oid for part in (*certificate.issuer, *certificate.subject))
    for extension in certificate.extensions:
        yield extension.oid
        if isinstance(extension.value, x509.ExtendedKeyUsage):
            yield from extension.value
        elif isinstance(extension.value, x509.AuthorityInformationAccess):
            yield from (access.access_method for access in extension.value)


def _reads_other_names(names: x509.SubjectAlternativeName) -> bool:
    """Whether Go reads any of these names; refuse those that it may not be able to read."""
    texts = (x509.DNSName, x509.RFC822Name, x509.UniformResourceIdentifier)
    for name in names:
        if isinstance(name, x509.UniformResourceIdentifier) and not _PLAIN_URI.match(name.value):
            raise ValueError("an alternative name is no plain address")
        if isinstance(name, texts) and not name.value.isascii():
            raise ValueError("an alternative name is not ASCII")
    return any(isinstance(name, (*texts, x509.IPAddress)) for name in names)


def _check_policies(policies: Sequence[x509.ObjectIdentifier]) -> None:
    if len(set(policies)) < len(policies):
        raise ValueError("it names a certificate policy twice")


def _check_key(key: object) -> None:
    if not isinstance(key, rsa.RSAPublicKey):
        return
    numbers = key.public_numbers()
    if not (key.key_size >= _RSA_BITS_MIN and numbers.n % 2 and numbers.e % 2):
        raise ValueError("its RSA key is too short, or even")
    if not 2 < numbers.e <= _RSA_EXPONENT_MAX:
        raise ValueError("its RSA key has an exponent that peers do not use")


def tagged(tag: int, content: bytes) -> bytes:
    """Encode a value in DER."""
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
