"""`Inbox`: other threads hand calls to an event loop, many at one wake-up.

A wake-up costs a write to the loop's pipe and one turn of the loop. While one is on its way, more
calls join it. After `_CALLS_MAX` calls the loop gets a turn for other work.

Invariant: a call that was posted is made once, in the loop's thread, in the order of the posts,
unless the loop is closed before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

# Calls in one turn of the loop: each takes a microsecond or two, so the turn stays below some 2 ms.
_CALLS_MAX = 1000


class Inbox:
    """The calls that wait for one loop. Only `post` is safe from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()
        self._woken = False

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop make a call, which must not raise. Does nothing once the loop is closed."""
        # The order matters: `_drain` clears `_woken` before it takes calls, so a call that joined
        # without a wake-up of its own is taken by the drain that is on its way.
        self._calls.append(call)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._woken = False
        calls = self._calls
        for _ in range(_CALLS_MAX):
            if not calls:
                return
            calls.popleft()()
        self._woken = True
        self._loop.call_soon(self._drain)
