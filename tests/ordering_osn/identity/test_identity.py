"""Which certificates are members of an organisation, in which role; the errors for others."""

import contextlib
import datetime as dt
import hashlib

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.x509.oid import ExtendedKeyUsageOID

from ordering_osn.identity import (
    MalformedMsp,
    Msp,
    MspRules,
    Msps,
    SigningIdentity,
    UntrustedIdentity,
    expires_at,
)
from ordering_osn.protos import (
    CombinedPrincipal,
    MSPIdentityAnonymity,
    MSPPrincipal,
    MSPRole,
    OrganizationUnit,
    SerializedIdentity,
)
from tests.ordering_osn.helpers.chains import ORDERERS, ORG1
from tests.ordering_osn.helpers.configs import genesis
from tests.ordering_osn.helpers.pki import (
    NODES,
    assert_one_sentence,
    key_usage,
    msp_bytes,
    node_msp,
    role,
    root,
    years,
)

ROLES = {
    "member": MSPRole.MEMBER,
    "admin": MSPRole.ADMIN,
    "client": MSPRole.CLIENT,
    "peer": MSPRole.PEER,
    "orderer": MSPRole.ORDERER,
}


def judged(msp, member, msp_id="Org1"):
    """Return why the organisation does not accept the member; empty where it does."""
    try:
        Msps([msp]).identity(member.creator(msp_id)).validate()
    except UntrustedIdentity as error:
        assert_one_sentence(error)
        return str(error)
    return ""


def roles(msp, member, msp_id="Org1"):
    identity = Msps([msp]).identity(member.creator(msp_id))
    return {name for name, kind in ROLES.items() if identity.satisfies(role(kind, msp_id))}


# Certificates made by the tools of a real network.


@pytest.mark.parametrize(
    ("folder", "msp_id", "expected"),
    [
        (ORG1 / "users/User1@org1.example.com", "Org1MSP", {"member", "client"}),
        (ORG1 / "users/Admin@org1.example.com", "Org1MSP", {"member", "admin"}),
        (ORG1 / "peers/peer0.org1.example.com", "Org1MSP", {"member", "peer"}),
        (ORDERERS / "users/Admin@example.com", "OrdererMSP", {"member", "admin"}),
        (ORDERERS / "orderers/orderer.example.com", "OrdererMSP", {"member"}),
    ],
)
def test_real_identities_have_their_roles_and_no_others(folder, msp_id, expected):
    signer = SigningIdentity.load(folder / "msp", msp_id)
    identity = genesis().msps.identity(signer.creator)
    identity.validate()
    identity.verify(b"message", signer.sign(b"message"))
    found = {name for name, kind in ROLES.items() if identity.satisfies(role(kind, msp_id))}
    assert found == expected
    other = {"Org1MSP": "OrdererMSP", "OrdererMSP": "Org1MSP"}[msp_id]
    assert not identity.satisfies(role(MSPRole.MEMBER, other))


def test_a_real_identity_that_claims_another_organisation_is_refused():
    signer = SigningIdentity.load(ORG1 / "users/User1@org1.example.com/msp", "OrdererMSP")
    with pytest.raises(UntrustedIdentity, match="no chain of valid CAs"):
        genesis().msps.identity(signer.creator).validate()


# Chains.


def test_a_member_of_another_root_with_the_same_name_is_refused(authority):
    stranger = root(authority.certificate.subject.rfc4514_string().removeprefix("CN="))
    assert stranger.certificate.subject == authority.certificate.subject
    msp = node_msp(authority)
    assert not judged(msp, authority.issue("a", units=["client"]))
    assert "no chain" in judged(msp, stranger.issue("a", units=["client"]))


def test_who_certified_himself_is_refused(authority):
    assert "no chain" in judged(
        node_msp(authority), root("self", ca=False, constraints=None, usage=None)
    )


def test_two_intermediate_authorities_deep_is_accepted(authority):
    second = authority.issue("second", ca=True, begins=0)
    third = second.issue("third", ca=True, begins=0)
    msp = Msp(msp_bytes([authority], intermediates=[third, second], nodes=NODES))
    assert not judged(msp, third.issue("a", units=["client"]))
    assert "only a CA at the end of a chain" in judged(msp, second.issue("a", units=["client"]))


