"""What nodes refuse, which chains do work for a bundle (row M6), and sets that a new plan adds."""

from dataclasses import replace

import pytest

from collectors.core.epoch_change import ends_of, logs_to_mark
from multicast.control import ends_record, log_partition, markers_record
from multicast.messages import epoch_header
from ordering_osn.api.channels import FateKind
from ordering_osn.chain.bundles.bundle import encode_bundle
from ordering_osn.chain.bundles.rule import VoidReason
from ordering_osn.wire import multichain_pb2 as stubs
from tests.helpers.small import until
from tests.ordering_osn.helpers.bundle_nodes import (
    CHAINS,
    FOUR,
    A,
    B,
    C,
    Clients,
    D,
    bundle_for,
    check_rows,
    killed_and_started,
    log_end,
    quick_chains,
)
from tests.ordering_osn.helpers.chains import STRANGER
from tests.ordering_osn.helpers.small import TWO, Nodes, chains_plan, counted, ordered
from topology.carry_over import retained

pytestmark = pytest.mark.slow


# -- forged and refused: nothing in any log --------------------------------------------------------


def exchanged():
    """A genuine bundle whose envelopes stand in each other's places."""
    raw = stubs.Bundle.FromString(encode_bundle(bundle_for(A, B)))
    raw.envelopes[0], raw.envelopes[1] = raw.envelopes[1], raw.envelopes[0]
    return raw.SerializeToString()


def test_m5_each_forged_bundle_has_one_status_and_is_in_no_log(tmp_path):
    with Nodes(FOUR, tmp_path) as osn, Clients() as clients:
        node = osn.running("n1", *quick_chains())
        good = bundle_for(A, B)
        clients.accepted(node, good)
        clients.committed(node, good)
        ends = {chains: log_end(osn, *chains) for chains in ((A, B), (A, B, C), CHAINS)}
        forged = (
            (exchanged(), 400, "not the envelope that the submitter signed", A),
            (b"\xff\xff", 400, "", ""),
            (encode_bundle(bundle_for(A, B, signer=STRANGER)), 403, "submitter", A),
            (encode_bundle(bundle_for(A, D)), 404, "chain-a+chain-d is not declared", ""),
        )
        for raw, status, text, chain in forged:
            (answer,) = clients.submit_raw(node, raw)
            assert (answer.status, answer.chain) == (status, chain), answer
            assert text in answer.info, answer
        counts = [
            counted(node, "bundles_processed", name)
            for name in ("BAD_REQUEST", "FORBIDDEN", "NOT_FOUND")
        ]
        assert counts == [2, 1, 1]
        assert counted(node, "bundles_processed", "SUCCESS") == 1
        assert ends == {chains: log_end(osn, *chains) for chains in ends}
        assert check_rows(node) == {good.id}


def test_m5_an_expired_bundle_is_void_in_all_chains_and_its_fate_says_so(tmp_path):
    with Nodes(TWO, tmp_path) as osn, Clients() as clients:
        nodes = [osn.running(name, *quick_chains(A, B)) for name in ("n1", "n2")]
        first, late = bundle_for(A, B), bundle_for(A, B, expiry=1)
        clients.accepted(nodes[0], first, late)
        clients.committed(nodes[0], first)
        for node in nodes:
            (fate,) = clients.fates(node, late)
            assert (fate.kind, fate.reason) == (FateKind.VOID, VoidReason.EXPIRED)
        assert check_rows(*nodes, chains=(A, B)) == {first.id}
        assert not {part.envelope for part in late.parts} & set(ordered(nodes[0], A))


# -- M6: only the chains of the set do work --------------------------------------------------------


