"""Envelopes: the one decoder of a `common.Envelope`, and the maker of signed ones.

    envelope   payload and signature; its bytes are what a block holds
    payload    header (channel header, signature header) and data

No I/O, no clock; no signature is checked here. The maker's bytes depend on its arguments, a
random nonce and the signature only: protobuf's map entries are sorted by key.
"""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import Any, Protocol

from multicast.errors import AmcastError
from ordering_osn.chain.bundles.wire_format import bytes_field
from ordering_osn.protos import (
    ChannelHeader,
    DecodeError,
    Envelope,
    Header,
    Payload,
    SignatureHeader,
)


class Signer(Protocol):
    """The identity that signs a node's blocks."""

    @property
    def creator(self) -> bytes:
        """The serialized identity."""

    def sign(self, message: bytes) -> bytes:
        """Sign with ECDSA over SHA-256; DER, low S (a peer refuses high S)."""

    def nonce(self) -> bytes:
        """Fresh random bytes."""


class BadEnvelope(AmcastError):
    """An envelope, or a part of one, cannot be read; the text says which part and why."""


def canonical(message: Any) -> bytes:
    """Serialize a message; equal messages give the same bytes."""
    raw: bytes = message.SerializeToString(deterministic=True)
    return raw


def decoded(kind: Any, raw: bytes, what: str) -> Any:
    """Decode `raw` as a message of class `kind`; raises `BadEnvelope`, which names `what`."""
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise BadEnvelope(f"{what} cannot be decoded: {error}") from error


class ParsedEnvelope:
    """An envelope and its parts. Each part is decoded once, when it is first read.

    Reading a part raises `BadEnvelope` where it cannot be decoded. For one thread.
    """

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    @classmethod
    def of(cls, message: Any) -> ParsedEnvelope:
        """Take an `Envelope` that is decoded already, as one inside another message."""
        envelope = cls(canonical(message))
        envelope.message = message
        return envelope

    @cached_property
    def message(self) -> Any:
        """The `Envelope`."""
        return decoded(Envelope, self.raw, "the envelope")

    @cached_property
    def payload(self) -> Any:
        """The `Payload`. Raises `BadEnvelope` for one without a header, too."""
        payload = decoded(Payload, self.message.payload, "the payload")
        if not payload.HasField("header"):
            raise BadEnvelope("the payload has no header")
        return payload

    @cached_property
    def header(self) -> Any:
        """The `ChannelHeader`; one with defaults where the payload's header has none."""
        return decoded(ChannelHeader, self.payload.header.channel_header, "the channel header")

    @cached_property
    def signature_header(self) -> Any:
        """The `SignatureHeader`: who signed the payload, and the nonce."""
        raw = self.payload.header.signature_header
        return decoded(SignatureHeader, raw, "the signature header")

    @property
    def encoded(self) -> bytes:
        """Payload and signature in their only encoding, without anything else that was sent."""
        return bytes_field(1, self.message.payload) + bytes_field(2, self.message.signature)

    @property
    def is_exact(self) -> bool:
        """Whether it has no other fields: nobody signs these, and no limit counts them."""
        return int(self.message.ByteSize()) == len(self.encoded)

    @property
    def size_bytes(self) -> int:
        """What counts against a batch's bytes: payload and signature."""
        return len(self.message.payload) + len(self.message.signature)


def signed_envelope(
    kind: int, channel: str, data: bytes, *, signer: Signer, now: datetime, tls_hash: bytes = b""
) -> bytes:
    """Make an envelope of header type `kind` for `channel`, signed by `signer` with a fresh nonce.

    `now` becomes the channel header's timestamp (whole seconds, as Fabric writes it). `tls_hash` is
    the SHA-256 of the client's TLS certificate, for a server that binds requests to it.
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
