"""Many tails of one chain, in a process of their own.

    python -m tests.ordering_osn.helpers.tails PORT TAILS STOP

Prints, as JSON, the numbers of the blocks that each tail got, and how many tails got just those.
"""

import asyncio
import collections
import json
import sys

from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.seek import seek_envelope
from ordering_osn.protos import Block
from tests.ordering_osn.helpers.chains import USER


async def follow(client, stop):
    """The numbers of the blocks from 1 to `stop`, and the status."""
    request = seek_envelope(USER, "chain-a", 1, stop)
    return [
        Block.FromString(answer).header.number if isinstance(answer, bytes) else answer
        async for answer in client.deliver(request, timeout_s=240)
    ]


async def main(port, tails, stop):
    async with NodeClient(f"127.0.0.1:{port}") as client:
        found = await asyncio.gather(*(follow(client, stop) for _ in range(tails)))
    counts = collections.Counter(json.dumps(one) for one in found)
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*(int(argument) for argument in sys.argv[1:])))
