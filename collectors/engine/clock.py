"""One thread that keeps time for all collectors of a process.

    tick        tells a collector that a while has passed
    followed    collectors that need ticks: something came a short while ago, or is on its way
    impatient   standbys for which something waits: they are asked more often (`standby.py`)

A collector at rest costs nothing here: it leaves by itself, and comes back with the next event.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from collectors.engine.loops import Loop

TICK_S = 0.25
_BEAT_S = 0.05


class Timed(Protocol):
    """Who is told of time; must return soon."""

    def tick(self) -> None:
        """Hear that a while has passed."""

    def look(self) -> None:
        """Look whether it is time to act."""


class Clock:
    """Ticks for all who follow."""

    def __init__(self, *, failed: Callable[[Exception], None]) -> None:
        self._followed: dict[Timed, None] = {}
        self._impatient: dict[Timed, None] = {}
        self._hurry = threading.Event()
        self._tick_at = time.monotonic() + TICK_S
        self.loop = Loop("clock", self._turn, wake=self._hurry.set, failed=failed)

    def follow(self, who: Timed) -> None:
        """Tick for this one until it leaves."""
        self._followed[who] = None

    def leave(self, who: Timed) -> None:
        """Tick for this one no longer."""
        self._followed.pop(who, None)
        self._impatient.pop(who, None)

    def hurry(self, who: Timed) -> None:
        """Have this one look soon, once."""
        if who not in self._impatient:
            self._impatient[who] = None
            self._hurry.set()

    def _turn(self) -> None:
        now = time.monotonic()
        if self._impatient:
            self.loop.stopped.wait(min(_BEAT_S, max(0.0, self._tick_at - now)))
        else:
            self._hurry.wait(max(0.0, self._tick_at - now))
        self._hurry.clear()
        for who in list(self._impatient):
            self._impatient.pop(who, None)
            who.look()
        if time.monotonic() >= self._tick_at:
            self._tick_at = time.monotonic() + TICK_S
            for who in list(self._followed):
                who.tick()
