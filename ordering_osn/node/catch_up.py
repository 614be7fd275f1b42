"""Verifies blocks that a peer gives, where the log no longer holds their records.

The input is serialized blocks, the header of the node's newest block, and the config in force. A
block is

    verified   if its number, previous hash and data hash continue the chain, and its signatures
               satisfy the policy /Channel/Orderer/BlockValidation of the config before it

So a peer can withhold blocks, but cannot forge them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from multicast.errors import AmcastError
from ordering_osn.chain.blocks import check_next, last_config_of, signed_bytes
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.config.policies import PolicyNotMet, SignedData
from ordering_osn.protos import Block, DecodeError

BLOCK_VALIDATION = "/Channel/Orderer/BlockValidation"


class NoPeer(AmcastError):
    """A peer does not say which blocks it has; a later attempt may succeed."""

    retriable = True
    exit_code = 4


class ForgedBlock(AmcastError):
    """A peer gave a block that does not continue this chain, or that no orderer of it signed."""


class Peers(Protocol):
    """The other nodes, as a source of blocks."""

    @property
    def names(self) -> Sequence[str]:
        """The peers' names."""

    def blocks(self, peer: str, channel: str, start: int) -> Iterator[bytes]:
        """Give a peer's serialized blocks of a chain from number `start` to its newest, if any.

        The calling thread waits, for a bounded time. Raises `NoPeer` where the peer does not say.
        """


class NoPeers:
    """The peers of a node that was given none."""

    names = ()

    def blocks(self, peer: str, channel: str, start: int) -> Iterator[bytes]:  # noqa: ARG002
        """Raise `NoPeer`."""
        raise NoPeer(f"{peer} is no peer of this node")


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
        except (DecodeError, ValueError, PolicyNotMet) as error:
            raise ForgedBlock(
                f"the peer's block {number} of {config.channel_id} is not genuine: {error}"
            ) from error
        yield VerifiedBlock(number, raw, block, config)
        previous = block.header
