"""The rule's state as bytes: canonical (equal states give equal bytes), and read back strictly.

    head    everything but the window: for the metadata of a chain's blocks. The window's IDs are
            those of the newest bundles of the set in the chain's own blocks

No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ordering_osn.chain.bundles.bundle import (
    CHAIN_NAME_BYTES_MAX,
    CHAINS_MAX,
    CHAINS_MIN,
    DIGEST_BYTES,
    EXPIRY_LIMIT,
)
from ordering_osn.chain.bundles.log_records import marker_body, marker_of
from ordering_osn.chain.bundles.metadata import ascending
from ordering_osn.chain.bundles.rule import BUNDLE_WINDOW_MAX, RuleState
from ordering_osn.chain.bundles.wire_format import (
    BadWireFormat,
    message_field,
    number_field,
    parsed,
)
from ordering_osn.wire import multichain_pb2 as wire

_VERSION = 1  # of the rule: a state of another version was made by other rules
# 64 chains, twice with the longest name, and numbers.
_HEAD_BYTES_MAX = 64 * 1024


class BadState(ValueError):
    """The bytes are not a state of this rule; the text says why."""


def encode_state(state: RuleState) -> bytes:
    """Serialize the head of a state."""
    head = number_field(1, _VERSION)
    chains = (message_field(2, chain.encode()) for chain in state.chains)
    markers = (message_field(4, marker_body(marker)) for marker in state.markers)
    return b"".join(
        (
            head,
            *chains,
            number_field(3, state.offset_next),
            *markers,
            number_field(5, state.counted),
            number_field(6, state.window_max),
        )
    )


def read_head(
    raw: bytes, newest: Sequence[bytes], *, window_max: int = BUNDLE_WINDOW_MAX
) -> RuleState:
    """Read a head and complete it; raises `BadState`.

    `newest`: the IDs of the set's bundles in the chain's blocks, up to the one with this head,
    oldest first (`metadata.newest_places`). The last `window_max` of them are used; fewer are
    refused where more counted.
    """
    state = read_bare_head(raw, window_max=window_max)
    size = min(state.counted, window_max)
    if len(newest) < size:
        raise BadState(f"the blocks hold {len(newest)} bundles of this set; {size} are needed")
    window = tuple(newest[len(newest) - size :])
    if any(len(name) != DIGEST_BYTES for name in window):
        raise BadState("the window has an ID of a wrong length")
    if len(dict.fromkeys(window)) != len(window):
        raise BadState("the window has an ID twice")
    return replace(state, window=window)


def read_bare_head(raw: bytes, *, window_max: int = BUNDLE_WINDOW_MAX) -> RuleState:
    """Read a head without completing it: its window is empty; raises `BadState`.

    `window_max` is this node's: another one would let the same bundle count at some nodes only.
    """
    if len(raw) > _HEAD_BYTES_MAX:
        raise BadState(f"the state has {len(raw)} bytes, more than {_HEAD_BYTES_MAX}")
    try:
        state = _decode(raw)
    except BadWireFormat as error:
        raise BadState(str(error)) from error
    if encode_state(state) != raw:
        raise BadState("the state is not in its only encoding")
    if state.window_max != window_max:
        raise BadState(f"the state was made with a window of {state.window_max}, not {window_max}")
    if not CHAINS_MIN <= len(state.chains) <= CHAINS_MAX or not ascending(state.chains):
        raise BadState("the state's chains are not those of a set")
    if any(not 1 <= len(chain.encode()) <= CHAIN_NAME_BYTES_MAX for chain in state.chains):
        raise BadState("the state has a chain's name of a wrong length")
    marked = tuple(marker.chain for marker in state.markers)
    if not ascending(marked) or any(chain not in state.chains for chain in marked):
        raise BadState("the state's markers are not those of its chains")
    if state.counted and len(marked) != len(state.chains):
        raise BadState("bundles counted, although a chain has no marker")
    if not state.counted <= state.offset_next < EXPIRY_LIMIT:
        raise BadState(f"{state.counted} bundles counted before offset {state.offset_next}")
    return state


def _decode(raw: bytes) -> RuleState:
    state = parsed(wire.LogState, raw, "the state")
    if state.version != _VERSION:
        raise BadWireFormat(f"the state has version {state.version}, not {_VERSION}")
    return RuleState(
        tuple(state.chains),
        state.offset_next,
        tuple(map(marker_of, state.markers)),
        state.counted,
        window_max=state.window_max,
    )
