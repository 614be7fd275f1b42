"""Which bundles of a log count: the rule, as a state machine over the records of one log.

Records of the log of a destination set S go in, in offset order; for each, an outcome comes out.
All chains of S read the same records, so they decide alike, without talking to each other. Neither
a clock nor a config, nor anything that another log or a node holds, has an influence.

    S          the chains of the set, sorted. The log begins empty at the offset at which the set
               begins in its plan
    record     one that is addressed to all of S. Others (`amcast.to` in its header) are not read by
               all chains of S, so they mean nothing here, whatever they hold
    marker     the newest config of a chain that this log says
    stamp      for each chain, the sequence of the config under which a bundle was admitted
    window     the IDs of the newest `window_max` bundles that counted. All nodes have the same
               `window_max`
    void       a bundle that does not count, in any chain

A bundle counts if and only if, in this order: its record can be read (MALFORMED); its chains are
exactly S (WRONG_CHAINS); its ID is not in the window (DUPLICATE); its offset is not behind its
expiry (EXPIRED); each chain of S has a marker (NO_MARKER); each stamp is the sequence of that
chain's marker (STALE below, AHEAD above it). The first that does not hold is the reason.

A void bundle does not enter the window, so the same bundle with new stamps can count later. That is
why DUPLICATE and EXPIRED come before the stamps: they are final, and nobody posts again.

Invariants:
    the state is a function of the records: a machine made from a saved state and stepped from
        `offset_next` on gives the outcomes that it would have given;
    a bundle counts at most once in any `window_max` + 1 that count, one after the other. So one
        whose expiry is at most `window_max` offsets behind the offset at which it counted can
        never count again, as each bundle has an offset of its own;
    config_block and sequence of a chain's marker only grow.
No I/O, no clock.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from ordering_osn.chain.bundles.bundle import CHAINS_MAX, CHAINS_MIN, Bundle
from ordering_osn.chain.bundles.log_records import (
    BadLogRecord,
    BundleRecord,
    ConfigMarker,
    RecordReader,
    is_bundle_record,
    is_config_marker,
    read_bundle_record,
    read_config_marker,
)

# A duplicate is recognised while at most this many bundles of the same set counted since: 16 s at
# 1,000 a second. 2.4 MB for each set of each chain of a node: 134 MB for 8 chains and all pairs.
# All nodes must use the same number.
BUNDLE_WINDOW_MAX = 16_384


class VoidReason(enum.IntEnum):
    """Why a bundle is void; a label of metrics. The numbers are those of the wire."""

    MALFORMED = 1
    WRONG_CHAINS = 2
    DUPLICATE = 3
    EXPIRED = 4
    NO_MARKER = 5
    STALE = 6
    AHEAD = 7

    @property
    def may_count_later(self) -> bool:
        """Whether the same bundle can still count, with other stamps or behind other markers."""
        return self in (VoidReason.NO_MARKER, VoidReason.STALE, VoidReason.AHEAD)


@dataclass(frozen=True, slots=True)
class BundleCounts:
    """The bundle counts: each chain of the set puts its part into its next block."""

    bundle: Bundle


@dataclass(frozen=True, slots=True)
class BundleVoid:
    """The bundle counts in no chain. `bundle_id` is empty where the record is MALFORMED.

    `chain`: the first chain, in order, that is the reason; empty where the bundle as a whole is.
    """

    bundle_id: bytes
    reason: VoidReason
    chain: str
    info: str


@dataclass(frozen=True, slots=True)
class MarkerTaken:
    """A chain's newest marker."""

    marker: ConfigMarker


@dataclass(frozen=True, slots=True)
class RecordIgnored:
    """A record that changes nothing; `info` says why."""

    info: str


Outcome = BundleCounts | BundleVoid | MarkerTaken | RecordIgnored


@dataclass(frozen=True, slots=True)
class RuleState:
    """All that the rule remembers of a log, right before `offset_next`.

    `markers`: the newest of each chain that has any, sorted by chain. `counted`: how many bundles
    counted so far. `window`: IDs, oldest first; there are min(counted, window_max).
    """

    chains: tuple[str, ...]
    offset_next: int
    markers: tuple[ConfigMarker, ...] = ()
    counted: int = 0
    window: tuple[bytes, ...] = ()
    window_max: int = BUNDLE_WINDOW_MAX


