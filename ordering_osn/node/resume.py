"""Where a chain resumes: its state and its sets from its ledger, and the config in force there.

Everything that a chain holds in memory is rebuilt from here, at a start of the node and after a gap
in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ordering_osn.chain.blocks import consenter_of, last_config_of
from ordering_osn.chain.bundles.metadata import BlockBundles, read_block_bundles
from ordering_osn.chain.bundles.restart import RestoredSet, restored_sets
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
    ledger: Ledger,
    checkpoint: IdleCheckpoint | None,
    *,
    window_max: int,
    sets: tuple[RestoredSet, ...] = (),
) -> ChainState:
    """Give the chain's state behind its newest block, or at a checkpoint that is later.

    `sets`: what `resumed_sets` gives. Raises `ValueError` where the ledger holds too few blocks,
    and `CorruptMetadata`.
    """
    state = state_from(_newest_first(ledger), window_max=window_max)
    state = replace(state, sets=tuple(entry.state for entry in sets))
    return state if checkpoint is None else checkpoint.advance(state)


def resumed_sets(ledger: Ledger) -> tuple[RestoredSet, ...]:
    """Give the sets of the chain behind its newest block. Reads the blocks with their bundles.

    Raises `ValueError` for metadata that no correct node writes, and `Pruned`.
    """
    known: dict[int, BlockBundles] = {}  # the links of several sets lead to the same blocks

    def read(number: int) -> BlockBundles:
        if number not in known:
            block = Block.FromString(ledger.read(number))
            known[number] = read_block_bundles(consenter_of(block).bundles)
        return known[number]

    return restored_sets(ledger.height - 1, read)


def _newest_first(ledger: Ledger) -> Iterator[Block]:
    for number in range(ledger.height - 1, ledger.base - 1, -1):
        yield Block.FromString(ledger.read(number))
