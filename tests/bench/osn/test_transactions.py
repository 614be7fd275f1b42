"""The bench's transactions pass a channel's filters; its genesis blocks are what nodes join by."""

from datetime import UTC, datetime

from bench.osn.transactions import FOLDER, Maker, genesis, read_envelopes
from ordering_osn.chain.blocks import check_next
from ordering_osn.config.channel_config import ChannelConfig
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
