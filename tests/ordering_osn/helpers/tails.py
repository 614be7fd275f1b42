"""Many tails of one chain, in a process of their own.

    python -m tests.ordering_osn.helpers.tails PORT TAILS STOP

Prints, as JSON, the numbers of the blocks that each tail got, and how many tails got just those.
"""

import asyncio
import collections
import contextlib
import json
import sys

from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.seek import seek_envelope
from ordering_osn.protos import Block
from tests.ordering_osn.helpers.chains import USER

CONNECTION_TAILS = 80  # below what a server allows a connection


async def follow(client, stop):
    """The numbers of the blocks from 1 to `stop`, and the status."""
    request = seek_envelope(USER, "chain-a", 1, stop)
    return [
        Block.FromString(answer).header.number if isinstance(answer, bytes) else answer
        async for answer in client.deliver(request, timeout_s=240)
    ]


async def main(port, tails, stop):
    async with contextlib.AsyncExitStack() as stack:
        clients = [NodeClient(f"127.0.0.1:{port}") for _ in range(-(-tails // CONNECTION_TAILS))]
        for client in clients:
            await stack.enter_async_context(client)
        following = (follow(clients[tail // CONNECTION_TAILS], stop) for tail in range(tails))
        found = await asyncio.gather(*following)
    counts = collections.Counter(json.dumps(one) for one in found)
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*(int(argument) for argument in sys.argv[1:])))