def test_a_member_of_an_intermediate_authority_that_the_channel_does_not_know_is_refused(authority):
    below = authority.issue("below", ca=True, begins=0)
    assert "no chain" in judged(node_msp(authority), below.issue("a", units=["client"]))


def test_an_authority_is_nobodys_identity(authority):
    below = authority.issue("below", ca=True, units=["client"])
    assert "CA's certificate cannot be an identity" in judged(node_msp(authority), below)


def test_a_member_certifies_nobody(authority):
    member = authority.issue("member", units=["client"])
    assert "no chain" in judged(node_msp(authority), member.issue("a", units=["client"]))
    with pytest.raises(MalformedMsp, match="is not a CA's"):
        Msp(msp_bytes([authority], intermediates=[member], nodes=NODES))


def test_an_authority_that_may_not_sign_certificates_certifies_nobody():
    with pytest.raises(MalformedMsp, match="does not certify itself"):
        node_msp(root(usage=key_usage(certificates=False)))
    strong = root()
    weak = strong.issue("weak", ca=True, begins=0, usage=key_usage(certificates=False))
    msp = Msp(msp_bytes([strong], intermediates=[weak], nodes=NODES))
    assert "no chain" in judged(msp, weak.issue("a", units=["client"]))


def test_a_path_longer_than_its_root_allows_is_refused():
    short = root(constraints=x509.BasicConstraints(ca=True, path_length=0))
    assert not judged(node_msp(short), short.issue("a", units=["client"]))
    long = root(constraints=x509.BasicConstraints(ca=True, path_length=1))
    second = long.issue("second", ca=True, begins=0)
    third = second.issue("third", ca=True, begins=0)
    msp = Msp(msp_bytes([long], intermediates=[second], nodes=NODES))
    assert not judged(msp, second.issue("a", units=["client"]))
    deep = Msp(msp_bytes([long], intermediates=[second, third], nodes=NODES))
    assert "no chain" in judged(deep, third.issue("a", units=["client"]))


def test_a_member_with_two_chains_is_refused(authority):
    other = root("other")
    key = ec.generate_private_key(ec.SECP256R1())
    crossed = [one.issue("crossed", ca=True, key=key, begins=0) for one in (authority, other)]
    msp = Msp(msp_bytes([authority, other], intermediates=crossed, nodes=NODES))
    assert "more than one chain" in judged(msp, crossed[0].issue("a", units=["client"]))


# Rules; the units of who is administrator, and of whom is accepted (of all with exactly one unit).
RULES = {
    MspRules.V1_0: ([], ["client", "peer", "admin", "orderer"]),
    MspRules.V1_1: ([], ["client", "peer"]),
    MspRules.V1_3: ([], ["client", "peer"]),
    MspRules.V1_4_3: (["admin"], ["client", "peer", "admin", "orderer"]),
}


@pytest.mark.parametrize("rules", RULES)
def test_channels_of_older_capabilities_know_fewer_units(authority, rules):
    members = {unit: authority.issue(unit, units=[unit]) for unit in NODES}
    msp = Msp(msp_bytes([authority], nodes=NODES), rules)
    administrators, accepted = RULES[rules]
    assert [unit for unit in NODES if "admin" in roles(msp, members[unit])] == administrators
    assert [unit for unit in NODES if not judged(msp, members[unit])] == accepted
    both = CombinedPrincipal(principals=[role(MSPRole.MEMBER)])
    identity = Msps([msp]).identity(members["client"].creator())
    assert identity.satisfies(principal(MSPPrincipal.COMBINED, both)) is (rules >= MspRules.V1_3)
    for_fewer = pytest.raises(MalformedMsp, match=r"V1_4_3|neither client nor admin")
    fewer = rules in (MspRules.V1_1, MspRules.V1_3)
    for what in ({"nodes": {"client": None, "admin": None}}, {"admins": [members["admin"]]}):
        with for_fewer if fewer else contextlib.nullcontext():
            Msp(msp_bytes([authority], **{"nodes": NODES, **what}), rules)


