"""Which envelopes a node accepts, the status of each refusal, and the config made of an update."""

from datetime import timedelta

import pytest

from ordering_osn.api.channels import Refused
from ordering_osn.chain.envelopes import canonical
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.node.filters import EnvelopeClass
from ordering_osn.protos import (
    ChannelHeader,
    ConfigEnvelope,
    ConfigGroup,
    Envelope,
    Header,
    HeaderType,
    Payload,
    SignatureHeader,
)
from tests.ordering_osn.helpers.compute_update import group_at, set_value
from tests.ordering_osn.helpers.configs import (
    MAINTENANCE,
    NOW,
    Member,
    by_a_stranger,
    changed,
    genesis,
    in_maintenance,
    of_old_capabilities,
    orderer,
    orderer_admin,
    org_admin,
    org_user,
    parsed,
    set_batch,
    set_consensus,
    set_policy,
    set_timeout,
    transaction,
    unsigned,
    update,
    with_signature,
)
from tests.ordering_osn.helpers.filters import admit_normal, admit_update, route
from tests.ordering_osn.helpers.pki import (
    assert_one_sentence,
    by,
    out_of,
    role,
    root,
    signature_policy,
    years,
)


def refused(call, *args, **named):
    with pytest.raises(Refused) as caught:
        call(*args, **named)
    assert_one_sentence(caught.value)
    return caught.value.status


# Where an envelope goes.


@pytest.mark.parametrize(
    ("kind", "envelope_class"),
    [
        (HeaderType.MESSAGE, EnvelopeClass.NORMAL),
        (HeaderType.ENDORSER_TRANSACTION, EnvelopeClass.NORMAL),
        (HeaderType.CONFIG_UPDATE, EnvelopeClass.CONFIG_UPDATE),
        (77, EnvelopeClass.NORMAL),
    ],
)
def test_an_envelope_is_classed_by_its_header_type(kind, envelope_class):
    assert route(transaction(kind=kind)) == (envelope_class, "chain-a")


def test_an_envelope_for_no_channel_goes_to_the_channel_of_no_name():
    assert route(transaction("")) == (EnvelopeClass.NORMAL, "")


@pytest.mark.parametrize("channel", ["chain-a+chain-b", "chain-b+chain-a", "chain-a+", "+"])
@pytest.mark.parametrize("kind", [HeaderType.ENDORSER_TRANSACTION, HeaderType.CONFIG_UPDATE, 99])
def test_a_channel_id_of_several_chains_is_a_bad_request(channel, kind):
    raw = transaction(channel, kind=kind)
    assert refused(route, raw) == 400
    with pytest.raises(Refused, match="names several chains, and peers accept no such transaction"):
        route(raw)


@pytest.mark.parametrize("channel", ["a" * 250, "\0" * 1_000_000, "+" * 1_000_000])
@pytest.mark.parametrize("kind", [HeaderType.ENDORSER_TRANSACTION, HeaderType.CONFIG_UPDATE])
def test_a_channel_id_longer_than_any_is_not_found_and_not_quoted_whole(channel, kind):
    raw = transaction(channel, kind=kind)
    with pytest.raises(Refused) as refusal:
        route(raw)
    assert refusal.value.status == 404
    assert f"{len(channel)} characters" in refusal.value.info
    assert len(refusal.value.info) < 1000


# The filters, in their order.


def test_an_empty_payload_is_a_bad_request(config):
    assert refused(admit_normal, config, b"", now=NOW) == 400


@pytest.mark.parametrize(("absolute", "over"), [(5000, 0), (5000, 1), (5001, 0), (5002, 3)])
def test_size_counts_payload_and_signature_and_the_absolute_size_is_let_in(config, absolute, over):
    def sized(size):
        signature = 100
        bare = len(parsed(transaction(data=b"x" * 3000)).payload)
        payload = parsed(transaction(data=b"x" * (3000 + size - signature - bare))).payload
        assert len(payload) + signature == size
        return canonical(Envelope(payload=payload, signature=b"s" * signature))

    def limits(new):
        set_batch(new, absolute_max_bytes=absolute, preferred_max_bytes=100)

    limited = ChannelConfig("chain-a", changed(config, limits))
    # The signature is no good: what is let in by its size is refused for that, after.
    assert refused(admit_normal, limited, sized(absolute + over), now=NOW) == (400 if over else 403)
    assert refused(admit_normal, limited, sized(absolute - 1), now=NOW) == 403


def test_an_expired_identity_is_a_bad_request(with_org2, authority):
    member = Member(authority.issue("user", units=["client"], ends=5), "Org2MSP")
    raw = transaction(signer=member)
    assert admit_normal(with_org2, raw, now=years(5) - timedelta(seconds=1)) == 0
    assert refused(admit_normal, with_org2, raw, now=years(5)) == 400


def test_an_expired_identity_passes_without_the_capability_to_check(with_org2, authority):
    member = Member(authority.issue("user", units=["client"], ends=5), "Org2MSP")
    old = of_old_capabilities(with_org2)
    assert admit_normal(old, transaction(signer=member), now=years(9)) == 0


