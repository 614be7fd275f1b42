"""Several chains at a node: sets of chains, join, creation."""

import pytest

from ordering_osn.cli.inspection import verify
from ordering_osn.node.joining import join
from tests.helpers.small import until
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.compute_update import make_creation, update_envelope
from tests.ordering_osn.helpers.small import (
    TWO,
    Nodes,
    accepted,
    chains_plan,
    genesis,
    healthy,
    log_of,
    quick,
    submit,
    transaction,
    until_alike,
    until_ordered,
)

pytestmark = pytest.mark.slow


def test_a_chain_is_joined_while_the_node_runs(tmp_path):
    with Nodes(TWO, tmp_path) as osn:
        node = osn.running("n1", quick("chain-a"))
        join(tmp_path / "n1", quick("chain-b"))
        until(lambda: node.names() == ["chain-a", "chain-b"])
        healthy(node)
        accepted(node, transaction("chain-b"))
        until_ordered(node, 1, "chain-b")


def test_a_chain_whose_genesis_block_is_missing_is_named_until_it_is_joined_again(tmp_path):
    with Nodes(TWO, tmp_path) as osn:
        node = osn.running("n1", quick("chain-a"), quick("chain-b"))
        osn.stop("n1")
        (tmp_path / "n1" / "chain-b" / "genesis.block").unlink()
        node = osn.start("n1")
        until(lambda: "genesis.block is missing" in str(node.health()))
        assert node.names() == ["chain-a"]
        ((status, info),) = submit(node, transaction("chain-b"))
        assert status == 503
        assert "add the same genesis block again with 'amcast osn join'" in info
        osn.stop("n1")
        healthy(osn.start("n1", quick("chain-b")))


def test_a_channel_without_a_partition_waits_for_one_and_says_so(tmp_path):
    with Nodes(chains_plan("chain-b"), tmp_path) as osn:
        node = osn.start("n1", quick("chain-a"), quick("chain-b"))
        until(lambda: "chain-a" in str(node.health()) and "chain-b" not in str(node.health()))
        assert "partition chain-a" in node.health()[0][1]
        assert submit(node, transaction("chain-a"))[0][0] == 503
        accepted(node, transaction("chain-b"))
        until_ordered(node, 1, "chain-b")


# -- channels that a system channel creates -------------------------------------------------


def creation(name):
    made = make_creation(name, "Sample", ["Org1MSP"], configs.application_policies())
    return update_envelope(
        made, signers=[configs.org_admin()], sender=configs.org_admin(), now=configs.NOW
    )


def test_a_channel_is_created_at_all_nodes_by_a_config_update(tmp_path):
    with Nodes(chains_plan("system", "new"), tmp_path) as osn:
        system = configs.system_channel()
        raw = genesis(system.config, "system")
        nodes = [osn.start(name, raw) for name in ("n1", "n2")]
        healthy(*nodes)
        accepted(nodes[0], creation("new"))
        for node in nodes:
            until(lambda: node.names() == ["new", "system"])  # noqa: B023
        healthy(*nodes)
        accepted(nodes[1], *[transaction("new") for _ in range(10)])
        for node in nodes:
            until_ordered(node, 10, "new")
            assert node.get("new").config.sequence == 1
        until_alike(*nodes, chain="new")
        until_alike(*nodes, chain="system")
        for name in ("new", "system"):
            assert list(verify(nodes[0].get(name).ledger)) == []
        osn.stop("n1")
        again = osn.running("n1")
        assert again.names() == ["new", "system"]


def test_a_channel_without_a_partition_is_not_created_and_the_answer_says_what_helps(tmp_path):
    with Nodes(chains_plan("system"), tmp_path) as osn:
        system = configs.system_channel()
        node = osn.running("n1", genesis(system.config, "system"))
        ((status, info),) = submit(node, creation("new"))
        assert status == 400
        assert "has no partition" in info
        assert "amcast topology apply" in info
        assert (
            osn.small.log.last_stable_offsets([log_of(osn, "system")])[log_of(osn, "system")] == 0
        )
