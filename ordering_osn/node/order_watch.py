"""Detects whether a chain's order moves: whether stored records appear in its order stream soon.

The input is the offsets up to which the chain's logs hold records, how far the chain's consumer is,
and the time; the result is what is wrong, in a sentence, and when to post a probe. No I/O, no
clock.

    stored    a log holds a record at this offset: this node stored it, or a request for the end of
              the log showed it
    ordered   the consumer is past this offset
    waiting   stored, and not ordered
    stalled   a log has something waiting, and none of it was ordered for more than `STALLED_S`
    probe     a record without content (Fabric's CONNECT) that a node posts to see it come back
    proven    a probe came back since the node started. Only a chain that a collector orders needs
              this: without a record to order, nobody notices that no collector runs
    relayed   a log whose order collectors repeat on its way to the chain. Tickets do not order it
              here, as they may order the chain's own log. The log that most of them repeat is
              probed, too: it shows whether they all run

A chain takes envelopes while its own log is proven and not stalled, and bundles while no log of it
is stalled, either. While nothing waits in a probed log, a probe is posted when nothing in it was
ordered for `PROBE_S` (times 1 to 1.5, drawn for each chain of a node), so that a missing collector
is noticed even if no client sends anything. All nodes read each other's probes: one serves all.

Invariant: at most one probe of a log is on its way, and none where no collector orders the chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Longer than the order stands still by itself: a standby takes over 0.2 s after the primary's last
# record, a killed instance leaves the group after 6 s (docs/operating.md). Ten times more would
# answer 200 for 100 s to envelopes that nobody orders.
STALLED_S = 10.0
# A missing collector is noticed within PROBE_S x 1.5 + STALLED_S = 55 s (docs/ordering.md says 60);
# an idle chain stores one record of a few bytes in this time. Ten times less is ten times the
# records.
PROBE_S = 30.0
# Below this a human sees no difference; each look asks the consumer for offsets.
_LOOK_EVERY_S = 0.2


@dataclass(slots=True)
class _Probed:
    """A log that is probed."""

    moved_at: float  # when it was last seen to be ordered further
    proven: bool = False
    probing: bool = False  # a probe is on its way into the log
    probes_end: int = 0  # behind its newest probe


class OrderWatch:
    """Watches the order of one chain. `log` is the chain's own log, where envelopes go.

    `stored` and `grown` may be called from one other thread each, the rest from the chain's only.
    """

    def __init__(self, log: str, *, stalled_s: float = STALLED_S, probe_s: float = PROBE_S) -> None:
        self._log = log
        self._stalled_s = stalled_s
        self._probe_s = probe_s
        self._envelopes_end = 0  # behind the newest envelope of this node in the chain's own log
        self._posts_end = 0  # behind what the chain itself posted there last
        self._ends: Mapping[str, int] = {}
        self._relayed: str | None = None
        self._probed: dict[str, _Probed] = {}
        self._ordered: dict[str, int] = {}
        self._by_collector: bool | None = None
        self._stood_at: dict[str, float] = {}  # since when a log waits and is not ordered further
        self._look_at = 0.0  # when to look again
        self.stalled = False
        self.trouble: str | None = None  # of any log of the chain
        self.own_trouble: str | None = None  # of its own log

    def stored(self, offset: int) -> None:
        """Note that an envelope of this node is stored in the chain's own log."""
        self._envelopes_end = max(self._envelopes_end, offset + 1)

    def grown(self, ends: Mapping[str, int], relayed: str | None = None) -> None:
        """Note the ends of the chain's logs, and which of them most collectors relay, if any."""
        self._ends, self._relayed = ends, relayed

    def posted(self, offset: int) -> None:
        """Note that a record that the chain itself posted is stored in its log."""
        self._posts_end = max(self._posts_end, offset + 1)

    def probe_stored(self, offset: int, log: str | None = None) -> None:
        """Note that a probe is stored in a log; None: the chain's own."""
        if log in (None, self._log):
            self.posted(offset)
        probed = self._probed.get(log or self._log)
        if probed is not None:
            probed.probes_end, probed.probing = offset + 1, False

    def probe_lost(self) -> None:
        """Note that no probe that was to be posted is on its way any more."""
        for probed in self._probed.values():
            probed.probing = False

    def due(self, now: float) -> bool:
        """Say whether to look now; if so, the next time is 0.2 s later."""
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_EVERY_S
        return True

    def look(self, ordered: Mapping[str, int], now: float, *, by_collector: bool) -> list[str]:
        """Judge how far the consumer is at `now`; give the logs to which a probe is to be posted.

        `ordered` gives the next offset of each log. `by_collector`: a collector orders the chain;
        otherwise its log is its own order. Afterwards `trouble`, `own_trouble` and `stalled` hold
        the judgement.
        """
        if by_collector != self._by_collector:
            self._by_collector, self._probed = by_collector, {}
        logs = (self._log, *(log for log in ordered if log == self._relayed))
        known = self._probed
        self._probed = {log: known.get(log, _Probed(now)) for log in logs if by_collector}
        self._stood_at = {
            log: now if reached != self._ordered.get(log) else self._stood_at.get(log, now)
            for log, reached in ordered.items()
            if self._end(log) > reached
        }
        for log, probed in self._probed.items():
            if ordered.get(log) != self._ordered.get(log):
                probed.moved_at = now
            probed.proven = probed.proven or 0 < probed.probes_end <= ordered.get(log, 0)
        self._ordered = dict(ordered)
        troubles = {log: self._trouble(log, now) for log in (self._log, *ordered, *self._probed)}
        self.own_trouble = troubles[self._log]
        self.trouble = next(filter(None, troubles.values()), None)
        self.stalled = any(self._is_stalled(log, now) for log in self._stood_at)
        wanted = [log for log, probed in self._probed.items() if self._probe_wanted(log, now)]
        for log in wanted:
            self._probed[log].probing = True
        return wanted

    def _end(self, log: str) -> int:
        """Say up to which offset a log holds records that must be ordered."""
        own = max(self._envelopes_end, self._posts_end) if log == self._log else 0
        # A log that is its own order may end with an epoch's marker, which nobody delivers.
        return max(own, self._ends.get(log, 0)) if self._by_collector else own

    def _is_stalled(self, log: str, now: float) -> bool:
        return now - self._stood_at.get(log, now) > self._stalled_s

    def _trouble(self, log: str, now: float) -> str | None:
        cause = "'amcast doctor' says what holds it up"
        if self._by_collector:
            cause = f"start its collector where none runs ('amcast collectors run'); {cause}"
        if self._is_stalled(log, now):
            waits = f"log {log} holds records, and none of them was ordered for"
            return f"{waits} {self._stalled_s:g} s: {cause}"
        if log == self._log and log in self._probed and not self._probed[log].proven:
            return f"no record of log {log} was ordered since this node started: {cause}"
        return None

    def _probe_wanted(self, log: str, now: float) -> bool:
        probed = self._probed[log]
        if probed.probing:
            return False
        if not probed.proven:
            return not probed.probes_end
        return log not in self._stood_at and now - probed.moved_at > self._probe_s
