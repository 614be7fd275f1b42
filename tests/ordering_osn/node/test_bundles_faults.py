"""Bundles in trouble: acceptance rows M8 to M10, and chains that a node does not run."""

import pytest

from ordering_osn.api.channels import FateKind
from ordering_osn.chain.bundles.bundle import encode_bundle
from ordering_osn.chain.bundles.rule import VoidReason
from ordering_osn.node.joining import join
from tests.helpers.small import until
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.bundle_nodes import (
    CHAINS,
    FOUR,
    A,
    B,
    C,
    Clients,
    Closed,
    D,
    Silent,
    bundle_for,
    check_rows,
    log_end,
    quick_chains,
)
from tests.ordering_osn.helpers.compute_update import group_at
from tests.ordering_osn.helpers.small import (
    TWO,
    Nodes,
    batch_of,
    counted,
    healthy,
    log_of,
    ordered,
    transaction,
)

pytestmark = pytest.mark.slow


# -- M8: a log of a set that takes nothing ---------------------------------------------------------


def test_m8_a_set_whose_log_takes_nothing_answers_503_and_delays_nobody(tmp_path):
    with Nodes(FOUR, tmp_path) as osn, Clients() as clients:
        driver = Closed(osn.small.log)
        node = osn.running("n1", *quick_chains(), driver=driver)
        other = osn.running("n2", *quick_chains())
        first = bundle_for(A, B)
        clients.accepted(node, first)
        clients.committed(node, first)
        end = log_end(osn, A, B)
        driver.closed = log_of(osn, A, B)
        refused = bundle_for(A, B)
        (answer,) = clients.submit(node, refused)
        assert answer.status == 503
        assert "too few replicas are in sync" in answer.info
        # Other sets with the same chains go on, and so do the chains' own transactions.
        elsewhere = [bundle_for(B, C), bundle_for(A, B, C), bundle_for(*CHAINS)]
        clients.accepted(node, *elsewhere)
        clients.committed(node, *elsewhere)
        single = {chain: transaction(chain) for chain in (A, B)}
        clients.broadcast(node, *single.values())
        for chain, envelope in single.items():
            until(lambda: envelope in ordered(node, chain))  # noqa: B023
        assert log_end(osn, A, B) == end
        assert refused.id not in check_rows(node, other)
        driver.closed = None
        clients.accepted(node, refused)  # the client sends it again
        for each in (node, other):
            clients.committed(each, refused)
        assert check_rows(node, other) == {each.id for each in (first, refused, *elsewhere)}


# -- M9: a config between admission and order ------------------------------------------------------


def overtaken(osn, clients, update):
    """Hold a bundle of n1 back until a config of chain-a and its marker are in the logs.

    Gives both nodes, the bundle, and its answer.
    """
    driver = osn.faulty()
    node = osn.running("n1", *quick_chains(A, B), driver=driver)
    other = osn.running("n2", *quick_chains(A, B))
    before = bundle_for(A, B)
    clients.accepted(node, before)
    clients.committed(node, before)
    driver.held = []
    held = bundle_for(A, B)
    answer = clients.ask(node.submit_bundle(encode_bundle(held)))
    log = log_of(osn, A, B)
    until(lambda: any(append.partition == log for append in driver.held))
    clients.broadcast(other, update(other.get(A).config))
    for each in (node, other):
        until(lambda: each.get(A).markers((A, B))[0].sequence == 1)  # noqa: B023
    driver.release()
    return node, other, held, answer.result(60)


def test_m9_a_bundle_that_a_config_overtook_is_void_in_all_chains_posted_again_and_counts(tmp_path):
    with Nodes(TWO, tmp_path) as osn, Clients() as clients:
        node, other, held, answer = overtaken(osn, clients, lambda config: batch_of(config, 20))
        assert answer.status == 200
        for each in (node, other):
            clients.committed(each, held)
            for chain in (A, B):
                until(lambda: counted(each, "bundles_void", chain, "STALE") == 1)  # noqa: B023
        assert counted(node, "bundles_reposted") == 1
        assert counted(other, "bundles_reposted") == 0
        found = check_rows(node, other, chains=(A, B))
        assert held.id in found
        assert len(found) == 2


