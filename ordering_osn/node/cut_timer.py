"""How long a chain's pending transactions have waited for their block: when to post a time-to-cut.

    wanted      (number of the pending block, position of its first record), from `Chain.wanted_cut`
    requested   the last value for which a time-to-cut was requested

A time-to-cut is due once for each value of `wanted`, the batch time-out after it first appeared. No
I/O and no clock: the caller passes the time, in seconds of a monotonic clock.
"""

from __future__ import annotations


class CutTimer:
    """The timer of one chain's pending block. For the chain's thread only."""

    def __init__(self) -> None:
        self._wanted: tuple[int, int] | None = None
        self._wanted_since = 0.0
        self._requested: tuple[int, int] | None = None

    def reset(self) -> None:
        """Forget what was pending: the core was rebuilt from the ledger."""
        self._wanted = self._requested = None

    def observe(self, wanted: tuple[int, int] | None, now: float) -> None:
        """Note which block is pending now; None: none is."""
        if wanted != self._wanted:
            self._wanted, self._wanted_since = wanted, now

    def due_at(self, timeout_s: float) -> float | None:
        """Say when a time-to-cut is due; None: nothing is pending, or it was requested already."""
        if self._wanted is None or self._wanted == self._requested:
            return None
        return self._wanted_since + timeout_s

    def expired(self, timeout_s: float, now: float) -> int | None:
        """Give the number of the block to cut where its time-out is over; None otherwise.

        Gives it once: it counts as requested then.
        """
        due = self.due_at(timeout_s)
        if self._wanted is None or due is None or due > now:
            return None
        self._requested = self._wanted
        return self._wanted[0]

    def fill_time_s(self, block: int, now: float) -> float:
        """Say how long this block took from its first transaction to its cut, which is now.

        0 for a block that never waited. Not for the block of a config, which no cutter cuts.
        """
        waited = self._wanted is not None and self._wanted[0] == block
        return now - self._wanted_since if waited else 0.0
