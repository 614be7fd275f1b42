"""What ordering reads of a transaction's envelope: its ID, channel, type and size.

    transaction ID   hex. The SHA-256 of nonce and creator where the channel header's `tx_id` says
                     the same, as Fabric's clients make it; otherwise the SHA-256 of the payload. So
                     nobody can take the ID of another's transaction, and a payload has one ID
                     however often it is signed. A config has the ID of the update in it.

No I/O, no clock; no signature is checked here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from ordering_osn.chain.envelopes import BadEnvelope, ParsedEnvelope, decoded
from ordering_osn.protos import ConfigEnvelope, Envelope, HeaderType

_CONFIG = int(HeaderType.CONFIG)
_ORDERER_TRANSACTION = int(HeaderType.ORDERER_TRANSACTION)
_WRAPPINGS_MAX = 2  # ORDERER_TRANSACTION holds a CONFIG, a CONFIG the CONFIG_UPDATE it is made of


class Malformed(ValueError):
    """The bytes are not an envelope with a payload and a channel header; the text says why."""


@dataclass(frozen=True, slots=True)
class EnvelopeFacts:
    """What ordering reads of an envelope. `type` is a `common.HeaderType`.

    `size` is what counts against a batch's bytes: payload and signature. `well_formed`: it has
    both and nothing else, and its bytes are those that an encoder gives. A block with an envelope
    in another encoding is refused for ever by Fabric's peers (2.2.14, 2.5.5 and later:
    protoutil.VerifyTransactionsAreWellFormed).
    """

    transaction: str
    channel: str
    type: int
    size: int
    well_formed: bool = True


def read(raw: bytes) -> EnvelopeFacts:
    """Read a serialized envelope; raises `Malformed`."""
    return facts_of(ParsedEnvelope(raw))


def facts_of(envelope: ParsedEnvelope) -> EnvelopeFacts:
    """Give what ordering reads of an envelope; raises `Malformed`."""
    try:
        header = _header(envelope)
        transaction = _transaction(envelope, _WRAPPINGS_MAX)
    except BadEnvelope as error:
        raise Malformed(str(error)) from error
    well_formed = bool(envelope.message.signature) and envelope.encoded == envelope.raw
    return EnvelopeFacts(
        transaction, header.channel_id, header.type, envelope.size_bytes, well_formed
    )


def transaction_id(raw: bytes) -> str:
    """Give the ID of the transaction in a serialized envelope; raises `Malformed`."""
    return read(raw).transaction


def channel_header(raw: bytes) -> Any:
    """Give the `ChannelHeader` of a serialized envelope; raises `Malformed`."""
    try:
        return _header(ParsedEnvelope(raw))
    except BadEnvelope as error:
        raise Malformed(str(error)) from error


def _header(envelope: ParsedEnvelope) -> Any:
    if not envelope.payload.header.channel_header:
        raise Malformed("the payload has no channel header")
    return envelope.header


def _transaction(envelope: ParsedEnvelope, wrappings: int) -> str:
    header = _header(envelope)
    inner = _wrapped(envelope) if wrappings else None
    if inner is not None and inner.message.payload:
        return _transaction(inner, wrappings - 1)
    signer = envelope.signature_header
    clients_id = hashlib.sha256(signer.nonce + signer.creator).hexdigest()
    if header.tx_id == clients_id:
        return clients_id
    return hashlib.sha256(envelope.message.payload).hexdigest()


def _wrapped(envelope: ParsedEnvelope) -> ParsedEnvelope | None:
    """Give the envelope from which a CONFIG or an ORDERER_TRANSACTION was made."""
    data = envelope.payload.data
    if envelope.header.type == _CONFIG:
        return ParsedEnvelope.of(decoded(ConfigEnvelope, data, "the config envelope").last_update)
    if envelope.header.type == _ORDERER_TRANSACTION:
        return ParsedEnvelope.of(decoded(Envelope, data, "the wrapped envelope"))
    return None
