"""MSP definitions that cannot be used, and the error for each."""

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from hypothesis import given, settings
from hypothesis import strategies as st

from ordering_osn.identity import MalformedMsp, Msp, Msps
from ordering_osn.protos import MSPConfig
from tests.ordering_osn.helpers.pki import NODES, assert_one_sentence, msp_bytes, node_msp, root


def malformed():
    good, other = root(), root("other")
    client = good.issue("client", units=["client"])
    second = good.issue("second", ca=True, begins=0)
    third = second.issue("third", ca=True, begins=0)
    return {
        "garbage": (b"\xff\xff", "cannot be used"),
        "Idemix": (msp_bytes([good], nodes=NODES, kind=1), "type is 1"),
        "garbage inside": (MSPConfig(config=b"\xff").SerializeToString(), "cannot be used"),
        "no name": (msp_bytes([good], nodes=NODES, name=""), "no name"),
        "no root": (msp_bytes([], nodes=NODES), "no root CA"),
        "root is no CA": (msp_bytes([client], nodes=NODES), "is not a CA's"),
        "no key identifier": (msp_bytes([root(key_id=False)], nodes=NODES), "no subject key"),
        "stray intermediate": (
            msp_bytes([good], intermediates=[other.issue("b", ca=True)], nodes=NODES),
            "CA b is not valid: no chain",
        ),
        "no administrator": (msp_bytes([good]), "neither administrators nor"),
        "no administrator unit": (
            msp_bytes([good], nodes={"client": None}),
            "neither administrators nor",
        ),
        "foreign administrator": (
            msp_bytes([good], admins=[other.issue("a")]),
            "administrator a of Org1 is not valid",
        ),
        "foreign administrator, NodeOUs": (
            msp_bytes([good], admins=[other.issue("a", units=["admin"])], nodes=NODES),
            "administrator a is neither client nor admin",
        ),
        "peer as administrator": (
            msp_bytes([good], admins=[good.issue("a", units=["peer"])], nodes=NODES),
            "administrator a is neither client nor admin",
        ),
        "administrator's key": (
            msp_bytes([good], admins=[good.issue("a", key=ed25519.Ed25519PrivateKey.generate())]),
            "not an elliptic-curve key",
        ),
        "hash family": (msp_bytes([good], nodes=NODES, family="MD5"), "'MD5' is unknown"),
        "certifier of a unit": (msp_bytes([good], nodes={"admin": other}), "not one of its CAs"),
        "certifier of a unit certifies CAs": (
            msp_bytes([good], intermediates=[second, third], nodes={"admin": second}),
            "certifies other CAs",
        ),
        "revocation list": (
            msp_bytes([good], nodes=NODES, revocations=[b"nothing"]),
            "no readable revocation list",
        ),
        "nameless revocation list": (
            msp_bytes([good], nodes=NODES, revocations=[good.revoke(key_id=False)]),
            "without an authority key identifier",
        ),
        "TLS CA": (msp_bytes([good], nodes=NODES, tls=[client]), "is not a CA's"),
    }


MALFORMED = malformed()


@pytest.mark.parametrize("what", MALFORMED)
def test_a_definition_that_cannot_be_used_is_refused_in_one_sentence(what):
    raw, sentence = MALFORMED[what]
    with pytest.raises(MalformedMsp, match=sentence) as caught:
        Msp(raw)
    assert_one_sentence(caught.value)


def test_an_organisation_defined_twice_must_be_the_same_twice(authority):
    raw = msp_bytes([authority], nodes=NODES)
    member = authority.issue("a", units=["client"])
    Msps([Msp(raw), Msp(raw)]).identity(member.creator()).validate()
    with pytest.raises(MalformedMsp, match="two different MSPs"):
        Msps([Msp(raw), node_msp(root())])


def a_full_definition():
    authority = root()
    below = authority.issue("below", ca=True, begins=0)
    gone = below.issue("gone", units=["client"])
    return msp_bytes(
        [authority],
        intermediates=[below],
        nodes=NODES,
        units=[("client", below)],
        admins=[below.issue("administrator", units=["admin", "client"])],
        revocations=[below.revoke(gone)],
        tls=[root("tls")],
    )


FULL = a_full_definition()


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, len(FULL) - 1), st.integers(0, 255)), max_size=3))
def test_a_damaged_definition_is_used_or_refused_and_nothing_else(damages):
    damaged = bytearray(FULL)
    for place, value in damages:
        damaged[place] = value
    try:
        Msp(bytes(damaged))
    except MalformedMsp as error:
        assert_one_sentence(error)
