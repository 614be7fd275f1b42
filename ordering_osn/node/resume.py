"""Where a chain resumes: its state and its sets from its ledger, and the config in force there.

Everything that a chain holds in memory is rebuilt from here, at a start of the node and after a gap
in the log.
"""

from __future__ import annotations

from dataclasses import replace

from multicast.errors import Conflict
from ordering_osn.chain.blocks import consenter_of, last_config_of
from ordering_osn.chain.bundles.restart import RestoredSet
from ordering_osn.chain.state import ChainState, IdleCheckpoint, StreamPosition, state_from
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.protos import Block


class NoWayBack(Conflict):
    """A chain cannot read again from an earlier position: it would order transactions twice."""


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

    `sets`: what `windows.ledger_sets` gives. Raises `ValueError` where the ledger holds too few
    blocks, and `CorruptMetadata`.
    """
    numbers = range(ledger.height - 1, ledger.base - 1, -1)
    newest_first = (Block.FromString(ledger.read(number)) for number in numbers)
    state = state_from(newest_first, window_max=window_max)
    state = replace(state, sets=tuple(entry.state for entry in sets))
    return state if checkpoint is None else checkpoint.advance(state)


def stepped_back(state: ChainState, ledger: Ledger, blocks: int, *, window_max: int) -> ChainState:
    """Give the state behind the newest block, but at the position of a block that many before.

    So a chain goes on in a log that lost what its newest blocks are made of. It reads the records
    that follow the earlier position again, and refuses the transactions that its blocks hold. Every
    node with these blocks does the same. Raises `NoWayBack`.
    """
    number = max(ledger.base, ledger.height - 1 - blocks)
    known_from = state.window[0][1] if len(state.window) >= window_max else ledger.base
    if state.sets or number < known_from:
        raise NoWayBack(
            f"the loss cannot be accepted: block {number} is too far back, or the chain has bundles"
        )
    cursor = consenter_of(Block.FromString(ledger.read(number))).cursor.decode()
    return replace(state, position=StreamPosition(state.position.number, cursor))
