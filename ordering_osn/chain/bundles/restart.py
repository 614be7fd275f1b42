"""The states of a chain's sets behind a block, from the metadata of the chain's blocks.

A block holds the head of each state and a link to the block before it with a part of the same set.
The links lead to the IDs of the window, so the blocks between are not read. No I/O: the caller
reads the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ordering_osn.chain.bundles.metadata import BlockBundles, PartPlace, newest_places
from ordering_osn.chain.bundles.rule import BUNDLE_WINDOW_MAX
from ordering_osn.chain.bundles.saved import BadState, read_bare_head, read_head
from ordering_osn.chain.bundles.sets import Chains, SetState

_NOTHING: Mapping[Chains, Sequence[PartPlace]] = {}


@dataclass(frozen=True, slots=True)
class RestoredSet:
    """A set behind a block, and where its bundles in the window stand, oldest first."""

    state: SetState
    places: tuple[PartPlace, ...]

    @property
    def chains(self) -> Chains:
        """The chains of the set."""
        return self.state.state.chains


def restored_sets(
    block: int,
    read: Callable[[int], BlockBundles | None],
    *,
    pruned: Mapping[Chains, Sequence[PartPlace]] = _NOTHING,
    window_max: int = BUNDLE_WINDOW_MAX,
) -> tuple[RestoredSet, ...]:
    """Give the sets of a chain right behind block number `block`, which is not pruned.

    `read` gives the metadata of a block by its number, None where it is pruned; `pruned`: per set,
    the places of the newest bundles in pruned blocks, oldest first. Raises `BadState` and
    `BadBundleMetadata` for metadata that no correct node writes.
    """
    newest = read(block)
    assert newest is not None, "the newest block is not pruned"
    restored = []
    for head in newest.heads:
        older = pruned.get(head.chains, ())
        places = newest_places(head.chains, block, window_max, read, older)
        ids = tuple(place.bundle_id for place in places)
        state = read_head(head.state, ids, window_max=window_max)
        here = any(part.chains == head.chains for part in newest.parts)
        linked = block if here else head.previous_block
        restored.append(RestoredSet(SetState(state, linked), places))
    return tuple(restored)


def advanced(
    states: Sequence[SetState], heads: Sequence[bytes], *, window_max: int = BUNDLE_WINDOW_MAX
) -> tuple[SetState, ...]:
    """Move states that stand behind a block to later heads, up to which no further bundle counted.

    Raises `BadState` where bundles did count in between: the heads do not belong to these states.
    """
    known = {entry.state.chains: entry for entry in states}
    moved = []
    for raw in heads:
        bare = read_bare_head(raw, window_max=window_max)
        before = known.pop(bare.chains, None)
        window = () if before is None else before.state.window
        counted = 0 if before is None else before.state.counted
        if bare.counted != counted:
            raise BadState(
                f"{bare.counted} bundles counted up to the head, {counted} in the blocks"
            )
        linked = 0 if before is None else before.linked
        moved.append(SetState(read_head(raw, window, window_max=window_max), linked))
    if known:
        raise BadState("the heads lack a set that the blocks have")
    return tuple(moved)