def test_expiry_is_judged_before_the_signature(with_org2, authority):
    member = Member(authority.issue("user", units=["client"], ends=5), "Org2MSP")
    raw = with_signature(transaction(signer=member), b"no signature")
    assert refused(admit_normal, with_org2, raw, now=years(9)) == 400
    assert refused(admit_normal, with_org2, raw, now=years(4)) == 403


def test_size_is_judged_before_expiry(with_org2, authority):
    member = Member(authority.issue("user", units=["client"], ends=5), "Org2MSP")
    raw = transaction(signer=member, data=b"x" * (10 << 20))
    with pytest.raises(Refused, match="exceeds maximum"):
        admit_normal(with_org2, raw, now=years(9))


def test_a_signature_header_that_cannot_be_read_is_a_bad_request(config):
    header = Header(
        channel_header=canonical(ChannelHeader(channel_id="chain-a")), signature_header=b"\xff"
    )
    raw = canonical(Envelope(payload=canonical(Payload(header=header))))
    assert refused(admit_normal, config, raw, now=NOW) == 400


def signed_by_another():
    return with_signature(transaction(), parsed(transaction(data=b"y")).signature)


def creatorless():
    header = Header(
        channel_header=canonical(ChannelHeader(channel_id="chain-a")),
        signature_header=canonical(SignatureHeader()),
    )
    return canonical(Envelope(payload=canonical(Payload(header=header, data=b"x"))))


def of_an_unknown_organisation():
    return transaction(signer=Member(root().issue("x", units=["client"]), "NobodyMSP"))


@pytest.mark.parametrize(
    "make", [unsigned, signed_by_another, creatorless, by_a_stranger, of_an_unknown_organisation]
)
def test_what_the_writers_policy_does_not_take_is_forbidden(config, make):
    assert refused(admit_normal, config, make(), now=NOW) == 403


def test_the_channels_own_writers_policy_decides(config):
    nobody = signature_policy(out_of(1, by(0)), role("ADMIN", "Org1MSP"))

    def change(new):
        set_policy(group_at(new, "Application", "Org1MSP"), "Writers", nobody)

    strict = ChannelConfig("chain-a", changed(config, change))
    assert refused(admit_normal, strict, transaction(), now=NOW) == 403
    assert admit_normal(strict, transaction(signer=org_admin()), now=NOW) == 0
    assert admit_normal(strict, transaction(signer=orderer()), now=NOW) == 0


# Maintenance mode.


def test_maintenance_mode_turns_normal_transactions_away_for_now(config):
    closed = in_maintenance(config)
    with pytest.raises(Refused) as caught:
        admit_normal(closed, transaction(), now=NOW)
    assert (caught.value.status, caught.value.retriable) == (503, True)
    assert refused(admit_normal, closed, transaction(signer=orderer_admin()), now=NOW) == 503


def test_maintenance_mode_takes_updates_from_the_orderers_writers_only(config):
    closed = in_maintenance(config)

    def change(new):
        set_policy(
            group_at(new, "Application", "Org1MSP"),
            "Writers",
            signature_policy(out_of(1, by(0)), role("ADMIN", "Org1MSP")),
        )

    raw = update(closed, change, signers=[org_admin()], sender=org_admin())
    assert refused(admit_update, closed, raw, now=NOW, signer=orderer()) == 403
    raw = update(closed, lambda c: set_timeout(c, "1s"))
    assert admit_update(closed, raw, now=NOW, signer=orderer())[1] == 0


def and_timeout(change):
    def both(new):
        change(new)
        set_timeout(new, "1s")

    return both


def and_channel_value(change):
    def both(new):
        change(new)
        set_value(new.channel_group, "OrdererAddresses", ConfigGroup())

    return both


def and_members_value(change):
    def both(new):
        change(new)
        group_at(new, "Application").values["Capabilities"].value = b""

    return both


