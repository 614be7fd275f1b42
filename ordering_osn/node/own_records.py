"""The records that a chain's loop posts: to the chain's own log, and markers to those of its sets.

    repost        a stale transaction that is still valid; needed until it is stored
    time-to-cut   needed until it is stored or its block is cut
    probe         a CONNECT record that shows whether the order moves (`order_watch.py`)
    config marker in the log of a set that has this chain: which config is in force; needed until
                  it is read there

An outbox posts each of them again until it is stored or no longer needed. For the chain's thread
only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from multicast.drivers.protocol import Appended, AppendOutcome
from ordering_osn.api.metrics import Metrics
from ordering_osn.chain.bundles.log_records import ConfigMarker, encode_config_marker
from ordering_osn.chain.records import Connect, TimeToCut, encode
from ordering_osn.node.chain_status import ChainStatus
from ordering_osn.node.order_watch import OrderWatch
from ordering_osn.node.outbox import OnOutcome, Outbox

_log = logging.getLogger("amcast.osn")
# How often a writer that waits for its reposts looks whether it is asked to stop: a human who stops
# a node does not notice 0.1 s. Outcomes wake it earlier.
_LOOK_S = 0.1


class OwnRecords:
    """What one chain posts to its own log, and what became of it."""

    def __init__(
        self,
        chain: str,
        post: Callable[[bytes, tuple[str, ...], OnOutcome], None],
        *,
        order: OrderWatch,
        metrics: Metrics,
    ) -> None:
        self._chain = chain
        self._post = post
        self._order = order
        self._metrics = metrics
        self._outbox = self._outbox_to((chain,))
        self._sets: dict[tuple[str, ...], Outbox] = {}

    def reset(self) -> None:
        """Drop what is not stored yet: the core is rebuilt from the ledger, and decides again."""
        self._outbox = self._outbox_to((self._chain,))
        self._sets.clear()
        self._order.probe_lost()

    def repost(self, raw: bytes) -> None:
        """Post a transaction again until it is stored."""
        self._metrics.records_reposted.add(self._chain)
        self._outbox.put(raw, self._posted)

    def time_to_cut(self, block: int, needed: Callable[[], bool]) -> None:
        """Post a time-to-cut of this block until it is stored, or `needed()` is false."""
        self._outbox.put(encode(TimeToCut(block)), self._cut_posted, needed=needed)

    def probe(self, log: str) -> None:
        """Post a probe to one of the chain's logs until it is stored."""
        outbox = self._outbox_of(tuple(log.split("+")))
        outbox.put(encode(Connect()), partial(self._probe_posted, log), needed=lambda: True)

    def config_marker(
        self, chains: tuple[str, ...], marker: ConfigMarker, needed: Callable[[], bool]
    ) -> None:
        """Post a marker to the log of a set until it is stored, or `needed()` is false."""
        record = encode_config_marker(marker)
        self._outbox_of(chains).put(record, self._marker_posted, needed=needed)

    def post_due(self, now: float) -> float | None:
        """Post what is due; say when something will be due next, None: nothing waits for time."""
        outboxes = (self._outbox, *self._sets.values())
        times = [outbox.post_due(now) for outbox in outboxes]
        return min((due for due in times if due is not None), default=None)

    @property
    def reposts_pending(self) -> bool:
        """Whether a transaction to post again is not stored yet."""
        return self._outbox.owes

    def wait_for_reposts(self, status: ChainStatus) -> None:
        """Block until every repost is stored. Raises `Stopped`."""
        self._outbox.post_due(time.monotonic())
        while self._outbox.owes:
            self._outbox.wait(_LOOK_S)
            self._outbox.post_due(time.monotonic())
            status.check_stop()

    def _outbox_of(self, chains: tuple[str, ...]) -> Outbox:
        own = chains == (self._chain,)
        return self._outbox if own else self._sets.setdefault(chains, self._outbox_to(chains))

    def _outbox_to(self, chains: tuple[str, ...]) -> Outbox:
        return Outbox(lambda raw, on_outcome: self._post(raw, chains, on_outcome))

    def _cut_posted(self, outcome: AppendOutcome) -> None:
        stored = isinstance(outcome, Appended)
        self._metrics.timers_posted.add(self._chain, "stored" if stored else "failed")
        self._posted(outcome)

    def _probe_posted(self, log: str, outcome: AppendOutcome) -> None:
        if isinstance(outcome, Appended):
            self._order.probe_stored(outcome.offset, log)
        else:
            self._posted(outcome)

    def _marker_posted(self, outcome: AppendOutcome) -> None:
        self._metrics.markers_posted.add(self._chain)
        if not isinstance(outcome, Appended):
            _log.warning("chain %s posts its marker again: %s", self._chain, outcome.error)

    def _posted(self, outcome: AppendOutcome) -> None:
        """Note where the record is stored, or log the failure: the outbox posts it again."""
        if isinstance(outcome, Appended):
            self._order.posted(outcome.offset)
        else:
            _log.warning("chain %s posts again: %s", self._chain, outcome.error)
