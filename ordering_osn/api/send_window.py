"""The send window: a limit on the bytes that are being sent to readers at the same time.

gRPC copies each message and holds the copy until the reader has taken it; a copy cannot be
withdrawn. So a block for thousands of readers is copied for as many of them as the window allows,
and for the others as these finish. A message that is not sent within `STALLED_READER_S` leaves the
window: its reader has stopped reading, and the others must not wait for it. (The copy stays.)

Invariant: bytes in the window <= `bytes_max`, or the window holds one message alone.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ordering_osn.api.broadcast import Stream

# The node's extra memory while it sends: a 2 MB block to 32 readers at a time. With ten times less,
# blocks of 10 MB (Fabric's default AbsoluteMaxBytes) would be sent to one reader after the other.
SENDING_BYTES_MAX = 64 << 20
# A reader on a working network takes a block in far less. Ten times more, and each stalled reader
# would hold up the others for 10 s; ten times less, and slow networks would escape the limit.
STALLED_READER_S = 1.0


class SendWindow:
    """First come, first served; all calls on one event loop."""

    def __init__(self, *, bytes_max: int = SENDING_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def send(self, stream: Stream, message: bytes) -> None:
        """Wait until the window has space for the message, then write it to the stream."""
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
        """Take a message out of the window, once (`share` is empty then); admit those that fit."""
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
