"""Fabric's traffic engine, small: P producers to C channels through N nodes, in memory.

It passes where every node delivers, for each channel, all that was acknowledged, once, in at least
as many blocks as full batches would be, and all nodes the same blocks.
"""

import asyncio
import itertools
from contextlib import AsyncExitStack

import pytest

from ordering_osn.api.grpc_client import NodeClient
from tests.ordering_osn.helpers.served import broadcast, served
from tests.ordering_osn.helpers.small import (
    Nodes,
    blocks,
    chains_plan,
    healthy,
    quick,
    transaction,
    until_alike,
    until_ordered,
)

pytestmark = pytest.mark.slow

# Row: producers, channels, nodes, batch, transactions of each producer, bytes of a payload.
MATRIX = {
    "11 transactions": (1, 1, 1, 10, 11, 1),
    "three channels": (6, 3, 3, 10, 20, 1),
    "large batches": (6, 3, 3, 500, 40, 1),
    "10 kB payloads": (3, 3, 3, 10, 20, 10_000),
    "eight channels on four nodes": (8, 8, 4, 10, 11, 1),
}


@pytest.mark.parametrize("row", MATRIX)
def test_s7_every_node_delivers_all_that_was_acknowledged(tmp_path, row):
    producers, channels, nodes, batch, count, size = MATRIX[row]
    names = [f"chain-{number}" for number in range(channels)]
    raws = [quick(name, timeout="30ms", max_message_count=batch) for name in names]

    async def produce(number, address):
        """Send to one channel through one node, on one stream."""
        chain = names[number % channels]
        padding = b"x" * size
        sent = [transaction(chain, data=b"%d %d " % (number, n) + padding) for n in range(count)]
        async with NodeClient(address) as client:
            assert await broadcast(client, *sent) == [200] * count
        return chain, sent

    async def traffic(running):
        async with AsyncExitStack() as stack:
            addresses = [await stack.enter_async_context(served(node)) for node in running]
            pairs = zip(range(producers), itertools.cycle(addresses), strict=False)
            return await asyncio.gather(*[produce(number, at) for number, at in pairs])

    with Nodes(chains_plan(*names), tmp_path) as osn:
        running = [osn.start(f"n{number}", *raws) for number in range(nodes)]
        healthy(*running)
        acknowledged = {name: [] for name in names}
        streams = asyncio.run(traffic(running))
        for chain, sent in streams:
            acknowledged[chain] += sent
        for name, sent in acknowledged.items():
            for node in running:
                assert sorted(until_ordered(node, len(sent), name)) == sorted(sent)
                sizes = [len(block.data.data) for block in blocks(node, name)[1:]]
                assert len(sizes) >= -(-len(sent) // batch)
                assert max(sizes) <= batch
            until_alike(*running, chain=name)
        # The transactions of one stream are ordered as they were sent.
        for chain, sent in streams:
            found = until_ordered(running[0], len(acknowledged[chain]), chain)
            assert [one for one in found if one in set(sent)] == sent
