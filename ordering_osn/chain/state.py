"""The state of a chain at a position of its order stream: from its blocks, or a checkpoint.

Everything that a `Chain` holds in memory follows from the state at its last block and the records
behind it. Where nothing is pending, an idle checkpoint may stand for some of these records.
No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from ordering_osn.chain.blocks import consenter_of, header_hash, last_config_of
from ordering_osn.chain.bundles.restart import advanced
from ordering_osn.chain.bundles.rule import BUNDLE_WINDOW_MAX
from ordering_osn.chain.bundles.saved import BadState
from ordering_osn.chain.bundles.sets import SetState
from ordering_osn.chain.transactions import transaction_id
from ordering_osn.protos import Block

# A duplicate is recognised while at most this many transactions were ordered since: 100 s at
# 1,000/s. A node reads as many from its ledger when it starts. All nodes must use the same number.
WINDOW_MAX = 100_000


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Right behind a record of the order stream.

    `number` counts the records from 1; -3 or 0 is before the first. `cursor` is the cursor's text,
    or an object of which `str` makes it: only the text of a block's cursor is ever needed.
    """

    number: int
    cursor: object

    def following(self, cursor: object) -> StreamPosition:
        """Give the position behind the next record; `cursor` is the cursor there."""
        return StreamPosition(max(self.number, 0) + 1, cursor)


@dataclass(slots=True)
class ChainState:
    """A chain right behind a block.

    `position` is the block's. `window`: (ID, block, index) of the newest transactions, oldest
    first, each ID once. `sets`: the chain's sets there (`bundles.restart.restored_sets`), whose
    rules have windows of `bundle_window_max`.
    """

    height: int
    previous_hash: bytes
    last_config: int
    position: StreamPosition
    last_original: int
    last_resubmitted_config: int
    window: tuple[tuple[str, int, int], ...]
    sets: tuple[SetState, ...] = ()
    bundle_window_max: int = BUNDLE_WINDOW_MAX


def state_from(newest_first: Iterable[Block], *, window_max: int = WINDOW_MAX) -> ChainState:
    """Give a chain's state right behind its last block, from its blocks, the last one first.

    Takes no more blocks than the window needs. Leaves `sets` empty. Raises `ValueError` where there
    are too few blocks to fill the window (such a node would order duplicates that the others
    refuse), and `CorruptMetadata`.
    """
    last, oldest = None, 0
    window: dict[str, tuple[int, int]] = {}
    for block in newest_first:
        number = block.header.number
        if last is not None and number != oldest - 1:
            raise ValueError(f"block {number} is not the one before block {oldest}")
        last, oldest = block if last is None else last, number
        data = block.data.data
        for index in reversed(range(len(data))):
            window.setdefault(transaction_id(data[index]), (number, index))
        if len(window) >= window_max:
            break
    if last is None:
        raise ValueError("the chain has no block: it must begin with its genesis block")
    if oldest and len(window) < window_max:
        raise ValueError(
            f"the blocks from {oldest} on hold {len(window)} transactions; {window_max} needed"
        )
    consenter = consenter_of(last)
    return ChainState(
        height=last.header.number + 1,
        previous_hash=header_hash(last.header),
        last_config=last_config_of(last),
        position=StreamPosition(consenter.last_offset_persisted, consenter.cursor.decode()),
        last_original=consenter.last_original_offset_processed,
        last_resubmitted_config=consenter.last_resubmitted_config_offset,
        window=tuple(
            (name, *place) for name, place in reversed(list(islice(window.items(), window_max)))
        ),
    )


class IdleCheckpoint(NamedTuple):
    """A position of a chain behind its last block, with nothing pending.

    The records between the block and this position changed nothing but these values, so they need
    not be read again. `heads`: the states of the chain's sets, serialized without their windows.
    """

    height: int
    previous_hash: bytes
    position: StreamPosition
    last_original: int
    last_resubmitted_config: int
    heads: tuple[bytes, ...] = ()

    def advance(self, state: ChainState) -> ChainState:
        """Give `state` moved to this position; unchanged where this is of another last block."""
        if (self.height, self.previous_hash) != (state.height, state.previous_hash):
            return state
        try:
            sets = advanced(state.sets, self.heads, window_max=state.bundle_window_max)
        except BadState:
            return state
        return replace(
            state,
            position=self.position,
            last_original=self.last_original,
            last_resubmitted_config=self.last_resubmitted_config,
            sets=sets,
        )
