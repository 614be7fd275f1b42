"""Signature policies, implicit policies, and the text of a refusal."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ordering_osn.config.policies import (
    MalformedPolicy,
    Policies,
    PolicyNotMet,
    SignedData,
    resolve,
)
from ordering_osn.identity import Msps, SigningIdentity
from ordering_osn.protos import Envelope, MSPRole, Payload, Policy, SignatureHeader
from tests.ordering_osn.helpers.chains import ORDERERS, ORG1
from tests.ordering_osn.helpers.configs import genesis, real_envelopes
from tests.ordering_osn.helpers.pki import (
    assert_one_sentence,
    by,
    group,
    meta_policy,
    node_msp,
    out_of,
    role,
    root,
    signature_policy,
)

AUTHORITY = root()
MEMBERS = {
    name: AUTHORITY.issue(name, units=[unit])
    for name, unit in (
        ("a", "client"),
        ("b", "client"),
        ("p", "peer"),
        ("A", "admin"),
        ("x", "none of the node units"),
    )
}
MSPS = Msps([node_msp(AUTHORITY)])
MEMBER, ADMIN, CLIENT, PEER = (
    role(kind) for kind in (MSPRole.MEMBER, MSPRole.ADMIN, MSPRole.CLIENT, MSPRole.PEER)
)


def signed(name, data=b"data", *, valid=True):
    member = MEMBERS[name]
    return SignedData(data, member.creator(), member.sign(data if valid else b"other"))


def refusal(policies, path, signatures):
    """Return the text of the refusal; empty where the policy is met."""
    try:
        policies.evaluate(path, signatures)
    except PolicyNotMet as error:
        assert_one_sentence(error)
        return str(error)
    return ""


def met(rule, principals, names):
    policies = Policies(group({"P": signature_policy(rule, *principals)}), MSPS)
    return not refusal(policies, "/Channel/P", [signed(name) for name in names])


# Signature policies. In the tables a letter is a signer: a, b clients; p a peer; A an admin.


@pytest.mark.parametrize(
    ("rule", "principals", "signers", "expected"),
    [
        (by(0), [MEMBER], "a", True),
        (by(0), [MEMBER], "", False),
        (by(0), [MEMBER], "x", False),
        (by(0), [MEMBER], "xa", True),
        (by(0), [PEER], "a", False),
        (by(1), [MEMBER, PEER], "p", True),
        (out_of(1, by(0), by(1)), [ADMIN, PEER], "p", True),
        (out_of(2, by(0), by(1)), [ADMIN, PEER], "p", False),
        (out_of(2, by(0), by(1)), [ADMIN, PEER], "pA", True),
        (out_of(0, by(0)), [ADMIN], "", True),
        (out_of(1), [], "a", False),
        (out_of(0), [], "", True),
        (out_of(3, by(0), by(0)), [MEMBER], "abpA", False),
        # an identity counts for one principal of an evaluation
        (out_of(2, by(0), by(0)), [MEMBER], "a", False),
        (out_of(2, by(0), by(0)), [MEMBER], "aa", False),
        (out_of(2, by(0), by(0)), [MEMBER], "ab", True),
        # the first that it satisfies uses it up, as in Fabric, even if another needs it more
        (out_of(2, by(0), by(1)), [MEMBER, ADMIN], "Aa", False),
        (out_of(2, by(0), by(1)), [MEMBER, ADMIN], "aA", True),
        (out_of(2, by(1), by(0)), [MEMBER, ADMIN], "Aa", True),
        # nested; identities used by a branch that failed are free again
        (out_of(2, out_of(1, by(0)), out_of(1, by(1))), [CLIENT, PEER], "ap", True),
        (out_of(2, out_of(1, by(0)), out_of(1, by(0))), [CLIENT], "a", False),
        (out_of(1, out_of(2, by(0), by(1)), by(0)), [CLIENT, PEER], "a", True),
        # rules are tried even when enough are met, and use up identities
        (out_of(2, out_of(1, by(0), by(0)), by(0)), [MEMBER], "ab", False),
        (out_of(2, out_of(1, by(0), by(0)), by(0)), [MEMBER], "abp", True),
    ],
)
def test_a_signature_policy(rule, principals, signers, expected):
    assert met(rule, principals, signers) is expected


def dumb(rule, kinds, identities, used):
    """Evaluate as Fabric's cauthdsl does, with its array of used flags."""
    if rule.WhichOneof("Type") == "signed_by":
        for place, name in enumerate(identities):
            wanted = kinds[rule.signed_by]
            if not used[place] and (wanted == "member" or wanted == name.lower()):
                used[place] = True
                return True
        return False
    verified = 0
    for below in rule.n_out_of.rules:
        copy = list(used)
        if dumb(below, kinds, identities, copy):
            verified += 1
            used[:] = copy
    return verified >= rule.n_out_of.n


