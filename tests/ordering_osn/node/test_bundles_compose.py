"""Acceptance row M11 at real nodes: the tests of a coordinator with votes, where there is neither.

What a vote is there is admission here, before anything is appended, and a time-out is an expiry:
an offset of the set's log (docs/multichain.md has the rule).
"""

import pytest

from ordering_osn.api.channels import FateKind
from ordering_osn.chain.bundles.bundle import encode_bundle, make_bundle
from ordering_osn.chain.bundles.log_records import (
    BundleRecord,
    ConfigMarker,
    encode_bundle_record,
    encode_config_marker,
)
from ordering_osn.chain.bundles.rule import VoidReason
from ordering_osn.chain.envelopes import signed_envelope
from ordering_osn.client import Client, RequestRefused
from ordering_osn.protos import HeaderType
from tests.helpers.small import until
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.bundle_nodes import (
    CHAINS,
    FOUR,
    SETS,
    A,
    B,
    C,
    Clients,
    Closed,
    D,
    bundle_for,
    check_rows,
    killed_and_started,
    log_end,
    quick_chains,
)
from tests.ordering_osn.helpers.chains import STRANGER
from tests.ordering_osn.helpers.served import served
from tests.ordering_osn.helpers.small import (
    TWO,
    Faulty,
    Nodes,
    counted,
    log_of,
    ordered,
    transaction,
)

pytestmark = pytest.mark.slow


def by_a_stranger(chain):
    return signed_envelope(
        HeaderType.ENDORSER_TRANSACTION, chain, b"no", signer=STRANGER, now=configs.NOW
    )


def test_m11_one_part_that_is_refused_keeps_the_bundle_out_of_every_log(tmp_path):
    with Nodes(FOUR, tmp_path) as osn, Clients() as clients:
        driver = Closed(osn.small.log)
        node = osn.running("n1", *quick_chains(), driver=driver)
        good = bundle_for(*CHAINS)
        clients.accepted(node, good)
        clients.committed(node, good)
        ends = {chains: log_end(osn, *chains) for chains in SETS}
        # It is refused before anything is appended: that this log takes nothing is not seen.
        driver.closed = log_of(osn, *CHAINS)
        for bad in CHAINS:
            parts = {chain: transaction(chain) for chain in CHAINS} | {bad: by_a_stranger(bad)}
            refused = make_bundle(parts, signer=configs.org_user())
            (answer,) = clients.submit(node, refused)
            assert (answer.status, answer.chain) == (403, bad)
            fate = clients.ask(node.bundle_status(refused.id, 0.0)).result(60)
            assert fate.kind is FateKind.UNKNOWN
        assert ends == {chains: log_end(osn, *chains) for chains in SETS}
        assert check_rows(node) == {good.id}


def test_m11_an_expiry_that_passes_after_a_bundle_counted_changes_nothing(tmp_path):
    with Nodes(TWO, tmp_path) as osn, Clients() as clients:
        nodes = [osn.running(name, *quick_chains(A, B)) for name in ("n1", "n2")]
        first = bundle_for(A, B)
        clients.accepted(nodes[0], first)
        clients.committed(nodes[0], first)
        expiry = log_end(osn, A, B) + 1
        made = bundle_for(A, B, expiry=expiry)
        clients.accepted(nodes[0], made)
        clients.committed(nodes[0], made)
        later = [bundle_for(A, B) for _ in range(4)]
        clients.accepted(nodes[1], *later)
        clients.committed(nodes[1], *later)
        assert log_end(osn, A, B) > expiry + 1
        nodes[1] = killed_and_started(osn, "n2")
        for node in nodes:  # sent again, it is known; its second record would be void for all
            clients.accepted(node, made)
            clients.committed(node, made)
        again = encode_bundle_record(BundleRecord(made, (0, 0)))
        osn.small.log.write(log_of(osn, A, B), again)
        for node in nodes:
            until(lambda: counted(node, "bundles_void", A, "DUPLICATE") == 1)  # noqa: B023
            clients.committed(node, made)
        assert check_rows(*nodes, chains=(A, B)) == {each.id for each in (first, made, *later)}


