"""Whether an instance of a collector acts: a primary always does, a standby if nobody else does.

A standby reads the collector's streams and follows its logs like any instance, but holds its
appends back. From the core's state and the time this module decides whether to append now. No I/O,
no clock. Safety does not depend on it: the acceptance rule decides which records count, however
many instances append.

    waits   since when an append is due while no record of another instance was accepted
    acting  the instance appends what is due
    holder  the process that acted; that it has ended may be known (`engine/ended_processes.py`)
    offer   the instance that acts hands the collector over, or none has ever opened it
            (`offered_by` of `multicast/control/advertised.py`). That another standby has taken it,
            the control topic says

A standby begins to act when an append has been due for its patience, at once if the holder has
ended, or as soon as it has caught up if the collector is offered. It stops when a record of another
instance counts, unless nobody had opened the collector before. A former primary acts on until then.
A standby that acts also stops when another one has advertised itself. Records that the stream had
when the instance began say nothing of who acts now. Those of a process that has ended may come
late: its successor goes on at once after another's record, `_LATE_MAX` times at most, until another
instance has advertised itself, or the successor is made a primary.
"""

from __future__ import annotations

from collectors.core.collector import Collector
from multicast.control.advertised import NOBODY

# A primary appends within milliseconds, and a needless takeover costs only a void record or two.
# Ten times less makes such takeovers frequent. Ten times more is a pause of 2 s for each collector
# on a message's path that is down, because their standbys wait one after the other.
PATIENCE_S = 0.2
# So often the successor of a process that has ended goes on at once after a record of another
# instance: more than an instance has appends under way, each of which may be read by itself. Ten
# times more would prolong the doubled appends beside an instance of which only the page has ended.
_LATE_MAX = 20


class Standby:
    """The role of one instance; `primary` may be set at any time."""

    def __init__(self, *, primary: bool, patience_s: float = PATIENCE_S) -> None:
        self.primary = primary
        self.acting = primary
        self.takeovers = 0
        self.patience_s = patience_s
        self._others = 0  # accepted records of other instances
        self._behind = False  # the core still reads what the stream had at our start
        self._holder_ended = False
        self._late_left = 0  # counts down from `_LATE_MAX` after a takeover for an ended holder
        self._offered = False
        self._releasing: int | None = None  # the writer that made the last offer
        self._waits: float | None = None

    @property
    def waiting(self) -> bool:
        """Whether an append is due, and we still give other instances time for it."""
        return self._waits is not None

    def begin(self, core: Collector) -> None:
        """Take the core, before it reads: what its stream has already nobody appends now."""
        self._behind = not core.caught_up()

    def holder_ended(self) -> None:
        """Take the news that the process that acted has ended: what is due now is ours."""
        self._holder_ended = True

    def offer(self, writer: int | None) -> None:
        """Take the news that the instance with this writer leaves; None: none does."""
        if writer is None:
            self._offered = False
        elif writer != self._releasing:
            self._releasing, self._offered = writer, True

    def step_back(self) -> None:
        """Take the news that another instance has begun to act after this one.

        It may come again and again, also while this one waits for an append of that instance.
        """
        if not self.primary:
            self.acting = self._holder_ended = False
            self._late_left = 0

    def decide(self, core: Collector, now: float) -> bool:
        """Decide whether to append now; `now` is in seconds, of a monotonic clock."""
        others, behind = core.counted, self._behind
        moved = others > self._others and self._releasing != NOBODY and not behind
        self._others, self._behind = others, behind and not core.caught_up()
        if self.primary:
            self.acting = True
            self._holder_ended, self._late_left, self._waits = False, 0, None
        elif moved:
            self.acting = False
            # It may be a late one of the instance that has ended.
            self._late_left = max(0, self._late_left - 1)
            self._holder_ended = self._late_left > 0
            self._waits = None
        elif not self.acting:
            self._wait(core, now)
        return self.acting

    def _wait(self, core: Collector, now: float) -> None:
        if self._offered and core.caught_up():
            self._take_over()
        elif not core.due:
            self._holder_ended = self._late_left > 0
            self._waits = None
        else:
            self._waits = now if self._waits is None else self._waits
            if self._holder_ended or now - self._waits >= self.patience_s:
                self._take_over()

    def _take_over(self) -> None:
        self.acting = True
        self._offered = False
        self._waits = None
        if self._holder_ended and not self._late_left:
            self._late_left = _LATE_MAX
        self.takeovers += 1