def test_an_authority_that_is_listed_twice_makes_no_second_chain(authority):
    below = authority.issue("below", ca=True, begins=0)
    lists = [authority] * 2, [authority], [authority], [below] * 2
    for certifier, roots, intermediates in ((authority, *lists[:2]), (below, *lists[2:])):
        msp = Msp(msp_bytes(roots, intermediates=intermediates, nodes=NODES))
        assert not judged(msp, certifier.issue("a", units=["client"]))


def test_authorities_that_certify_each_other_cost_a_bounded_number_of_checks():
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(7)]
    mesh = [
        root("mesh", key=signer).issue("mesh", ca=True, key=key, begins=0)
        for signer in keys
        for key in keys
        if key is not signer
    ]
    with pytest.raises(MalformedMsp, match="too many signature checks"):
        Msp(msp_bytes([root()], intermediates=mesh, nodes=NODES))


@pytest.mark.parametrize("critical", [False, True])
def test_an_unknown_extension_is_refused_where_it_is_critical(authority, critical):
    unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4.5.6.7.8.1"), b"attributes")
    member = authority.issue("a", units=["client"], extensions=[(unknown, critical)])
    assert ("extension (1.2.3.4.5.6.7.8.1)" in judged(node_msp(authority), member)) is critical
    strange = root(extensions=[(unknown, critical)])
    try:
        problem = judged(node_msp(strange), strange.issue("a", units=["client"]))
    except MalformedMsp as error:
        problem = str(error)
    assert bool(problem) is critical


@pytest.mark.parametrize(
    ("usage", "accepted"),
    [
        (ExtendedKeyUsageOID.SERVER_AUTH, True),
        (ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE, True),
        (ExtendedKeyUsageOID.CLIENT_AUTH, False),
    ],
)
def test_an_extended_key_usage_must_hold_server_or_any_as_in_go(authority, usage, accepted):
    extension = (x509.ExtendedKeyUsage([usage]), False)
    member = authority.issue("a", units=["client"], extensions=[extension])
    assert (not judged(node_msp(authority), member)) is accepted


@pytest.mark.parametrize("critical", [False, True])
def test_an_authority_with_name_constraints_is_refused_not_half_obeyed(critical):
    constraints = x509.NameConstraints([x509.DNSName("example.com")], None)
    with pytest.raises(MalformedMsp, match=r"extension \(2.5.29.30\) that is not"):
        node_msp(root(extensions=[(constraints, critical)]))


# Time: it matters when a certificate is issued, not afterwards.


def test_an_expired_member_still_verifies_and_says_when_it_ended(authority):
    member = authority.issue("a", units=["client"], begins=1, ends=2)
    identity = Msps([node_msp(authority)]).identity(member.creator())
    identity.validate()
    identity.verify(b"m", member.sign(b"m"))
    assert identity.expires == years(2) < dt.datetime.now(dt.UTC)
    assert expires_at(member.creator()) == years(2)
    assert expires_at(member.creator("an organisation of nowhere")) == years(2)


@pytest.mark.parametrize(
    "creator", [b"", b"\xff", SerializedIdentity(mspid="a").SerializeToString()]
)
def test_what_holds_no_certificate_never_expires(creator):
    assert expires_at(creator) is None


def test_a_member_certified_outside_its_authoritys_time_is_refused():
    brief = root(begins=1, ends=3)
    msp = node_msp(brief)
    assert not judged(msp, brief.issue("a", units=["client"], begins=2, ends=9))
    assert "no chain" in judged(msp, brief.issue("a", units=["client"], begins=0, ends=2))
    assert "no chain" in judged(msp, brief.issue("a", units=["client"], begins=4, ends=5))


# Revocation.


def test_a_revoked_member_is_refused_and_the_others_are_not(authority):
    gone, stays = (authority.issue(name, units=["client"]) for name in ("gone", "stays"))
    msp = node_msp(authority, revocations=[authority.revoke(gone)])
    assert "revoked" in judged(msp, gone)
    assert not judged(msp, stays)
    assert roles(msp, gone) == set()


