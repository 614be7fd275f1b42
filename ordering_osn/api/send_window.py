"""The send window: a limit on the bytes that are being sent to readers at the same time.

gRPC copies each message and holds the copy until the reader has taken it, has left, or has lost its
connection (`connections.py`). So a block for thousands of readers is copied for as many of them as
the window allows, and for the others as these finish.

    party      a client and the chain that it reads. Its copies have at most a *share* of the
               window, and parties take turns. So no party fills the window alone, and nobody waits
               behind more than one message of each other party
    stalled    a message that is not sent within `STALLED_READER_S`: its reader has stopped reading,
               so it leaves the window. A party whose stalled copies fill a share gets no more;
               where those of all parties have `stalled_max` bytes, none of these does

Invariants: bytes in the window <= `bytes_max`, or the window holds one message alone;
            of each party <= `share_max`, or one message alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Hashable

from ordering_osn.api.broadcast import Stream
from ordering_osn.api.channels import Refused, Status

# The node's extra memory while it sends: a 2 MB block to 32 readers at a time. With ten times less,
# blocks of 10 MB (Fabric's default AbsoluteMaxBytes) would be sent to one reader after the other.
SENDING_BYTES_MAX = 64 << 20
# A reader on a working network takes a block in far less. Ten times more, and each stalled reader
# would hold up the others for 10 s; ten times less, and slow networks would escape the limit.
STALLED_READER_S = 1.0
# Of all parties: 128 readers with a block of 2 MB each.
STALLED_BYTES_MAX = 256 << 20
Party = Hashable


class SendWindow:
    """A party's messages first come, first served; all calls on one event loop."""

    def __init__(
        self,
        *,
        bytes_max: int = SENDING_BYTES_MAX,
        share_max: int = SENDING_BYTES_MAX // 2,
        stalled_max: int = STALLED_BYTES_MAX,
    ) -> None:
        self._bytes_max, self._share_max, self._stalled_max = bytes_max, share_max, stalled_max
        self._bytes = 0
        self._shares: Counter[Party] = Counter()
        self._waiting: dict[Party, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._stalled: Counter[Party] = Counter()

    async def send(self, stream: Stream, message: bytes, party: Party) -> None:
        """Wait until the window has space for the message, then write it to the stream.

        Raises `Refused` 503 where too many readers of the party have stopped reading.
        """
        size = len(message)
        await self._wait_for_space(party, size)
        share = [size]
        timer = asyncio.get_running_loop().call_later(STALLED_READER_S, self._stand, party, share)
        try:
            await stream.write(message)
        finally:
            timer.cancel()
            if share:
                self._give_back(party, share.pop())
            else:
                _subtract(self._stalled, party, size)

    async def _wait_for_space(self, party: Party, size: int) -> None:
        self._refuse_stalled(party)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(party, deque()).append((size, turn))
        self._admit()
        try:
            await turn  # at once where there is space: it has its result then
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.exception() is None:
                self._give_back(party, size)
            raise

    def _refuse_stalled(self, party: Party) -> None:
        stalled, others = self._stalled.get(party, 0), sum(self._stalled.values())
        if stalled >= self._share_max or (stalled and others >= self._stalled_max):
            raise Refused(
                Status.SERVICE_UNAVAILABLE,
                f"streams of this client have stopped reading, with {stalled} bytes: end those",
            )

    def _stand(self, party: Party, share: list[int]) -> None:
        """Move a message out of the window to the stalled ones (`share` is empty then)."""
        size = share.pop()
        self._stalled[party] += size
        try:
            self._refuse_stalled(party)
        except Refused as refused:
            for _, turn in self._waiting.pop(party, ()):
                if not turn.done():
                    turn.set_exception(refused)
        self._give_back(party, size)

    def _give_back(self, party: Party, size: int) -> None:
        """Take a message out of the window; admit those that fit."""
        self._bytes -= size
        _subtract(self._shares, party, size)
        self._admit()

    def _admit(self) -> None:
        """Let parties take turns while there is space; one that has its share is passed over."""
        while self._waiting:
            for party, queue in self._waiting.items():
                while queue and queue[0][1].cancelled():
                    queue.popleft()
                if queue and not _fits(queue[0][0], self._shares.get(party, 0), self._share_max):
                    continue
                if queue and not _fits(queue[0][0], self._bytes, self._bytes_max):
                    return
                break
            else:
                return
            del self._waiting[party]
            if queue:
                size, turn = queue.popleft()
                self._bytes += size
                self._shares[party] += size
                turn.set_result(None)
                if queue:
                    self._waiting[party] = queue  # behind the others


def _fits(size: int, held: int, most: int) -> bool:
    return held == 0 or held + size <= most


def _subtract(sizes: Counter[Party], party: Party, size: int) -> None:
    sizes[party] -= size
    if not sizes[party]:
        del sizes[party]
