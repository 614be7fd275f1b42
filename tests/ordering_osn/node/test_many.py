"""Many fresh transactions for two chains, through three nodes that are killed and restarted.

The full run, by hand: `python -m bench.orderer.osn many --transactions 200000`.
"""

import pytest

from bench.orderer.judge import DeliveredChain, judge
from bench.orderer.many import expected_of, many
from bench.orderer.nodes import Service, deployed
from bench.orderer.send import SendOrder, channels

TRANSACTIONS = 10_000
KILLS = 4


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.timeout(1500)
def test_all_that_was_acknowledged_is_delivered_once_by_all_nodes_though_they_are_killed(
    kafka_cluster,
):
    service = Service(chains=("chain-a", "chain-b"), collectors=True, timeout="250ms")
    with deployed(service, kafka_cluster.bootstrap) as deployment:
        outcome = many(deployment, TRANSACTIONS, kills=KILLS)
    assert outcome.acknowledged == TRANSACTIONS
    assert outcome.kills == KILLS
    assert outcome.streams_ended > 0


# -- the judge, on histories that it must find guilty ------------------------------------------

ACKNOWLEDGED = {"t1": "a", "t2": "a", "t3": "b", "t4": "a"}
GOOD_A = DeliveredChain(["h0", "h1", "h2"], ["t1", "t2", "t4"])
GOOD_B = DeliveredChain(["g0", "g1"], ["t3"])


def judged(a=GOOD_A, b=GOOD_B, acknowledged=ACKNOWLEDGED):
    """Node 1 is always right; node 2 tells what is given."""
    delivered = {
        "a": {"node 1": GOOD_A, "node 2": a},
        "b": {"node 1": GOOD_B, "node 2": b},
    }
    return judge(acknowledged, delivered)


def test_a_history_in_which_all_is_well_has_no_witness():
    assert judged() == []


@pytest.mark.parametrize(
    ("chain", "witnesses"),
    [
        (DeliveredChain(GOOD_A.hashes, ["t1", "t4"]), ["lost in a at node 2: t2"]),
        (DeliveredChain(GOOD_A.hashes, ["t1", "t2", "t4", "t1"]), ["doubled in a at node 2: t1"]),
        (DeliveredChain(GOOD_A.hashes, ["t1", "t2", "t4", "t9"]), ["strange in a at node 2: t9"]),
        (
            DeliveredChain(["h0", "h1", "x2"], ["t1", "t2", "t4"]),
            ["fork: block 2 of a differs between node 1 and node 2"],
        ),
        (
            DeliveredChain(["h0", "h1"], ["t1", "t2", "t4"]),
            ["fork: a has 3 blocks at node 1 and 2 at node 2"],
        ),
        (DeliveredChain(GOOD_A.hashes, ["t1", "t2", "t4", "t3"]), ["strange in a at node 2: t3"]),
    ],
)
def test_each_fault_has_its_witness(chain, witnesses):
    assert judged(a=chain) == witnesses


# -- what is sent ------------------------------------------------------------------------------


def test_transactions_go_to_the_chains_in_turns():
    order = SendOrder(addresses=[], chains=["a", "b"], transactions=3, material="")
    assert list(channels(order)) == ["a", "b", "a"]
    assert expected_of(order) == {"a": 2, "b": 1}
