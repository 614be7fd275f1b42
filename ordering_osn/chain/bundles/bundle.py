"""A bundle: envelopes for several chains, one for each, that all count or none.

    part       the envelope for one chain; its channel header names that chain
    content    what the submitter signs: the chains with the SHA-256 of each envelope, a nonce, the
               expiry and the submitter's identity
    bundle ID  SHA-256 of the content's bytes

The signature covers the envelopes by their hashes. So the content, without any envelope, proves
which envelopes belong together.

Invariant of every `Bundle`: its bytes are its only encoding; its chains are sorted and distinct;
each envelope has the hash that the content says, and names its chain.
No I/O, no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from multicast.errors import AmcastError
from ordering_osn.chain.bundles.parts import read_part
from ordering_osn.chain.bundles.wire_format import (
    BadWireFormat,
    bytes_field,
    message_field,
    number_field,
    parsed,
    text_field,
)
from ordering_osn.chain.envelopes import Signer
from ordering_osn.chain.transactions import EnvelopeFacts
from ordering_osn.identity import BadSignature, UntrustedIdentity, Verification, verify_as
from ordering_osn.protos import Status
from ordering_osn.wire import multichain_pb2 as wire

# A bundle for one chain is an ordinary transaction. The blocks of a bundle for n chains hold
# n * (n - 1) hashes of siblings: 129 kB for 64.
CHAINS_MIN = 2
CHAINS_MAX = 64
# Kafka's default for a record is about the same, so a larger envelope could not be ordered alone.
PART_BYTES_MAX = 1 << 20
# Eight of the largest parts, or 64 of 128 KiB. Brokers must allow it (`message.max.bytes`).
ENVELOPES_BYTES_MAX = 8 * PART_BYTES_MAX
CHAIN_NAME_BYTES_MAX = 249  # Fabric's longest channel ID, and Kafka's longest topic name
# Below 16 bytes, two nonces might be equal by chance; Fabric's clients take 24.
NONCE_BYTES_MIN = 16
NONCE_BYTES_MAX = 64
SUBMITTER_BYTES_MAX = 16 * 1024  # as of any creator (`msp.CREATOR_BYTES_MAX`)
SIGNATURE_BYTES_MAX = 256  # ECDSA's on P-521, the longest that Fabric knows, has 139
EXPIRY_LIMIT = 1 << 63  # offsets are below
DIGEST_BYTES = 32  # of SHA-256
# 64 names and hashes, nonce, submitter, signature and lengths: less than 40 KiB.
BUNDLE_BYTES_MAX = ENVELOPES_BYTES_MAX + 64 * 1024

# Takes the chains of a bundle and what its submitter signed, as `Bundle.signed`.
Submission = Callable[[tuple[str, ...], tuple[bytes, bytes, bytes]], None]
_BAD, _TOO_LARGE = int(Status.BAD_REQUEST), int(Status.REQUEST_ENTITY_TOO_LARGE)


class BadBundle(AmcastError):
    """A bundle cannot be accepted by anyone: one status, one sentence, the part's chain or ""."""

    def __init__(self, info: str, *, status: int = _BAD, chain: str = "") -> None:
        super().__init__(info)
        self.status = status
        self.info = info
        self.chain = chain


