"""Whether an instance of a node acts: a primary always does, a standby when nobody else does.

In go what the core knows and the time; out comes whether to append now. A standby follows the
node's streams and logs like any instance, and holds its appends back. No I/O, no clock. Safety
does not rest on it: the log decides which records count, however many instances append.

    waits   since when something is due and no record of anybody else has counted
    acting  appends what is due

A standby acts once `waits` is longer than its patience, and until a record of somebody else counts.
So does an instance that was a primary: it hands over when its successor's first record counts.
"""

from __future__ import annotations

from collectors.collector import Collector

# A primary appends within milliseconds, and a takeover in vain costs a void record or two. Where
# all collectors on a message's way are down, each one's standby waits in its turn.
PATIENCE_S = 0.2


class Standby:
    """The part of one instance; `primary` may be set at any time."""

    def __init__(self, *, primary: bool, patience_s: float = PATIENCE_S) -> None:
        self.primary = primary
        self.acting = primary
        self.takeovers = 0
        self.patience_s = patience_s
        self._others = 0  # records of somebody else that have counted
        self._waits: float | None = None

    @property
    def waiting(self) -> bool:
        """Whether something is due that nobody has appended yet, and we wait for it."""
        return self._waits is not None and not self.acting

    def acts(self, core: Collector, now: float) -> bool:
        """Say whether to append now; `now` is in seconds, of a clock that never goes back."""
        others = core.counted - core.ours
        moved, self._others = others > self._others, others
        if self.primary:
            self.acting = True
        elif moved or (not self.acting and not core.due):
            self.acting = False
            self._waits = None
        elif not self.acting:
            self._waits = now if self._waits is None else self._waits
            if now - self._waits >= self.patience_s:
                self.acting = True
                self.takeovers += 1
        return self.acting
