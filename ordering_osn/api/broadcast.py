"""One Broadcast stream: answers each envelope in order; the first answer but SUCCESS ends it.

Each envelope is submitted (`Channels.submit`) as it is read and answered in its turn, so several
are in flight at once. An envelope that is refused for its content is refused before the next one
is read, so no later envelope is ordered, as with Fabric. Behind an envelope that could not be
stored (503), others may have been in flight: they get no answer, and the client does not know
whether they are ordered.

No gRPC here: the stream is a `Stream` of bytes.

Invariant: answered <= submitted <= answered + `IN_FLIGHT_MAX`; the envelopes in flight, all but
the newest, have at most `IN_FLIGHT_BYTES_MAX` bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Protocol

from ordering_osn.api.channels import Channels, Status
from ordering_osn.api.responses import SUCCESS, status_answer

# Envelopes. At 10 ms for an acknowledgement by all replicas, one stream reaches 25,600 envelopes/s,
# more than a node verifies. With ten times less, the round trip to Kafka could be the limit; with
# ten times more, ten times as many envelopes would get no answer behind one that failed.
IN_FLIGHT_MAX = 256
# Above Fabric's default for the largest envelope (AbsoluteMaxBytes, 10 MB), so the next envelope is
# read while one of that size is stored. Each stream may hold so much memory.
IN_FLIGHT_BYTES_MAX = 16 << 20
_log = logging.getLogger("amcast.osn.broadcast")


class Stream(Protocol):
    """A stream of messages to and from one client. At most one read and one write at a time."""

    async def read(self) -> bytes | None:
        """Wait for the next message; None once the client has ended its side."""

    async def write(self, message: bytes) -> None:
        """Send a message; returns when flow control allows another."""


class Panicked(Exception):
    """Submitting an envelope raised an unexpected error; this stream ends, others go on."""


class Broadcast:
    """One stream, from its first envelope to its end."""

    def __init__(self, channels: Channels, stream: Stream) -> None:
        self._channels = channels
        self._stream = stream
        self._open: deque[tuple[asyncio.Task[tuple[int, str]], int]] = deque()
        self._bytes = 0
        self._refused = False
        self._ended = False
        self._changed = asyncio.Event()

    async def serve(self) -> None:
        """Answer until the client ends the stream, or until the first answer but SUCCESS.

        Raises `Panicked`. Envelopes that were submitted are ordered even if the client leaves.
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
                while len(self._open) >= IN_FLIGHT_MAX or self._bytes > IN_FLIGHT_BYTES_MAX:
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
    """Retrieve a task's error, so that asyncio does not log it: it is logged, or nobody waits."""
    if not task.cancelled():
        task.exception()
