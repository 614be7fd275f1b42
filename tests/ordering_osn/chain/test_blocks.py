"""Blocks, against genesis blocks that Fabric's own tools made and the orderer's certificate."""

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import example, given
from hypothesis import strategies as st

from bench.osn.transactions import FOLDER as FABRIC
from ordering_osn.chain.blocks import (
    BrokenChain,
    CorruptMetadata,
    check_next,
    consenter_of,
    data_hash,
    header_bytes,
    header_hash,
    is_config,
    last_config_of,
    new_block,
    seal,
    signed_bytes,
)
from ordering_osn.chain.transactions import Malformed, channel_header, read, transaction_id
from ordering_osn.protos import (
    Block,
    ChannelHeader,
    Envelope,
    KafkaMetadata,
    LastConfig,
    Metadata,
    OrdererBlockMetadata,
    Payload,
)
from tests.ordering_osn.helpers.chains import ORDERER
from tests.ordering_osn.helpers.configs import real_envelopes
from tests.ordering_osn.helpers.cores import config, creation, genesis, made, normal, update

CHAINS = ["chain-a", "chain-b", "chain-c", "chain-d"]
SIGNATURES, LAST_CONFIG, CONSENTER = 0, 1, 3  # slots


def genesis_of(chain):
    return Block.FromString((FABRIC / f"{chain}.block").read_bytes())


def sealed_next(chain="chain-a"):
    """Block 1 of a real chain: its first ten real transactions, signed by its real orderer."""
    previous = genesis_of(chain).header
    block = new_block(1, header_hash(previous), real_envelopes(chain)[:10])
    consenter = KafkaMetadata(
        last_offset_persisted=5,
        last_original_offset_processed=3,
        last_resubmitted_config_offset=4,
        cursor=b"here",
    )
    seal(block, last_config=0, consenter=consenter.SerializeToString(), signer=ORDERER)
    return block


# -- hashes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("chain", CHAINS)
def test_a_genesis_block_of_fabrics_tools_is_the_first_of_its_chain(chain):
    block = genesis_of(chain)

    assert data_hash(block.data.data) == block.header.data_hash
    check_next(block, None)
    assert is_config(block)
    assert last_config_of(block) == 0
    assert consenter_of(block) == KafkaMetadata(last_offset_persisted=-3)
    assert signed_bytes(block) == []
    again = new_block(0, b"", list(block.data.data))
    assert again.header == block.header
    assert len(again.metadata.metadata) == len(block.metadata.metadata) == 5


def test_the_header_of_block_one_byte_for_byte():
    raw = header_bytes(1, b"\x11" * 32, b"\x22" * 32)

    assert raw.hex() == "3047" + "020101" + "0420" + "11" * 32 + "0420" + "22" * 32
    assert (
        header_bytes(0, b"", b"\x22" * 32).hex() == "3027" + "020100" + "0400" + "0420" + "22" * 32
    )


@example(number=127, other=128)
@example(number=255, other=256)
@example(number=2**63, other=2**64 - 1)
@given(number=st.integers(1, 2**64 - 1), other=st.integers(1, 2**64 - 1))
def test_an_integer_is_written_as_another_der_encoder_writes_it(number, other):
    two = encode_dss_signature(number, other)
    length = two[3] + 2

    assert header_bytes(number, b"", b"")[2:-4] == two[2 : 2 + length]


@pytest.mark.parametrize(("size", "length"), [(127, "7f"), (128, "8180"), (256, "820100")])
def test_a_long_field_has_a_long_length(size, length):
    raw = header_bytes(0, b"p" * size, b"").hex()

    assert "04" + length + (b"p" * size).hex() in raw


# -- metadata --------------------------------------------------------------------------------


def test_last_config_carries_a_value_and_no_signature_of_its_own():
    block = new_block(9, b"", [normal("a")])
    seal(block, last_config=42, consenter=b"", signer=ORDERER)
    slot = Metadata.FromString(block.metadata.metadata[LAST_CONFIG])

    assert LastConfig.FromString(slot.value).index == 42
    assert not slot.signatures
    assert last_config_of(block) == 42


def resigned(block, consenter):
    """Put other consenter metadata under the signature; nobody verifies it here."""
    slot = Metadata.FromString(block.metadata.metadata[SIGNATURES])
    value = OrdererBlockMetadata.FromString(slot.value)
    value.consenter_metadata = consenter
    slot.value = value.SerializeToString()
    block.metadata.metadata[SIGNATURES] = slot.SerializeToString()


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xff",
        Metadata(value=b"\xff\xff").SerializeToString(),
        Metadata(
            value=KafkaMetadata(last_offset_persisted=-7).SerializeToString()
        ).SerializeToString(),
        Metadata(
            value=KafkaMetadata(last_original_offset_processed=3).SerializeToString()
        ).SerializeToString(),
    ],
)
def test_k6_corrupt_consenter_metadata_stop_the_start(raw):
    block = sealed_next()
    resigned(block, raw)
    block.metadata.metadata[CONSENTER] = raw

    with pytest.raises(CorruptMetadata, match="block 1"):
        consenter_of(block)