def test_m9_a_bundle_whose_right_was_revoked_in_between_stands_in_no_chain(tmp_path):
    def revoked(config):
        def change(new):
            del group_at(new, "Application", "Org1MSP").policies["Writers"]

        signers = [configs.org_admin()]
        return configs.update(config, change, signers=signers, sender=configs.orderer_admin())

    with Nodes(TWO, tmp_path) as osn, Clients() as clients:
        node, other, held, answer = overtaken(osn, clients, revoked)
        assert answer.status == 200  # it was stored; what became of it is its fate
        (fate,) = clients.fates(node, held)
        assert (fate.kind, fate.reason, fate.void_chain) == (FateKind.VOID, VoidReason.STALE, A)
        (later,) = clients.submit(other, bundle_for(A, B))
        assert (later.status, later.chain) == (403, A)
        assert held.id not in check_rows(node, other, chains=(A, B))
        for chain in (A, B):
            assert not {part.envelope for part in held.parts} & set(ordered(other, chain))
        until(lambda: counted(other, "bundles_void", B, "STALE") == 1)
        assert counted(node, "bundles_counted", A) == 1


# -- M10: the node that took the bundle in dies ----------------------------------------------------


@pytest.mark.parametrize("stored", [True, False], ids=["after the append", "before the append"])
def test_m10_a_bundle_whose_node_died_counts_once_when_the_client_sends_it_elsewhere(
    tmp_path, stored
):
    with Nodes(FOUR, tmp_path) as osn, Clients() as clients:
        driver = Silent(osn.small.log)
        node = osn.running("n1", *quick_chains(), driver=driver)
        others = [osn.running(name, *quick_chains()) for name in ("n2", "n3")]
        first = bundle_for(A, B, C)
        clients.accepted(node, first)
        clients.committed(node, first)
        driver.silent, driver.held = stored, []
        end = log_end(osn, A, B, C)
        made = bundle_for(A, B, C)
        answer = clients.ask(node.submit_bundle(encode_bundle(made)))
        log = log_of(osn, A, B, C)
        if stored:
            until(lambda: log_end(osn, A, B, C) == end + 1)
        else:
            until(lambda: any(append.partition == log for append in driver.held))
        osn.stop("n1")
        assert answer.result(60).status == 503
        meanwhile = bundle_for(A, B)
        clients.accepted(others[1], meanwhile)
        if stored:  # nobody has to do anything
            clients.committed(others[0], made)
        clients.accepted(others[0], made)
        again = osn.running("n1")
        for each in (again, *others):
            clients.committed(each, first, made, meanwhile)
        assert check_rows(again, *others) == {each.id for each in (first, made, meanwhile)}


# -- chains that a node does not run ---------------------------------------------------------------


def test_m8_a_node_without_a_chain_of_the_set_answers_404_and_a_chain_down_elsewhere_delays_nobody(
    tmp_path,
):
    with Nodes(FOUR, tmp_path) as osn, Clients() as clients:
        part = osn.running("n1", *quick_chains(A, B))
        full = osn.running("n2", *quick_chains())
        (answer,) = clients.submit(part, bundle_for(A, B, C))
        assert (answer.status, answer.chain) == (404, C)
        assert "does not run channel 'chain-c'" in answer.info
        made = [bundle_for(A, B, C), bundle_for(A, B)]
        clients.accepted(full, *made)
        clients.committed(full, *made)
        (fate,) = clients.fates(part, made[0])  # committed at the chains that it runs
        assert fate.kind is FateKind.COMMITTED
        assert set(fate.places) == {A, B}
        for raw in quick_chains(C, D):
            join(tmp_path / "n1", raw)
        until(lambda: part.names() == list(CHAINS))
        healthy(part)
        clients.committed(part, *made)
        more = bundle_for(*CHAINS)
        clients.accepted(part, more)
        clients.committed(part, more)
        assert check_rows(part, full) == {each.id for each in (*made, more)}
