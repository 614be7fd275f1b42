"""Read and verify blocks with Fabric's Python SDK, unchanged; run in an environment of its own.

In: files, each with a serialized block. Out: for each, one line of JSON with what the SDK read
(`BlockDecoder`, the messages of `hfc.protos`) and computed. Exit code 0.
"""

import json
import sys
from pathlib import Path

from cryptography import x509
from hfc.fabric.block_decoder import BlockDecoder
from hfc.protos.common import common_pb2
from hfc.protos.msp import identities_pb2
from hfc.protos.orderer import kafka_pb2
from hfc.util.crypto.crypto import ecies

SUITE = ecies()


def parsed(kind, raw):
    message = kind()
    message.ParseFromString(raw)
    return message


def sha256(raw):
    return SUITE.hash(raw).hexdigest()


def der(tag, content):
    assert len(content) < 128
    return bytes([tag, len(content)]) + content


def header_bytes(header):
    """The SDK has no encoder of headers."""
    number = header.number.to_bytes(header.number.bit_length() // 8 + 1, "big")
    return der(0x30, der(2, number) + der(4, header.previous_hash) + der(4, header.data_hash))


def signed_by(header, metadata):
    (entry,) = metadata.signatures
    creator = parsed(common_pb2.SignatureHeader, entry.signature_header).creator
    identity = parsed(identities_pb2.SerializedIdentity, creator)
    key = x509.load_pem_x509_certificate(identity.id_bytes).public_key()
    message = metadata.value + entry.signature_header + header_bytes(header)
    return identity.mspid if SUITE.verify(key, message, entry.signature) else ""


def described(raw):
    block, read = parsed(common_pb2.Block, raw), BlockDecoder.decode(raw)
    slots = block.metadata.metadata
    metadata = parsed(common_pb2.Metadata, slots[common_pb2.SIGNATURES])
    last_config = parsed(
        common_pb2.LastConfig, parsed(common_pb2.Metadata, slots[common_pb2.LAST_CONFIG]).value
    )
    wrapped = parsed(common_pb2.Metadata, slots[common_pb2.ORDERER])
    kafka = parsed(kafka_pb2.KafkaMetadata, wrapped.value)
    headers = [each["payload"]["header"]["channel_header"] for each in read["data"]["data"]]
    return {
        "number": read["header"]["number"],
        "previous_hash": read["header"]["previous_hash"].decode(),
        "header_hash": sha256(header_bytes(block.header)),
        "data_hash": sha256(b"".join(block.data.data)),
        "signed_by": signed_by(block.header, metadata),
        "last_config": last_config.index,
        "kafka": [
            kafka.last_offset_persisted,
            kafka.last_original_offset_processed,
            kafka.last_resubmitted_config_offset,
        ],
        "envelopes": [sha256(envelope) for envelope in block.data.data],
        "channels": [header["channel_id"] for header in headers],
        "transactions": [header["tx_id"] for header in headers],
    }


for name in sys.argv[1:]:
    sys.stdout.write(json.dumps(described(Path(name).read_bytes())) + "\n")
