"""`Threads`: blocking calls in threads of their own, awaited by one event loop.

The loop's default executor may be full with the application's work, so these threads are not shared
with it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Result = TypeVar("_Result")


class Threads:
    """A few threads. A call that is cancelled before it began is not made; else it is finished."""

    def __init__(self, name: str, count: int) -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(
        self, call: Callable[[], _Result], undo: Callable[[_Result], None] | None = None
    ) -> _Result:
        """Await a blocking call. `undo` takes the result of one that nobody awaits any more."""
        started = self._executor.submit(call)
        try:
            return await asyncio.wrap_future(started)
        except asyncio.CancelledError:
            if not started.cancel() and undo is not None:
                threading.Thread(target=_undo, args=(started, undo), daemon=True).start()
            raise

    def end(self) -> None:
        """Wait until the calls are made, and end the threads; blocks as long as the calls do."""
        self._executor.shutdown(wait=True)

    def close(self) -> None:
        """Let the threads end after their calls; does not wait."""
        self._executor.shutdown(wait=False)


def _undo(done: Future[_Result], undo: Callable[[_Result], None]) -> None:
    if done.exception() is None:
        undo(done.result())
