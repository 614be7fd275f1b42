"""Kafka loses the end of a chain's log, or of its order: a node stops by name, and none forks."""

import asyncio

import pytest

from multicast.control import loss_record, stream_partition
from ordering_osn.api.channels import Status
from ordering_osn.chain.records import Regular, RegularKind, encode
from ordering_osn.node.catch_up import NoPeer
from tests.collectors.core.test_recover import recovered
from tests.helpers.small import until
from tests.ordering_osn.helpers.served import client_of, delivered
from tests.ordering_osn.helpers.small import (
    LONE,
    SHARED,
    Nodes,
    accepted,
    chain_of,
    healthy,
    log_of,
    ordered,
    quick,
    submit,
    transaction,
    until_alike,
    until_ordered,
)

pytestmark = pytest.mark.slow
RAW = quick(timeout="60s", max_message_count=5)  # only full batches are cut
RAW_B = quick("chain-b", timeout="60s", max_message_count=5)


class Peers:
    """The other nodes of a test, as sources of blocks; those in `away` do not answer."""

    def __init__(self, osn, *names):
        self.osn = osn
        self.names = names
        self.away = set()
        self.requests = 0

    def blocks(self, peer, channel, start):
        self.requests += 1
        if peer in self.away:
            raise NoPeer(f"{peer} is away")
        ledger = self.osn.nodes[peer].get(channel).ledger
        return (ledger.read(number) for number in range(start, ledger.height))


def put(osn, *sent, chain="chain-a"):
    """Store transactions in a chain's log, as a node would."""
    for envelope in sent:
        osn.small.log.write(log_of(osn, chain), encode(Regular(envelope, 0, RegularKind.NORMAL)))


def transactions(count, chain="chain-a"):
    return [transaction(chain) for _ in range(count)]


def reason(node, chain="chain-a"):
    """What the health check says of a chain; empty where it is healthy."""
    return dict(node.health()).get(f"{chain}/0", "")


def stopped(*nodes, chain="chain-a"):
    until(lambda: all("(Truncated)" in reason(node, chain) for node in nodes))


def lost_tail(node, chain="chain-a"):
    """Read the metric."""
    return node.metrics.lost_tail.labels(chain)._value.get()


# -- one node -------------------------------------------------------------------------------


def test_a_node_whose_blocks_hold_what_its_log_lost_stops_this_chain_by_name_at_each_start(
    tmp_path,
):
    with Nodes(SHARED, tmp_path) as osn:
        # Init: a block whose last transaction the log then loses, while the node is down.
        node = osn.running("n1", RAW, RAW_B)
        accepted(node, *transactions(5))
        until_ordered(node, 5)
        before = chain_of(node)
        osn.stop("n1")
        end = osn.small.driver.last_stable_offsets([log_of(osn)])[log_of(osn)]
        osn.small.log.lose(log_of(osn), end - 4)
        put(osn, *transactions(10))
        for _ in range(2):
            # Test
            node = osn.start("n1")
            # Check: the chain has stopped, and says why; another one goes on.
            stopped(node)
            assert "log chain-a" in reason(node) or "chains/0" in reason(node)
            assert lost_tail(node) == 1
            ((status, info),) = submit(node, transaction())
            assert status == Status.SERVICE_UNAVAILABLE
            assert "(Truncated)" in info
            asyncio.run(readers_are_told(node))
            assert chain_of(node) == before
            until(lambda node=node: not reason(node, "chain-b"))
            osn.stop("n1")


async def readers_are_told(node):
    async with client_of(node) as client:
        assert (await delivered(client, "chain-a", 0, 1)) == [Status.SERVICE_UNAVAILABLE]
        first, second, status = await delivered(client, "chain-a", 0, 1, best_effort=True)
        assert (first.header.number, second.header.number, status) == (0, 1, Status.SUCCESS)


