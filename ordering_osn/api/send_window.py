"""A limit on the bytes that are being sent to readers: many may be served at once, not all at once.

gRPC copies what is sent and holds the copy until the reader takes it; it cannot be told to let go.
So a block for thousands of readers is copied for as many of them as have room, and for the next as
they finish. What has not gone out after `STALLED_READER_S` counts no longer: its reader has stopped
reading, and the others must not wait for it. (It still holds its one block.)

Invariant: counted bytes <= `bytes_max`, or one answer alone.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ordering_osn.api.broadcast import Stream

BYTES_MAX = 64 << 20
STALLED_READER_S = 1.0


class SendWindow:
    """First come, first served; on one event loop."""

    def __init__(self, *, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def send(self, stream: Stream, message: bytes) -> None:
        """Write the message once there is room for it."""
        size = len(message)
        if self._waiting or not self._fits(size):
            await self._wait_for_space(size)
        else:
            self._bytes += size
        share = [size]
        timer = asyncio.get_running_loop().call_later(STALLED_READER_S, self._give_back, share)
        try:
            await stream.write(message)
        finally:
            timer.cancel()
            self._give_back(share)

    def _fits(self, size: int) -> bool:
        return self._bytes == 0 or self._bytes + size <= self._bytes_max

    async def _wait_for_space(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._give_back([size])
            raise

    def _give_back(self, share: list[int]) -> None:
        """Give a share back, once: it is empty then."""
        if share:
            self._bytes -= share.pop()
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.cancelled():
                if not self._fits(size):
                    return
                self._bytes += size
                turn.set_result(None)
            self._waiting.popleft()
