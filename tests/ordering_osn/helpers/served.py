"""A node on a log in memory, served over gRPC in the test's process, and its clients."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.seek import seek_envelope
from ordering_osn.node.registrar import Registrar
from ordering_osn.protos import Block
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.chains import serving


@asynccontextmanager
async def served(node: Registrar):
    """Serve a node on the loopback; give its address."""
    async with serving(node, metrics=node.metrics) as server:
        yield f"127.0.0.1:{server.port}"


@asynccontextmanager
async def client_of(node: Registrar):
    """Serve a node; give a client of it."""
    async with served(node) as address, NodeClient(address) as client:
        yield client


async def broadcast(client: NodeClient, *sent: bytes) -> list[int]:
    """Broadcast on one stream; give the statuses, as many as came."""
    return [status async for status, _ in client.broadcast(sent, timeout_s=60.0)]


async def delivered(client: NodeClient, chain: str, start, stop, *, signer=None, **options) -> list:
    """Deliver from one position to another; give blocks, and the status that ended it."""
    request = seek_envelope(signer or configs.org_user(), chain, start, stop, **options)
    async with asyncio.timeout(60.0):
        return [
            answer if isinstance(answer, int) else Block.FromString(answer)
            async for answer in client.deliver(request)
        ]