def test_a_revocation_list_that_its_authority_did_not_sign_revokes_nobody(authority):
    member = authority.issue("a", units=["client"])
    forged = authority.revoke(member, by=ec.generate_private_key(ec.SECP256R1()))
    assert not judged(node_msp(authority, revocations=[forged]), member)


def test_a_revocation_list_of_another_authority_revokes_nobody_here(authority):
    other = root("other")
    member = authority.issue("a", units=["client"])
    msp = Msp(msp_bytes([authority, other], nodes=NODES, revocations=[other.revoke(member)]))
    assert not judged(msp, member)


def test_a_revocation_list_that_names_another_key_revokes_nobody_as_in_fabric(authority):
    member = authority.issue("a", units=["client"])
    astray = authority.revoke(member, names=ec.generate_private_key(ec.SECP256R1()))
    assert not judged(node_msp(authority, revocations=[astray]), member)


def test_a_revoked_authority_spoils_its_organisation(authority):
    below = authority.issue("below", ca=True, begins=0)
    with pytest.raises(MalformedMsp, match="CA below is not valid: its certificate is revoked"):
        Msp(
            msp_bytes(
                [authority],
                intermediates=[below],
                nodes=NODES,
                revocations=[authority.revoke(below)],
            )
        )


# Units and roles.


@pytest.mark.parametrize("name", ["client", "peer", "admin", "orderer"])
def test_a_node_unit_gives_its_role_and_no_other(authority, name):
    member = authority.issue("a", units=["department", name])
    assert roles(node_msp(authority), member) == {"member", name}


@pytest.mark.parametrize("units", [[], ["department"], ["client", "peer"], ["admin", "client"]])
def test_without_exactly_one_node_unit_nobody_is_a_member(authority, units):
    member = authority.issue("a", units=units)
    assert "one of the units client" in judged(node_msp(authority), member)
    assert roles(node_msp(authority), member) == set()


def test_a_node_unit_that_is_not_configured_makes_nobody_anything(authority):
    msp = Msp(msp_bytes([authority], nodes={"client": None, "admin": None}))
    assert roles(msp, authority.issue("a", units=["client"])) == {"member", "client"}
    assert roles(msp, authority.issue("a", units=["peer"])) == set()


def test_a_node_unit_certified_by_another_authority_is_refused(authority):
    other = root("other")
    msp = Msp(msp_bytes([authority, other], nodes=dict.fromkeys(NODES, authority)))
    assert not judged(msp, authority.issue("a", units=["client"]))
    assert "another CA" in judged(msp, other.issue("a", units=["client"]))


def test_without_node_units_an_administrator_is_who_is_named_and_no_other_role_exists(authority):
    named = authority.issue("named", units=["client"])
    msp = Msp(msp_bytes([authority], admins=[named]))
    assert roles(msp, named) == {"member", "admin"}
    assert roles(msp, authority.issue("a", units=["admin", "peer"])) == {"member"}


def test_node_units_that_are_not_enabled_are_none(authority):
    named = authority.issue("named")
    msp = Msp(msp_bytes([authority], admins=[named], nodes=NODES, enforced=False))
    assert roles(msp, named) == {"member", "admin"}
    assert roles(msp, authority.issue("a", units=["client", "peer"])) == {"member"}


def test_with_node_units_a_named_client_is_an_administrator_too(authority):
    named = authority.issue("named", units=["client"])
    msp = Msp(msp_bytes([authority], admins=[named], nodes=NODES))
    assert roles(msp, named) == {"member", "admin", "client"}


def test_a_revoked_administrator_by_name_is_none(authority):
    named = authority.issue("named", units=["client"])
    msp = node_msp(authority, admins=[named], revocations=[authority.revoke(named)])
    assert roles(msp, named) == set()


def test_an_organisation_that_asks_for_units_accepts_no_others(authority):
    department = authority.issue("a", units=["department"])
    msp = Msp(msp_bytes([authority], admins=[department], units=[("department", authority)]))
    assert not judged(msp, department)
    assert "none of the units" in judged(msp, authority.issue("b", units=["other"]))
    assert "none of the units" in judged(msp, authority.issue("b"))


