"""`LoopBound`: what an asynchronous producer and consumer share: one loop, opened and closed once.

new       constructed: nothing is connected, no thread runs
open      between `open` and `close`, for the event loop that opened it
closed    for good
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from inspect import signature
from threading import get_ident
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from multicast.aio.threads import Threads
from multicast.errors import UsageError

# Blocking calls at the same time: a commit or flush, one that waits for the cluster, and one more.
# They are rare, and each is bounded; more threads would only wait for the same brokers.
_THREADS = 3
_P = ParamSpec("_P")
_Made = TypeVar("_Made")


def arguments_of(
    _: Callable[_P, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, _P], None]]:
    """Have a type checker see a constructor's arguments as those of the synchronous class."""
    return lambda init: init


def made_later(
    make: Callable[_P, _Made], *arguments: _P.args, **options: _P.kwargs
) -> Callable[[], _Made]:
    """Give the call that makes the synchronous object; raises `TypeError` for wrong arguments."""
    signature(make).bind(*arguments, **options)
    return partial(make, *arguments, **options)


class LoopBound(ABC):
    """Belongs to the loop that opens it; every other use raises one clear `UsageError`."""

    def __init__(self) -> None:
        self._state = "new"
        self._loop: asyncio.AbstractEventLoop
        self._thread: int  # in which the loop runs
        self._threads: Threads
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> Self:
        """Connect, without blocking the loop; return self. `async with` does this, and closes.

        Raises what the constructor of the synchronous class raises. Cancelled: what was being
        opened is closed.
        """
        if self._state != "new":
            raise UsageError(f"this {type(self).__name__} was opened before; make another one")
        self._state = "opening"
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._threads = Threads(f"amcast-{type(self).__name__}", _THREADS)
        try:
            await self._open()
        except BaseException:
            self._state = "closed"
            self._threads.close()
            raise
        self._state = "open"
        return self

    async def close(self) -> None:
        """Release everything; may be called again. Cancelled: the closing goes on."""
        if self._state == "new":
            self._state = "closed"
        if self._closing is None and self._state != "closed":
            self.check_loop()
            self._state = "closed"
            self._closing = asyncio.create_task(self._close_all())
        if self._closing is not None:
            await asyncio.shield(self._closing)

    def check_loop(self) -> None:
        """Raise `UsageError` unless this is open, and the running loop is the one that opened it.

        This is on the way of every message. A thread runs one loop at a time, so what is asked is
        whether the own loop runs in this thread: `get_running_loop` asks the kernel for the
        process's number each time (Python 3.11), and takes more than twice as long.
        """
        if self._state == "open" and self._thread == get_ident() and self._loop.is_running():
            return
        name = type(self).__name__
        if self._state in ("new", "opening"):
            raise UsageError(f"this {name} is not open: use 'async with', or await its open()")
        if self._state == "closed":
            raise UsageError(f"this {name} is closed; open another one")
        raise UsageError(f"this {name} belongs to another event loop; open one in each loop")

    def check_opened(self) -> None:
        """Raise `UsageError` before `open`; from any thread."""
        if self._state in ("new", "opening"):
            self.check_loop()

    async def _close_all(self) -> None:
        try:
            await self._close()
        finally:
            self._threads.close()

    @abstractmethod
    async def _open(self) -> None:
        """Open the synchronous object, in a thread."""

    @abstractmethod
    async def _close(self) -> None:
        """Close it, in a thread, within a bounded time."""
