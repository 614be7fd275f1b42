"""One thread that keeps time for all collectors of a process.

tick    comes every `TICK_S` to each sink that follows the clock. A sink with nothing to do
        rests by itself and follows again with its next event: a resting one gets a tick a minute
look    comes once, soon, to a sink that has asked for it: a standby with something to append,
        whose patience may end between two ticks (`standby.py`)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from collectors.core.balance import WINDOW_TICKS
from collectors.engine.loops import Loop

# A hole is filled at the second tick that finds it empty (docs/protocol.md). Ten times as long, a
# message behind a hole waits 5 s; a tenth, and an append that takes 50 ms counts as a hole.
TICK_S = 0.25
# Of resting sinks. A collector writes a checkpoint every six hours, whatever happens.
_REST_S = 60.0
# A quarter of a standby's patience (`PATIENCE_S`, 0.2 s), so it acts at most 50 ms late.
_LOOK_AFTER_S = 0.05
# So that no debt is left unsettled: that takes two windows (2 s). Ten times as long costs 20 s of
# ticks after each message.
_IDLE_TICKS_MAX = 2 * WINDOW_TICKS


class Timed(Protocol):
    """Gets ticks and looks; both are called by the clock's thread, and must return soon."""

    def tick(self) -> None:
        """Take the news that `TICK_S` has passed."""

    def look(self) -> None:
        """Check whether it is time to act."""


class Clock:
    """Ticks for all that follow. Its calls are safe from any thread."""

    def __init__(self, *, failed: Callable[[Exception], None]) -> None:
        self._following: dict[Timed, None] = {}
        self._impatient: dict[Timed, None] = {}
        self._resting: dict[Timed, None] = {}
        self._hurry = threading.Event()
        self._tick_due_s = time.monotonic() + TICK_S
        self._rest_due_s = time.monotonic() + _REST_S
        self.loop = Loop("clock", self._turn, wake=self._hurry.set, failed=failed)

    def follow(self, sink: Timed) -> None:
        """Tick for this sink until it rests or leaves."""
        self._following[sink] = None
        self._resting.pop(sink, None)

    def rest(self, sink: Timed) -> None:
        """Tick for this sink once a minute, until it follows again or leaves."""
        self._resting[sink] = None
        self._following.pop(sink, None)

    def leave(self, sink: Timed) -> None:
        """Tick for this sink no longer."""
        for sinks in (self._following, self._impatient, self._resting):
            sinks.pop(sink, None)

    def hurry(self, sink: Timed) -> None:
        """Call `look` of this sink soon, once."""
        if sink not in self._impatient:
            self._impatient[sink] = None
            self._hurry.set()

    def _turn(self) -> None:
        until_tick_s = max(0.0, self._tick_due_s - time.monotonic())
        if self._impatient:
            self.loop.stopped.wait(min(_LOOK_AFTER_S, until_tick_s))
        else:
            self._hurry.wait(until_tick_s)
        self._hurry.clear()
        for sink in list(self._impatient):
            self._impatient.pop(sink, None)
            sink.look()
        if time.monotonic() >= self._tick_due_s:
            self._tick_due_s = time.monotonic() + TICK_S
            for sink in list(self._following):
                sink.tick()
        if time.monotonic() >= self._rest_due_s:
            self._rest_due_s = time.monotonic() + _REST_S
            for sink in list(self._resting):
                sink.tick()


class TickSubscription:
    """Follows the clock from each event until `Clock.rest`, as long as there is something to do.

    An instance to which nothing happens costs next to nothing; the next event wakes it.
    """

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