def test_a_node_that_follows_its_log_stops_where_another_record_takes_the_place_of_one(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        node = osn.running("n1", RAW)
        accepted(node, *transactions(7))
        until_ordered(node, 5)
        until(lambda: node.get("chain-a").order._ordered.get("chain-a") == 7)
        osn.small.log.lose(log_of(osn), 6)
        put(osn, *transactions(6))
        stopped(node)
        assert len(ordered(node)) == 5


def test_a_node_whose_order_was_lost_stops_and_does_so_after_a_restart(tmp_path):
    with Nodes(SHARED, tmp_path) as osn:
        node = osn.running("n1", RAW, RAW_B)
        accepted(node, *transactions(5))
        until_ordered(node, 5)
        order = stream_partition(osn.plan, osn.plan.collectors[0].name)
        end = osn.small.driver.last_stable_offsets([order])[order]
        osn.stop("n1")
        osn.small.log.lose(order, end - 1)
        before = osn.start("n1")
        stopped(before)
        osn.stop("n1")
        again = osn.start("n1")
        stopped(again)
        assert len(ordered(again)) == 5


def test_an_idle_checkpoint_that_the_log_lost_costs_nothing(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        # Init: a record without effect behind the last block, which the node has read.
        node = osn.running("n1", RAW)
        accepted(node, *transactions(5))
        until_ordered(node, 5)
        osn.small.log.write(log_of(osn), b"no record of a chain")
        until(lambda: node.metrics.records_ignored.value("chain-a", "unparseable") == 1)
        osn.stop("n1")
        osn.small.log.lose(log_of(osn), 5)
        sent = transactions(5)
        put(osn, *sent)
        # Test, check
        node = osn.running("n1")
        assert until_ordered(node, 10)[5:] == sent


# -- several nodes --------------------------------------------------------------------------


def cut_while_behind(osn):
    """Have n1 write two blocks, n2 one; lose the end of the log, and put others there."""
    ahead, behind = osn.start("n1", RAW), osn.start("n2", RAW)
    healthy(ahead, behind)
    accepted(ahead, *transactions(5))
    until_ordered(behind, 5)
    osn.stop("n2")
    accepted(ahead, *transactions(5))
    until_ordered(ahead, 10)
    osn.small.log.lose(log_of(osn), 7)
    put(osn, *transactions(4))
    return ahead


@pytest.mark.parametrize(("name", "joined"), [("n2", ()), ("new", (RAW,))])
def test_a_node_behind_takes_the_blocks_of_its_peers_before_it_cuts_one(tmp_path, name, joined):
    with Nodes(LONE, tmp_path) as osn:
        ahead = cut_while_behind(osn)
        behind = osn.start(name, *joined, peers=Peers(osn, "n1"))
        stopped(ahead, behind)
        assert len(ordered(behind)) == 10
        until_alike(ahead, behind)


def test_a_node_cuts_no_block_after_a_start_until_each_peer_has_said_which_it_has(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        osn.running("n1", RAW)
        peers = Peers(osn, "n1", "n9")
        peers.away.add("n9")
        node = osn.start("n2", RAW, peers=peers)
        put(osn, *transactions(5))
        until(lambda: "n9 is away" in reason(node))
        assert "without that --peer" in reason(node)
        requests = peers.requests
        until(lambda: peers.requests > requests + 3)
        until_ordered(osn.nodes["n1"], 5)
        until(lambda: len(ordered(node)) == 5)  # from n1, which answers
        assert reason(node)
        peers.names = ("n1",)  # an operator excuses it
        healthy(node)


def test_a_node_that_reads_of_another_leader_takes_the_blocks_of_its_peers_first(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        # Init: n2 has read what n1 has; then nothing comes to it.
        driver = osn.faulty()
        peers = Peers(osn, "n1")
        ahead = osn.running("n1", RAW)
        node = osn.running("n2", RAW, driver=driver, peers=peers)
        accepted(ahead, *transactions(2))
        until(lambda: node.get("chain-a").order._ordered.get("chain-a") == 2)
        for reader in driver.readers:
            reader.deafen()
        accepted(ahead, *transactions(3))
        until_ordered(ahead, 5)
        # Test: the log loses what n2 has not read, and gets others in its place.
        osn.small.log.lose(log_of(osn), 3)
        put(osn, *transactions(4))
        for reader in driver.readers:
            reader.deaf = False
        # Check
        stopped(ahead, node)
        assert ordered(node) == ordered(ahead)
        assert len(ordered(node)) == 5


def test_a_change_of_leader_waits_for_no_peer(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        osn.running("n1", RAW)
        peers = Peers(osn, "n1")
        node = osn.running("n2", RAW, peers=peers)
        accepted(node, transaction())
        until(lambda: node.get("chain-a").order._ordered.get("chain-a") == 1)
        peers.away.add("n1")
        requests = peers.requests
        osn.small.log.lose(log_of(osn), 1)  # nothing, but the leader changes
        accepted(node, *transactions(4))
        until_ordered(node, 5)
        assert peers.requests > requests
        assert not node.health()


def test_nodes_whose_operator_accepts_a_loss_go_on_alike_and_order_nothing_twice(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        # Init: three blocks; the last one and a half are made of what the log then loses.
        nodes = [osn.start(name, RAW) for name in ("n1", "n2")]
        healthy(*nodes)
        sent = transactions(15)
        accepted(nodes[0], *sent)
        for node in nodes:
            assert until_ordered(node, 15) == sent
        osn.small.log.lose(log_of(osn), 7)
        others = transactions(4)
        put(osn, *others, sent[8], transaction())
        stopped(*nodes)
        for name in ("n1", "n2"):
            osn.stop(name)
        # Test
        nodes = [osn.running(name, accept_loss=["chain-a"]) for name in ("n1", "n2")]
        accepted(nodes[1], *transactions(5))
        # Check: what is in a block already is not ordered again.
        until(lambda: all(len(ordered(node)) == 25 for node in nodes))
        assert ordered(nodes[0])[:19] == sent + others
        assert len(set(ordered(nodes[0]))) == 25
        until_alike(*nodes)
        # Check: nothing is to be accepted any more.
        osn.stop("n1")
        osn.running("n1")


def test_after_a_loss_that_the_topic_accepts_each_node_goes_on_alike(tmp_path):
    with Nodes(LONE, tmp_path) as osn:
        # Init: n1 has a block of what is lost, n2 has none; the loss is stated.
        ahead, behind = osn.start("n1", RAW), osn.start("n2", RAW)
        healthy(ahead, behind)
        sent = transactions(10)
        accepted(ahead, *sent[:5])
        until_ordered(behind, 5)
        osn.stop("n2")
        accepted(ahead, *sent[5:])
        until_ordered(ahead, 10)
        osn.small.log.lose(log_of(osn), 7)
        others = transactions(5)
        put(osn, *others)
        osn.small.write(loss_record("chain-a", 0, 7))
        stopped(ahead)
        # Test: n2 without a peer stops before what is lost; an operator accepts the loss.
        behind = osn.start("n2")
        stopped(behind)
        assert "--accept-loss" in reason(behind)
        assert len(ordered(behind)) == 5
        assert recovered(osn.small, lossy=True).epoch == 2
        for name in ("n1", "n2"):
            osn.stop(name)
        ahead = osn.running("n1", accept_loss=["chain-a"])
        behind = osn.running("n2", peers=Peers(osn, "n1"))
        # Check
        until(lambda: len(ordered(ahead)) == 15)
        assert ordered(ahead) == sent + others
        until_alike(ahead, behind)
