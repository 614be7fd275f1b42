"""What a block says, in the orderer's metadata, of the parts of bundles in it.

For each part: its index, the bundle ID, the set's chains, and the hash of each sibling: so readers
of several chains can check that nothing is torn, and a reader of one chain sees no sibling's
content. For each set of the chain: the head of the rule's state behind the block's position, and a
link to the block before with a part of that set. A node that restarts follows the links to read the
window, and need not read the blocks between.

No I/O, no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ordering_osn.chain.bundles.bundle import (
    CHAIN_NAME_BYTES_MAX,
    CHAINS_MAX,
    CHAINS_MIN,
    DIGEST_BYTES,
    Bundle,
)
from ordering_osn.chain.bundles.wire_format import (
    BadWireFormat,
    bytes_field,
    message_field,
    number_field,
    parsed,
)
from ordering_osn.wire import multichain_pb2 as wire


class BadBundleMetadata(ValueError):
    """A block's metadata of bundles cannot be read; the text says why."""


class Torn(ValueError):
    """The blocks of several chains do not hold the same bundle; the text is a witness."""


@dataclass(frozen=True, slots=True)
class BundleMetadata:
    """One part of a bundle in a block.

    `siblings`: SHA-256 of the envelope of each other chain of `chains`, in their order.
    """

    index: int
    bundle_id: bytes
    chains: tuple[str, ...]
    siblings: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SetHead:
    """What a restart needs of one set. `state`: a serialized head (`saved.read_head`).

    `previous_block`: the newest block before this one with a part of the set, since the set began;
    0 where there is none (block 0 holds no parts).
    """

    chains: tuple[str, ...]
    state: bytes
    previous_block: int = 0


@dataclass(frozen=True, slots=True)
class BlockBundles:
    """All of a block: parts by index, and the heads of the chain's sets by their chains."""

    parts: tuple[BundleMetadata, ...] = ()
    heads: tuple[SetHead, ...] = ()

    def head(self, chains: tuple[str, ...]) -> SetHead | None:
        """Give the head of a set; None where the block has none."""
        return next((head for head in self.heads if head.chains == chains), None)


def metadata_of(bundle: Bundle, chain: str, index: int) -> BundleMetadata:
    """Describe the part of `bundle` that stands in a block of `chain` under `index`."""
    assert chain in bundle.chains, "only a chain of the set holds a part"
    siblings = tuple(part.digest for part in bundle.parts if part.chain != chain)
    return BundleMetadata(index, bundle.id, bundle.chains, siblings)


def encode_block_bundles(bundles: BlockBundles) -> bytes:
    """Serialize; `read_block_bundles` gives an equal object. Empty for a block without any."""
    parts = (message_field(1, _encode_part(part)) for part in bundles.parts)
    heads = (
        message_field(2, message_field(1, head.state) + number_field(2, head.previous_block))
        for head in bundles.heads
    )
    return b"".join((*parts, *heads))


def _encode_part(part: BundleMetadata) -> bytes:
    return b"".join(
        (
            number_field(1, part.index),
            bytes_field(2, part.bundle_id),
            *(message_field(3, chain.encode()) for chain in part.chains),
            *(message_field(4, digest) for digest in part.siblings),
        )
    )


def read_block_bundles(raw: bytes) -> BlockBundles:
    """Read a block's metadata of bundles; raises `BadBundleMetadata`.

    The states in the heads stay bytes: `saved.read_head` reads one, with the window that it needs.
    """
    try:
        message = parsed(wire.BlockBundles, raw, "the block's metadata of bundles")
    except BadWireFormat as error:
        raise BadBundleMetadata(str(error)) from error
    bundles = BlockBundles(
        tuple(
            BundleMetadata(
                part.index, part.bundle_id, tuple(part.chains), tuple(part.sibling_sha256)
            )
            for part in message.parts
        ),
        tuple(
            SetHead(tuple(head.state.chains), head.state.SerializeToString(), head.previous_block)
            for head in message.sets
        ),
    )
    if encode_block_bundles(bundles) != raw:
        raise BadBundleMetadata("the block's metadata of bundles is not in its only encoding")
    for part in bundles.parts:
        _check_part(part)
    if not ascending([part.index for part in bundles.parts]):
        raise BadBundleMetadata("the parts of bundles in a block are not sorted by index")
    if not ascending([head.chains for head in bundles.heads]):
        raise BadBundleMetadata("the sets in a block's metadata are not sorted, each once")
    return bundles


