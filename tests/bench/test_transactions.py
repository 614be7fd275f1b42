"""The bench's transactions pass a channel's filters; its genesis blocks are what nodes join by."""

from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice

import pytest

from bench.orderer.transactions import FOLDER, Maker, genesis, read_envelopes, user
from multicast.errors import UsageError
from ordering_osn.chain.blocks import check_next
from ordering_osn.chain.transactions import transaction_id
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.node.filters import Refusal
from ordering_osn.protos import (
    Block,
    ChannelHeader,
    Envelope,
    HeaderType,
    Payload,
    SignatureHeader,
    Transaction,
)
from tests.ordering_osn.helpers.filters import admit_normal

GENESIS = (FOLDER / "chain-a.block").read_bytes()


def opened(envelope):
    payload = Payload.FromString(Envelope.FromString(envelope).payload)
    header = ChannelHeader.FromString(payload.header.channel_header)
    return payload, header, SignatureHeader.FromString(payload.header.signature_header)


def test_a_fresh_transaction_passes_every_filter_of_its_channel():
    config = ChannelConfig.from_block(GENESIS)
    maker = Maker.of()
    for _ in range(20):
        assert admit_normal(config, maker.make("chain-a").envelope, now=datetime.now(UTC)) == 0


def test_a_fresh_transaction_that_was_touched_afterwards_does_not():
    config = ChannelConfig.from_block(GENESIS)
    envelope = Envelope.FromString(Maker.of().make("chain-a").envelope)
    at = envelope.payload.index(b"chain-a")
    envelope.payload = envelope.payload[:at] + b"chain-b" + envelope.payload[at + 7 :]
    with pytest.raises(Refusal) as refused:
        admit_normal(config, envelope.SerializeToString(), now=datetime.now(UTC))
    assert refused.value.status == 403


def test_no_two_fresh_transactions_have_one_id_and_each_id_is_what_fabric_makes_of_its_nonce():
    maker = Maker.of()
    made = [maker.make("chain-a") for _ in range(1000)]
    assert len({one.transaction for one in made}) == len({one.envelope for one in made}) == 1000
    for one in made:
        _, header, signature_header = opened(one.envelope)
        assert signature_header.creator == user().creator
        digest = sha256(signature_header.nonce + signature_header.creator).hexdigest()
        assert one.transaction == header.tx_id == digest == transaction_id(one.envelope)


def test_a_fresh_transaction_is_of_now_and_otherwise_like_the_real_one():
    *_, template = read_envelopes(FOLDER / "chain-a.envelopes")
    fresh = Maker.of().make("chain-b").envelope
    real_payload, real, _ = opened(template)
    payload, header, signature_header = opened(fresh)
    assert header.type == real.type == HeaderType.ENDORSER_TRANSACTION
    assert header.channel_id == "chain-b"
    assert header.extension == real.extension
    assert abs(header.timestamp.seconds - datetime.now(UTC).timestamp()) < 60
    (action,) = Transaction.FromString(payload.data).actions
    (original,) = Transaction.FromString(real_payload.data).actions
    assert action.payload == original.payload
    assert action.header == payload.header.signature_header == signature_header.SerializeToString()
    assert abs(len(fresh) - len(template)) < 10


def test_a_template_that_is_no_endorser_transaction_is_refused():
    (config,) = Block.FromString(GENESIS).data.data
    with pytest.raises(UsageError, match="not an endorser transaction"):
        Maker(user(), config)


def test_a_genesis_block_is_changed_where_it_was_asked_and_nowhere_else():
    changed = genesis(
        GENESIS, channel="chain-x", messages_max=500, bytes_preferred=1 << 20, timeout="250ms"
    )
    before, after = ChannelConfig.from_block(GENESIS), ChannelConfig.from_block(changed)
    check_next(Block.FromString(changed), None)
    assert (before.channel_id, after.channel_id) == ("chain-a", "chain-x")
    assert before.parameters.messages_max == 10
    assert after.parameters.messages_max == 500
    assert after.parameters.bytes_preferred == 1 << 20
    assert after.parameters.timeout_s == 0.25
    assert after.parameters.bytes_absolute == before.parameters.bytes_absolute
    assert after.sequence == before.sequence
    same = ChannelConfig.from_block(genesis(GENESIS))
    assert (same.config, same.parameters) == (before.config, before.parameters)


def test_envelopes_are_read_one_by_one():
    first, second = islice(read_envelopes(FOLDER / "chain-a.envelopes"), 2)
    assert opened(first)[1].channel_id == opened(second)[1].channel_id == "chain-a"
    assert len(list(read_envelopes(FOLDER / "chain-a.envelopes"))) == 40
