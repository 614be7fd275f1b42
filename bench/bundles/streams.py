"""Broadcast to all nodes for transactions of one chain: what one node does not take, another gets.

submit     one envelope, until a node answers 200; the same bytes to the next node after an
answer 503, and where a stream ends before the answer. A node that did order it
recognizes the copy by its transaction ID
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from typing import Self

from multicast.errors import AmcastError
from ordering_osn.api.channels import Status
from ordering_osn.api.grpc_server import NodeClient

_AGAIN_S = 0.2  # after no node took it: short compared with a node's restart


class TransactionRefused(AmcastError):
    """A node refused a transaction for good; the text has the status and the reason."""


class NodeStreams:
    """A connection to each node, a stream for each envelope; an async context manager."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._nodes = [NodeClient(address) for address in addresses]
        self._turns = itertools.cycle(self._nodes)

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as opened:
            for node in self._nodes:
                await opened.enter_async_context(node)
            self._opened = opened.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    async def submit(self, envelope: bytes) -> None:
        """Return once a node has answered 200; tries for ever. Raises `TransactionRefused`."""
        while True:
            for _ in self._nodes:
                status, info = await _answer_of(next(self._turns), envelope)
                if status == Status.SUCCESS:
                    return
                if status != Status.SERVICE_UNAVAILABLE:
                    raise TransactionRefused(f"a transaction was answered {status}: {info}")
            await asyncio.sleep(_AGAIN_S)


async def _answer_of(node: NodeClient, envelope: bytes) -> tuple[int, str]:
    """Send an envelope; returns its status, 503 where the stream ended before the answer."""
    try:
        answers = [answer async for answer in node.broadcast([envelope])]
    except (AmcastError, OSError) as error:
        return Status.SERVICE_UNAVAILABLE, str(error)
    return answers[0] if answers else (Status.SERVICE_UNAVAILABLE, "the stream has ended")
