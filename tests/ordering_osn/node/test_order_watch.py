"""Whether a chain's order moves: `OrderWatch`, then a node whose collectors stop and start."""

import asyncio

import pytest

from ordering_osn.chain.bundles.bundle import encode_bundle
from ordering_osn.client.messages import NEWEST
from ordering_osn.node.order_watch import OrderWatch
from tests.helpers.small import until
from tests.ordering_osn.helpers.bundle_nodes import bundle_for
from tests.ordering_osn.helpers.small import (
    SHARED,
    TWO,
    Nodes,
    accepted,
    chains_plan,
    healthy,
    quick,
    submit,
    transaction,
    until_alike,
    until_ordered,
)
from tests.ordering_osn.node.test_deliver_multi import ended


class Watched:
    """An `OrderWatch` of one chain whose order also holds records for several."""

    def __init__(self, *, by_collector=True):
        self.watch = OrderWatch("a", stalled_s=10.0, probe_s=30.0)
        self.by_collector = by_collector

    def look(self, now, **ordered):
        """Look; give the trouble and whether a probe is wanted."""
        wanted = self.watch.look({"a": 0, **ordered}, now, by_collector=self.by_collector)
        return self.watch.trouble, bool(wanted)

    def proven(self):
        """Have a probe come back at once, at the time 0."""
        assert self.look(0)[1]
        self.watch.probe_stored(0)
        assert self.look(0, a=1) == (None, False)
        return self


def test_a_chain_that_a_collector_orders_is_in_trouble_until_a_probe_came_back():
    watched = Watched()
    trouble, wanted = watched.look(0)
    assert wanted
    assert "since this node started" in trouble
    assert "amcast collectors run" in trouble
    assert watched.look(1) == (trouble, False)  # one is on its way
    watched.watch.probe_stored(7)
    assert watched.look(2, a=7) == (trouble, False)
    assert watched.look(3, a=8) == (None, False)


def test_a_probe_that_was_lost_on_its_way_is_wanted_again():
    watched = Watched()
    assert watched.look(0)[1]
    watched.watch.probe_lost()
    assert watched.look(1)[1]


def test_what_is_stored_and_not_ordered_is_trouble_after_some_time_until_it_is_ordered():
    watched = Watched().proven()
    watched.look(1000, a=1)
    watched.watch.stored(5)
    assert watched.look(1001, a=1)[0] is None  # idle before, so it began to wait just now
    assert watched.look(1011, a=1)[0] is None
    trouble, wanted = watched.look(1012, a=1)
    assert "none of them was ordered for 10 s" in trouble
    assert not wanted
    assert watched.look(1013, a=2)[0] is None  # it moves, though not all is ordered
    assert watched.look(1024, a=2)[0] is not None
    assert watched.look(1025, a=6)[0] is None


def test_the_ends_of_all_logs_tell_what_waits_and_each_log_must_move():
    watched = Watched().proven()
    watched.watch.grown({"a": 1, "a+b": 3})
    for now in range(10):
        watched.watch.stored(now)
        assert watched.look(now, a=now + 1, **{"a+b": 2})[0] is None
    trouble, _ = watched.look(11, a=11, **{"a+b": 2})
    assert "log a+b holds records" in trouble
    assert watched.look(12, a=11, **{"a+b": 3})[0] is None


def test_a_log_that_is_relayed_is_probed_and_holds_up_no_envelope_of_the_chain():
    watched = Watched()
    watched.watch.grown({}, "a+b")
    assert watched.watch.look({"a": 0, "a+b": 0}, 0, by_collector=True) == ["a", "a+b"]
    watched.watch.probe_stored(0)
    assert watched.look(1, a=1, **{"a+b": 0}) == (None, False)
    watched.watch.probe_stored(0, "a+b")
    assert watched.look(2, a=1, **{"a+b": 1}) == (None, False)
    assert watched.watch.look({"a": 1, "a+b": 1}, 33, by_collector=True) == ["a", "a+b"]
    watched.watch.probe_stored(1)
    watched.watch.probe_stored(1, "a+b")
    watched.watch.grown({"a": 2, "a+b": 2}, "a+b")
    assert watched.look(34, a=2, **{"a+b": 1}) == (None, False)
    assert "log a+b holds records" in watched.look(45, a=2, **{"a+b": 1})[0]
    assert (watched.watch.own_trouble, watched.watch.stalled) == (None, True)
    watched.watch.grown({"a": 2}, None)  # the next plan has one collector
    assert watched.look(46, a=2, **{"a+b": 2}) == (None, False)


def test_an_idle_chain_is_well_and_posts_a_probe_now_and_then():
    watched = Watched().proven()
    assert watched.look(29, a=1) == (None, False)
    assert watched.look(31, a=1) == (None, True)
    assert watched.look(32, a=1) == (None, False)
    watched.watch.probe_stored(1)
    assert watched.look(33, a=2) == (None, False)
    assert watched.look(60, a=2) == (None, False)
    assert watched.look(64, a=3) == (None, False)  # another node's came back
    assert watched.look(90, a=3) == (None, False)
    assert watched.look(95, a=3) == (None, True)
    watched.watch.probe_stored(3)
    watched.look(96, a=3)
    assert watched.look(107, a=3)[0] is not None  # the collector went while nobody sent anything


def test_a_log_that_is_its_own_order_needs_no_probe_and_may_end_in_a_marker():
    watched = Watched(by_collector=False)
    watched.watch.grown({"a": 4})
    for now in range(0, 1000, 5):
        assert watched.look(now, a=3) == (None, False)
    watched.watch.posted(5)
    watched.look(1000, a=3)
    assert "what holds it up" in watched.look(1011, a=3)[0]
    assert watched.look(1012, a=6)[0] is None


