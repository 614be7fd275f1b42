"""Organisations that Fabric's peers refuse: each would stop every peer of a channel for good."""

import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID as Usage

from ordering_osn.identity import MalformedMsp, Msp
from ordering_osn.identity.certificates import Certificate, Unreadable, tagged
from ordering_osn.identity.encoding import elements, from_pem
from ordering_osn.protos import FabricMSPConfig, MSPConfig
from tests.ordering_osn.helpers.pki import NODES, assert_one_sentence, key_usage, msp_bytes, root

ODD = x509.ObjectIdentifier("1.2.3.4.5.6.7.8.1")


def definition(certified, nodes=NODES, **fields):
    """An organisation of one root, whose definition has these fields in addition."""
    outer = MSPConfig.FromString(msp_bytes([certified], nodes=nodes))
    config = FabricMSPConfig.FromString(outer.config)
    for name, values in fields.items():
        getattr(config, name).extend(getattr(value, "pem", value) for value in values)
    outer.config = config.SerializeToString()
    return outer.SerializeToString()


def on(curve):
    return root("other", key=ec.generate_private_key(curve()))


def of_edwards():
    key = ed25519.Ed25519PrivateKey.generate()
    return root("other", key=key, digest=lambda: None)


def respelled(certified, old, new):
    """The certificate with other bytes in place of some, all of the same length."""
    assert len(old) == len(new)
    assert old in certified.der
    return ssl.DER_cert_to_PEM_cert(certified.der.replace(old, new)).encode()


def algorithms(certified):
    """The certificate with another signature algorithm outside than inside."""
    sha256, sha384 = (bytes.fromhex(f"06082a8648ce3d04030{last}") for last in (2, 3))
    head, tail = certified.der.rsplit(sha256, 1)
    return ssl.DER_cert_to_PEM_cert(head + sha384 + tail).encode()


def with_usage(*usages):
    return root("other", extensions=[(x509.ExtendedKeyUsage(usages), False)])


def refused():
    good, other = root(), root("other")
    below = root("elsewhere").issue("below", ca=True, begins=0)
    unknown = (x509.UnrecognizedExtension(ODD, b"attributes"), True)
    first = good.issue("first", ca=True, begins=0)
    admin = good.issue("admin", units=["admin"])
    inner = {"intermediate_certs": [first], "admins": [admin]}
    stray = msp_bytes([good], admins=[admin], nodes={"admin": other}, enforced=False)
    return {
        "a root on secp256k1": (definition(good, root_certs=[on(ec.SECP256K1)]), "curve"),
        "a root on brainpool": (definition(good, root_certs=[on(ec.BrainpoolP256R1)]), "curve"),
        "a root of Ed25519": (definition(good, root_certs=[of_edwards()]), "neither ECDSA nor"),
        "a TLS root on secp256k1": (definition(good, tls_root_certs=[on(ec.SECP256K1)]), "curve"),
        "a stray TLS intermediate": (
            definition(good, tls_root_certs=[other], tls_intermediate_certs=[below]),
            "CA below is not valid: no chain",
        ),
        "a TLS intermediate without root": (
            definition(good, tls_intermediate_certs=[below]),
            "CA below is not valid: no chain",
        ),
        "a TLS root's critical extension": (
            definition(good, tls_root_certs=[root(extensions=[unknown])]),
            "critical extension",
        ),
        "a TLS root for clients only": (
            definition(good, tls_root_certs=[with_usage(Usage.CLIENT_AUTH)]),
            "extended key usage",
        ),
        "a root for clients only": (
            definition(good, root_certs=[with_usage(Usage.CLIENT_AUTH)]),
            "extended key usage",
        ),
        "a root that may not certify": (
            definition(good, root_certs=[root("other", usage=key_usage(certificates=False))]),
            "does not certify itself",
        ),
        "a root that another CA certified": (definition(good, root_certs=[below]), "itself"),
        "an administrator of a CA that certifies a CA": (definition(good, **inner), "neither"),
        "the same without units of nodes": (
            definition(good, nodes=None, **inner),
            "certifies other CAs",
        ),
        "a unit's stray CA, units of nodes disabled": (stray, "not one of its CAs"),
    }


