"""Where a chain resumes: its state from its ledger, and the config in force there.

Everything that a chain holds in memory is rebuilt from here, at a start of the node and after a gap
in the log.
"""

from __future__ import annotations

from collections.abc import Iterator

from ordering_osn.chain.blocks import last_config_of
from ordering_osn.chain.state import ChainState, IdleCheckpoint, state_from
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.protos import Block


def newest_block(ledger: Ledger) -> Block:
    """Read the newest block of a ledger that has one."""
    return Block.FromString(ledger.read(ledger.height - 1))


def config_in_force(ledger: Ledger) -> ChannelConfig:
    """Read the config behind the newest block. Raises `InvalidConfig` and `CorruptMetadata`."""
    return ChannelConfig.from_block(ledger.read(last_config_of(newest_block(ledger))))


def resumed_state(
    ledger: Ledger, checkpoint: IdleCheckpoint | None, *, window_max: int
) -> ChainState:
    """Give the chain's state behind its newest block, or at a checkpoint that is later.

    Raises `ValueError` where the ledger holds too few blocks, and `CorruptMetadata`.
    """
    state = state_from(_newest_first(ledger), window_max=window_max)
    return state if checkpoint is None else checkpoint.advance(state)


def _newest_first(ledger: Ledger) -> Iterator[Block]:
    for number in range(ledger.height - 1, ledger.base - 1, -1):
        yield Block.FromString(ledger.read(number))
