"""Gets from peers the blocks that a node has not, and verifies them.

The input is serialized blocks, the header of the node's newest block, and the config in force. A
block is

    verified   if its number, previous hash and data hash continue the chain, and its signatures
               satisfy the policy /Channel/Orderer/BlockValidation of the config before it

So a peer can withhold blocks, but cannot forge them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError
from ordering_osn.chain.blocks import check_next, last_config_of, signed_bytes
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.config.policies import SignedData
from ordering_osn.ledger.errors import LedgerFull
from ordering_osn.node.peers import NoPeer, PeerNodes
from ordering_osn.protos import Block, DecodeError

BLOCK_VALIDATION = "/Channel/Orderer/BlockValidation"


class ForgedBlock(AmcastError):
    """A peer gave a block that does not continue this chain, or that no orderer of it signed."""


@dataclass(frozen=True, slots=True)
class VerifiedBlock:
    """A block that may be appended to the ledger, and the config in force after it."""

    number: int
    raw: bytes
    block: Any
    config: ChannelConfig


def verified(
    raws: Iterable[bytes], *, previous: Any, config: ChannelConfig
) -> Iterator[VerifiedBlock]:
    """Verify blocks one after the other; `previous` is the header before the first.

    Raises `ForgedBlock` at the first that is not genuine.
    """
    for raw in raws:
        number = previous.number + 1
        try:
            block = Block.FromString(raw)
            check_next(block, previous)
            signatures = [
                SignedData(signed.message, signed.creator, signed.signature)
                for signed in signed_bytes(block)
            ]
            config.policies.evaluate(BLOCK_VALIDATION, signatures)
            if last_config_of(block) == number:
                config = ChannelConfig.from_block(raw)
        except (AmcastError, DecodeError, ValueError) as error:
            raise ForgedBlock(
                f"the peer's block {number} of {config.channel_id} is not genuine: {error}"
            ) from error
        yield VerifiedBlock(number, raw, block, config)
        previous = block.header


class Leaders:
    """The leaders that took what a chain read last, from any consumer.

    Kafka loses the end of a partition at a change of its leader.
    """

    def __init__(self) -> None:
        self._epochs: dict[TopicPartition, int] = {}

    def changed(self, epochs: Mapping[TopicPartition, int]) -> bool:
        """Take the leaders' epochs now; say whether one is another than before."""
        known = self._epochs
        changed = any(known.get(at, epoch) != epoch for at, epoch in epochs.items())
        known.update(epochs)
        return changed


def copy_blocks(
    peers: PeerNodes | None,
    channel: str,
    newest: Callable[[], tuple[Any, ChannelConfig]],
    take: Callable[[VerifiedBlock], None],
) -> list[AmcastError]:
    """Verify what each peer has behind the newest block, and have it taken.

    `newest` gives the header of the newest block, and the config in force behind it. Gives why a
    peer did not say what it has, or what is wrong with it; what `take` raises otherwise is raised.
    """
    failures: list[AmcastError] = []
    if peers is None:
        return failures
    for peer in peers.names:
        previous, config = newest()
        try:
            raws = peers.blocks(peer, channel, previous.number + 1)
            for block in verified(raws, previous=previous, config=config):
                take(block)
        except (NoPeer, ForgedBlock, LedgerFull) as error:
            failures.append(error)
    return failures


def all_of(failures: Iterable[AmcastError]) -> str:
    """Tell what failed in a sentence."""
    return "; ".join(map(str, failures)) or "no peer (--peer HOST:PORT) has later blocks"