def test_an_orderer_slot_that_is_not_what_was_signed_is_corrupt():
    """No signature covers it: a peer that serves blocks could move where a node starts again."""
    block = sealed_next()
    other = KafkaMetadata(last_offset_persisted=99).SerializeToString()
    block.metadata.metadata[CONSENTER] = Metadata(value=other).SerializeToString()

    with pytest.raises(CorruptMetadata, match="differs from the signed value"):
        consenter_of(block)


@pytest.mark.parametrize("read_it", [consenter_of, last_config_of, signed_bytes])
def test_metadata_that_cannot_be_decoded_are_corrupt(read_it):
    block = sealed_next()
    block.metadata.metadata[SIGNATURES] = b"\xff\xff"
    with pytest.raises(CorruptMetadata, match="metadata slot 0"):
        read_it(block)

    del block.metadata.metadata[2:]
    with pytest.raises(CorruptMetadata, match="2 metadata slots"):
        read_it(block)


def test_a_signature_header_that_cannot_be_decoded_is_corrupt():
    block = sealed_next()
    slot = Metadata.FromString(block.metadata.metadata[SIGNATURES])
    slot.signatures[0].signature_header = b"\xff\xff"
    block.metadata.metadata[SIGNATURES] = slot.SerializeToString()

    with pytest.raises(CorruptMetadata, match="signature header"):
        signed_bytes(block)


# -- one after the other ----------------------------------------------------------------------


def test_a_block_follows_the_one_before_it():
    check_next(sealed_next(), genesis_of("chain-a").header)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda block: setattr(block.header, "number", 2), "block 2 is in the place of block 1"),
        (lambda block: setattr(block.header, "previous_hash", b"\1" * 32), "follows 0101"),
        (lambda block: setattr(block.header, "previous_hash", b""), "follows nothing, not"),
        (lambda block: setattr(block.header, "data_hash", b"\1" * 32), "has data hash 0101"),
        (lambda block: block.data.data.pop(), "has data hash"),
        (lambda block: block.data.data.append(b"more"), "has data hash"),
    ],
)
def test_a_block_that_does_not_follow_is_told_in_words(change, sentence):
    block = sealed_next()
    change(block)

    with pytest.raises(BrokenChain, match=sentence):
        check_next(block, genesis_of("chain-a").header)


def test_only_a_genesis_block_stands_first():
    with pytest.raises(BrokenChain, match="block 1 is in the place of block 0"):
        check_next(sealed_next(), None)
    late = genesis_of("chain-a")
    late.header.previous_hash = b"\1" * 32
    with pytest.raises(BrokenChain, match="not nothing"):
        check_next(late, None)


def test_a_config_block_holds_a_config_of_its_chain():
    assert is_config(genesis())
    assert not is_config(new_block(1, b"", [normal("a")]))
    assert not is_config(new_block(1, b"", [creation(update("c"))])), "it is another chain's"
    assert not is_config(new_block(1, b"", [config(1, update("c")), normal("a")]))
    assert not is_config(new_block(1, b"", [b"\xff"]))
    assert not is_config(new_block(1, b"", []))


# -- transactions -----------------------------------------------------------------------------


@pytest.mark.parametrize("chain", ["chain-a", "chain-b"])
def test_a_real_transaction_has_the_id_that_its_client_gave_it(chain):
    found = real_envelopes(chain)

    assert len(found) == 40
    for envelope in found:
        header = channel_header(envelope)
        assert header.channel_id == chain
        assert transaction_id(envelope) == header.tx_id
    assert len({transaction_id(envelope) for envelope in found}) == 40


def test_an_id_that_is_not_of_its_nonce_and_creator_does_not_count():
    """Else anybody could take the ID of another's transaction, and block it."""
    envelope = Envelope.FromString(normal("a"))
    payload = Payload.FromString(envelope.payload)
    header = ChannelHeader.FromString(payload.header.channel_header)
    header.tx_id = transaction_id(normal("of another"))
    payload.header.channel_header = header.SerializeToString()
    envelope.payload = payload.SerializeToString()

    expected = hashlib.sha256(envelope.payload).hexdigest()
    assert transaction_id(envelope.SerializeToString()) == expected


def test_a_transactions_size_is_payload_and_signature():
    envelope = real_envelopes("chain-a")[0]
    parsed = Envelope.FromString(envelope)

    assert read(envelope).size == len(parsed.payload) + len(parsed.signature)
    assert read(envelope).type == channel_header(envelope).type == 3


@pytest.mark.parametrize(
    "envelope",
    [
        b"",
        b"\xff",
        normal("a")[:-3],
        Envelope(payload=Payload(data=b"no header").SerializeToString()).SerializeToString(),
    ],
)
def test_what_is_no_envelope_is_malformed(envelope):
    for reads in (transaction_id, channel_header):
        with pytest.raises(Malformed):
            reads(envelope)


def test_a_config_of_which_no_update_can_be_read_is_malformed():
    with pytest.raises(Malformed):
        transaction_id(made("a", b"\xff", kind="CONFIG"))