class BundleRule:
    """The rule for the log of one set. For one thread."""

    def __init__(self, state: RuleState, *, read: RecordReader = read_bundle_record) -> None:
        """`read`: as `read_bundle_record`, which may be remembered from another chain's reading."""
        chains = state.chains
        assert CHAINS_MIN <= len(chains) <= CHAINS_MAX, "a set of several chains"
        assert chains == tuple(sorted(dict.fromkeys(chains))), "sorted, each once"
        assert len(state.window) == min(state.counted, state.window_max), "a full window"
        self.chains = chains
        self._offset_next = state.offset_next
        self._markers = {marker.chain: marker for marker in state.markers}
        self._counted = state.counted
        self._window = dict.fromkeys(state.window)  # in the order in which they counted
        self._window_max = state.window_max
        self._read_record = read

    @property
    def state(self) -> RuleState:
        """A copy of the state; takes time in proportion to the window."""
        return self._copy(tuple(self._window))

    @property
    def head(self) -> RuleState:
        """The state without its window, which is empty here; takes little time.

        For a block's metadata: the IDs of the window stand in the chain's blocks.
        """
        return self._copy(())

    def _copy(self, window: tuple[bytes, ...]) -> RuleState:
        markers = tuple(self._markers[chain] for chain in self.chains if chain in self._markers)
        return RuleState(
            self.chains, self._offset_next, markers, self._counted, window, self._window_max
        )

    def marker(self, chain: str) -> ConfigMarker | None:
        """Give a chain's newest marker."""
        return self._markers.get(chain)

    def step(self, offset: int, raw: bytes | None, addressed_to: Collection[str]) -> Outcome:
        """Take the log's next record that is delivered.

        `addressed_to`: the record's exact destination set. Offsets grow; some are missing, as no
        reader delivers skips and epoch markers.
        """
        assert offset >= self._offset_next, "records go in once, in the order of their offsets"
        self._offset_next = offset + 1
        if tuple(sorted(addressed_to)) != self.chains:
            named = "+".join(sorted(addressed_to))
            return RecordIgnored(f"a record for {named or 'nobody'} only")
        if raw is not None and is_bundle_record(raw):
            return self._bundle(offset, raw)
        if raw is not None and is_config_marker(raw):
            return self._config_marker(raw)
        return RecordIgnored("neither a bundle nor a config marker")

    def _config_marker(self, raw: bytes) -> Outcome:
        try:
            marker = read_config_marker(raw)
        except BadLogRecord as error:
            return RecordIgnored(str(error))
        if marker.chain not in self.chains:
            return RecordIgnored(f"a marker of {marker.chain[:80]!r}, which is not in the set")
        newest = self._markers.get(marker.chain)
        if newest is not None:
            blocks = marker.config_block - newest.config_block
            sequences = marker.sequence - newest.sequence
            if blocks <= 0 or sequences <= 0:  # a copy, an older one, or one that contradicts it
                return RecordIgnored(f"{marker}, after {newest}")
        self._markers[marker.chain] = marker
        return MarkerTaken(marker)

    def _bundle(self, offset: int, raw: bytes) -> Outcome:
        try:
            record = self._read_record(raw)
        except BadLogRecord as error:
            return BundleVoid(b"", VoidReason.MALFORMED, "", str(error))
        bundle_id = record.bundle.id
        objection = self._objection(offset, record, bundle_id)
        if objection is not None:
            reason, chain, info = objection
            return BundleVoid(bundle_id, reason, chain, info)
        self._window[bundle_id] = None
        if len(self._window) > self._window_max:
            del self._window[next(iter(self._window))]
        self._counted += 1
        return BundleCounts(record.bundle)

    def _objection(
        self, offset: int, record: BundleRecord, bundle_id: bytes
    ) -> tuple[VoidReason, str, str] | None:
        """Give the first reason why a bundle does not count, with the chain and a sentence."""
        bundle = record.bundle
        if bundle.chains != self.chains:
            named = "+".join(bundle.chains)[:200]
            return VoidReason.WRONG_CHAINS, "", f"it is for {named}, in the log of another set"
        if bundle_id in self._window:
            return VoidReason.DUPLICATE, "", "it counted before"
        if 0 < bundle.expiry < offset:
            return VoidReason.EXPIRED, "", f"offset {offset} is behind its expiry {bundle.expiry}"
        for chain in self.chains:
            if chain not in self._markers:
                return VoidReason.NO_MARKER, chain, f"chain {chain} has no config marker here"
        for chain, stamp in zip(self.chains, record.stamps, strict=True):
            sequence = self._markers[chain].sequence
            if stamp != sequence:
                reason = VoidReason.STALE if stamp < sequence else VoidReason.AHEAD
                info = f"admitted under config {stamp} of chain {chain}; the marker says {sequence}"
                return reason, chain, info
        return None
