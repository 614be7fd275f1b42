"""Blocks that this node's log no longer holds, from a node that has them.

Goes in: serialized blocks, as a peer delivers them, and what this node knows already: the header
of its newest block and the config in force. Comes out: the same blocks, each one verified.

    verified   its number, previous hash and data hash continue the chain, and its signatures
               satisfy the policy /Channel/Orderer/BlockValidation of the config in force before it

A peer can so withhold blocks, and cannot make one up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from multicast.errors import AmcastError
from ordering_osn.chain.blocks import check_next, last_config_of, signed_bytes
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.config.policies import PolicyNotMet, SignedData
from ordering_osn.protos import Block, DecodeError

POLICY = "/Channel/Orderer/BlockValidation"


class NoPeer(AmcastError):
    """No other node gave the blocks that are missing; asked again later, one may."""

    retriable = True
    exit_code = 4


class ForgedBlock(AmcastError):
    """A peer gave a block that does not continue this chain, or that nobody entitled signed."""


class Peers(Protocol):
    """The other nodes, as far as one that lost blocks needs them."""

    def blocks(self, channel: str, start: int) -> Iterator[bytes]:
        """Give a chain's serialized blocks from number `start` to the newest there is.

        Blocks the calling thread, within bounds. Raises `NoPeer` where nobody gives any.
        """


class Alone:
    """A node that knows no other."""

    def blocks(self, channel: str, start: int) -> Iterator[bytes]:
        """Raise `NoPeer`."""
        raise NoPeer(
            f"the log no longer holds what follows block {start - 1} of {channel}, and no peer is "
            f"named to get it from; give --peer HOST:PORT of another node"
        )


@dataclass(frozen=True, slots=True)
class Verified:
    """A block that may be appended to the ledger, and the config in force after it."""

    number: int
    raw: bytes
    block: Any
    config: ChannelConfig


def verified(raws: Iterable[bytes], *, previous: Any, config: ChannelConfig) -> Iterator[Verified]:
    """Verify blocks one after the other; `previous` is the header before the first.

    Raises `ForgedBlock` at the first that is not genuine.
    """
    for raw in raws:
        number = previous.number + 1
        try:
            block = Block.FromString(raw)
            check_next(block, previous)
            signed = [
                SignedData(one.message, one.creator, one.signature) for one in signed_bytes(block)
            ]
            config.policies.evaluate(POLICY, signed)
            if last_config_of(block) == number:
                config = ChannelConfig.from_block(raw)
        except (DecodeError, ValueError, PolicyNotMet) as error:
            raise ForgedBlock(
                f"the peer's block {number} of {config.channel_id} is not genuine: {error}"
            ) from error
        yield Verified(number, raw, block, config)
        previous = block.header