RULES = st.recursive(
    st.integers(0, 2).map(by),
    lambda below: st.builds(
        lambda needed, rules: out_of(needed, *rules), st.integers(0, 4), st.lists(below, max_size=4)
    ),
    max_leaves=10,
)


@settings(max_examples=100)
@given(RULES, st.text("apA", max_size=3))
def test_any_signature_policy_decides_as_fabrics_array_of_flags(rule, signers):
    distinct = list(dict.fromkeys(signers))
    kinds = ["member", "p", "a"]
    principals = [MEMBER, PEER, CLIENT]
    plain = {"a": "a", "p": "p", "A": "admin"}
    expected = dumb(rule, kinds, [plain[name] for name in distinct], [False] * len(distinct))
    assert met(rule, principals, signers) is expected


def test_a_principal_of_an_unknown_organisation_is_met_by_nobody():
    assert not met(by(0), [role(MSPRole.MEMBER, "Org9")], "abpA")
    assert met(out_of(1, by(0), by(1)), [role(MSPRole.MEMBER, "Org9"), MEMBER], "a")


# Signatures.


WRITERS = Policies(group({"Writers": signature_policy(out_of(2, by(0), by(0)), MEMBER)}), MSPS)


def test_a_bad_signature_does_not_spoil_the_good_ones_and_is_named():
    path = "/Channel/Writers"
    good = [signed("a"), signed("b")]
    bad = [
        signed("p", valid=False),
        SignedData(b"data", b"garbage", b""),
        SignedData(b"data", b"", b""),
        SignedData(b"data", MEMBERS["p"].creator("Org9"), MEMBERS["p"].sign(b"data")),
        SignedData(b"data", MEMBERS["p"].creator(), MEMBERS["p"].sign(b"data", high=True)),
    ]
    assert not refusal(WRITERS, path, [*bad, *good])
    assert "does not fit" in refusal(WRITERS, path, [signed("a"), bad[0]])
    assert "and 2 more" in refusal(WRITERS, path, bad)
    assert f"the policy {path} is not met" in refusal(WRITERS, path, bad)
    assert "there is no valid signature" in refusal(WRITERS, path, bad)
    assert "there is no valid signature" in refusal(WRITERS, path, [])


def test_one_certificate_in_two_spellings_counts_once():
    again = MEMBERS["a"].respelled()
    twice = [signed("a"), SignedData(b"data", again.creator(), again.sign(b"data"))]
    assert refusal(WRITERS, "/Channel/Writers", twice)
    assert not refusal(WRITERS, "/Channel/Writers", [*twice, signed("b")])


def test_an_outcome_that_is_kept_does_not_replace_the_signature():
    only = Policies(group({"Writers": signature_policy(by(0), MEMBER)}), MSPS)
    for _ in range(2):
        assert not refusal(only, "/Channel/Writers", [signed("a")])
        assert "does not fit" in refusal(only, "/Channel/Writers", [signed("a", valid=False)])


def test_each_signature_is_over_its_own_data():
    path = "/Channel/Writers"
    assert not refusal(WRITERS, path, [signed("a", b"one"), signed("b", b"two")])


def test_a_refusal_names_the_signers_and_why_one_is_no_member():
    assert "signed by x of Org1 (it must have exactly one of the units" in refusal(
        WRITERS, "/Channel/Writers", [signed("x")]
    )


def test_a_policy_that_does_not_exist_is_not_met():
    for path in ("/Channel/Nothing", "", "Writers", "/", "/Channel"):
        assert not WRITERS.has(path)
        assert "no such policy" in refusal(WRITERS, path, [signed("a"), signed("b")])
    assert WRITERS.has("/Channel/Writers")


# Implicit policies.


def test_implicit_policies_count_the_groups_below():
    needed = {
        "ANY": lambda n: min(1, n),
        "ALL": lambda n: n,
        "MAJORITY": lambda n: n // 2 + bool(n),
    }
    for rule, count in itertools.product(needed, range(6)):
        for willing in range(count + 1):
            groups = {
                f"G{number}": group(
                    {"W": signature_policy(by(0), CLIENT if number < willing else PEER)}
                )
                for number in range(count)
            }
            policies = Policies(group({"W": meta_policy(rule, "W")}, groups), MSPS)
            expected = willing >= needed[rule](count)
            assert (not refusal(policies, "/Channel/W", [signed("a")])) is expected


def test_a_group_without_the_policy_does_not_meet_it_and_counts():
    groups = {
        "has": group({"W": signature_policy(by(0), MEMBER)}),
        "has not": group({"other": signature_policy(by(0), MEMBER)}),
    }
    for rule, expected in (("ANY", True), ("MAJORITY", False), ("ALL", False)):
        policies = Policies(group({"W": meta_policy(rule, "W")}, groups), MSPS)
        assert (not refusal(policies, "/Channel/W", [signed("a")])) is expected


