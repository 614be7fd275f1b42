"""PEM and DER of certificates as Go's encoding/pem and crypto/x509 read them: bytes only.

Fabric's peers read the certificates of a config block with Go. What `certificates.py` reads with
another library must be refused where Go would refuse it; this module has the rules about bytes
that the library does not keep. Each raises `ValueError` with the reason.

    element     a value in DER: its tag, its content, and all its bytes

Stricter than Go: one block of the right kind without headers and empty lines; names of strings in
UTF8String, PrintableString, IA5String and NumericString only (Go also reads T61String, BMPString).
"""

from __future__ import annotations

import base64
import re
from typing import NamedTuple

_RSA = bytes.fromhex("300d06092a864886f70d0101010500")  # rsaEncryption, with NULL
_ED25519 = bytes.fromhex("300506032b6570")
# id-ecPublicKey with secp224r1, secp256r1, secp384r1, secp521r1: the curves of crypto/elliptic.
_CURVES = tuple(
    bytes.fromhex(curve)
    for curve in (
        "301006072a8648ce3d020106052b81040021",
        "301306072a8648ce3d020106082a8648ce3d030107",
        "301006072a8648ce3d020106052b81040022",
        "301006072a8648ce3d020106052b81040023",
    )
)
_UNCOMPRESSED = b"\x00\x04"  # no unused bits, then the form of an elliptic curve's point
_INTEGER, _UTF8, _NUMERIC, _PRINTABLE, _IA5 = 0x02, 0x0C, 0x12, 0x13, 0x16
_CHARACTERS = {
    _NUMERIC: re.compile(rb"[0-9 ]*\Z"),
    _PRINTABLE: re.compile(rb"[A-Za-z0-9'()+,\-./ :=?*&]*\Z"),
}
_COMPONENT_MAX = 2**31 - 1  # of an object identifier, in Go


class Element(NamedTuple):
    """One value in DER."""

    tag: int
    content: bytes
    whole: bytes


def from_pem(raw: bytes, kind: str) -> bytes:
    """Return the DER of the first PEM block, which must be of this kind."""
    name = re.escape(kind).encode()
    head = raw.partition(b"-----")[0]
    block = re.match(
        rb"-----BEGIN " + name + rb"-----[ \t]*\r?\n"
        rb"((?:[A-Za-z0-9+/=]+[ \t\r]*\n)+)"
        rb"-----END " + name + rb"-----[ \t]*(?:\r?\n|\Z)",
        raw[len(head) :],
    )
    if block is None or (head and not head.endswith(b"\n")):
        raise ValueError(f"its PEM is not one block {kind!r} that begins a line, in lines")
    return base64.b64decode(re.sub(rb"\s", b"", block[1]), validate=True)


def elements(content: bytes) -> list[Element]:
    """Return the values that a constructed value's content holds."""
    values = []
    at = 0
    while at < len(content):
        start, size = at + 2, content[at + 1]
        if size >= 0x80:
            start, size = start + (size & 0x7F), int.from_bytes(content[start:][: size & 0x7F])
        end = start + size
        values.append(Element(content[at], content[start:end], content[at:end]))
        at = end
    return values


def check_certificate(der: bytes) -> tuple[bytes, bytes, bytes]:
    """Return issuer, subject and key, in DER, of a certificate that the library has read."""
    signed, algorithm, _signature = elements(elements(der)[0].content)
    fields = elements(signed.content)
    if fields[0].tag == 0xA0:  # the version, left out where it is 1
        fields = fields[1:]
    _serial, inner, issuer, _validity, subject, key = fields[:6]
    if inner.whole != algorithm.whole:
        raise ValueError("its two signature algorithms differ")
    for name in (issuer, subject):
        _check_name(name)
    _check_key(key)
    return issuer.whole, subject.whole, key.whole


def check_revocations(signed: bytes) -> None:
    """Check the name in the signed part of a revocation list that the library has read."""
    fields = elements(elements(signed)[0].content)
    versioned = fields[0].tag == _INTEGER
    _check_name(fields[2 if versioned else 1])


def check_identifier(dotted: str) -> None:
    """Refuse an object identifier with a number that Go cannot hold."""
    if any(int(number) > _COMPONENT_MAX for number in dotted.split(".")):
        raise ValueError(f"the object identifier {dotted} has a number over {_COMPONENT_MAX}")


def _check_name(name: Element) -> None:
    for group in elements(name.content):
        for attribute in elements(group.content):
            _kind, value = elements(attribute.content)
            if not _is_readable(value):
                raise ValueError("a name in it is no string that every peer reads")


def _is_readable(text: Element) -> bool:
    if text.tag == _UTF8:
        text.content.decode()  # an error is a ValueError
        return True
    if text.tag == _IA5:
        return text.content.isascii()
    characters = _CHARACTERS.get(text.tag)
    return characters is not None and characters.match(text.content) is not None


def _check_key(key: Element) -> None:
    algorithm, point = elements(key.content)
    if algorithm.whole in _CURVES:
        if not point.content.startswith(_UNCOMPRESSED):
            raise ValueError("its key is not an uncompressed point of its curve")
    elif algorithm.whole not in (_RSA, _ED25519):
        raise ValueError("its key is of a kind, or on a curve, that peers do not read")