TRANSITIONS = {
    "into maintenance with another value": (
        False, and_timeout(lambda c: set_consensus(c, state=MAINTENANCE)), "nothing else"
    ),
    "into maintenance with the channel's value": (
        False, and_channel_value(lambda c: set_consensus(c, state=MAINTENANCE)), "nothing else"
    ),
    "into maintenance with another group's value": (
        False, and_members_value(lambda c: set_consensus(c, state=MAINTENANCE)), "nothing else"
    ),
    "into maintenance with another type": (
        False, lambda c: set_consensus(c, "etcdraft", state=MAINTENANCE), "neither"
    ),
    "into maintenance with other metadata": (
        False, lambda c: set_consensus(c, state=MAINTENANCE, metadata=b"m"), "neither"
    ),
    "out of maintenance with another type": (
        True, lambda c: set_consensus(c, "etcdraft"), "neither"
    ),
    "out of maintenance with another value": (
        True, and_timeout(set_consensus), "nothing else"
    ),
    "another type outside maintenance": (
        False, lambda c: set_consensus(c, "etcdraft"), "outside maintenance"
    ),
    "a type that is none": (
        True, lambda c: set_consensus(c, "pbft", state=MAINTENANCE), "'pbft'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TRANSITIONS)
def test_a_forbidden_transition_is_a_bad_request(config, case):
    closed, change, text = TRANSITIONS[case]
    start = in_maintenance(config) if closed else config
    raw = update(start, change, signers=[orderer_admin(), org_admin()])
    with pytest.raises(Refused, match=text) as caught:
        admit_update(start, raw, now=NOW, signer=orderer())
    assert caught.value.status == 400


def test_without_the_capability_the_state_turns_nobody_away_but_by_policy(config):
    old = of_old_capabilities(in_maintenance(config))
    assert admit_normal(old, transaction(signer=orderer()), now=NOW) == 0
    assert refused(admit_normal, old, transaction(), now=NOW) == 403


def test_maintenance_mode_needs_its_capability(config):
    old = of_old_capabilities(config)
    raw = update(old, lambda c: set_consensus(c, state=MAINTENANCE))
    with pytest.raises(Refused, match="without the capability"):
        admit_update(old, raw, now=NOW, signer=orderer())


# Config updates.


def test_an_update_becomes_a_config_envelope_signed_by_the_node(config):
    raw = update(config, lambda c: set_batch(c, max_message_count=500))
    made, sequence = admit_update(config, raw, now=NOW, signer=orderer())
    payload = Payload.FromString(parsed(made).payload)
    header = ChannelHeader.FromString(payload.header.channel_header)
    assert (header.type, header.channel_id, sequence) == (HeaderType.CONFIG, "chain-a", 0)
    assert (header.timestamp.seconds, header.timestamp.nanos) == (int(NOW.timestamp()), 0)
    assert (header.version, header.epoch, header.tx_id, header.tls_cert_hash) == (0, 0, "", b"")
    signature = SignatureHeader.FromString(payload.header.signature_header)
    assert (signature.creator, len(signature.nonce)) == (orderer().creator, 24)
    config.msps.identity(signature.creator).verify(parsed(made).payload, parsed(made).signature)
    carried = ConfigEnvelope.FromString(payload.data)
    assert (carried.config.sequence, carried.last_update) == (1, parsed(raw))


def test_an_update_at_a_node_whose_certificate_has_expired_is_not_the_clients_fault(config):
    raw = update(config, lambda c: set_batch(c, max_message_count=500))
    node = Member(root().issue("node", units=["orderer"], ends=1), "OrdererMSP")
    with pytest.raises(Refused, match="this node's certificate has expired") as refusal:
        admit_update(config, raw, now=NOW, signer=node)
    assert refusal.value.status == 503
    assert refusal.value.retriable


@pytest.mark.parametrize(
    ("sender", "status"), [(unsigned, 403), (by_a_stranger, 403), (creatorless, 403)]
)
def test_an_update_whose_sender_is_no_writer_is_forbidden(config, sender, status):
    good = update(config, lambda c: set_timeout(c, "1s"))
    data = Payload.FromString(parsed(good).payload).data
    payload = Payload.FromString(parsed(sender()).payload)
    header = ChannelHeader(channel_id="chain-a", type=HeaderType.CONFIG_UPDATE)
    payload.header.channel_header = canonical(header)
    payload.data = data
    raw = canonical(Envelope(payload=canonical(payload), signature=parsed(sender()).signature))
    assert refused(admit_update, config, raw, now=NOW, signer=orderer()) == status


def test_anybody_who_may_write_may_send_what_the_admins_signed(config):
    raw = update(config, lambda c: set_timeout(c, "1s"), sender=org_user())
    assert admit_update(config, raw, now=NOW, signer=orderer())[1] == 0


def test_an_old_empty_or_misaddressed_update_is_a_bad_request(config):
    raw = update(config, lambda c: set_timeout(c, "1s"))
    following = config.after(admit_update(config, raw, now=NOW, signer=orderer())[0])
    elsewhere = update(genesis("chain-b"), lambda c: set_timeout(c, "1s"))
    nothing = transaction(kind=HeaderType.CONFIG_UPDATE)
    for current, wrong in ((following, raw), (config, elsewhere), (config, nothing)):
        assert refused(admit_update, current, wrong, now=NOW, signer=orderer()) == 400


def test_the_config_that_an_update_leads_to_must_pass_the_filters_too(config):
    raw = update(config, lambda c: set_timeout(c, "1s"))
    # Room for the update, but not for the whole config around it.
    size = len(parsed(raw).payload) + len(parsed(raw).signature)

    def limits(new):
        set_batch(new, absolute_max_bytes=size + 1000, preferred_max_bytes=100)

    small = ChannelConfig("chain-a", changed(config, limits))
    with pytest.raises(Refused, match="exceeds maximum") as caught:
        admit_update(small, raw, now=NOW, signer=orderer())
    assert caught.value.status == 400
    stranger = Member(root().issue("x", units=["orderer"]), "OrdererMSP")
    assert refused(admit_update, config, raw, now=NOW, signer=stranger) == 403
