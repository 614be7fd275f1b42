"""Ticks of the clock, for as long as a collector has something to do.

An instance to which nothing happens rests, so it costs next to nothing; the next event wakes it.
"""

from __future__ import annotations

from collectors.core.balance import WINDOW_TICKS
from collectors.engine.clock import Clock, Timed

# So that no debt is left unsettled: that takes two windows (2 s). Ten times as long costs 20 s of
# ticks after each message.
_IDLE_TICKS_MAX = 2 * WINDOW_TICKS


class TickSubscription:
    """Follows the clock from each event until `rest`."""

    def __init__(self, clock: Clock, sink: Timed) -> None:
        self._clock = clock
        self._sink = sink
        self._idle_ticks = 0  # since the last event

    def event(self) -> None:
        """Note an event: ticks come from now on."""
        self._idle_ticks = 0
        self._clock.follow(self._sink)

    def tick(self) -> bool:
        """Count a tick; say whether the instance may rest, if nothing is due."""
        self._idle_ticks += 1
        return self._idle_ticks >= _IDLE_TICKS_MAX

    def hurry(self) -> None:
        """Ask for a `look` sooner than the next tick, once."""
        self._clock.hurry(self._sink)

    def rest(self) -> None:
        """Get few ticks until the next event."""
        self._clock.rest(self._sink)