# Principals other than roles.


def principal(kind, message):
    what = message if isinstance(message, bytes) else message.SerializeToString()
    return MSPPrincipal(principal_classification=kind, principal=what)


def test_a_unit_principal_asks_for_the_unit_and_its_chain(authority):
    identity = Msps([node_msp(authority)]).identity(
        authority.issue("a", units=["client", "department"]).creator()
    )
    chain = hashlib.sha256(min(authority, authority.respelled(), key=signature_s).der).digest()

    def met(unit, certifiers, msp_id="Org1"):
        message = OrganizationUnit(
            msp_identifier=msp_id,
            organizational_unit_identifier=unit,
            certifiers_identifier=certifiers,
        )
        return identity.satisfies(principal(MSPPrincipal.ORGANIZATION_UNIT, message))

    assert met("department", chain)
    assert not met("other", chain)
    assert not met("department", b"")
    assert not met("department", chain, "Org2")


def test_a_chain_is_digested_with_low_s_signatures_as_fabric_spells_them():
    for _ in range(4):
        authority = root()
        low, high = sorted((authority, authority.respelled()), key=signature_s)
        member = authority.issue("a", units=["client"])
        for spelled in (low, high):
            identity = Msps([node_msp(spelled)]).identity(member.creator())
            assert identity.chain_id == hashlib.sha256(low.der).digest()


def signature_s(member):
    return decode_dss_signature(member.certificate.signature)[1]


def test_an_identity_principal_asks_for_the_very_certificate(authority):
    member, other = (authority.issue("a", units=["client"]) for _ in range(2))
    invalid = authority.issue("a")
    identity = Msps([node_msp(authority)]).identity
    wanted = principal(MSPPrincipal.IDENTITY, member.creator())
    assert identity(member.creator()).satisfies(wanted)
    assert identity(member.respelled().creator()).satisfies(wanted)
    assert not identity(other.creator()).satisfies(wanted)
    assert not identity(member.creator()).satisfies(
        principal(MSPPrincipal.IDENTITY, member.creator("Org2"))
    )
    assert not identity(invalid.creator()).satisfies(
        principal(MSPPrincipal.IDENTITY, invalid.creator())
    )


def test_a_combined_principal_asks_for_all_of_its_parts(authority):
    identity = Msps([node_msp(authority)]).identity(
        authority.issue("a", units=["client"]).creator()
    )

    def met(*parts):
        message = CombinedPrincipal(principals=parts)
        return identity.satisfies(principal(MSPPrincipal.COMBINED, message))

    assert met(role(MSPRole.MEMBER), role(MSPRole.CLIENT))
    assert not met(role(MSPRole.MEMBER), role(MSPRole.PEER))
    assert not met()
    deep = role(MSPRole.MEMBER)
    for _ in range(3000):
        deep = principal(MSPPrincipal.COMBINED, CombinedPrincipal(principals=[deep]))
    assert identity.satisfies(deep)


@pytest.mark.parametrize(
    ("wanted", "met"),
    [
        (principal(MSPPrincipal.ANONYMITY, MSPIdentityAnonymity(anonymity_type=0)), True),
        (principal(MSPPrincipal.ANONYMITY, MSPIdentityAnonymity(anonymity_type=1)), False),
        (principal(MSPPrincipal.ROLE, b"\xff"), False),
        (principal(MSPPrincipal.COMBINED, b"\xff"), False),
        (principal(MSPPrincipal.IDENTITY, b"\xff"), False),
        (principal(MSPPrincipal.ORGANIZATION_UNIT, b"\xff"), False),
        (MSPPrincipal(principal_classification=77), False),
        (role(77), False),
        (role(MSPRole.MEMBER, "Org2"), False),
    ],
)
def test_principals_that_are_anonymous_damaged_or_unknown(authority, wanted, met):
    identity = Msps([node_msp(authority)]).identity(
        authority.issue("a", units=["client"]).creator()
    )
    assert identity.satisfies(wanted) is met
