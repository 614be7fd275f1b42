"""Which node a client asks next, and for how long: each in turn, until the time is over.

A node has worked if it has answered, or its connection stood for long enough. Then the time begins
anew.
"""

from __future__ import annotations

import asyncio
import math

from multicast.errors import AmcastError

# The pause between two rounds over all nodes, for a refused connection takes no time; it doubles.
PAUSE_S, PAUSE_MAX_S = 0.1, 2.0
# A connection that stood for so long shows that nodes can be reached. One that is lost sooner may
# be of a node that ends as soon as it has started.
_WORKED_S = 1.0
# A stream that its node ended with 503 has worked if it stood for so long. A node whose cluster is
# away says 503 only when its own requests have timed out, each time, after some 10 s.
_WORKED_UNTIL_BUSY_S = 60.0


class NodeTurns:
    """The turns of `count` nodes, from the one at `first` on, until `retry_s` after a failure."""

    def __init__(self, count: int, first: int, retry_s: float) -> None:
        self._count, self._retry_s = count, retry_s
        self._clock = asyncio.get_running_loop().time
        self._connected_s = math.inf  # when the last node's connection was made; inf: it was not
        self.worked(first)

    def worked(self, place: int) -> None:
        """Begin anew with the node at `place`, which has just answered."""
        self._first, self._tried = place, 0
        self._curable = False  # whether another round may mend a failure of this one
        self._pause_s = PAUSE_S
        self._deadline: float | None = None

    def connected(self) -> None:
        """Note that the node has a connection."""
        self._connected_s = self._clock()

    def lost(self, *, busy: bool) -> None:
        """Note that the connection is lost: if it has worked, the time begins anew, not the pauses.

        `busy`: the node itself has ended the stream, with 503.
        """
        stood_s = self._clock() - self._connected_s
        if stood_s > (_WORKED_UNTIL_BUSY_S if busy else _WORKED_S):
            self._deadline = None

    async def next(self, failed: AmcastError | None = None) -> int | None:
        """Return the next node's place; None where the time is over, or another round is in vain.

        `failed`: the error of the last node. None: there was none before, or it is busy.
        """
        now = self._clock()
        if self._tried:
            self._deadline = now + self._retry_s if self._deadline is None else self._deadline
            self._curable |= failed is None or failed.retriable
        if self._tried and self._tried % self._count == 0:
            left_s = (self._deadline or now) - now
            if left_s <= 0 or not self._curable:
                return None
            self._curable = False
            await asyncio.sleep(min(self._pause_s, left_s))
            self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        place = (self._first + self._tried) % self._count
        self._tried += 1
        self._connected_s = math.inf
        return place
