"""The filters at consumption, where a stale record is judged again."""

import contextlib
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ordering_osn.api.channels import Refused
from ordering_osn.chain.channel_rules import Invalid
from ordering_osn.chain.envelopes import canonical, signed_envelope
from ordering_osn.chain.records import RegularKind
from ordering_osn.config.channel_config import config_of
from ordering_osn.config.channel_creation import created_channel
from ordering_osn.protos import Envelope, HeaderType
from tests.ordering_osn.helpers.configs import (
    NOW,
    Member,
    by_a_stranger,
    creation,
    genesis,
    of_old_capabilities,
    orderer,
    parsed,
    rules,
    set_batch,
    set_timeout,
    system_channel,
    transaction,
    unsigned,
    update,
)
from tests.ordering_osn.helpers.filters import admit_creation, admit_normal, admit_update, route
from tests.ordering_osn.helpers.pki import assert_one_sentence, root, years


def config_envelope(config, change, **named):
    return admit_update(config, update(config, change, **named), now=NOW, signer=orderer())[0]


def test_a_stale_transaction_passes_the_same_filters(config):
    now = rules(config)
    raw = transaction()
    assert now.judge(raw, RegularKind.NORMAL) == raw
    for wrong in (unsigned(), by_a_stranger(), b"", transaction(data=b"x" * (10 << 20))):
        with pytest.raises(Invalid) as caught:
            now.judge(wrong, RegularKind.NORMAL)
        assert_one_sentence(caught.value)


def test_an_identity_that_expired_on_the_way_is_invalid(with_org2, authority):
    raw = transaction(signer=Member(authority.issue("user", units=["client"], ends=5), "Org2MSP"))
    assert rules(with_org2, clock=lambda: years(4)).judge(raw, RegularKind.NORMAL) == raw
    with pytest.raises(Invalid, match="expired"):
        rules(with_org2, clock=lambda: years(6)).judge(raw, RegularKind.NORMAL)


def test_what_goes_into_the_block_at_once_is_judged_without_a_clock(with_org2, authority):
    raw = transaction(signer=Member(authority.issue("user", units=["client"], ends=5), "Org2MSP"))
    assert rules(with_org2, clock=lambda: years(6)).judge(raw, RegularKind.UNKNOWN) == raw
    old = of_old_capabilities(with_org2)
    assert rules(old, clock=lambda: years(6)).judge(raw, RegularKind.NORMAL) == raw


def test_a_stale_config_is_made_again_on_the_config_of_now(config):
    stale = config_envelope(config, lambda c: set_timeout(c, "1s"))
    other = config_envelope(config, lambda c: set_batch(c, max_message_count=5))
    following = rules(config).after(other)
    with pytest.raises(Invalid, match="sequence"):
        following.after(stale)
    again = following.judge(stale, RegularKind.CONFIG)
    assert again != stale
    last = following.after(again)
    assert last.parameters.sequence == 2
    assert (last.parameters.timeout_s, last.parameters.messages_max) == (1.0, 5)


def test_a_stale_config_that_was_overtaken_is_invalid(config):
    stale = config_envelope(config, lambda c: set_timeout(c, "1s"))
    following = rules(config).after(config_envelope(config, lambda c: set_timeout(c, "9s")))
    with pytest.raises(Invalid, match="to version 1, but it is at version 1"):
        following.judge(stale, RegularKind.CONFIG)


def test_a_config_that_goes_into_the_block_at_once_stays_as_it_is(config):
    made = config_envelope(config, lambda c: set_timeout(c, "1s"))
    stranger = Member(root().issue("x", units=["orderer"]), "OrdererMSP")
    # The node's own identity takes no part, so that all nodes judge alike.
    assert rules(config, signer=stranger).judge(made, RegularKind.UNKNOWN) == made
    old = of_old_capabilities(config)
    made = config_envelope(old, lambda c: set_timeout(c, "1s"))
    assert rules(old).judge(made, RegularKind.CONFIG) == made
    overtaken = rules(old).after(config_envelope(old, lambda c: set_timeout(c, "9s")))
    with pytest.raises(Invalid):
        overtaken.judge(made, RegularKind.CONFIG)


def test_a_config_that_no_orderer_signed_is_invalid_where_it_is_judged_at_once(config):
    made = parsed(config_envelope(config, lambda c: set_timeout(c, "1s")))
    unsigned_config = canonical(Envelope(payload=made.payload))
    with pytest.raises(Invalid, match="permission denied"):
        rules(config).judge(unsigned_config, RegularKind.UNKNOWN)


