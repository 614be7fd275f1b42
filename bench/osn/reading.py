"""What the ledgers of the nodes hold: each chain at each node, read from its folder.

The ledgers are read from their files, also while the nodes run. What a bank knows of its transfers
comes from its own blocks: the envelopes, and the orderer's metadata of bundles.

    digest    of a block: SHA-256 of header, data and the metadata that a node signs; only the
              signatures differ from node to node
    position  how many records the chain's order stream had up to the newest block
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.osn.bank import read_movement
from bench.osn.judge import ChainPart
from bench.osn.money import BookEntry
from bench.osn.nodes import NodeProcesses
from ordering_osn.chain.blocks import check_next, consenter_of
from ordering_osn.chain.bundles.metadata import BundleMetadata, read_block_bundles
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.protos import Block, BlockHeader, Metadata


@dataclass(slots=True)
class ChainCopy:
    """One chain as one node's ledger holds it; `read_on` reads the blocks that came since."""

    chain: str
    folder: Path
    digests: list[bytes] = field(default_factory=list)
    parts: list[ChainPart] = field(default_factory=list)
    """Of transfers: by bundle ID where the metadata say so, else by the transfer's name."""
    names: dict[str, str] = field(default_factory=dict)
    """The transfer's name of each part, by the part's key."""
    entries: list[BookEntry] = field(default_factory=list)
    sets: dict[tuple[str, ...], int] = field(default_factory=dict)
    """How many parts and heads the metadata name of each set."""
    unmarked: list[str] = field(default_factory=list)
    """Transfers of which the block's metadata say nothing: those that were sent as no bundle."""
    configs: int = 0
    position: int = 0
    _header: BlockHeader | None = None

    def read_on(self) -> bool:
        """Read the new blocks; returns whether there were any. Raises `BrokenChain`."""
        before = len(self.digests)
        with Ledger.open(self.folder, read_only=True) as ledger:
            for number in range(before, ledger.height):
                self._take(Block.FromString(ledger.read(number)))
        return len(self.digests) > before

    def _take(self, block: Block) -> None:
        check_next(block, self._header)
        self._header = block.header
        self.digests.append(block_digest(block))
        if block.header.number == 0:
            return
        consenter = consenter_of(block)
        self.position = consenter.last_offset_persisted
        bundles = read_block_bundles(consenter.bundles)
        by_index = {part.index: part for part in bundles.parts}
        named = [part.chains for part in bundles.parts] + [head.chains for head in bundles.heads]
        for chains in named:
            self.sets[chains] = self.sets.get(chains, 0) + 1
        for index, envelope in enumerate(block.data.data):
            self._take_envelope(block.header.number, index, envelope, by_index.get(index))

    def _take_envelope(
        self, block: int, index: int, envelope: bytes, metadata: BundleMetadata | None
    ) -> None:
        movement = read_movement(envelope)
        if movement is None:
            self.configs += 1
            return
        if not movement.banks:
            self.entries.append(
                BookEntry(f"opening of {self.chain}", movement.change, opening=True)
            )
            return
        key, chains = movement.transfer, movement.banks
        siblings: tuple[bytes, ...] = ()
        if metadata is not None:
            key, chains, siblings = metadata.bundle_id.hex(), metadata.chains, metadata.siblings
        else:
            self.unmarked.append(key)
        digest = hashlib.sha256(envelope).digest()
        self.parts.append(ChainPart(key, chains, block, index, digest, siblings))
        self.names[key] = movement.transfer
        self.entries.append(BookEntry(movement.transfer, movement.change))


def block_digest(block: Block) -> bytes:
    """SHA-256 of what must be the same at every node, without the signatures."""
    digest = hashlib.sha256(block.header.SerializeToString(deterministic=True))
    digest.update(block.data.SerializeToString(deterministic=True))
    for slot in block.metadata.metadata:
        digest.update(hashlib.sha256(Metadata.FromString(slot).value).digest())
    return digest.digest()


Copies = Mapping[str, Sequence[ChainCopy]]
"""The copies of each chain, by chain, in the order of the nodes."""


def copies_of(nodes: NodeProcesses, chains: Sequence[str]) -> Copies:
    """Give the copies of these chains at all nodes; nothing is read yet."""
    numbers = range(len(nodes.addresses))
    return {
        chain: [ChainCopy(chain, nodes.ledger(number, chain)) for number in numbers]
        for chain in chains
    }


def forks(copies: Copies) -> list[str]:
    """Compare what the nodes hold; returns a witness for each chain that differs."""
    witnesses = []
    for chain, by_node in copies.items():
        first = by_node[0]
        for number, other in enumerate(by_node[1:], start=1):
            if len(first.digests) != len(other.digests):
                witnesses.append(
                    f"fork: {chain} has {len(first.digests)} blocks at node 0 and "
                    f"{len(other.digests)} at node {number}"
                )
            pairs = zip(first.digests, other.digests, strict=False)
            differs = next((n for n, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
            if differs is not None:
                witnesses.append(f"fork: block {differs} of {chain} differs at node {number}")
    return witnesses


def doubled(copies: Copies) -> list[str]:
    """Return a witness for each transfer that a chain has twice: its parts are sent again."""
    return [
        f"doubled: {chain} has {key[:16]} {times} times"
        for chain, by_node in copies.items()
        for key, times in Counter(part.key for part in by_node[0].parts).items()
        if times > 1
    ]


def foreign(copies: Copies) -> list[str]:
    """Return a witness for each chain whose blocks name a set without the chain."""
    return [
        f"foreign: the blocks of {chain} name the set {'+'.join(chains)}"
        for chain, by_node in copies.items()
        for chains in by_node[0].sets
        if chain not in chains
    ]
