"""Bundles of four chains at three nodes that are killed: acceptance rows M1 to M5, M7."""

import itertools
import random
from functools import partial

import pytest

from ordering_osn.chain.blocks import consenter_of
from ordering_osn.chain.bundles.log_records import BundleRecord, encode_bundle_record
from ordering_osn.chain.bundles.metadata import read_block_bundles
from tests.helpers.small import until
from tests.ordering_osn.helpers.bundle_nodes import (
    CHAINS,
    FOUR,
    SETS,
    A,
    B,
    Clients,
    bundle_for,
    check_rows,
    killed_and_started,
    quick_chains,
    stopped_and_started,
)
from tests.ordering_osn.helpers.small import (
    TWO,
    Nodes,
    blocks,
    counted,
    healthy,
    ordered,
    transaction,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("seed", "turns"), [(0, 6), *(pytest.param(n, 15, marks=pytest.mark.campaign) for n in (0, 1))]
)
def test_m1_to_m5_bundles_are_whole_ordered_alike_and_once_while_nodes_are_killed(
    tmp_path, seed, turns
):
    chance = random.Random(seed)
    names = ("n1", "n2", "n3")
    with Nodes(FOUR, tmp_path) as osn, Clients() as clients:
        for name in names:
            osn.start(name, *quick_chains())
        healthy(*osn.nodes.values())
        sent, singles = [], {chain: [] for chain in CHAINS}
        for turn in range(turns):
            made = [bundle_for(*chance.choice(SETS)) for _ in range(chance.randrange(8, 20))]
            single = {chain: transaction(chain) for chain in CHAINS}
            for each in made:  # M4: to one, two or three nodes
                for name in chance.sample(names, chance.randrange(1, 4)):
                    clients.accepted(osn.nodes[name], each)
            clients.broadcast(osn.nodes[chance.choice(names)], *single.values())
            for chain, envelope in single.items():
                singles[chain].append(envelope)
            sent += made
            again = killed_and_started if turn % 2 else stopped_and_started
            again(osn, chance.choice(names))
        nodes = [*osn.nodes.values(), osn.start("late", *quick_chains())]  # reads all from nothing
        healthy(*nodes)
        for node in nodes:  # M5: what was accepted is committed
            clients.committed(node, *sent)
        for chain, mine in singles.items():
            until(lambda: set(mine) <= set(ordered(nodes[0], chain)))  # noqa: B023
        assert check_rows(*nodes) == {each.id for each in sent}


def test_m4_a_bundle_that_counted_is_known_after_restarts_of_all_nodes(tmp_path):
    with Nodes(FOUR, tmp_path) as osn, Clients() as clients:
        for name in ("n1", "n2"):
            osn.start(name, *quick_chains())
        healthy(*osn.nodes.values())
        made = [bundle_for(*chains) for chains in SETS for _ in range(5)]
        clients.accepted(osn.nodes["n1"], *made)
        for node in osn.nodes.values():
            clients.committed(node, *made)
        stopped_and_started(osn, "n1")
        killed_and_started(osn, "n2")
        nodes = list(osn.nodes.values())
        for node in nodes:
            clients.accepted(node, *made)
            clients.committed(node, *made)
        # Copies of their records, as a node posts them that does not know them: the windows that
        # were read back from the blocks make them duplicates.
        with osn.small.producer() as producer:
            for each in made:
                copy = encode_bundle_record(BundleRecord(each, (0,) * len(each.chains)))
                producer.multicast(copy, to=set(each.chains)).ordered(60)
        for node, chain in itertools.product(nodes, CHAINS):
            copies = 5 * sum(chain in chains for chains in SETS)
            duplicates = partial(counted, node, "bundles_void", chain, "DUPLICATE")
            until(lambda: duplicates() == copies)  # noqa: B023
        more = [bundle_for(*chains) for chains in SETS]
        clients.accepted(nodes[1], *more)
        for node in nodes:
            clients.committed(node, *more)
        assert check_rows(*nodes) == {each.id for each in (*made, *more)}


def test_m7_bundles_and_transactions_of_one_chain_share_blocks_and_keep_their_order(tmp_path):
    with Nodes(TWO, tmp_path) as osn, Clients() as clients:
        node = osn.start("n1", *quick_chains(A, B, timeout="60s", count=4))  # only full batches
        healthy(node)
        single, made = [], []
        for _ in range(6):
            single.append(transaction(A))
            clients.broadcast(node, single[-1])
            made.append(bundle_for(A, B))
            clients.accepted(node, made[-1])
        until(lambda: len(ordered(node, A)) == 12)
        assert [each for each in ordered(node, A) if each in single] == single
        parts = [part.envelope for each in made for part in each.parts if part.chain == A]
        assert [each for each in ordered(node, A) if each in parts] == parts
        mixed = [
            len(read_block_bundles(consenter_of(block).bundles).parts)
            for block in blocks(node, A)[1:]
        ]
        assert sum(mixed) == 6
        assert [len(block.data.data) for block in blocks(node, A)[1:]] == [4, 4, 4]
        assert any(0 < count < 4 for count in mixed)


def test_m7_the_batch_time_out_cuts_a_block_with_a_lone_part(tmp_path):
    with Nodes(TWO, tmp_path) as osn, Clients() as clients:
        node = osn.running("n1", *quick_chains(A), *quick_chains(B, timeout="60s"))
        one = bundle_for(A, B)
        clients.accepted(node, one)
        until(lambda: ordered(node, A) == [one.parts[0].envelope])
        until(lambda: counted(node, "timers_posted", A, "stored") == 1)
        assert ordered(node, B) == []  # its block is not full, and its time-out is long
        more = [bundle_for(A, B) for _ in range(9)]
        clients.accepted(node, *more)
        clients.committed(node, one, *more)
        assert check_rows(node, chains=(A, B)) == {each.id for each in (one, *more)}