def test_a_chain_that_a_collector_orders_from_now_on_is_to_be_proven():
    watched = Watched(by_collector=False)
    assert watched.look(0, a=1) == (None, False)
    watched.by_collector = True
    trouble, wanted = watched.look(1, a=1)
    assert trouble is not None
    assert wanted


# -- a node -----------------------------------------------------------------------------------

TIMES = {"stalled_s": 0.5, "probe_s": 0.5}
BOTH = ("chain-a", "chain-b")
# Who reads both reads the collector of chain-b, which has a parent.
READ = chains_plan(*BOTH, spanning=[BOTH], readers=[BOTH])


class Switched(Nodes):
    """Nodes whose collectors run only when they are started."""

    def __enter__(self):
        self._stack.enter_context(self.small)
        return self

    def collectors(self):
        return self.small.run_all()

    def stop_collectors(self, running):
        for node, thread in running:
            node.stop()
            thread.join(60)


def until_accepted(node, envelope):
    """Submit an envelope until it is accepted: where time is this short, an order may stall."""
    until(lambda: submit(node, envelope)[0][0] == 200)


def genesis_blocks():
    return [quick(name, timeout="30ms") for name in ("chain-a", "chain-b")]


@pytest.mark.slow
def test_a_node_that_starts_without_collectors_accepts_nothing_until_they_run(tmp_path):
    with Switched(TWO, tmp_path) as osn:
        node = osn.start("n1", *genesis_blocks())
        until(lambda: "was ordered since this node started" in str(node.health()))
        assert [component for component, _ in node.health()] == ["chain-a/0", "chain-b/0"]
        ((status, info),) = submit(node, transaction())
        assert status == 503
        assert "amcast collectors run" in info
        assert not node.get("chain-a").errored  # what there is can be read
        osn.collectors()
        healthy(node)
        one = transaction()
        accepted(node, one)
        assert until_ordered(node, 1) == [one]


@pytest.mark.slow
def test_a_node_whose_collectors_go_answers_503_and_goes_on_when_they_are_back(tmp_path):
    with Switched(TWO, tmp_path) as osn:
        running = osn.collectors()
        # Without tickets, as of nodes that may not write the order: with them it goes on by itself.
        nodes = [
            osn.start(name, *genesis_blocks(), driver=osn.faulty(), **TIMES)
            for name in ("n1", "n2")
        ]
        healthy(*nodes)
        first = transaction()
        until_accepted(nodes[0], first)
        until_ordered(nodes[1], 1)
        osn.stop_collectors(running)
        # Nobody sends anything: the nodes' own probes tell.
        for node in nodes:
            until(lambda: "log chain-a holds records" in str(node.health()))  # noqa: B023
            assert submit(node, transaction())[0][0] == 503
        osn.collectors()
        healthy(*nodes)
        second = transaction()
        until_accepted(nodes[1], second)
        assert until_ordered(nodes[0], 2) == [first, second]
        until_alike(*nodes)


@pytest.mark.slow
def test_what_was_accepted_before_it_was_known_is_ordered_when_the_collectors_are_back(tmp_path):
    with Switched(TWO, tmp_path) as osn:
        running = osn.collectors()
        node = osn.running("n1", *genesis_blocks(), driver=osn.faulty(), stalled_s=0.5, probe_s=1e9)
        osn.stop_collectors(running)
        assert node.health() == []
        envelope = transaction()
        accepted(node, envelope)
        until(lambda: "log chain-a holds records" in str(node.health()))
        assert submit(node, transaction())[0][0] == 503
        osn.collectors()
        assert until_ordered(node, 1) == [envelope]
        healthy(node)


@pytest.mark.slow
def test_without_collectors_tickets_order_a_chain_and_its_health_says_that_bundles_wait(tmp_path):
    with Switched(READ, tmp_path) as osn:
        running = osn.collectors()
        node = osn.running("n1", *genesis_blocks(), **TIMES)
        assert ended(node, BOTH, stop=NEWEST) == (200, "")
        osn.stop_collectors(running)
        # No bundle is sent: the probes of the log that is relayed to chain-b tell.
        until(lambda: "log chain-a+chain-b holds records" in str(node.health()))
        assert [component for component, _ in node.health()] == ["chain-b/0"]
        bundle = encode_bundle(bundle_for(*BOTH))
        answer = asyncio.run(node.submit_bundle(bundle))
        assert (answer.status, answer.chain) == (503, "chain-b")
        # A stream that ends at the newest entry says the same, and not that the log is away.
        status, info = ended(node, BOTH, stop=NEWEST)
        assert (status, "log chain-a+chain-b holds records" in info) == (503, True)
        sent = [transaction("chain-b") for _ in range(3)]
        for number, envelope in enumerate(sent, start=1):
            until_accepted(node, envelope)
            assert until_ordered(node, number, "chain-b") == sent[:number]
        osn.collectors()
        healthy(node)
        assert asyncio.run(node.submit_bundle(bundle)).status == 200


@pytest.mark.slow
def test_with_one_collector_tickets_order_bundles_too_and_the_node_is_well_without_it(tmp_path):
    with Switched(SHARED, tmp_path) as osn:
        node = osn.running("n1", *genesis_blocks())
        bundle = encode_bundle(bundle_for("chain-a", "chain-b"))
        assert asyncio.run(node.submit_bundle(bundle)).status == 200
        for chain in ("chain-a", "chain-b"):
            until_ordered(node, 1, chain)
        assert node.health() == []