def test_implicit_policies_stand_on_implicit_policies():
    below = group(
        {"W": meta_policy("MAJORITY", "W")},
        {
            "one": group({"W": signature_policy(by(0), CLIENT)}),
            "two": group({"W": signature_policy(by(0), PEER)}),
        },
    )
    policies = Policies(group({"W": meta_policy("ANY", "W")}, {"Application": below}), MSPS)
    assert "/Channel/Application/W must be met" in refusal(policies, "/Channel/W", [signed("a")])
    assert not refusal(policies, "/Channel/W", [signed("a"), signed("p")])
    assert not refusal(policies, "/Channel/Application/one/W", [signed("a")])


# Paths and definitions.


@pytest.mark.parametrize(
    ("group_path", "mod_policy", "path"),
    [
        ("/Channel", "Admins", "/Channel/Admins"),
        ("/Channel/Application", "Admins", "/Channel/Application/Admins"),
        ("/Channel/Application/", "Admins", "/Channel/Application/Admins"),
        ("/Channel/Application", "Org1/Admins", "/Channel/Application/Org1/Admins"),
        ("/Channel/Application", "/Channel/Orderer/Admins", "/Channel/Orderer/Admins"),
        ("/Channel/Application", "", ""),
    ],
)
def test_a_mod_policy_is_relative_to_its_group_unless_it_begins_with_a_slash(
    group_path, mod_policy, path
):
    assert resolve(group_path, mod_policy) == path


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (Policy(), "unknown type 0"),
        (Policy(type=Policy.MSP), "unknown type 2"),
        (Policy(type=Policy.SIGNATURE, value=b"\xff"), "cannot be read"),
        (Policy(type=Policy.IMPLICIT_META, value=b"\xff"), "cannot be read"),
        (Policy(type=Policy.SIGNATURE), "an empty rule"),
        (signature_policy(by(1), MEMBER), "names principal 1, but has 1"),
        (signature_policy(by(-1), MEMBER), "names principal -1"),
        (signature_policy(out_of(1, by(0), out_of(1, by(7))), MEMBER), "names principal 7"),
        (signature_policy(out_of(1, by(0)), MEMBER, version=1), "version 1"),
        (meta_policy(9, "W"), "unknown rule 9"),
    ],
)
def test_a_policy_without_sense_is_refused_in_one_sentence(policy, sentence):
    with pytest.raises(MalformedPolicy, match=sentence) as caught:
        Policies(group({}, {"Application": group({"Odd": policy})}), MSPS)
    assert_one_sentence(caught.value)
    assert "/Channel/Application/Odd" in str(caught.value)


# A real channel.


@pytest.fixture(scope="module")
def channel():
    return genesis().policies


def test_every_real_transaction_may_be_written_and_none_once_changed(channel):
    count = 0
    for envelope in map(Envelope.FromString, real_envelopes()):
        header = Payload.FromString(envelope.payload).header.signature_header
        creator = SignatureHeader.FromString(header).creator
        one = SignedData(envelope.payload, creator, envelope.signature)
        assert not refusal(channel, "/Channel/Writers", [one])
        changed = one._replace(data=envelope.payload[:-1] + b"\x00")
        assert "does not fit" in refusal(channel, "/Channel/Writers", [changed])
        count += 1
    assert count == 40


@pytest.mark.parametrize(
    ("folder", "msp_id", "allowed"),
    [
        (ORG1 / "users/User1@org1.example.com", "Org1MSP", ["Readers", "Writers"]),
        (
            ORG1 / "users/Admin@org1.example.com",
            "Org1MSP",
            ["Application/Admins", "Readers", "Writers"],
        ),
        (
            ORDERERS / "users/Admin@example.com",
            "OrdererMSP",
            ["Orderer/Admins", "Orderer/BlockValidation", "Readers", "Writers"],
        ),
        (
            ORDERERS / "orderers/orderer.example.com",
            "OrdererMSP",
            ["Orderer/BlockValidation", "Readers", "Writers"],
        ),
    ],
)
def test_what_a_real_identity_may_do_in_a_real_channel(channel, folder, msp_id, allowed):
    signer = SigningIdentity.load(folder / "msp", msp_id)
    one = SignedData(b"message", signer.creator, signer.sign(b"message"))
    asked = [
        "Admins",
        "Application/Admins",
        "Orderer/Admins",
        "Orderer/BlockValidation",
        "Readers",
        "Writers",
    ]
    assert [path for path in asked if not refusal(channel, f"/Channel/{path}", [one])] == allowed
