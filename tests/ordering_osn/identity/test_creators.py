"""Untrusted creators and signatures: which are accepted, and the error for the others."""

import base64
import warnings

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import given, settings
from hypothesis import strategies as st

from ordering_osn.identity import (
    BadSignature,
    MalformedMsp,
    Msp,
    Msps,
    SigningIdentity,
    UntrustedIdentity,
    expires_at,
    fingerprint,
)
from ordering_osn.identity.certificates import Authorities, Certificate, Unreadable
from ordering_osn.protos import SerializedIdentity
from tests.ordering_osn.helpers.pki import (
    P256_ORDER,
    assert_one_sentence,
    key_usage,
    node_msp,
    root,
)

# Invalid creators.


def strange_creators():
    good = root()
    ok = good.issue("a", units=["client"])
    keys = {
        "RSA": rsa.generate_private_key(65537, 2048),
        "Ed25519": ed25519.Ed25519PrivateKey.generate(),
        "secp256k1": ec.generate_private_key(ec.SECP256K1()),
    }
    made = {
        name: (good.issue("a", units=["client"], key=key).creator(), "its key is")
        for name, key in keys.items()
    }

    def identity(content, name="Org1"):
        return SerializedIdentity(mspid=name, id_bytes=content).SerializeToString()

    body = ok.pem.replace(b"\n", b"")
    return good, made | {
        "empty": (b"", "there is no creator"),
        "garbage": (b"\xff\xff\xff", "not a serialized identity"),
        "not UTF-8": (b"\x0a\x01\xff", "not a serialized identity"),
        "no certificate": (identity(b""), "no PEM certificate"),
        "DER": (identity(ok.der), "no PEM certificate"),
        "not PEM": (identity(b"-----BEGIN CERTIFICATE-----"), "no readable certificate"),
        "PEM of nothing": (
            identity(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            "no readable certificate",
        ),
        "PEM of a key": (identity(ok.key_pem), "no readable certificate"),
        "cut": (identity(ok.pem[:-30]), "no readable certificate"),
        "one line": (identity(body[:200]), "no readable certificate"),
        "PEM in one line": (identity(body), "no readable certificate"),
        "blanks before PEM": (identity(b"  " + ok.pem), "no readable certificate"),
        "another block first": (identity(ok.key_pem + ok.pem), "no readable certificate"),
        "PEM with headers": (
            identity(ok.pem.replace(b"-----\n", b"-----\nProc-Type: 4\n\n", 1)),
            "no readable certificate",
        ),
        "too long": (identity(ok.pem + b" " * 20_000), "more than 16384 bytes"),
        "unknown MSP": (ok.creator("Org9"), "MSP 'Org9' is not one of this channel's"),
        "no MSP": (ok.creator(""), "MSP '' is not one of this channel's"),
    }


AUTHORITY, STRANGE = strange_creators()


@pytest.mark.parametrize("what", STRANGE)
def test_a_creator_that_is_none_is_told_so_in_one_sentence(what):
    creator, sentence = STRANGE[what]
    with pytest.raises(UntrustedIdentity, match=sentence) as caught:
        Msps([node_msp(AUTHORITY)]).identity(creator)
    assert_one_sentence(caught.value)


def test_no_byte_of_a_certificate_can_be_changed_to_become_somebody_else(authority):
    member = authority.issue("a", units=["client"])
    msps = Msps([node_msp(authority)])
    key = msps.identity(member.creator()).key
    for place in range(len(member.der)):
        changed = bytearray(member.der)
        changed[place] ^= 1 << place % 8
        pem = certificate_pem(bytes(changed))
        creator = SerializedIdentity(mspid="Org1", id_bytes=pem).SerializeToString()
        try:
            identity = msps.identity(creator)
            identity.validate()
        except UntrustedIdentity as error:
            assert_one_sentence(error)
        else:
            assert identity.key == key  # another encoding of the certificate's signature


def certificate_pem(der):
    body = base64.encodebytes(der)
    return b"-----BEGIN CERTIFICATE-----\n" + body + b"-----END CERTIFICATE-----\n"


@settings(max_examples=100)
@given(st.binary(max_size=200), st.integers(0, 2))
def test_no_bytes_of_anybody_raise_anything_else(noise, place):
    msps = Msps([node_msp(AUTHORITY)])
    content = [noise, certificate_pem(noise), b"-----BEGIN CERTIFICATE-----" + noise][place]
    for creator in (noise, SerializedIdentity(mspid="Org1", id_bytes=content).SerializeToString()):
        assert expires_at(creator) is None
        with pytest.raises(UntrustedIdentity):
            msps.identity(creator)
    with pytest.raises(MalformedMsp):
        Msp(noise)


# Signatures.


def test_a_high_s_signature_is_refused_though_it_is_right(authority):
    member = authority.issue("a", units=["client"])
    identity = Msps([node_msp(authority)]).identity(member.creator())
    identity.verify(b"message", member.sign(b"message"))
    with pytest.raises(BadSignature, match="upper half"):
        identity.verify(b"message", member.sign(b"message", high=True))


@pytest.mark.parametrize(
    "signature",
    [
        b"",
        b"\x00",
        b"\x30\x00",
        b"nonsense",
        encode_dss_signature(0, 0),
        encode_dss_signature(1, 1),
        bytes.fromhex("3006020181020101"),  # r is negative
        encode_dss_signature(P256_ORDER, 1),
        encode_dss_signature(2**2000, 1),
    ],
)
def test_a_signature_that_is_none_is_refused_in_one_sentence(authority, signature):
    member = authority.issue("a", units=["client"])
    identity = Msps([node_msp(authority)]).identity(member.creator())
    with pytest.raises(BadSignature) as caught:
        identity.verify(b"message", signature)
    assert_one_sentence(caught.value)


def test_a_signature_of_another_message_key_or_with_a_tail_is_refused(authority):
    member, other = (authority.issue("a", units=["client"]) for _ in range(2))
    identity = Msps([node_msp(authority)]).identity(member.creator())
    for wrong in (member.sign(b"other"), other.sign(b"message"), member.sign(b"message") + b"\x00"):
        with pytest.raises(BadSignature):
            identity.verify(b"message", wrong)


@pytest.mark.parametrize("curve", [ec.SECP224R1, ec.SECP256R1, ec.SECP384R1, ec.SECP521R1])
def test_each_curve_that_fabric_knows_signs_low_and_verifies(authority, curve, tmp_path):
    member = authority.issue("a", units=["client"], key=ec.generate_private_key(curve()))
    signer = signing_identity(tmp_path, member)
    identity = Msps([node_msp(authority)]).identity(signer.creator)
    for number in range(20):
        identity.verify(b"%d" % number, signer.sign(b"%d" % number))


def test_an_organisation_may_sign_over_sha3(authority):
    member = authority.issue("a", units=["client"])
    identity = Msps([node_msp(authority, family="SHA3")]).identity(member.creator())
    identity.verify(b"message", member.sign(b"message", digest=hashes.SHA3_256))
    with pytest.raises(BadSignature):
        identity.verify(b"message", member.sign(b"message"))


def test_the_same_certificate_in_two_spellings_is_one_identity(authority):
    member = authority.issue("a", units=["client"])
    spelled = SerializedIdentity(mspid="Org1", id_bytes=b"\n\n" + member.pem).SerializeToString()
    msps = Msps([node_msp(authority)])
    assert msps.identity(spelled).key == msps.identity(member.creator()).key
    assert member.respelled().der != member.der
    msps.identity(member.respelled().creator()).validate()
    assert msps.identity(member.respelled().creator()).key == msps.identity(spelled).key


# Made by `openssl x509 -req -sha1` and `-sha256`: a CA and two certificates of it.
BY_SHA = {
    "root": b"""-----BEGIN CERTIFICATE-----
MIIBhjCCASugAwIBAgIUd69A4Ef7fMP/340SI6JVZJs05iwwCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEcm9vdDAgFw0yNjExMjEyMTMzMTFaGA8yMTI2MTAyODIxMzMx
MVowDzENMAsGA1UEAwwEcm9vdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABFZ1
n6kOmyDbjEI06scm0vE74I0SOvtP7btca+h9YXzj31wVPphDgUcCfGy1V5TCXxlm
wIvIxxP7WC9kZ3F0g1CjYzBhMB0GA1UdDgQWBBTiXuowBgbqPUfuxdl5OpxdGgmX
0jAfBgNVHSMEGDAWgBTiXuowBgbqPUfuxdl5OpxdGgmX0jAPBgNVHRMBAf8EBTAD
AQH/MA4GA1UdDwEB/wQEAwIBBjAKBggqhkjOPQQDAgNJADBGAiEA87tg/WojKp5e
5TuqIAfxFDSY0rNAO7fn+pTTWgcB6JgCIQDFoLb/Cdz2nMl4CNltpaDPUEIO6TZ0
FywMF4bVimsWzg==
-----END CERTIFICATE-----
""",
    "sha1": b"""-----BEGIN CERTIFICATE-----
MIIBJjCBzgIUWBeP1F3jCKiWyUe0gKt1zFc94vcwCQYHKoZIzj0EATAPMQ0wCwYD
VQQDDARyb290MCAXDTI2MTEyMTIxMzMxMloYDzIxMjYxMDI4MjEzMzEyWjAdMQ8w
DQYDVQQLDAZjbGllbnQxCjAIBgNVBAMMAWEwWTATBgcqhkjOPQIBBggqhkjOPQMB
BwNCAAQjUlZmkUPm2paxtWk945+xXtzSxrA61mj7mfiTeHzKpFk/VqOsMlU1f/RE
BR/nb0vdsXL+C8ojwp/QcaZ8qNYwMAkGByqGSM49BAEDSAAwRQIgPUl4n8Yb95H8
nouk3Tkk4NAM4/+JW0vavBmZSXRUQp4CIQCY9y4V5omirpUe9MTGTThvPB3lu7Ci
atwl+/5njL0IOQ==
-----END CERTIFICATE-----
""",
    "sha256": b"""-----BEGIN CERTIFICATE-----
MIIBKDCBzwIULAn+ccJKWQV6bEb2x+kLxoiORJQwCgYIKoZIzj0EAwIwDzENMAsG
A1UEAwwEcm9vdDAgFw0yNjExMjEyMTMzMTJaGA8yMTI2MTAyODIxMzMxMlowHTEP
MA0GA1UECwwGY2xpZW50MQowCAYDVQQDDAFhMFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAEJK6LuTBzpIEfu7WtdmzghxR+jTxmu3Ocvvfruc6o2o/PwISJ6ohM4hnI
yKPGeT12madcFeNixSkolDEePRRJgDAKBggqhkjOPQQDAgNIADBFAiEAoILyMSEV
rPvTHWeV3m7uCp/pckjC1Jn5Xi3aoXZrU3oCIF8wmXLMeJ7UrUHRKh5Q+TgoqEA0
ZrdyuDAhiyBebD3o
-----END CERTIFICATE-----
""",
}


def test_what_is_certified_over_sha1_is_not_certified():
    chain = Authorities([Certificate(BY_SHA["root"])], []).chain
    assert len(chain(Certificate(BY_SHA["sha256"]))) == 2
    with pytest.raises(Unreadable, match="no chain"):
        chain(Certificate(BY_SHA["sha1"]))


def test_a_certificate_whose_number_is_not_positive_is_none(authority):
    der = bytearray(authority.issue("a", serial=0x40 << 152).der)
    der[der.index(b"\x02\x14\x40") + 2] |= 0x80  # the number, 20 bytes, becomes negative
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Unreadable, match="not positive"):
            Certificate(bytes(der))