@dataclass(frozen=True, slots=True)
class BundlePart:
    """The envelope for one chain, and what ordering reads of it."""

    chain: str
    envelope: bytes
    facts: EnvelopeFacts
    digest: bytes
    """SHA-256 of the envelope."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that is well formed. Its signature is not verified: see `check_signature`.

    `expiry`: the last offset of the set's log at which it may count; 0 where it does not expire.
    """

    content: bytes
    signature: bytes
    parts: tuple[BundlePart, ...]
    nonce: bytes
    expiry: int
    submitter: bytes
    id: bytes = field(init=False)
    """The bundle ID, 32 bytes."""
    chains: tuple[str, ...] = field(init=False)
    """The destination set, sorted."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", hashlib.sha256(self.content).digest())
        object.__setattr__(self, "chains", tuple(part.chain for part in self.parts))

    @property
    def signed(self) -> tuple[bytes, bytes, bytes]:
        """What a policy judges, as the fields of `policies.SignedData`."""
        return self.content, self.submitter, self.signature


def make_bundle(envelopes: Mapping[str, bytes], *, signer: Signer, expiry: int = 0) -> Bundle:
    """Make and sign a bundle of serialized envelopes by chain, with a fresh nonce.

    Raises `BadBundle` where `read_bundle` would refuse it, before anything is signed.
    """
    names = sorted(envelopes)
    for name in names:
        if not name.isprintable():  # halves of surrogate pairs, too, which UTF-8 cannot encode
            raise BadBundle(f"{name!r} is not the name of a chain")
    entries = [(name, hashlib.sha256(envelopes[name]).digest()) for name in names]
    content = _encode_content(entries, signer.nonce(), expiry, signer.creator)
    ordered = [envelopes[name] for name in names]
    read_bundle(_encode(content, b"unsigned", ordered))
    return read_bundle(_encode(content, signer.sign(content), ordered))


def encode_bundle(bundle: Bundle) -> bytes:
    """Serialize a bundle; `read_bundle` gives an equal one."""
    return _encode(bundle.content, bundle.signature, [part.envelope for part in bundle.parts])


def read_bundle(raw: bytes, *, first: Submission = lambda *_: None) -> Bundle:
    """Read a bundle that anybody may have written; raises `BadBundle`.

    Verifies everything but the signature. Bounded: reads `BUNDLE_BYTES_MAX` bytes at most. `first`
    is called BEFORE any envelope is looked at, with the chains and `Bundle.signed`.
    """
    if len(raw) > BUNDLE_BYTES_MAX:
        raise BadBundle(
            f"the bundle has {len(raw)} bytes, more than {BUNDLE_BYTES_MAX}", status=_TOO_LARGE
        )
    try:
        bundle = bundle_of(parsed(wire.Bundle, raw, "the bundle"), first)
    except BadWireFormat as error:
        raise BadBundle(str(error)) from error
    if encode_bundle(bundle) != raw:
        raise BadBundle("the bundle is not in its only encoding (docs/multichain.md)")
    return bundle


def check_signature(data: bytes, creator: bytes, signature: bytes) -> Verification:
    """Return how `Bundle.signed` was verified; raise `BadBundle` (403) unless the submitter signed.

    Says nothing of the submitter's rights: each chain's policy Writers decides them, and verifies
    the signature itself (`Bundle.signed`), unless it is told of this verification. For readers that
    have no channel's config.
    """
    try:
        return verify_as(creator, data, signature)
    except (BadSignature, UntrustedIdentity) as error:
        raise BadBundle(
            f"the submitter did not sign this bundle: {error}", status=int(Status.FORBIDDEN)
        ) from error


# -- the encoding ----------------------------------------------------------------------------------


def _encode(content: bytes, signature: bytes, envelopes: list[bytes]) -> bytes:
    head = bytes_field(1, content) + bytes_field(2, signature)
    return b"".join((head, *(message_field(3, envelope) for envelope in envelopes)))


def _encode_content(
    entries: list[tuple[str, bytes]], nonce: bytes, expiry: int, submitter: bytes
) -> bytes:
    if not 0 <= expiry < EXPIRY_LIMIT:
        raise BadBundle(f"the expiry {expiry} is not an offset")
    parts = (
        message_field(1, text_field(1, chain) + bytes_field(2, digest)) for chain, digest in entries
    )
    tail = (bytes_field(2, nonce), number_field(3, expiry), bytes_field(4, submitter))
    return b"".join((*parts, *tail))


def bundle_of(message: Any, first: Submission = lambda *_: None) -> Bundle:
    """Take a `Bundle` message; raises `BadBundle` and `BadWireFormat`.

    The caller compares the encoding, that of the bundle or of what holds it; the content's, which
    is signed, is compared here.
    """
    if len(message.envelopes) > CHAINS_MAX:
        raise BadBundle(f"the bundle has more than {CHAINS_MAX} envelopes")
    if not 1 <= len(message.signature) <= SIGNATURE_BYTES_MAX:
        raise BadBundle(
            f"the bundle's signature has {len(message.signature)} bytes, "
            f"not 1 to {SIGNATURE_BYTES_MAX}"
        )
    content = parsed(wire.BundleContent, message.content, "the bundle's content")
    nonce, submitter = content.nonce, content.submitter
    if len(content.parts) > CHAINS_MAX:
        raise BadBundle(f"the bundle names more than {CHAINS_MAX} chains")
    if not NONCE_BYTES_MIN <= len(nonce) <= NONCE_BYTES_MAX:
        raise BadBundle(
            f"the nonce has {len(nonce)} bytes, not {NONCE_BYTES_MIN} to {NONCE_BYTES_MAX}"
        )
    if not 1 <= len(submitter) <= SUBMITTER_BYTES_MAX:
        raise BadBundle(
            f"the submitter's identity has {len(submitter)} bytes, not 1 to {SUBMITTER_BYTES_MAX}"
        )
    entries = [(part.chain, part.sha256) for part in content.parts]
    if len(entries) != len(message.envelopes):
        raise BadBundle(
            f"the bundle names {len(entries)} chains and has {len(message.envelopes)} envelopes"
        )
    _check_chains([chain for chain, _ in entries])
    signed = (message.content, submitter, message.signature)
    first(tuple(chain for chain, _ in entries), signed)
    parts = tuple(
        _part(chain, digest, envelope)
        for (chain, digest), envelope in zip(entries, message.envelopes, strict=True)
    )
    _check_sizes(parts)
    if message.content != _encode_content(entries, nonce, content.expiry, submitter):
        raise BadBundle("the bundle's content is not in its only encoding (docs/multichain.md)")
    return Bundle(message.content, message.signature, parts, nonce, content.expiry, submitter)


def _check_chains(chains: list[str]) -> None:
    if len(chains) < CHAINS_MIN:
        raise BadBundle(
            f"the bundle names {len(chains)} chains, not {CHAINS_MIN} to {CHAINS_MAX}: a "
            f"transaction for one chain is sent by Broadcast"
        )
    for before, chain in zip(["", *chains], chains, strict=False):
        if not 1 <= len(chain.encode()) <= CHAIN_NAME_BYTES_MAX:
            raise BadBundle(
                f"a chain's name has {len(chain.encode())} bytes, not 1 to {CHAIN_NAME_BYTES_MAX}"
            )
        if before == chain:
            raise BadBundle(f"the bundle names chain {chain!r} twice", chain=chain)
        if before > chain:
            raise BadBundle("the bundle's chains are not sorted by name", chain=chain)


def _part(chain: str, digest: bytes, envelope: bytes) -> BundlePart:
    if len(envelope) > PART_BYTES_MAX:
        raise BadBundle(
            f"the part for chain {chain!r} has {len(envelope)} bytes, more than {PART_BYTES_MAX}",
            status=_TOO_LARGE,
            chain=chain,
        )
    if hashlib.sha256(envelope).digest() != digest:
        raise BadBundle(
            f"the part for chain {chain!r} is not the envelope that the submitter signed for",
            chain=chain,
        )
    try:
        facts = read_part(envelope)
    except BadWireFormat as error:
        raise BadBundle(f"the part for chain {chain!r}: {error}", chain=chain) from error
    if facts.channel != chain:
        raise BadBundle(
            f"the part for chain {chain!r} is an envelope for channel {facts.channel[:80]!r}",
            chain=chain,
        )
    return BundlePart(chain, envelope, facts, digest)


def _check_sizes(parts: tuple[BundlePart, ...]) -> None:
    size = sum(len(part.envelope) for part in parts)
    if size > ENVELOPES_BYTES_MAX:
        raise BadBundle(
            f"the bundle's envelopes have {size} bytes, more than {ENVELOPES_BYTES_MAX}",
            status=_TOO_LARGE,
        )
