"""DeliverMulti on a real broker while nodes are killed and tickets are switched off and on."""

import asyncio
import threading
from contextlib import aclosing

import pytest

from ordering_osn.client import Client
from ordering_osn.client.messages import NEWEST
from ordering_osn.protos import Block
from tests.helpers.small import until
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.bundle_nodes import A, B, C, bundle_for, quick_chains
from tests.ordering_osn.helpers.small import chains_plan, transaction
from tests.ordering_osn.node.test_cluster import PATIENCE_S, network
from tests.system.test_tickets import moved

pytestmark = pytest.mark.timeout(900)
THREE = (A, B, C)
PLAN = chains_plan(*THREE, spanning=[(A, B), (B, C), THREE], readers=[(A, B), THREE])
OF_A_ROUND = 6  # entries: three bundles, three transactions


class Reader(threading.Thread):
    """Follows the chains of two nodes until it has so many entries."""

    def __init__(self, addresses, count):
        super().__init__(daemon=True)
        self.addresses, self.count = addresses, count
        self.entries, self.error = [], None

    def run(self):
        try:
            asyncio.run(self.follow())
        except Exception as error:
            self.error = error
            raise

    async def follow(self):
        async with client_of(self.addresses) as client, aclosing(client.deliver(THREE)) as stream:
            async for entry in stream:
                self.entries.append(entry)
                if len(self.entries) == self.count:
                    return


def client_of(addresses):
    return Client(addresses, configs.org_user(), retry_s=PATIENCE_S)


def read(address, chains, start="oldest"):
    """Give what one node has behind a start now."""

    async def entries():
        async with client_of([address]) as client:
            stream = client.deliver(chains, start, stop=NEWEST, timeout_s=PATIENCE_S)
            return [entry async for entry in stream]

    return asyncio.run(entries())


def a_round(net, addresses, number):
    """Order three bundles and a transaction of each chain, at one node at least."""
    bundles = [bundle_for(A, B), bundle_for(*THREE), bundle_for(B, C)]

    async def submit():
        async with client_of(addresses) as client:
            for made in bundles:
                await client.submit_and_wait(made, PATIENCE_S)

    asyncio.run(submit())
    for chain in THREE:
        net.send_all(number, transaction(chain))
    return [made.id for made in bundles]


def parts_in(entries, chains):
    parts = [[part for part in each.parts if part.place.chain in chains] for each in entries]
    return [each for each in parts if each]


def judged(net, entries, made):
    """Check a stream of all entries, and that both nodes have the same blocks."""
    assert sorted(each.bundle_id for each in entries if each.bundle_id) == sorted(made)
    for each in entries:
        assert {part.place.chain for part in each.parts} == set(each.chains)
    addresses = net.nodes.addresses[:2]
    for address in addresses:
        assert read(address, THREE) == entries
    for chain in THREE:
        ordered = [part.envelope for (part,) in parts_in(entries, (chain,))]
        assert ordered == net.ordered(chain)
        first, second = (blocks(net, number, chain) for number in (0, 1))
        assert first == second
        net.genuine(0, chain)
        net.genuine(1, chain)
    for number in (0, OF_A_ROUND, len(entries) - 1):
        rest = read(addresses[number % 2], THREE, entries[number].cursor)
        assert rest == entries[number + 1 :]
    # A reader of two of the chains has what is common in the same order.
    assert parts_in(read(addresses[1], (A, B)), (A, B)) == parts_in(entries, (A, B))


def blocks(net, number, chain):
    """Give header and data of all blocks that a node delivers."""
    found = [Block.FromString(raw) for raw in net.deliver(number, chain)]
    return [(b.header.SerializeToString(), b.data.SerializeToString()) for b in found]


def test_a_stream_and_nodes_go_on_through_kills_while_tickets_are_switched(kafka_cluster, tmp_path):
    with network(kafka_cluster, tmp_path, PLAN, *quick_chains(*THREE), nodes=2) as net:
        addresses = net.nodes.addresses[:2]
        reader = Reader(addresses, 4 * OF_A_ROUND)
        made = a_round(net, addresses[::-1], 0)
        reader.start()
        until(lambda: len(reader.entries) == OF_A_ROUND or reader.error, PATIENCE_S)
        net.nodes.kill(0)  # which serves the stream
        made += a_round(net, addresses[::-1], 1)
        net.nodes.start(0)
        moved(net.system, tickets=False)
        made += a_round(net, addresses, 1)
        net.restart(1)  # from a cursor of an epoch without tickets
        moved(net.system, tickets=True)
        net.nodes.wait_healthy(PATIENCE_S)
        made += a_round(net, addresses, 1)
        reader.join(PATIENCE_S)
        assert reader.error is None
        assert not reader.is_alive()
        net.nodes.wait_healthy(PATIENCE_S)
        judged(net, reader.entries, made)
