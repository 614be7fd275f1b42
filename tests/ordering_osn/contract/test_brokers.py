"""Three nodes on three brokers that are frozen and killed: the answers, and the recovery."""

import asyncio
import signal
from contextlib import contextmanager

import pytest

from multicast.control import log_partition
from multicast.drivers.kafka import Admin
from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.seek import seek_envelope
from ordering_osn.protos import Block
from tests.helpers.small import until
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.small import chains_plan, quick, transaction
from tests.ordering_osn.node.test_cluster import network, transactions

pytestmark = pytest.mark.timeout(900)
PATIENCE_S = 240.0  # stops a hang, no more
BROKERS = {1, 2, 3}


@pytest.fixture(scope="module")
def net(kafka_cluster_of_three, tmp_path_factory):
    cluster = kafka_cluster_of_three
    cluster.start()
    folder = tmp_path_factory.mktemp("brokers")
    raws = [quick("chain-a", timeout="60s"), quick("chain-b", timeout="50ms")]
    with network(cluster, folder, chains_plan("chain-a", "chain-b"), *raws) as running:
        running.cluster = cluster
        yield running


@pytest.fixture(autouse=True)
def whole(net):
    """Let each test begin with all brokers and all nodes well."""
    net.cluster.start()
    net.nodes.wait_healthy(PATIENCE_S)


def leader(net, chain):
    """Give the broker that leads the log of a chain."""
    at = log_partition(net.system.plan.log(chain))
    with Admin(net.system.bootstrap) as admin:
        return admin.holders([at.topic])[at.topic][at.partition][1]


def height(net, number, chain):
    return net.nodes.heights(number)[chain]


def taken(net, number, envelope):
    """Send to a node until it is accepted; sent twice, it is ordered once."""
    net.send_all(number, envelope)
    return envelope


def blocked(net):
    """Give a transaction that is answered 503, and that no node has in a block by then.

    It may be ordered later all the same: where the brokers come back, they may still hold it.
    """
    doubtful = transaction("chain-b")
    answers = until(lambda: net.send(0, doubtful), PATIENCE_S, 0.2)
    assert answers == [503]
    assert doubtful not in ordered(net, "chain-b")
    return doubtful


def ordered(net, chain):
    """Give what stands in a node's blocks; best effort, for its log may be away."""

    async def read():
        request = seek_envelope(configs.org_user(), chain, "oldest", "newest", best_effort=True)
        async with NodeClient(net.nodes.addresses[0]) as client:
            return [one async for one in client.deliver(request, timeout_s=PATIENCE_S)]

    *found, status = asyncio.run(read())
    assert status == 200
    return transactions([Block.FromString(raw) for raw in found])


def settled(net, everything, doubtful):
    """Wait until all nodes have everything, in its order, and what is doubtful once or not."""
    net.nodes.wait_healthy(PATIENCE_S)
    until(lambda: everything[-1] in ordered(net, "chain-b"), PATIENCE_S, 0.2)
    found = ordered(net, "chain-b")
    assert [one for one in found if one not in doubtful] == everything
    net.until_ordered("chain-b", len(found))


@contextmanager
def frozen(net, number):
    """Stop a node's process where it is, for a while."""
    process = net.nodes._processes[number]
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def test_s1_tens_of_messages_on_three_brokers_while_each_node_is_frozen_in_turn(net):
    sent = []
    for number, count in enumerate((20, 40, 60)):
        with frozen(net, number):
            some = [transaction("chain-a") for _ in range(count)]
            assert net.send((number + 1) % 3, *some) == [200] * count
            sent += some
        assert net.until_ordered("chain-a", len(sent)) == sent
        assert [len(net.deliver(each, "chain-a")) for each in range(3)] == [1 + len(sent) // 10] * 3

    async def seek():
        request = seek_envelope(configs.org_user(), "chain-a", "oldest", 2)
        async with NodeClient(net.nodes.addresses[0]) as client:
            return [one async for one in client.deliver(request, request, timeout_s=PATIENCE_S)]

    *found, status = asyncio.run(seek())
    assert status == 200
    assert found[:3] == found[4:]
    assert [Block.FromString(raw).header.number for raw in found[:3]] == [0, 1, 2]


def test_k31_s2_s5_blocks_flow_on_when_the_leader_dies_and_when_all_brokers_were_away(net):
    start = height(net, 1, "chain-b")
    before = ordered(net, "chain-b")
    first = [transaction("chain-b") for _ in range(5)]
    then = [transaction("chain-b") for _ in range(5)]
    dead = []

    async def read():
        """Read ten blocks on one stream; the leader dies after the fifth."""
        request = seek_envelope(configs.org_user(), "chain-b", start, start + 9, best_effort=True)
        blocks = []
        async with NodeClient(net.nodes.addresses[1]) as client:
            stream = client.deliver(request, timeout_s=PATIENCE_S)
            for number, envelope in enumerate([*first, *then]):
                if number == 5:
                    dead.append(leader(net, "chain-b"))
                    await asyncio.to_thread(net.cluster.kill, dead[0])
                await asyncio.to_thread(taken, net, 0, envelope)
                blocks.append(Block.FromString(await anext(stream)))
            assert [status async for status in stream] == [200]
        return blocks

    blocks = asyncio.run(read())
    assert [list(block.data.data) for block in blocks] == [
        [envelope] for envelope in [*first, *then]
    ]
    # Only the leader is left of two brokers: it still reports that enough replicas are in sync.
    net.nodes.wait_healthy(PATIENCE_S)
    left = leader(net, "chain-b")
    (third,) = BROKERS - {left, dead[0]}
    net.cluster.kill(third)
    for number in range(3):
        until(lambda: "chain-b/0" in net.unhealthy(number), PATIENCE_S, 0.2)  # noqa: B023
    net.cluster.kill(left)
    doubtful = [blocked(net)]
    net.cluster.start()
    last = taken(net, 2, transaction("chain-b"))
    settled(net, [*before, *first, *then, last], doubtful)


def test_s4_without_the_leader_all_goes_on_with_one_broker_nothing_and_with_two_again(net):
    before = ordered(net, "chain-b")
    leading = leader(net, "chain-b")
    following = min(BROKERS - {leading})
    sent = []
    net.cluster.pause(leading)
    sent.append(taken(net, 0, transaction("chain-b")))
    net.cluster.pause(following)
    doubtful = [blocked(net)]
    net.cluster.resume(following)
    sent.append(taken(net, 1, transaction("chain-b")))
    net.cluster.resume(leading)
    sent.append(taken(net, 2, transaction("chain-b")))
    settled(net, [*before, *sent], doubtful)
