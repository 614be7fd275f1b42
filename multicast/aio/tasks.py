"""`LoopTasks`: attempts that another thread begins, as tasks of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from multicast.consuming.batches import Message
from multicast.workers.runners import Ended, Runner

AsyncHandler = Callable[[Message], Awaitable[object]]


class LoopTasks(Runner):
    """Makes each attempt in a task of its own."""

    def __init__(self, handler: AsyncHandler, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(handler)
        self._call = handler
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()  # or a task might be collected before its end

    def start(self, message: Message, ended: Ended) -> None:
        """Begin an attempt; from any thread but the loop's."""
        self._loop.call_soon_threadsafe(self._begin, message, ended)

    def _begin(self, message: Message, ended: Ended) -> None:
        def note(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            ended(asyncio.CancelledError() if task.cancelled() else task.exception())

        task = asyncio.create_task(self._attempt(message))
        self._tasks.add(task)
        task.add_done_callback(note)

    async def _attempt(self, message: Message) -> None:
        await self._call(message)
