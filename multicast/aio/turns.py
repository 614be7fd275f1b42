"""`Turns`: when a coroutine that never has to wait should give the event loop a turn.

A loop is blocked as well by a task that always finds room to send, or messages to read: `await`
gives up control only where something has to be waited for.
"""

from __future__ import annotations

import asyncio
import time

# Between two turns of the loop. A turn costs some 20 us, so this costs less than 1 %; other tasks
# wait for this long at most, which is the interpreter's own interval for switching threads.
_SLICE_S = 0.005


class Turns:
    """Measures the time since the loop last had a turn; for the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # When the slice ends, in `time.monotonic` seconds; 0: it begins with the next `due`. Before
        # that nothing is due, and to compare with it is cheaper than a call.
        self.ends = 0.0

    def due(self) -> bool:
        """Whether to `await asyncio.sleep(0)` before going on."""
        now = time.monotonic()
        if not self.ends:
            self.ends = now + _SLICE_S
            self._loop.call_soon(self._begin)
            return False
        return now >= self.ends

    def _begin(self) -> None:
        self.ends = 0.0