def test_a_bundle_expires_so_many_records_behind_the_end_that_a_node_says(tmp_path):
    with Nodes(TWO, tmp_path) as osn, Clients() as clients:
        node = osn.running("n1", *quick_chains(A, B))
        first = bundle_for(A, B)
        clients.accepted(node, first)
        clients.committed(node, first)

        async def made():
            async with served(node) as address, Client([address], configs.org_user()) as client:
                assert await client.log_end((B, A)) == log_end(osn, A, B)
                with pytest.raises(RequestRefused, match="404: the set chain-a"):
                    await client.log_end((A, "chain-x"))
                return bundle_for(A, B, expiry=await client.expiry((A, B), 2))

        # Two records may come: the second bundle counts, and the third is too late.
        in_time, late = clients.ask(made()).result(60), clients.ask(made()).result(60)
        clients.accepted(node, bundle_for(A, B))
        clients.accepted(node, in_time)
        clients.accepted(node, late)
        clients.committed(node, in_time)
        (fate,) = clients.fates(node, late)
        assert (fate.kind, fate.reason) == (FateKind.VOID, VoidReason.EXPIRED)


def test_m11_what_does_not_belong_to_the_set_decides_nothing_in_its_log(tmp_path):
    with Nodes(FOUR, tmp_path) as osn, Clients() as clients:
        nodes = [osn.running(name, *quick_chains()) for name in ("n1", "n2")]
        first, foreign = bundle_for(A, B), bundle_for(B, C)
        clients.accepted(nodes[0], first)
        clients.committed(nodes[0], first)
        # A chain too many: no such set is declared.
        wider = bundle_for(A, B, D)
        (answer,) = clients.submit(nodes[0], wider)
        assert answer.status == 404
        # The same from somebody who writes to the log himself: a marker and a bundle of others.
        log = log_of(osn, A, B)
        for raw in (
            encode_config_marker(ConfigMarker(C, 7, 99)),
            encode_bundle_record(BundleRecord(foreign, (0, 0))),
            encode_bundle_record(BundleRecord(wider, (0, 0, 0))),
        ):
            osn.small.log.write(log, raw)
        last = bundle_for(A, B)
        clients.accepted(nodes[1], last)
        for node in nodes:
            clients.committed(node, last)
            for chain in (A, B):
                until(lambda: counted(node, "bundles_void", chain, "WRONG_CHAINS") == 2)  # noqa: B023
            fate = clients.ask(node.bundle_status(foreign.id, 0.0)).result(60)
            assert fate.kind is FateKind.UNKNOWN
        assert check_rows(*nodes) == {first.id, last.id}
        # In its own log it counts as any other.
        clients.accepted(nodes[0], foreign)
        clients.committed(nodes[0], foreign)


class Stopped(Faulty):
    """A driver that keeps the postings to one partition while `stopped` names it."""

    stopped = None

    def __init__(self, log):
        super().__init__(log)
        self.kept = []

    def _append(self, append):
        if append.partition == self.stopped:
            self.kept.append(append)
        else:
            super()._append(append)


def test_m11_a_set_whose_log_stands_still_delays_no_other_set(tmp_path):
    with Nodes(FOUR, tmp_path) as osn, Clients() as clients:
        driver = Stopped(osn.small.log)
        node = osn.running("n1", *quick_chains(), driver=driver)
        other = osn.running("n2", *quick_chains())
        first = [bundle_for(*chains) for chains in SETS]
        clients.accepted(node, *first)
        clients.committed(node, *first)
        driver.stopped = log_of(osn, A, B)
        waiting = bundle_for(A, B)
        answer = clients.ask(node.submit_bundle(encode_bundle(waiting)))
        until(lambda: driver.kept)
        # A disjoint set, sets that overlap, and the same chains' own transactions.
        meanwhile = [bundle_for(*chains) for chains in SETS[1:] for _ in range(3)]
        clients.accepted(node, *meanwhile)
        for each in (node, other):
            clients.committed(each, *meanwhile)
        single = transaction(A)
        clients.broadcast(node, single)
        until(lambda: single in ordered(node, A))
        assert not answer.done()
        driver.stopped = None
        for append in driver.kept:
            append.settle(append.store())
        assert answer.result(60).status == 200
        for each in (node, other):
            clients.committed(each, waiting)
        assert check_rows(node, other) == {each.id for each in (waiting, *first, *meanwhile)}


def test_m11_overlapping_sets_at_two_nodes_at_once_have_one_order_in_their_common_chains(tmp_path):
    with Nodes(FOUR, tmp_path) as osn, Clients() as clients:
        nodes = [osn.running(name, *quick_chains()) for name in ("n1", "n2")]
        made = [bundle_for(*SETS[number % len(SETS)]) for number in range(60)]
        asked = [
            clients.ask(nodes[number % 2].submit_bundle(encode_bundle(each)))
            for number, each in enumerate(made)
        ]
        assert {each.result(60).status for each in asked} == {200}
        for node in nodes:
            clients.committed(node, *made)
        assert check_rows(*nodes) == {each.id for each in made}