def test_m6_chains_outside_the_set_step_no_record_of_it(tmp_path, monkeypatch):
    stepped = []
    with Nodes(FOUR, tmp_path) as osn, Clients() as clients:
        node = osn.running("n1", *quick_chains())
        every = bundle_for(*CHAINS)  # the markers of all chains stand
        clients.accepted(node, every)
        clients.committed(node, every)
        for name in CHAINS:
            chain = node.get(name)._chain
            step = chain.step

            def counting(position, raw, place, *, name=name, step=step):
                stepped.append((name, place.log, place.to))
                return step(position, raw, place)

            monkeypatch.setattr(chain, "step", counting)
        made = [bundle_for(A, B) for _ in range(30)]
        heights = {name: node.get(name).ledger.height for name in (C, D)}
        clients.accepted(node, *made)
        clients.committed(node, *made)
        of_the_set = [(name, to) for name, log, to in stepped if log == (A, B)]
        assert of_the_set.count((A, (A, B))) == of_the_set.count((B, (A, B))) == 30
        assert {name for name, _ in of_the_set} == {A, B}
        assert {to for name, log, to in stepped if name in (C, D)} <= {(C,), (D,)}  # own records
        assert heights == {name: node.get(name).ledger.height for name in (C, D)}


# -- a set that a new plan declares ----------------------------------------------------------------


def drained(system, after):
    """End the epoch as `amcast topology apply` does, and run the collectors of the next plan."""
    old, kept, marks = list(system._running), retained(system.plan, after), {}
    system.propose(after)
    for name in logs_to_mark(system.plan, kept):
        partition = log_partition(system.plan.log(name))
        offset = system.log.write(partition, None, headers=[epoch_header(name, 2)])
        marks[name] = offset + 1
    system.write(markers_record(system.previous, 1, marks, attempt="1"))
    for _, thread in old:
        thread.join(60)
        assert not thread.is_alive()
    streams = {node.name: node.core.own for node, _ in old}
    ends = ends_of(system.plan, streams, marks, kept)
    assert ends is not None
    system.write(ends_record(system.previous, 1, ends, attempt="1"))
    system.plan = after
    system.run_all()


def test_a_set_of_a_new_plan_introduces_its_chains_and_the_sets_that_stay_go_on(tmp_path):
    names = (A, B, C)
    first = chains_plan(*names, spanning=[(A, B)], phi=0)
    wider = chains_plan(*names, spanning=[(A, B), (A, B, C)], phi=0)
    streams = [replace(node, stream=node.stream + 1) for node in wider.collectors]
    assert len(first.collectors) == len(streams) == 1
    second = replace(wider, epoch=2, base_epoch=1, collectors=tuple(streams))
    with Nodes(first, tmp_path) as osn, Clients() as clients:
        nodes = [osn.running(name, *quick_chains(*names)) for name in ("n1", "n2")]
        before, early = bundle_for(A, B), bundle_for(*names)
        clients.accepted(nodes[0], before)
        clients.committed(nodes[0], before)
        (answer,) = clients.submit(nodes[0], early)
        assert answer.status == 404
        posted = sum(counted(node, "markers_posted", A) for node in nodes)
        drained(osn.small, second)
        until(lambda: clients.submit(nodes[0], early)[0].status == 200)
        more = bundle_for(A, B)
        clients.accepted(nodes[1], more)
        for node in nodes:
            clients.committed(node, early, more, before)
        # The rule of the set that stays went on: what counted before is known in its log.
        clients.accepted(nodes[1], before)
        assert check_rows(*nodes, chains=names) == {each.id for each in (before, early, more)}
        for chain in names:
            marks = nodes[0].get(chain).markers(names)
            assert [marker.chain for marker in marks] == list(names)
        assert sum(counted(node, "markers_posted", A) for node in nodes) > posted
        # A node that was killed takes both sets up again, from the blocks of both epochs.
        again = killed_and_started(osn, "n2")
        clients.accepted(again, before, early, more)
        last = bundle_for(*names)
        clients.accepted(again, last)
        for node in (nodes[0], again):
            clients.committed(node, early, more, before, last)
        found = check_rows(nodes[0], again, chains=names)
        assert found == {each.id for each in (before, early, more, last)}
