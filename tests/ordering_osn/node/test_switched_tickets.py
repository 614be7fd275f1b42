"""Nodes of the ordering service while tickets are switched off and on, on a real broker."""

import pytest

from ordering_osn.protos import Block
from tests.ordering_osn.helpers.bundle_nodes import A, B, C, quick_chains
from tests.ordering_osn.helpers.small import chains_plan
from tests.ordering_osn.node.test_cluster import PATIENCE_S, network
from tests.ordering_osn.node.test_deliver_multi_broker import (
    Reader,
    a_round,
    parts_in,
    read,
)
from tests.system.test_tickets import moved

pytestmark = [pytest.mark.kafka, pytest.mark.campaign, pytest.mark.timeout(900)]
THREE = (A, B, C)
PLAN = chains_plan(*THREE, spanning=[(A, B), (B, C), THREE], readers=[(A, B), THREE])
OF_A_ROUND = 6  # entries: three bundles, three transactions


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


def blocks(net, number, chain):
    """Give header and data of all blocks that a node delivers."""
    found = [Block.FromString(raw) for raw in net.deliver(number, chain)]
    return [(b.header.SerializeToString(), b.data.SerializeToString()) for b in found]


def test_nodes_go_on_while_tickets_are_switched_off_and_on(kafka_cluster, tmp_path):
    with network(kafka_cluster, tmp_path, PLAN, *quick_chains(*THREE), nodes=2) as net:
        addresses = net.nodes.addresses[:2]
        reader = Reader(addresses, 3 * OF_A_ROUND)
        reader.start()
        made = a_round(net, addresses, 0)
        moved(net.system, tickets=False)
        made += a_round(net, addresses, 1)
        net.restart(1)  # from a cursor of an epoch without tickets
        moved(net.system, tickets=True)
        net.nodes.wait_healthy(PATIENCE_S)
        made += a_round(net, addresses, 1)
        reader.join(PATIENCE_S)
        assert reader.error is None
        assert not reader.is_alive()
        judged(net, reader.entries, made)
