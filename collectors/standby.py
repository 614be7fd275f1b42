"""Whether an instance of a collector acts: a primary always does, a standby if nobody else does.

A standby reads the collector's streams and follows its logs like any instance, but holds its
appends back. From the core's state and the time this module decides whether to append now. No I/O,
no clock. Safety does not depend on it: the acceptance rule decides which records count, however
many instances append.

    waits   since when an append is due while no record of another instance was accepted
    acting  the instance appends what is due
    alone   the process that acted is known to have ended (`engine/ended_processes.py`)

A standby begins to act when an append has been due for its patience, at once if it is alone, and
stops when a record of another instance is accepted. A former primary acts on until then.
"""

from __future__ import annotations

from collectors.collector import Collector

# A primary appends within milliseconds, and a needless takeover costs only a void record or two.
# Ten times less makes such takeovers frequent. Ten times more is a pause of 2 s for each collector
# on a message's path that is down, because their standbys wait one after the other.
PATIENCE_S = 0.2


class Standby:
    """The role of one instance; `primary` may be set at any time."""

    def __init__(self, *, primary: bool, patience_s: float = PATIENCE_S) -> None:
        self.primary = primary
        self.acting = primary
        self.takeovers = 0
        self.patience_s = patience_s
        self._others = 0  # accepted records of other instances
        self._alone = False
        self._waits: float | None = None

    @property
    def waiting(self) -> bool:
        """Whether an append is due, and we still give other instances time for it."""
        return self._waits is not None and not self.acting

    def be_alone(self) -> None:
        """Take the news that the process that acted has ended: what is due now is ours."""
        self._alone = True

    def acts(self, core: Collector, now: float) -> bool:
        """Decide whether to append now; `now` is in seconds, of a monotonic clock."""
        others = core.counted - core.ours
        moved, self._others = others > self._others, others
        if self.primary:
            self.acting = True
        elif moved or (not self.acting and not core.due):
            self.acting = self._alone = False
            self._waits = None
        elif not self.acting:
            self._waits = now if self._waits is None else self._waits
            if self._alone or now - self._waits >= self.patience_s:
                self.acting = True
                self.takeovers += 1
        return self.acting