@pytest.mark.parametrize("kind", [RegularKind.UNKNOWN, RegularKind.NORMAL, RegularKind.CONFIG])
def test_a_config_update_is_never_ordered_as_it_is(config, kind):
    raw = update(config, lambda c: set_timeout(c, "1s"))
    with pytest.raises(Invalid, match="config update"):
        rules(config).judge(raw, kind)


def test_a_message_of_one_class_is_not_taken_as_another(config):
    made = config_envelope(config, lambda c: set_timeout(c, "1s"))
    with pytest.raises(Invalid, match="posted as NORMAL"):
        rules(config).judge(made, RegularKind.NORMAL)
    with pytest.raises(Invalid, match="posted as CONFIG"):
        rules(config).judge(transaction(), RegularKind.CONFIG)


def test_a_creation_leaves_the_system_channels_rules_as_they_are():
    system = rules(system_channel())
    made, _ = admit_creation(system.config, creation(), now=NOW, signer=orderer(), channels=1)
    assert system.after(made) is system
    assert created_channel(system.judge(made, RegularKind.CONFIG))[0] == "new-channel"
    assert system.judge(made, RegularKind.UNKNOWN) == made


def test_a_creation_that_its_update_does_not_lead_to_is_invalid(config):
    system = rules(system_channel())
    made, _ = admit_creation(system.config, creation(), now=NOW, signer=orderer(), channels=1)
    _, first = created_channel(made)
    _, carried = config_of(first)
    set_batch(carried.config, max_message_count=1)
    inner = signed_envelope(
        HeaderType.CONFIG, "new-channel", canonical(carried), signer=orderer(), now=NOW
    )
    forged = signed_envelope(
        HeaderType.ORDERER_TRANSACTION, "system", inner, signer=orderer(), now=NOW
    )
    with pytest.raises(Invalid, match="not the one that its update leads to"):
        system.after(forged)
    for raw in (made, forged):
        with pytest.raises(Invalid):
            rules(config).after(raw)
        with pytest.raises(Invalid):
            rules(config).judge(raw, RegularKind.CONFIG)


def test_a_stale_creation_is_refused_when_there_are_too_many_channels():
    system = system_channel(max_channels=1)
    made, _ = admit_creation(system, creation(), now=NOW, signer=orderer(), channels=1)
    with pytest.raises(Invalid, match="maximum number of channels"):
        rules(system, channels=2).judge(made, RegularKind.CONFIG)


def test_rubbish_is_invalid_where_it_is_consumed(config):
    for raw in (b"", b"\xff", transaction(kind=HeaderType.CONFIG)):
        for kind in RegularKind:
            with pytest.raises(Invalid):
                rules(config).judge(raw, kind)
        with pytest.raises(Invalid):
            rules(config).after(raw)
        with pytest.raises(Invalid):
            rules(system_channel()).after(raw)


def damaged(raw, edits):
    changed = bytearray(raw)
    for offset, value in edits:
        changed[offset % len(changed)] ^= value
    return bytes(changed)


EDITS = st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), min_size=1, max_size=3)


@cache
def undamaged():
    config, system = genesis(), system_channel()
    return (
        config,
        system,
        [
            transaction(),
            update(config, lambda c: set_timeout(c, "1s")),
            config_envelope(config, lambda c: set_timeout(c, "1s")),
            creation(),
            admit_creation(system, creation(), now=NOW, signer=orderer(), channels=1)[0],
        ],
    )


@pytest.mark.slow
@settings(max_examples=60)
@given(EDITS, st.integers(0, 4))
def test_whatever_is_damaged_is_refused_or_let_in_and_never_more(edits, which):
    config, system, envelopes = undamaged()
    wrong = damaged(envelopes[which], edits)
    signed = {"now": NOW, "signer": orderer()}
    for call in (
        lambda: route(wrong),
        lambda: admit_normal(config, wrong, now=NOW),
        lambda: admit_update(config, wrong, **signed),
        lambda: admit_creation(system, wrong, channels=1, **signed),
        lambda: rules(config).judge(wrong, RegularKind.UNKNOWN),
        lambda: rules(config).judge(wrong, RegularKind.CONFIG),
        lambda: rules(config).after(wrong),
        lambda: rules(system).after(wrong),
    ):
        with contextlib.suppress(Refused, Invalid):
            call()
