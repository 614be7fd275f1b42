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

A chain takes envelopes while it is proven and not stalled. While nothing is waiting, a probe is
posted when nothing was ordered for `PROBE_S` (times 1 to 1.5, drawn for each chain of a node), so
that a missing collector is noticed even if no client sends anything. All nodes of a chain read each
other's probes, so one probe serves them all.

Invariant: at most one probe is on its way, and none where no collector orders the chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Longer than the order stands still by itself: a standby takes over 0.2 s after the primary's last
# record, a killed instance leaves the group after 6 s (docs/operating.md). Ten times more would
# answer 200 for 100 s to envelopes that nobody orders.
STALLED_S = 10.0
# A missing collector is noticed within PROBE_S x 1.5 + STALLED_S = 55 s (docs/ordering.md says 60);
# an idle chain stores one record of a few bytes in this time. Ten times less is ten times the
# records.
PROBE_S = 30.0
_LOOK_EVERY_S = (
    0.2  # below this a human sees no difference; each look asks the consumer for offsets
)


class OrderWatch:
    """Watches the order of one chain. `log` is the chain's own log, where envelopes and probes go.

    `stored` and `grown` may be called from one other thread each, the rest from the chain's only.
    """

    def __init__(self, log: str, *, stalled_s: float = STALLED_S, probe_s: float = PROBE_S) -> None:
        self._log = log
        self._stalled_s = stalled_s
        self._probe_s = probe_s
        self._envelopes_end = 0  # behind the newest envelope of this node in the chain's own log
        self._posts_end = 0  # behind what the chain itself posted there last
        self._probes_end = 0  # behind its newest probe
        self._ends: Mapping[str, int] = {}
        self._ordered: dict[str, int] = {}
        self._by_collector: bool | None = None
        self._proven = False
        self._probing = False  # a probe is on its way into the log
        self._moved_at = 0.0  # when the chain's own log was last seen to be ordered further
        self._stood_at: dict[str, float] = {}  # since when a log waits and is not ordered further
        self._look_at = 0.0  # when to look again
        self.stalled = False
        self.trouble: str | None = None

    def stored(self, offset: int) -> None:
        """Note that an envelope of this node is stored in the chain's own log."""
        self._envelopes_end = max(self._envelopes_end, offset + 1)

    def grown(self, ends: Mapping[str, int]) -> None:
        """Note the ends of the chain's logs."""
        self._ends = ends

    def posted(self, offset: int) -> None:
        """Note that a record that the chain itself posted is stored in its log."""
        self._posts_end = max(self._posts_end, offset + 1)

    def probe_stored(self, offset: int) -> None:
        """Note that a probe is stored in the chain's own log."""
        self.posted(offset)
        self._probes_end, self._probing = offset + 1, False

    def probe_lost(self) -> None:
        """Note that a probe that was to be posted is no longer on its way."""
        self._probing = False

    def due(self, now: float) -> bool:
        """Say whether to look now; if so, the next time is 0.2 s later."""
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_EVERY_S
        return True

    def look(self, ordered: Mapping[str, int], now: float, *, by_collector: bool) -> bool:
        """Judge how far the consumer is at `now`; say whether a probe is to be posted.

        `ordered` gives the next offset of each log. `by_collector`: a collector orders the chain;
        otherwise its log is its own order. Afterwards `trouble` and `stalled` hold the judgement.
        """
        if by_collector != self._by_collector:
            self._by_collector, self._proven = by_collector, not by_collector
            self._probes_end, self._moved_at = 0, now
        if ordered.get(self._log) != self._ordered.get(self._log):
            self._moved_at = now
        self._stood_at = {
            log: now if reached != self._ordered.get(log) else self._stood_at.get(log, now)
            for log, reached in ordered.items()
            if self._end(log) > reached
        }
        self._ordered = dict(ordered)
        self._proven = self._proven or 0 < self._probes_end <= ordered.get(self._log, 0)
        held_up = [log for log, since in self._stood_at.items() if now - since > self._stalled_s]
        self.stalled = bool(held_up)
        self.trouble = self._trouble(held_up)
        wanted = self._probe_wanted(now)
        self._probing = self._probing or wanted
        return wanted

    def _end(self, log: str) -> int:
        """Say up to which offset a log holds records that must be ordered."""
        own = max(self._envelopes_end, self._posts_end) if log == self._log else 0
        # A log that is its own order may end with an epoch's marker, which nobody delivers.
        return max(own, self._ends.get(log, 0)) if self._by_collector else own

    def _trouble(self, held_up: Sequence[str]) -> str | None:
        if self._by_collector:
            cause = (
                "start its collector where none runs ('amcast collectors run'); 'amcast doctor' "
                "says what is wrong"
            )
        else:
            cause = "'amcast doctor' says what holds it up"
        if held_up:
            return (
                f"log {held_up[0]} holds records, and none of them was ordered for "
                f"{self._stalled_s:g} s: {cause}"
            )
        if not self._proven:
            return f"no record of log {self._log} was ordered since this node started: {cause}"
        return None

    def _probe_wanted(self, now: float) -> bool:
        if not self._by_collector or self._probing:
            return False
        if not self._proven:
            return not self._probes_end
        return not self._stood_at and now - self._moved_at > self._probe_s