def test_an_authority_in_a_chain_must_be_one_and_be_understood():
    top = root()
    unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3"), b"")
    odd = top.issue("odd", ca=True, begins=0, extensions=[(unknown, True)])
    member = top.issue("member", begins=0, usage=key_usage(certificates=True))
    good = top.issue("good", ca=True, begins=0)
    between = [Certificate(one.der) for one in (odd, member, good)]
    chain = Authorities([Certificate(top.der)], between).chain
    assert len(chain(Certificate(good.issue("a").der))) == 3
    for wrong in (odd, member):
        with pytest.raises(Unreadable, match="no chain"):
            chain(Certificate(wrong.issue("a").der))


# This node's own identity, and TLS clients.


def signing_identity(folder, member, *, keys=None):
    (folder / "signcerts").mkdir(parents=True)
    (folder / "keystore").mkdir()
    (folder / "signcerts" / "cert.pem").write_bytes(member.pem)
    for number, key in enumerate([member.key_pem] if keys is None else keys):
        (folder / "keystore" / f"{number}_sk").write_bytes(key)
    return SigningIdentity.load(folder, "Org1")


def test_the_key_that_fits_the_certificate_is_taken(authority, tmp_path):
    member, other = (authority.issue("a", units=["orderer"]) for _ in range(2))
    signer = signing_identity(tmp_path, member, keys=[b"junk", other.key_pem, member.key_pem])
    assert signer.creator == member.creator()
    Msps([node_msp(authority)]).identity(signer.creator).verify(b"m", signer.sign(b"m"))
    assert len(signer.nonce()) == 24
    assert signer.nonce() != signer.nonce()