def badly_written():
    good, other = root(), root("other")
    critical = (x509.SubjectKeyIdentifier(b"key"), True)
    long = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.4294967296"), b"attributes")
    brief = root("other", ends=0)
    return {
        "a CA that ends as it begins": (definition(good, tls_root_certs=[brief]), "second"),
        "DER": (definition(good, tls_root_certs=[other.der]), "no PEM"),
        "two signature algorithms": (
            definition(good, tls_root_certs=[algorithms(other)]),
            "algorithms differ",
        ),
        "a name of an unknown kind of string": (
            definition(good, tls_root_certs=[respelled(other, b"\x0c\x05other", b"\x1a\x05other")]),
            "no string",
        ),
        "a name that is no UTF-8": (
            definition(
                good, tls_root_certs=[respelled(other, b"\x0c\x05other", b"\x0c\x05oth\xe4r")]
            ),
            "no readable",
        ),
        "a critical key identifier": (
            definition(good, tls_root_certs=[root(key_id=False, extensions=[critical])]),
            "is critical",
        ),
        "a number that Go cannot hold": (
            definition(good, tls_root_certs=[root(extensions=[(long, False)])]),
            "number over",
        ),
        "a TLS root's bad point": (
            definition(good, tls_root_certs=[compressed(root("a" * 60))]),
            "uncompressed point",
        ),
        "a key of its own": (definition_with_signer(good), "private key"),
    }


def compressed(certified):
    """The certificate with a compressed point."""
    forms = serialization.PublicFormat.UncompressedPoint, serialization.PublicFormat.CompressedPoint
    encoded = [
        certified.key.public_key().public_bytes(serialization.Encoding.X962, form) for form in forms
    ]
    long, short = (bytes((3, len(point) + 1, 0)) + point for point in encoded)
    less = len(long) - len(short)
    der = bytearray(certified.der)
    inside = der.index(certified.certificate.tbs_certificate_bytes)
    for at in (2, inside + 2):  # the lengths around it, of two bytes each
        der[at : at + 2] = (int.from_bytes(der[at : at + 2]) - less).to_bytes(2)
    key = der.index(long)
    outer = key - 21 - 2  # before the algorithm
    der[outer + 1] -= less
    der[key : key + len(long)] = short
    return ssl.DER_cert_to_PEM_cert(bytes(der)).encode()


def definition_with_signer(certified):
    outer = MSPConfig.FromString(msp_bytes([certified], nodes=NODES))
    config = FabricMSPConfig.FromString(outer.config)
    config.signing_identity.public_signer = certified.pem
    outer.config = config.SerializeToString()
    return outer.SerializeToString()


REFUSED = refused() | badly_written()


@pytest.mark.parametrize("what", REFUSED)
def test_what_fabrics_peers_refuse_is_refused_in_one_sentence(what):
    raw, sentence = REFUSED[what]
    with pytest.raises(MalformedMsp, match=sentence) as caught:
        Msp(raw)
    assert_one_sentence(caught.value)


@pytest.mark.parametrize("curve", [ec.SECP224R1, ec.SECP256R1, ec.SECP384R1, ec.SECP521R1])
def test_each_curve_of_peers_is_taken(curve):
    certified = on(curve)
    Msp(definition(certified, tls_root_certs=[root(), of_edwards()], root_certs=[root("b")]))


@pytest.mark.parametrize(
    "write",
    [
        lambda pem: pem,
        lambda pem: b"Certificate:\n" + pem,
        lambda pem: pem.replace(b"\n", b"\r\n"),
        lambda pem: pem.rstrip(),
        lambda pem: pem + pem,
    ],
)
def test_pem_as_tools_write_it_is_read(authority, write):
    assert from_pem(write(authority.pem), "CERTIFICATE") == authority.der


def test_a_signature_of_an_algorithm_that_go_does_not_verify_counts_for_nothing(authority):
    child, parent = Certificate(authority.issue("a", digest=hashes.SHA224).pem), authority.pem
    assert not child.issued_by(Certificate(parent))
    with pytest.raises(Unreadable, match="PEM"):
        Certificate(b"-----BEGIN CERTIFICATE-----")


def test_a_revocation_that_is_signed_over_sha1_counts_as_in_go():
    key = rsa.generate_private_key(65537, 2048)
    top = root(key=key)
    below = top.issue("below", ca=True, begins=0)
    der = x509.load_pem_x509_crl(top.revoke(below)).public_bytes(serialization.Encoding.DER)
    sha256, sha1 = (bytes.fromhex(f"2a864886f70d0101{last}") for last in ("0b", "05"))
    signed, algorithm, _ = elements(elements(der.replace(sha256, sha1))[0].content)
    signature = key.sign(signed.whole, padding.PKCS1v15(), hashes.SHA1())
    again = tagged(0x30, signed.whole + algorithm.whole + tagged(3, b"\0" + signature))
    with pytest.raises(MalformedMsp, match="revoked"):
        Msp(msp_bytes([top], intermediates=[below], nodes=NODES, revocations=[again]))


def test_the_name_in_a_revocation_list_must_be_one_that_go_reads(authority):
    der = x509.load_pem_x509_crl(authority.revoke()).public_bytes(serialization.Encoding.DER)
    damaged = der.replace(b"\x0c\x04root", b"\x0c\x04ro\xe4t")
    assert damaged != der
    with pytest.raises(MalformedMsp, match="no readable revocation list"):
        Msp(msp_bytes([authority], nodes=NODES, revocations=[damaged]))
