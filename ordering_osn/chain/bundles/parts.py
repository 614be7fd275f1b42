"""What ordering reads of a part's envelope: its channel and type, the transaction's ID and size.

`ordering_osn/chain/envelopes.py` reads envelopes with a protobuf library. Here the same facts are
read without it, because they decide whether a bundle counts (`wire_format.py` says why). What this
module accepts, `transactions.read` accepts, with the same facts.

A part must be NORMAL: a config needs a block of its own, and nodes make it themselves.
No I/O, no clock; no signature is checked here.
"""

from __future__ import annotations

import hashlib

from ordering_osn.chain.bundles.wire_format import (
    NUMBER,
    OCTETS,
    BadWireFormat,
    Value,
    known_once,
    message_field,
    text,
)
from ordering_osn.chain.transactions import EnvelopeFacts

# Known fields by number, as Fabric's common/common.proto has them.
_ENVELOPE = {1: OCTETS, 2: OCTETS}  # payload, signature
_PAYLOAD = {1: OCTETS, 2: OCTETS}  # header, data
_HEADER = {1: OCTETS, 2: OCTETS}  # channel header, signature header
# Type, version, timestamp, channel ID, transaction ID, epoch, extension, hash of a certificate.
_CHANNEL_HEADER = {1: NUMBER, 2: NUMBER, 3: OCTETS, 4: OCTETS, 5: OCTETS, 6: NUMBER, 7: OCTETS,
                   8: OCTETS}  # fmt: skip
_TIMESTAMP = {1: NUMBER, 2: NUMBER}  # seconds, nanoseconds
_SIGNATURE_HEADER = {1: OCTETS, 2: OCTETS}  # creator, nonce
# HeaderType: CONFIG, CONFIG_UPDATE, ORDERER_TRANSACTION; and DELIVER_SEEK_INFO, a reader's request,
# which somebody else may have captured.
_NO_PARTS = {1: "a config", 2: "a config", 4: "a config", 5: "a request to read"}
_EMPTY = memoryview(b"")
_TYPE_LIMIT = 1 << 31  # an enum is an int32; libraries cut longer numbers


def read_part(raw: bytes | memoryview) -> EnvelopeFacts:
    """Read a serialized NORMAL envelope; raises `BadWireFormat`, with one sentence."""
    envelope = known_once(raw, _ENVELOPE, "the envelope")
    raw_payload, signature = _bytes(envelope, 1), _bytes(envelope, 2)
    if not raw_payload:
        raise BadWireFormat("the envelope has no payload")
    if not signature:
        raise BadWireFormat("the envelope has no signature")
    # A peer (2.2.14, 2.5.5 and later: protoutil.VerifyTransactionsAreWellFormed) encodes each
    # envelope anew, and refuses a block for ever in which one then differs.
    if raw != message_field(1, bytes(raw_payload)) + message_field(2, bytes(signature)):
        raise BadWireFormat("the envelope is not payload and signature in their only encoding")
    payload = known_once(raw_payload, _PAYLOAD, "the payload")
    if 1 not in payload:
        raise BadWireFormat("the payload has no header")
    header = known_once(_bytes(payload, 1), _HEADER, "the payload's header")
    raw_channel_header = _bytes(header, 1)
    if not raw_channel_header:
        raise BadWireFormat("the payload has no channel header")
    channel_header = known_once(raw_channel_header, _CHANNEL_HEADER, "the channel header")
    known_once(_bytes(channel_header, 3), _TIMESTAMP, "the channel header's timestamp")
    signer = known_once(_bytes(header, 2), _SIGNATURE_HEADER, "the signature header")
    kind = channel_header.get(1, 0)
    assert isinstance(kind, int), "the table of known fields says so"
    if kind >= _TYPE_LIMIT:
        raise BadWireFormat(f"{kind} is not the type of an envelope")
    if kind in _NO_PARTS:
        raise BadWireFormat(f"{_NO_PARTS[kind]} cannot be a part of a bundle")
    channel = text(_bytes(channel_header, 4), "the channel ID")
    named = text(_bytes(channel_header, 5), "the transaction ID")
    bound = hashlib.sha256(bytes(_bytes(signer, 2)) + bytes(_bytes(signer, 1))).hexdigest()
    transaction = bound if named == bound else hashlib.sha256(raw_payload).hexdigest()
    return EnvelopeFacts(transaction, channel, kind, len(raw_payload) + len(signature))


def _bytes(fields: dict[int, Value], field: int) -> memoryview:
    value = fields.get(field, _EMPTY)
    assert isinstance(value, memoryview), "the table of known fields says so"
    return value
