"""`AsyncWorkers`: handles what an `AsyncConsumer` delivers in tasks of its loop.

One task reads, begins the others, and commits. As `multicast.workers.workers`, with `await`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from multicast.aio.threads import Threads
from multicast.consuming.batches import Batch, Message
from multicast.consuming.cursor import Cursor
from multicast.errors import AmcastError, UsageError
from multicast.workers.work import MESSAGES_MAX, WAIT_S, Work

AsyncHandler = Callable[[Message], Awaitable[object]]


class AsyncWorkers:
    """Handles a consumer's messages; `hand_back` has its next read begin at a cursor."""

    def __init__(
        self,
        consumer: Any,  # an `AsyncConsumer`, which imports this
        handler: AsyncHandler,
        work: Work,
        hand_back: Callable[[Cursor], Awaitable[None]],
        threads: Threads,
    ) -> None:
        if work.processes:
            raise UsageError("tasks run in one process: use a Consumer for processes")
        self._consumer, self._work, self._hand_back = consumer, work, hand_back
        self._handler, self._threads = handler, threads
        self._changed = asyncio.Event()
        self._ended: deque[tuple[int, Message, BaseException | None]] = deque()
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Handle messages, and wait for those that were begun; cancelled: these are, too."""
        work, reached = self._work, self._consumer.position
        failure: BaseException | None = None
        try:
            await self._read()
            work.schedule.drain()
        except BaseException as error:  # noqa: BLE001 - raised again once the tasks rest
            work.schedule.halt()
            failure = error
            if isinstance(error, asyncio.CancelledError):
                for task in self._tasks.values():
                    task.cancel()
        try:
            while work.schedule.busy:
                await self._turn()
        finally:
            await self._threads.run(work.close)
            reached = work.schedule.cursor or reached
            if self._consumer.position != reached:
                await self._hand_back(reached)
        try:
            await self._commit(work.to_commit(last=True))
        except AmcastError as error:
            failure = failure or work.failure or error
        failure = failure or work.failure
        if failure is not None:
            raise failure

    async def _read(self) -> None:
        work, consumer = self._work, self._consumer
        source = consumer.batches(messages_max=MESSAGES_MAX)
        if work.until_end:
            source = consumer.until_end()
        reading: asyncio.Task[Batch | None] | None = None
        is_at_end = False
        try:
            while not work.ending and not (is_at_end and work.rests):
                if reading is None and work.wants and not is_at_end:
                    reading = asyncio.create_task(_next(source))
                    reading.add_done_callback(lambda _: self._changed.set())
                if reading is not None and reading.done():
                    batch = reading.result()
                    reading = None
                    is_at_end = batch is None
                    work.give([] if batch is None else [batch])
                    self._changed.set()  # perhaps there is more at hand
                await self._turn()
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.wait([reading])
            await source.aclose()

    async def _turn(self) -> None:
        work = self._work
        for number, message in work.begin():
            task = self._tasks[number] = asyncio.create_task(self._attempt(message))
            task.add_done_callback(partial(self._note, number, message))
        wait_s = min(WAIT_S, work.schedule.next_try - work.clock.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, wait_s)):
                await self._changed.wait()
        self._changed.clear()
        while self._ended:
            number, message, error = self._ended.popleft()
            del self._tasks[number]
            if work.ended(number, message, error) and work.dead_letters is not None:
                await self._threads.run(partial(work.dead_letters.store, message, error))
                work.schedule.done(number)
        try:
            await self._commit(work.to_commit())
        except AmcastError as error:
            if not error.retriable:
                raise

    async def _commit(self, cursor: Cursor | None) -> None:
        if cursor is not None:
            await self._consumer.commit(cursor)
            self._work.committed(cursor)

    async def _attempt(self, message: Message) -> None:
        await self._handler(message)

    def _note(self, number: int, message: Message, attempt: asyncio.Task[None]) -> None:
        is_cancelled = attempt.cancelled()
        error = asyncio.CancelledError() if is_cancelled else attempt.exception()
        self._ended.append((number, message, error))
        self._changed.set()


async def _next(source: AsyncGenerator[Batch]) -> Batch | None:
    return await anext(source, None)
