"""Who waits for a transaction to stand in a block of one chain.

Goes in: clients that wait (on the event loop), blocks as they are written (on the chain's thread).
Comes out: for each transaction its place, (block, index). A transaction that was written before a
client came is looked up by the caller: ask `wait` first, look up then, so that none falls between.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

Place = tuple[int, int]


class PendingReceipts:
    """The clients that wait for one chain's transactions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[tuple[asyncio.AbstractEventLoop, asyncio.Future[Place]]]] = {}

    def wait(self, transaction: str) -> asyncio.Future[Place]:
        """Give a future that has the transaction's place once a block with it is written.

        Call `forget` when it is no longer waited for. On the event loop only.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Place] = loop.create_future()
        with self._lock:
            self._waiting.setdefault(transaction, []).append((loop, future))
        return future

    def forget(self, transaction: str, future: asyncio.Future[Place]) -> None:
        """Wait for this no longer."""
        with self._lock:
            left = [one for one in self._waiting.pop(transaction, []) if one[1] is not future]
            if left:
                self._waiting[transaction] = left

    def written(self, block: int, transactions: Sequence[str]) -> None:
        """Tell who waits for one of a block's transactions. On the chain's thread."""
        if not self._waiting:
            return
        found = []
        with self._lock:
            for index, transaction in enumerate(transactions):
                for loop, future in self._waiting.pop(transaction, ()):
                    found.append((loop, future, (block, index)))
        for loop, future, place in found:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future, place)


def _resolve(future: asyncio.Future[Place], place: Place) -> None:
    if not future.done():
        future.set_result(place)
