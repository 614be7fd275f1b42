"""A broker that is killed and loses the end of a chain's log or order: no two nodes' blocks differ.

Both nodes stop by name: one that was there, and one that was behind and starts afterwards.
"""

import asyncio
import random

import pytest

from multicast.control import log_partition, stream_partition
from multicast.local.cluster import LocalCluster
from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.seek import seek_envelope
from ordering_osn.protos import Block
from tests.helpers.cuts import cut, in_second_half
from tests.helpers.small import until
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.small import LONE, SHARED, quick, transaction
from tests.ordering_osn.node.test_cluster import PATIENCE_S, network

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.campaign,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


def blocks(net, number):
    """Give header and data of all blocks of a node, also while it is in trouble."""

    async def go():
        request = seek_envelope(configs.org_user(), "chain-a", "oldest", "newest", best_effort=True)
        async with NodeClient(net.nodes.addresses[number]) as client:
            return [answer async for answer in client.deliver(request, timeout_s=PATIENCE_S)]

    *raws, status = asyncio.run(go())
    assert status == 200
    found = map(Block.FromString, raws)
    return [(b.header.SerializeToString(), b.data.SerializeToString()) for b in found]


@pytest.mark.parametrize("what", ["log", "order"])
def test_nodes_stop_with_the_same_blocks(tmp_path, what):
    plan = SHARED if what == "order" else LONE
    raws = [quick(name, timeout="50ms") for name in plan.partitions]
    with (
        LocalCluster(brokers=1) as cluster,
        network(cluster, tmp_path, plan, *raws, nodes=2) as net,
    ):
        # Init: node 1 is behind.
        net.send_all(0, *[transaction() for _ in range(5)])
        net.until_ordered("chain-a", 5)
        net.nodes.kill(1)
        for _ in range(10):  # a batch each
            net.send_all(0, transaction())
        until(lambda: len(net.ordered("chain-a")) == 15, PATIENCE_S, 0.1)
        # Test
        at = log_partition(net.system.plan.log("chain-a"))
        if what == "order":
            at = stream_partition(net.system.plan, net.system.plan.collectors[0].name)
        cluster.kill(1)
        (broker,) = cluster._need().brokers
        cut([broker.data], *at, in_second_half(random.Random(what)))
        cluster.restart(1)
        net.nodes.start(1)
        for _ in range(5):
            net.send(0, transaction())
        # Check
        until(lambda: "(Truncated)" in net.unhealthy(1), PATIENCE_S, 0.2)
        until(lambda: "(Truncated)" in net.unhealthy(0), PATIENCE_S, 0.2)
        assert blocks(net, 0) == blocks(net, 1)
        net.restart(1)
        until(lambda: "(Truncated)" in net.unhealthy(1), PATIENCE_S, 0.2)
        assert blocks(net, 0) == blocks(net, 1)
