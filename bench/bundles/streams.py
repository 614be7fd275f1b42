"""Streams to the nodes for transactions of one chain: what one node does not take, another gets.

submit     one envelope, until a node answers 200; the same bytes to the next node after an
answer 503, and where a stream ends before the answer. A node that did order it
recognizes the copy by its transaction ID
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Self

from multicast.errors import AmcastError
from ordering_osn.api.channels import Status
from ordering_osn.api.grpc_server import NodeClient

_RECONNECT_S = 0.2  # between attempts to reach a node that is down: short compared with a restart


class TransactionRefused(AmcastError):
    """A node refused a transaction for good; the text has the status and the reason."""


class NodeStreams:
    """One Broadcast stream to each node; an async context manager. For one event loop."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._streams = [_NodeStream(address) for address in addresses]
        self._turns = itertools.cycle(self._streams)
        self.repeated = 0

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(stream.keep()) for stream in self._streams]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def submit(self, envelope: bytes) -> None:
        """Return once a node has answered 200; tries for ever. Raises `TransactionRefused`."""
        while True:
            stream = await self._open_stream()
            status, info = await stream.ask(envelope)
            if status == Status.SUCCESS:
                return
            if status != Status.SERVICE_UNAVAILABLE:
                raise TransactionRefused(f"a transaction was answered {status}: {info}")
            self.repeated += 1

    async def _open_stream(self) -> _NodeStream:
        while True:
            for _ in self._streams:
                stream = next(self._turns)
                if stream.is_open:
                    return stream
            await asyncio.sleep(_RECONNECT_S)


class _NodeStream:
    """The stream to one node, reopened whenever it ends."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._waiting: asyncio.Queue[tuple[bytes, asyncio.Future[tuple[int, str]]]] = (
            asyncio.Queue()
        )
        self._unanswered: deque[asyncio.Future[tuple[int, str]]] = deque()
        self.is_open = True

    async def ask(self, envelope: bytes) -> tuple[int, str]:
        """Send an envelope; returns its status, 503 where the stream ended before the answer."""
        answer: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((envelope, answer))
        return await answer

    async def keep(self) -> None:
        """Keep the stream open."""
        while True:
            why = "the stream has ended"
            try:
                async with NodeClient(self._address) as client:
                    self.is_open = True
                    async for status, info in client.broadcast(self._feed(), timeout_s=3600.0):
                        _settle(self._unanswered.popleft(), status, info)
            except (AmcastError, OSError) as error:
                why = str(error)
            self.is_open = False
            while self._unanswered:
                _settle(self._unanswered.popleft(), Status.SERVICE_UNAVAILABLE, why)
            while not self._waiting.empty():
                _settle(self._waiting.get_nowait()[1], Status.SERVICE_UNAVAILABLE, why)
            await asyncio.sleep(_RECONNECT_S)

    async def _feed(self) -> AsyncIterator[bytes]:
        while True:
            envelope, answer = await self._waiting.get()
            self._unanswered.append(answer)
            yield envelope


def _settle(answer: asyncio.Future[tuple[int, str]], status: int, info: str) -> None:
    if not answer.done():
        answer.set_result((status, info))
