"""Nodes of the ordering service as processes, on a real broker, and killed."""

import asyncio
import json
import random
import re
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress

import pytest

from bench.osn.nodes import NodeProcesses, Service
from multicast.drivers.kafka import TopicSpec
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError
from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.receipt_request import receipt_envelope
from ordering_osn.api.seek import seek_envelope
from ordering_osn.chain.transactions import transaction_id
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.node.catch_up import verified
from ordering_osn.node.joining import join
from ordering_osn.node.kafka_connection import Replicas
from ordering_osn.protos import Block
from tests.helpers.small import until
from tests.helpers.system import System, amcast
from tests.ordering_osn.helpers import configs as osn_configs
from tests.ordering_osn.helpers.small import chains_plan

pytestmark = pytest.mark.timeout(900)
PATIENCE_S = 240.0  # stops a hang, no more


class Network:
    """Three nodes on a plan that is applied to a real cluster, and a client of them."""

    def __init__(self, system: System, nodes: NodeProcesses) -> None:
        self.system = system
        self.nodes = nodes

    def send(self, number: int, *envelopes: bytes) -> list[int]:
        """Broadcast to a node, on one stream; give the statuses, as many as came."""
        statuses = []

        async def go():
            async with NodeClient(self.nodes.addresses[number]) as client:
                async for status, _ in client.broadcast(envelopes, timeout_s=PATIENCE_S):
                    statuses.append(status)

        with suppress(AmcastError):  # the node was killed: what it answered counts
            asyncio.run(go())
        return statuses

    def send_all(self, number: int, *envelopes: bytes) -> None:
        """Broadcast to a node until it has accepted all; it may be in trouble for a while."""
        waiting = list(envelopes)

        def taken():
            del waiting[: self.send(number, *waiting).count(200)]
            return not waiting

        until(taken, PATIENCE_S, 0.2)

    def deliver(self, number: int, chain: str) -> list[bytes]:
        """Give all blocks that a node has, once it is in no trouble."""

        async def go():
            request = seek_envelope(osn_configs.org_user(), chain, "oldest", "newest")
            async with NodeClient(self.nodes.addresses[number]) as client:
                return [answer async for answer in client.deliver(request, timeout_s=PATIENCE_S)]

        def all_of_them():
            *blocks, status = asyncio.run(go())
            assert status in (200, 503)
            return blocks if status == 200 else None

        return until(all_of_them, PATIENCE_S, 0.1)

    def ordered(self, chain: str) -> list[bytes]:
        """Give the transactions that a node has in blocks."""
        return transactions([Block.FromString(raw) for raw in self.deliver(0, chain)])

    def receipt(self, number: int, chain: str, envelope: bytes) -> dict:
        async def go():
            request = receipt_envelope(
                osn_configs.org_user(), chain, transaction_id(envelope), 60_000
            )
            async with NodeClient(self.nodes.addresses[number]) as client:
                return await client.wait(request)

        return asyncio.run(go())

    def until_ordered(self, chain: str, count: int) -> list[bytes]:
        """Wait until every node has so many transactions of a chain, in the same blocks."""
        blocks_of = {}

        def all_have_them():
            for number in range(len(self.nodes.addresses)):
                blocks = [Block.FromString(raw) for raw in self.deliver(number, chain)]
                blocks_of[number] = blocks
            return all(len(transactions(blocks)) >= count for blocks in blocks_of.values())

        until(all_have_them, PATIENCE_S, 0.1)
        first, *others = [
            [(b.header.SerializeToString(), b.data.SerializeToString()) for b in blocks]
            for blocks in blocks_of.values()
        ]
        for other in others:
            assert other == first
        ordered = transactions(blocks_of[0])
        assert len(ordered) == count
        return ordered

    def genuine(self, number: int, chain: str) -> None:
        """Verify a node's blocks as a peer does: the chain of hashes, and every signature."""
        first, *rest = self.deliver(number, chain)
        config = ChannelConfig.from_block(first)
        newest = Block.FromString(first).header
        assert len(list(verified(rest, previous=newest, config=config))) == len(rest)

    def restart(self, number: int) -> None:
        self.nodes.kill(number)
        self.nodes.start(number)

    def unhealthy(self, number: int) -> str:
        """Give what a node's health check finds; empty where it is healthy or down."""
        address = self.nodes._operations[number]
        try:
            urllib.request.urlopen(f"http://{address}/healthz", timeout=10).close()
        except urllib.error.HTTPError as error:
            return json.dumps(json.load(error)["failed_checks"])
        except OSError:
            pass
        return ""


def transactions(blocks) -> list[bytes]:
    return [data for block in blocks[1:] for data in block.data.data]


@contextmanager
def network(cluster, folder, plan, *genesis_blocks, nodes=3, waits=True, collectors=True):
    """Start nodes that have joined these channels, and the collectors if the plan has any."""
    service = Service(chains=plan.partitions, nodes=nodes)
    with System(cluster.bootstrap, plan, folder) as system:
        if collectors and plan.collectors:
            system.order()
        with NodeProcesses(service, cluster.bootstrap, system.topic, folder) as running:
            for number in range(nodes):
                for raw in genesis_blocks:
                    join(folder / f"node-{number}", raw)
                running.start(number)
            if waits:
                running.wait_healthy(PATIENCE_S)
            yield Network(system, running)


def test_forty_real_transactions_are_ordered_once_while_nodes_are_killed(kafka_cluster, tmp_path):
    raw = osn_configs.block("chain-a")
    with network(kafka_cluster, tmp_path, chains_plan("chain-a"), raw) as net:
        sent = osn_configs.real_envelopes()
        chance = random.Random(1)
        waiting = list(sent)
        turn = 0
        while waiting:
            number = turn % 3
            some = waiting[: chance.randrange(4, 12)]
            answers = net.send(number, *some)
            accepted = answers.count(200)
            waiting = waiting[accepted:]
            if accepted and turn % 2:
                net.restart(number)
            turn += 1
        net.nodes.wait_healthy(PATIENCE_S)
        assert net.until_ordered("chain-a", 40) == sent
        for number in range(3):
            net.genuine(number, "chain-a")
        place = net.receipt(2, "chain-a", sent[17])
        block = Block.FromString(net.deliver(0, "chain-a")[place["block"]])
        assert block.data.data[place["index"]] == sent[17]
        net.nodes.stop()
        told = amcast("osn", "inspect", "--folder", str(tmp_path / "node-1"), "-o", "json")
        assert told.returncode == 0, told.stderr
        (row,) = json.loads(told.stdout)["channels"]
        assert row["transactions"] == 41
        assert row["sound"]


def test_a_log_with_too_few_replicas_in_sync_is_named_with_their_ids(kafka_cluster):
    topic = f"short-{time.time_ns()}"
    with Replicas(kafka_cluster.bootstrap) as admin:
        admin.create_topics({topic: TopicSpec(2, settings={"min.insync.replicas": "9"})})
        found = admin.out_of_sync([TopicPartition(topic, 1)])
        assert list(found) == [TopicPartition(topic, 1)]
        assert re.search(r"\[replica ids: \[[\d ]+\]\]", found[TopicPartition(topic, 1)])
        assert admin.out_of_sync([TopicPartition("__consumer_offsets", 0)]) == {}