@dataclass(frozen=True, slots=True)
class PartPlace:
    """Where a chain's part of a bundle stands."""

    bundle_id: bytes
    block: int
    index: int


def newest_places(
    chains: tuple[str, ...],
    block: int,
    count: int,
    read: Callable[[int], BlockBundles | None],
    pruned: Sequence[PartPlace] = (),
) -> tuple[PartPlace, ...]:
    """Give the places of the set's newest bundles up to block number `block`, oldest first.

    At most `count`; fewer where the set has no more, since it began. `read` gives the metadata of a
    block of the chain by its number; only blocks with bundles of the set are read, and `block`.
    From the first block on that was pruned (None) the places are those of `pruned`, oldest first.
    Raises `BadBundleMetadata` for links that do not lead back, or to a block without the set.
    """
    newest_first: list[PartPlace] = []
    while len(newest_first) < count:
        bundles = read(block)
        if bundles is None:
            newest_first += [place for place in reversed(pruned) if place.block <= block]
            break
        head = bundles.head(chains)
        if head is None:
            raise BadBundleMetadata(f"block {block} has no head of the set {'+'.join(chains)}")
        newest_first += [
            PartPlace(part.bundle_id, block, part.index)
            for part in reversed(bundles.parts)
            if part.chains == chains
        ]
        if not head.previous_block:
            break
        if head.previous_block >= block:
            raise BadBundleMetadata(
                f"block {block} names block {head.previous_block} as an earlier one"
            )
        block = head.previous_block
    return tuple(reversed(newest_first[:count]))


def _check_part(part: BundleMetadata) -> None:
    if any(len(digest) != DIGEST_BYTES for digest in (part.bundle_id, *part.siblings)):
        raise BadBundleMetadata(f"a part's metadata has a hash that has not {DIGEST_BYTES} bytes")
    count = len(part.chains)
    if not CHAINS_MIN <= count <= CHAINS_MAX or len(part.siblings) != count - 1:
        raise BadBundleMetadata(f"a part names {count} chains and {len(part.siblings)} siblings")
    if not ascending(part.chains):
        raise BadBundleMetadata("the chains of a part are not sorted, each once")
    if any(not 1 <= len(chain.encode()) <= CHAIN_NAME_BYTES_MAX for chain in part.chains):
        raise BadBundleMetadata("the name of a part's chain has a wrong length")


def ascending(items: Sequence[int] | Sequence[str] | Sequence[tuple[str, ...]]) -> bool:
    """Whether each is greater than the one before it."""
    return all(before < item for before, item in pairwise(items))  # type: ignore[operator]


def check_whole(parts: Mapping[str, tuple[BundleMetadata, bytes]]) -> None:
    """Check what blocks of several chains hold of one bundle: metadata and envelope, by chain.

    Raises `Torn`, with a witness, unless all parts are there and each has the hash that its
    siblings' metadata say.
    """
    for chain, (metadata, _) in parts.items():
        if chain not in metadata.chains:
            raise Torn(f"chain {chain} holds a part of a bundle for {'+'.join(metadata.chains)}")
        if tuple(sorted(parts)) != metadata.chains:
            missing = "+".join(name for name in metadata.chains if name not in parts) or "no chain"
            raise Torn(f"chain {chain} names {'+'.join(metadata.chains)}; missing: {missing}")
        others = [name for name in metadata.chains if name != chain]
        for sibling, digest in zip(others, metadata.siblings, strict=True):
            if parts[sibling][0].bundle_id != metadata.bundle_id:
                raise Torn(f"chains {chain} and {sibling} hold parts of two bundles")
            if hashlib.sha256(parts[sibling][1]).digest() != digest:
                raise Torn(f"chain {sibling} holds another envelope than chain {chain} says")
