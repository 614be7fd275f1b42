"""For how long logs have waited: for their order, and for a transaction that is open.

The owner gives a tick what it knows (no clock here). All times are exact to one tick.

    waiting   the oldest end of a log that was seen at a tick and is not ordered yet
    early     offsets that were in the order before they were in their log, skips among them
    still     the last stable offset stands below the high watermark: since when it has not moved
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

# Ends that a log remembers at once: four minutes of ticks in which nothing is ordered. Beyond
# that, the oldest are kept, so the time that is shown stays right.
_ENDS_MAX = 1000


class LogWaits:
    """Remembers by log number since when it waits; any thread may read its public attributes."""

    def __init__(self) -> None:
        self.since: Mapping[int, float] = {}
        self.still_since: Mapping[int, float] = {}
        self.stable_lag: Mapping[int, int] = {}
        self.early = 0
        self._newest: dict[int, int] = {}
        self._ends: dict[int, deque[tuple[int, float]]] = {}
        self._still: dict[int, tuple[int, float]] = {}

    def log_end(self, log: int, end: int, position: int) -> None:
        """Take a new end of a log that is ordered up to `position`."""
        self.early += max(0, min(position, end) - self._newest.get(log, end))
        self._newest[log] = end

    def tick(
        self,
        ahead: Mapping[int, int],
        positions: Mapping[int, int],
        highs: Mapping[int, int],
        now: float,
    ) -> None:
        """Take by log how far it is ordered ahead of its end, if at all, and up to where.

        `highs` are the high watermarks of logs with an open transaction, `now` is in seconds.
        """
        since: dict[int, float] = {}
        still: dict[int, tuple[int, float]] = {}
        for log in {*ahead, *highs}:
            end = positions[log] - ahead.get(log, 0)
            ends = self._ends.setdefault(log, deque())
            if (not ends or end > ends[-1][0]) and len(ends) < _ENDS_MAX:
                ends.append((end, now))
            while ends and ends[0][0] <= positions[log]:
                ends.popleft()
            if ends:
                since[log] = ends[0][1]
            if highs.get(log, end) > end:
                known = self._still.get(log)
                still[log] = known if known is not None and known[0] == end else (end, now)
        self._still = still
        self.since = since
        self.still_since = {log: began for log, (_, began) in still.items()}
        self.stable_lag = {log: highs[log] - end for log, (end, _) in still.items()}
