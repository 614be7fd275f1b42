"""`OrderWaits`: those who wait, in one event loop, until their messages are ordered, or decided.

The follower's thread reports that it got on; the loop then looks which waits are over. No thread
waits for a message.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from functools import partial

from multicast.aio.inbox import Inbox
from multicast.errors import AmcastError, Truncated, UsageError
from multicast.messages import MessageID

_Wait = tuple[int, int, asyncio.Future[None]]  # offset, number (no two are equal), who waits
# Waits that ended early stay in their heap until they are most of it, and more than this many.
_ENDED_MAX = 100


class OrderWaits:
    """The waits of one producer, by log and offset. Only the follower's thread calls `moved`.

    `is_over` says whether the wait for an offset of a log is over. If it is for one offset, it is
    for all lower ones of the log.
    """

    def __init__(self, is_over: Callable[[str, int], bool], inbox: Inbox) -> None:
        self._is_over = is_over
        self._inbox = inbox
        self._waits: dict[str, list[_Wait]] = {}
        self._numbers = itertools.count()
        self._ended = 0  # waits that were cancelled, and are still in a heap
        self._posted = False

    async def wait(self, message: MessageID) -> None:
        """Wait until the wait for a message is over; raises the error that stopped the follower."""
        if self._is_over(message.log, message.offset):
            return
        future = asyncio.get_running_loop().create_future()
        entry = (message.offset, next(self._numbers), future)
        heapq.heappush(self._waits.setdefault(message.log, []), entry)
        self._look()  # the order may have moved just before the wait was entered
        try:
            await future
        except asyncio.CancelledError:
            self._ended += 1
            self._forget_ended()
            raise

    def close(self) -> None:
        """End all waits with a `UsageError`."""
        self._fail(UsageError("the producer was closed; the message may still be ordered"))

    def moved(self, error: AmcastError | None = None) -> None:
        """Learn, in the follower's thread, that waits may be over, or of an error that ends all."""
        if error is not None:
            self._inbox.post(partial(self._fail, error))
        elif self._waits and not self._posted:
            self._posted = True
            self._inbox.post(self._look)

    def _look(self) -> None:
        self._posted = False
        try:
            for log, heap in list(self._waits.items()):
                try:
                    while heap and (heap[0][2].done() or self._is_over(log, heap[0][0])):
                        future = heapq.heappop(heap)[2]
                        if not future.done():
                            future.set_result(None)
                except Truncated as error:  # of this log, from the lowest of these offsets on
                    _end(heap, error)
                if not heap:
                    del self._waits[log]
        except AmcastError as error:
            self._fail(error)

    def _fail(self, error: AmcastError) -> None:
        for heap in self._waits.values():
            _end(heap, error)
        self._waits.clear()

    def _forget_ended(self) -> None:
        count = sum(map(len, self._waits.values()))
        if self._ended > max(_ENDED_MAX, count // 2):
            self._ended = 0
            for log, heap in list(self._waits.items()):
                alive = [entry for entry in heap if not entry[2].done()]
                heapq.heapify(alive)
                if alive:
                    self._waits[log] = alive
                else:
                    del self._waits[log]


def _end(heap: list[_Wait], error: AmcastError) -> None:
    for _, _, future in heap:
        if not future.done():
            future.set_exception(error)
    heap.clear()
