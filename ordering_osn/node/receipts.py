"""The clients that wait until a transaction of one chain is in a durable block.

Clients wait on the event loop; the chain's thread reports each block. A receipt is the
transaction's place: (block, index).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

Place = tuple[int, int]


class PendingReceipts:
    """The clients that wait for one chain's transactions."""

    def __init__(self, find: Callable[[str], Place | None]) -> None:
        """`find` gives the place of a transaction that is in a durable block already."""
        self._find = find
        self._lock = threading.Lock()
        self._waiting: dict[str, list[tuple[asyncio.AbstractEventLoop, asyncio.Future[Place]]]] = {}

    async def place_of(self, transaction: str, timeout_s: float) -> Place | None:
        """Wait until a transaction is in a durable block; None where time ran out."""
        # First wait, then look: so a block that is written in between is not missed.
        receipt = self._wait(transaction)
        try:
            place = self._find(transaction)
            if place is not None:
                return place
            async with asyncio.timeout(timeout_s):
                return await receipt
        except TimeoutError:
            return None
        finally:
            self._forget(transaction, receipt)

    def written(self, block: int, transactions: Sequence[str]) -> None:
        """Give the receipts for a durable block's transactions. On the chain's thread."""
        if not self._waiting:
            return
        receipts = []
        with self._lock:
            for index, transaction in enumerate(transactions):
                for loop, future in self._waiting.pop(transaction, ()):
                    receipts.append((loop, future, (block, index)))
        for loop, future, place in receipts:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future, place)

    def _wait(self, transaction: str) -> asyncio.Future[Place]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Place] = loop.create_future()
        with self._lock:
            self._waiting.setdefault(transaction, []).append((loop, future))
        return future

    def _forget(self, transaction: str, future: asyncio.Future[Place]) -> None:
        with self._lock:
            left = [entry for entry in self._waiting.pop(transaction, []) if entry[1] is not future]
            if left:
                self._waiting[transaction] = left


def _resolve(future: asyncio.Future[Place], place: Place) -> None:
    if not future.done():
        future.set_result(place)
