"""A transaction's envelope, as far as ordering looks at it: ID, channel, type, size.

Goes in: a serialized `common.Envelope`. Comes out: a `EnvelopeFacts`, or `Malformed`. No I/O, no
clock; no signature is checked here.

    transaction ID   hex. The channel header's `tx_id` where it is the SHA-256 of nonce and creator,
                     as Fabric's clients make it; else the SHA-256 of the payload. So nobody can
                     take another's ID, and a payload signed twice has one ID. A config has the
                     ID of the update that it was made of.
    several chains   a channel ID of chain names, sorted and joined by "+" (no channel's name has
                     one). Nodes no longer accept such transactions, and order those that stand in
                     a log already as they always did. The ID of such a transaction is followed by
                     "@" and this channel ID: then two transactions of one ID never count as one at
                     some of their chains only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from ordering_osn.protos import (
    ChannelHeader,
    ConfigEnvelope,
    DecodeError,
    Envelope,
    HeaderType,
    Payload,
    SignatureHeader,
)

JOIN = "+"
_CONFIG = int(HeaderType.CONFIG)
_CONFIG_UPDATE = int(HeaderType.CONFIG_UPDATE)
_ORDERER_TRANSACTION = int(HeaderType.ORDERER_TRANSACTION)
_WRAPPINGS_MAX = 2  # ORDERER_TRANSACTION holds a CONFIG, a CONFIG the CONFIG_UPDATE it is made of


class Malformed(ValueError):
    """The bytes are no envelope with a payload and a channel header."""


@dataclass(frozen=True, slots=True)
class EnvelopeFacts:
    """What ordering reads of an envelope. `type` is a `common.HeaderType`.

    `size` is what counts against a batch's bytes: payload and signature.
    """

    transaction: str
    channel: str
    type: int
    size: int

    @property
    def spans(self) -> bool:
        """Whether it names several chains."""
        return JOIN in self.channel


def read(envelope: bytes) -> EnvelopeFacts:
    """Read an envelope; raises `Malformed`."""
    try:
        parsed = Envelope.FromString(envelope)
        payload = Payload.FromString(parsed.payload)
        header = _header(payload)
        transaction = _transaction(parsed.payload, payload, header, _WRAPPINGS_MAX)
    except DecodeError as error:
        raise Malformed(f"the envelope cannot be decoded: {error}") from error
    channel = header.channel_id
    if JOIN in channel:
        transaction = f"{transaction}@{channel}"
    size = len(parsed.payload) + len(parsed.signature)
    return EnvelopeFacts(transaction, channel, header.type, size)


def transaction_id(envelope: bytes) -> str:
    """Give the ID of a transaction; raises `Malformed`."""
    return read(envelope).transaction


def channel_header(envelope: bytes) -> ChannelHeader:
    """Give the channel header of an envelope; raises `Malformed`."""
    try:
        return _header(Payload.FromString(Envelope.FromString(envelope).payload))
    except DecodeError as error:
        raise Malformed(f"the envelope cannot be decoded: {error}") from error


def _header(payload: Any) -> Any:
    raw = payload.header.channel_header
    if not raw:
        raise Malformed("the payload has no channel header")
    return ChannelHeader.FromString(raw)


def _transaction(raw: bytes, payload: Any, header: Any, wrappings: int) -> str:
    inner = _wrapped(payload.data, header.type) if wrappings else b""
    if inner:
        update = Payload.FromString(inner)
        return _transaction(inner, update, _header(update), wrappings - 1)
    signer = SignatureHeader.FromString(payload.header.signature_header)
    made = hashlib.sha256(signer.nonce + signer.creator).hexdigest()
    return made if header.tx_id == made else hashlib.sha256(raw).hexdigest()


def _wrapped(data: bytes, header_type: int) -> bytes:
    """Give the payload that a CONFIG or an ORDERER_TRANSACTION was made of, or nothing."""
    if header_type == _CONFIG:
        raw: bytes = ConfigEnvelope.FromString(data).last_update.payload
    elif header_type == _ORDERER_TRANSACTION:
        raw = Envelope.FromString(data).payload
    else:
        return b""
    return raw