def test_an_msp_folder_that_cannot_be_used_is_refused_in_one_sentence(authority, tmp_path):
    member, other = (authority.issue("a") for _ in range(2))
    locked = member.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    cases = {"none": [], "other": [other.key_pem], "junk": [b"junk"], "locked": [locked]}
    for name, keys in cases.items():
        with pytest.raises(MalformedMsp, match="holds no private key of") as caught:
            signing_identity(tmp_path / name, member, keys=keys)
        assert_one_sentence(caught.value)
    with pytest.raises(MalformedMsp, match="cannot list"):
        SigningIdentity.load(tmp_path / "nowhere", "Org1")
    (tmp_path / "none/signcerts/second.pem").write_bytes(other.pem)
    with pytest.raises(MalformedMsp, match="must hold one certificate, not 2"):
        SigningIdentity.load(tmp_path / "none", "Org1")
    (tmp_path / "locked/signcerts/cert.pem").write_bytes(b"junk")
    with pytest.raises(MalformedMsp, match="no readable certificate"):
        SigningIdentity.load(tmp_path / "locked", "Org1")


def test_a_tls_client_is_bound_by_the_digest_of_its_certificate(authority):
    member = authority.issue("a")
    expected = member.certificate.fingerprint(hashes.SHA256())
    assert fingerprint(member.pem) == fingerprint(member.der) == expected
    for none in (b"", b"-----BEGIN CERTIFICATE-----", b"\x30"):
        with pytest.raises(UntrustedIdentity, match="no readable certificate"):
            fingerprint(none)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o640, 1), (0o644, 1)])
def test_a_key_that_others_may_read_is_warned_of(tmp_path, authority, caplog, mode, warned):
    signing_identity(tmp_path, authority.issue("a"))
    (key,) = (tmp_path / "keystore").iterdir()
    key.chmod(mode)
    caplog.clear()
    caplog.set_level("WARNING", "amcast.osn.keys")
    SigningIdentity.load(tmp_path, "Org1")
    assert caplog.text.count(f"chmod 600 {key}") == warned
