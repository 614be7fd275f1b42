"""Signed envelopes: made as Fabric makes them, and taken apart where a signature is checked.

    envelope   payload and signature; the bytes that stand in a block
    payload    header (channel header, signature header) and data

Bytes are deterministic: the same arguments give the same bytes, map fields are sorted.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from multicast.errors import AmcastError
from ordering_osn.chain.blocks import Signer
from ordering_osn.config.policies import SignedData
from ordering_osn.protos import (
    ChannelHeader,
    DecodeError,
    Envelope,
    Header,
    Payload,
    SignatureHeader,
)


class BadEnvelope(AmcastError):
    """An envelope, or a part of one, is not what it must be; the text says which part."""


def canonical(message: Any) -> bytes:
    """Serialize a message, in the one way: map entries are sorted by key."""
    raw: bytes = message.SerializeToString(deterministic=True)
    return raw


def decoded(kind: Any, raw: bytes, what: str) -> Any:
    """Read `raw` as a message of `kind`; raises `BadEnvelope`, which names `what`."""
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise BadEnvelope(f"{what} cannot be decoded: {error}") from error


def signed_envelope(
    kind: int, channel: str, data: bytes, *, signer: Signer, now: datetime, tls_hash: bytes = b""
) -> bytes:
    """Make an envelope of header type `kind` for `channel`, signed by `signer` with a fresh nonce.

    `now` becomes the channel header's timestamp (whole seconds, as Fabric writes it);
    `tls_hash` the SHA-256 of the client's TLS certificate, where a server binds to it.
    """
    channel_header = ChannelHeader(type=kind, channel_id=channel, tls_cert_hash=tls_hash)
    channel_header.timestamp.seconds = int(now.timestamp())
    signature_header = SignatureHeader(creator=signer.creator, nonce=signer.nonce())
    payload = canonical(
        Payload(
            header=Header(
                channel_header=canonical(channel_header),
                signature_header=canonical(signature_header),
            ),
            data=data,
        )
    )
    return canonical(Envelope(payload=payload, signature=signer.sign(payload)))


def payload_of(envelope: Any) -> Any:
    """Read the payload of an `Envelope`; raises `BadEnvelope` where it has none or no header."""
    payload = decoded(Payload, envelope.payload, "the payload")
    if not payload.HasField("header"):
        raise BadEnvelope("the payload has no header")
    return payload


def header_of(payload: Any) -> Any:
    """Read the channel header of a `Payload`; raises `BadEnvelope`."""
    return decoded(ChannelHeader, payload.header.channel_header, "the channel header")


def signed_data(envelope: Any) -> SignedData:
    """Read what an `Envelope`'s signature says: who signed which bytes."""
    payload = payload_of(envelope)
    header = decoded(SignatureHeader, payload.header.signature_header, "the signature header")
    return SignedData(data=envelope.payload, creator=header.creator, signature=envelope.signature)
