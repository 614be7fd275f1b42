"""The sets of one chain: the rule of each, and what a block says of them for the next restart.

    linked    of a set: the newest block of the chain with a part of one of its bundles; 0: none
    heads     the rules' states without their windows, one for each set of which a record was read

A block that is cut in front of a record has the heads from before that record, because a node that
restarts from this block reads the record again. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ordering_osn.chain.bundles.log_records import (
    ConfigMarker,
    RecordReader,
    read_bundle_record,
)
from ordering_osn.chain.bundles.metadata import BundleMetadata, SetHead
from ordering_osn.chain.bundles.rule import BUNDLE_WINDOW_MAX, BundleRule, Outcome, RuleState
from ordering_osn.chain.bundles.saved import encode_state

Chains = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetState:
    """Where a chain stands in the log of one set. `linked` is 0 where no block has a part of it."""

    state: RuleState
    linked: int = 0


class ChainSets:
    """The rules of one chain's sets, by the chains of each set. For one thread, but `marker`."""

    def __init__(
        self,
        states: Iterable[SetState] = (),
        *,
        window_max: int = BUNDLE_WINDOW_MAX,
        read: RecordReader = read_bundle_record,
    ) -> None:
        self._window_max = window_max
        self._read_record = read
        self._rules: dict[Chains, BundleRule] = {}
        self._linked: dict[Chains, int] = {}
        for entry in states:
            chains = entry.state.chains
            self._rules[chains] = BundleRule(entry.state, read=read)
            self._linked[chains] = entry.linked
        self._stepped: Chains = ()
        self._before: RuleState | None = None  # of the set stepped last; None: it had no state

    def step(self, chains: Chains, offset: int, raw: bytes | None, to: Sequence[str]) -> Outcome:
        """Take the next record of the log of a set; a log that is new begins with an empty state.

        A plan never drops a log, nor moves it (`topology.changes.refuse_moved_logs`), so the log of
        a set has one life, in which its offsets only grow.
        """
        rule = self._rules.get(chains)
        self._stepped, self._before = chains, None if rule is None else rule.head
        if rule is None:
            fresh = RuleState(chains, 0, window_max=self._window_max)
            rule = BundleRule(fresh, read=self._read_record)
            self._rules[chains] = rule
        return rule.step(offset, raw, to)

    def marker(self, chains: Chains, chain: str) -> ConfigMarker | None:
        """Give the newest marker of a chain in the log of a set. From any thread."""
        rule = self._rules.get(chains)
        return None if rule is None else rule.marker(chain)

    def heads(self, *, before: bool = False) -> tuple[SetHead, ...]:
        """Give the heads now, sorted by set; with `before`, those before the newest record."""
        heads = []
        for chains in sorted(self._rules):
            head: RuleState | None = self._rules[chains].head
            if before and chains == self._stepped:
                head = self._before
            if head is not None:
                heads.append(SetHead(chains, encode_state(head), self._linked.get(chains, 0)))
        return tuple(heads)

    def written(self, block: int, parts: Iterable[BundleMetadata]) -> None:
        """Note that a block holds these parts. Call this AFTER the `heads` of the block."""
        for part in parts:
            self._linked[part.chains] = block
