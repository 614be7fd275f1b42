"""Blocks with parts of bundles, byte for byte as an unmodified peer of Fabric demands them.

What a peer demands is in `docs/multichain.md`. Nothing of ours computes here what is compared:
SHA-256, DER and ECDSA are those of other libraries, and `KafkaMetadata` is compiled from Fabric's
own fields. `tests/system/test_fabric_blocks.py` gives the same blocks to Fabric's SDKs.
"""

import hashlib
from itertools import pairwise

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from ordering_osn.chain.blocks import consenter_of
from ordering_osn.chain.bundles.metadata import read_block_bundles
from ordering_osn.protos import (
    BlockMetadataIndex,
    ChannelHeader,
    Envelope,
    Metadata,
    OrdererBlockMetadata,
    Payload,
    SerializedIdentity,
    SignatureHeader,
)
from tests.ordering_osn.helpers.bundle_blocks import CURSOR, NAME, ORDER, cut, expected
from tests.ordering_osn.helpers.chains import ORDERER

P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
FIELDS = (
    "last_offset_persisted",
    "last_original_offset_processed",
    "last_resubmitted_config_offset",
)


def fabrics_kafka_metadata():
    """KafkaMetadata with the three fields of Fabric v1.4's protos/orderer/kafka.proto."""
    file = FileDescriptorProto(name="kafka.proto", package="orderer", syntax="proto3")
    message = file.message_type.add(name="KafkaMetadata")
    for number, name in enumerate(FIELDS, start=1):
        message.field.add(
            name=name,
            number=number,
            type=FieldDescriptorProto.TYPE_INT64,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
        )
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("orderer.KafkaMetadata"))


@pytest.fixture(scope="module")
def chain():
    return cut()


@pytest.fixture(scope="module")
def blocks(chain):
    return chain[1:]


def der(header):
    """The header as ASN.1: every number here is below 128, every hash has 32 bytes."""
    octets = b"".join(b"\x04\x20" + each for each in (header.previous_hash, header.data_hash))
    assert len(octets) == 68
    return b"\x30\x47\x02\x01" + bytes([header.number]) + octets


def slot(block, name):
    return Metadata.FromString(block.metadata.metadata[BlockMetadataIndex.Value(name)])


def signed_value(block):
    return OrdererBlockMetadata.FromString(slot(block, "SIGNATURES").value)


def test_the_blocks_hold_bundles_and_transactions_of_one_chain(blocks):
    parts = [
        {part.index for part in read_block_bundles(consenter_of(block).bundles).parts}
        for block in blocks
    ]
    assert parts == [{i for i, kind in enumerate(kinds) if kind == "p"} for kinds in ORDER]
    assert all(consenter_of(block).entries for block in blocks)


def test_every_envelope_stands_there_as_its_client_sent_it(blocks):
    assert [list(block.data.data) for block in blocks] == expected()


def test_every_envelope_and_so_the_first_names_the_block_s_own_channel(chain):
    for block in chain:
        for raw in block.data.data:
            payload = Payload.FromString(Envelope.FromString(raw).payload)
            header = ChannelHeader.FromString(payload.header.channel_header)
            assert header.channel_id == NAME


def test_every_envelope_is_what_a_peer_gets_when_it_encodes_it_anew(blocks):
    for block in blocks:
        for raw in block.data.data:
            envelope = Envelope.FromString(raw)
            again = Envelope(payload=envelope.payload, signature=envelope.signature)
            assert again.SerializeToString() == raw


def test_data_hash_and_previous_hash_are_those_of_a_peer(chain):
    for block in chain:
        assert block.header.data_hash == hashlib.sha256(b"".join(block.data.data)).digest()
    first = chain[0].header
    raw = b"\x30\x27\x02\x01\x00\x04\x00\x04\x20" + first.data_hash
    assert chain[1].header.previous_hash == hashlib.sha256(raw).digest()
    for before, block in pairwise(chain[1:]):
        assert block.header.number == before.header.number + 1
        assert block.header.previous_hash == hashlib.sha256(der(before.header)).digest()


def test_the_orderer_signed_value_signature_header_and_block_header(blocks):
    for block in blocks:
        metadata = slot(block, "SIGNATURES")
        (entry,) = metadata.signatures
        creator = SignatureHeader.FromString(entry.signature_header).creator
        assert creator == ORDERER.creator
        pem = SerializedIdentity.FromString(creator).id_bytes
        key = x509.load_pem_x509_certificate(pem).public_key()
        message = metadata.value + entry.signature_header + der(block.header)
        key.verify(entry.signature, message, ec.ECDSA(hashes.SHA256()))
        assert decode_dss_signature(entry.signature)[1] <= P256_ORDER // 2


def test_the_slots_are_those_of_any_block(blocks):
    for block in blocks:
        slots = block.metadata.metadata
        assert len(slots) == 5
        value = signed_value(block)
        assert value.HasField("last_config")  # peers of 2.x read it here, those of 1.4 in slot 1
        assert value.last_config.index == 0
        assert slot(block, "LAST_CONFIG").value == value.last_config.SerializeToString()
        assert slots[BlockMetadataIndex.Value("ORDERER")] == value.consenter_metadata
        assert slots[BlockMetadataIndex.Value("TRANSACTIONS_FILTER")] == b""
        assert slots[BlockMetadataIndex.Value("COMMIT_HASH")] == b""


def test_a_reader_of_fabric_s_kafka_metadata_reads_its_three_fields_and_skips_ours(blocks):
    fabrics = fabrics_kafka_metadata()
    for block in blocks:
        raw = Metadata.FromString(signed_value(block).consenter_metadata).value
        theirs, ours = fabrics.FromString(raw), consenter_of(block)
        assert [getattr(theirs, name) for name in FIELDS] == [
            getattr(ours, name) for name in FIELDS
        ]
        assert theirs.last_offset_persisted > 0
        assert ours.cursor == CURSOR.encode()
        # Fabric's fields come first, and are encoded as Fabric encodes them.
        theirs.DiscardUnknownFields()
        assert raw.startswith(theirs.SerializeToString())
        assert len(raw) > len(theirs.SerializeToString())
