"""One Broadcast stream: envelopes in, one answer each, in their order; the first that is not
SUCCESS ends it.

Several envelopes are in flight at once: each is submitted as it is read, and answered when its
turn comes. An envelope that is refused for what it is is known before the next is read, so nothing
behind it is let in, as with Fabric. What follows one that could not be stored (503) may have been
in flight, and gets no answer: whether it is ordered is not known to the client.

In: a `Stream` of bytes and `Channels.submit`. No gRPC here.

Invariant: answered <= submitted <= answered + `IN_FLIGHT_MAX`, and of what is submitted and not
answered, all but one envelope fit into `BYTES_MAX`.
"""  # noqa: D205

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Protocol

from ordering_osn.api.channels import Channels, Status
from ordering_osn.api.responses import SUCCESS, status_answer

IN_FLIGHT_MAX = 256
BYTES_MAX = 16 << 20
_log = logging.getLogger("amcast.osn.broadcast")


class Stream(Protocol):
    """A stream of messages to and from one client. At most one read and one write at a time."""

    async def read(self) -> bytes | None:
        """Wait for the next message; None: the client sends no more."""

    async def write(self, message: bytes) -> None:
        """Send a message; returns when there is room for another (flow control)."""


class Panicked(Exception):
    """Submitting an envelope raised what nobody foresaw; this stream ends, no other does."""


class Broadcast:
    """One stream's life."""

    def __init__(self, channels: Channels, stream: Stream) -> None:
        self._channels = channels
        self._stream = stream
        self._open: deque[tuple[asyncio.Task[tuple[int, str]], int]] = deque()
        self._bytes = 0
        self._refused = False
        self._ended = False
        self._changed = asyncio.Event()

    async def serve(self) -> None:
        """Answer until the client ends, or until the first answer that is not SUCCESS.

        Raises `Panicked`. What was submitted goes on though the client went away.
        """
        reader = asyncio.create_task(self._read())
        reader.add_done_callback(_forget)
        try:
            while await self._answer_next():
                pass
        finally:
            reader.cancel()
            for task, _ in self._open:
                task.add_done_callback(_forget)

    async def _read(self) -> None:
        try:
            while (envelope := await self._stream.read()) is not None and not self._refused:
                self._bytes += len(envelope)
                task = asyncio.create_task(self._submit(envelope))
                self._open.append((task, len(envelope)))
                self._changed.set()
                while len(self._open) >= IN_FLIGHT_MAX or self._bytes > BYTES_MAX:
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            self._ended = True
            self._changed.set()

    async def _submit(self, envelope: bytes) -> tuple[int, str]:
        try:
            status, info = await self._channels.submit(envelope)
        except Exception as error:
            self._refused = True
            _log.exception("submitting an envelope failed; its stream ends")
            raise Panicked(f"{type(error).__name__}: {error}") from error
        self._refused |= status != Status.SUCCESS
        return status, info

    async def _answer_next(self) -> bool:
        while not self._open:
            if self._ended:
                return False
            self._changed.clear()
            await self._changed.wait()
        task, size = self._open[0]
        status, info = task.result() if task.done() else await asyncio.shield(task)
        self._open.popleft()
        self._bytes -= size
        self._changed.set()
        if status == Status.SUCCESS and not info:
            await self._stream.write(SUCCESS)
            return True
        await self._stream.write(status_answer(status, info))
        return status == Status.SUCCESS


def _forget(task: asyncio.Task[Any]) -> None:
    """Take note of the error of a task that nobody awaits: it was logged, or the client left."""
    if not task.cancelled():
        task.exception()
