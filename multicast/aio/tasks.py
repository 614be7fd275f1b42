"""`LoopTasks`: attempts that another thread begins, as tasks of an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from multicast.consuming.batches import Message
from multicast.workers.runners import Ended, Runner

AsyncHandler = Callable[[Message], Awaitable[object]]


class LoopTasks(Runner):
    """Makes attempts in n tasks at most; a task that has made one makes the next that waits."""

    def __init__(self, handler: AsyncHandler, loop: asyncio.AbstractEventLoop, n: int) -> None:
        super().__init__(handler)
        self._call = handler
        self._loop, self._n = loop, n
        self._waiting: deque[tuple[Message, Ended]] = deque()
        self._tasks: dict[asyncio.Task[None] | None, Ended] = {}  # of what each attempts

    def start(self, message: Message, ended: Ended) -> None:
        """Begin an attempt; from any thread but the loop's."""
        self._waiting.append((message, ended))
        if len(self._waiting) == 1:  # else all tasks are at work, or the loop is about to look
            try:
                self._loop.call_soon_threadsafe(self._begin)
            except RuntimeError:  # it is closed
                self._waiting.pop()
                raise

    def _begin(self) -> None:
        while self._waiting and len(self._tasks) < self._n:
            message, ended = self._waiting.popleft()
            task = self._loop.create_task(self._run(message))
            self._tasks[task] = ended
            task.add_done_callback(self._note)

    async def _run(self, message: Message) -> None:
        task = asyncio.current_task()
        while True:
            failure = None
            try:
                await self._call(message)
            except Exception as error:  # noqa: BLE001 - the application's
                failure = error
            self._tasks.pop(task)(failure)
            if not self._waiting:
                return
            message, self._tasks[task] = self._waiting.popleft()

    def _note(self, task: asyncio.Task[None]) -> None:
        ended = self._tasks.pop(task, None)
        if ended is not None:  # it was cancelled, or ends the program
            ended(asyncio.CancelledError() if task.cancelled() else task.exception())
            self._begin()
