"""Early runs: older programs ordered messages before they were stored, and their records remain.

Every reader takes them as any order, and a collector fills the holes that stay behind them.
"""

from dataclasses import replace

import pytest

from collectors.collector import Append, Collector, Fill
from collectors.engine import clock
from multicast import Consumer, Producer
from multicast.control import log_partition
from multicast.errors import TopicChanged
from multicast.messages import SKIP
from multicast.order import OrderStream, Run
from multicast.order import decode as decode_order
from tests.helpers.forged import far, forge
from tests.helpers.plans import chain, from_start, poster
from tests.helpers.small import Small, until
from tests.helpers.system import PATIENCE_S, System

# -- in the core ------------------------------------------------------------------------------


class Stand:
    """A collector whose appends are stored at once, beside an instance of an older program."""

    def __init__(self):
        plan = chain()
        self.core = Collector(OrderStream(plan, "K1", from_start(plan)), None, writer=1)
        self.core.own_end(0)
        self.stored = 0

    def order_early(self, by):
        """Store a record that orders so many offsets of P1 beyond what is ordered."""
        self.store(far("P1", by)(self.core.own))

    def store(self, raw):
        self.core.own_read(self.stored, raw)
        self.stored += 1

    def step(self):
        """Carry out appends; give the runs that were ordered and the fills that are asked for."""
        runs, fills = [], []
        for action in self.core.step(0):
            match action:
                case Append(raw):
                    runs += decode_order(raw).runs
                    self.store(raw)
                case Fill():
                    fills.append(action)
        return runs, fills


def test_a_collector_orders_what_is_stored_and_nothing_behind_it():
    stand = Stand()
    assert stand.step() == ([], [])  # where the log ends is not known yet
    stand.core.log_end(0, 5)
    assert stand.step() == ([Run(0, 0, 5)], [])
    assert (stand.step(), stand.core.early) == (([], []), 0)


def test_what_was_ordered_early_is_not_ordered_again_once_it_is_stored():
    stand = Stand()
    stand.core.log_end(0, 5)
    stand.step()
    stand.order_early(2)
    assert stand.core.early == 2
    stand.core.log_end(0, 7)
    assert stand.step() == ([], [])
    assert stand.core.early == 0
    stand.core.log_end(0, 8)
    assert stand.step() == ([Run(0, 7, 8)], [])


def test_a_hole_is_filled_one_by_one_after_two_ticks():
    stand = Stand()
    stand.core.log_end(0, 0)
    stand.order_early(2)  # and the producer dies
    stand.core.tick()
    assert stand.step() == ([], [])
    stand.core.tick()
    assert stand.step() == ([], [Fill(0, 2)])
    stand.core.tick()
    stand.core.tick()
    assert stand.step() == ([], [])  # one is outstanding
    stand.core.filled(0, 1)
    assert stand.step() == ([], [Fill(0, 2)])
    stand.core.filled(0, 2)
    stand.core.log_end(0, 2)
    assert stand.step() == ([], [])
    stand.core.log_end(0, 3)
    assert stand.step() == ([Run(0, 2, 3)], [])


def test_what_grows_is_no_hole():
    stand = Stand()
    stand.core.log_end(0, 0)
    stand.order_early(5)
    for end in range(1, 5):
        stand.core.tick()
        stand.core.log_end(0, end)
        assert stand.step() == ([], [])


def test_after_a_fill_that_failed_the_hole_is_not_given_up():
    stand = Stand()
    stand.core.log_end(0, 0)
    stand.order_early(1)
    stand.core.tick()
    stand.core.tick()
    assert stand.step() == ([], [Fill(0, 1)])
    stand.core.filled(0, None)
    assert stand.step() == ([], [])
    stand.core.tick()
    assert stand.step() == ([], [Fill(0, 1)])
    stand.core.log_end(0, 4)
    assert stand.step() == ([Run(0, 1, 4)], [])


def test_an_early_run_behind_the_marker_does_not_keep_an_epoch_from_its_end():
    stand = Stand()
    stand.core.log_end(0, 1)
    stand.core.log_end(1, 0)
    stand.step()
    stand.order_early(3)
    stand.core.freeze_after({0: 2, 1: 0})
    stand.step()
    assert stand.core.frozen
    assert stand.core.own.state.positions[0] == 4


# -- through the shells -----------------------------------------------------------------------


class Early:
    """A chain of two collectors, beside an instance of an older program."""

    def __init__(self, system):
        self.system = system
        self.nodes = {node.name: node for node, _ in system.run_all()}
        for node in self.nodes.values():
            until(lambda node=node: node.core._ends)
        self.producer = system.producer()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.producer.close()

    def begin(self, name, log):
        """Store a first message of a log, and order another one early that is not stored."""
        self.producer.multicast(b"first", to={log}).ordered(60)
        forge(self.system, name, far(log, 1))
        until(lambda: self.position(name, log) == 2)

    def position(self, name, log):
        return self.nodes[name].core.own.state.positions[self.system.plan.number(log)]

    def skips(self, log):
        fetched = self.system.log.read(log_partition(self.system.plan.log(log)), 0, 1000)
        return [
            record.offset
            for record in (fetched.records if fetched else ())
            if dict(record.headers).get(SKIP) == log.encode()
        ]


def test_an_early_run_is_relayed_at_once_and_delivered_once_its_message_is_stored(monkeypatch):
    monkeypatch.setattr(clock, "TICK_S", 3600.0)  # no hole is filled, however long it takes
    with Small(chain()) as system, Early(system) as early:
        early.begin("K1", "P2")
        until(lambda: early.position("K2", "P2") == 2)  # relayed, as any order
        top = early.nodes["K1"]
        assert (top.status()["early"], top.status()["ordered_early"]) == (1, 0)
        assert (
            system.log.last_stable_offsets([log_partition(system.plan.log("P2"))]).popitem()[1] == 1
        )
        with system.consumer("C2") as consumer:
            (batch,) = consumer.poll(60)
            assert [record.value for record in batch.records] == [b"first"]
            assert consumer.poll(0.2) == []
            early.producer.multicast(b"x", to={"P2"}).ordered(60)
            (batch,) = consumer.poll(60)
            assert [record.value for record in batch.records] == [b"x"]
        until(lambda: (top.status()["early"], top.status()["ordered_early"]) == (0, 1))
        assert early.position("K1", "P2") == 2


def test_a_hole_is_filled_and_what_stands_behind_it_is_delivered():
    with Small(chain()) as system, Early(system) as early:
        early.begin("K1", "P1")  # the other program's producer died
        early.producer.multicast(b"behind", to={"P2"}).ordered(60)
        with system.consumer("C1", committed=False) as consumer:
            batches = list(consumer.until_end(timeout=60))
            values = [record.value for batch in batches for record in batch.records]
            assert values == [b"first", b"behind"]
        assert early.skips("P1") == [1]
        # No consumer delivers it as a message.
        assert system.all("C1") == ["P1:0", "P2:0"]
        until(lambda: early.nodes["K1"].status()["skips"] == 1)
        assert early.nodes["K1"].status()["fills"] == 1


def test_holes_that_stand_in_a_stream_from_before_are_filled_by_whoever_starts():
    with Small(chain()) as system:
        forge(system, "K1", far("P1", 3))
        with Early(system) as early:
            early.producer.multicast(b"behind", to={"P2"}).ordered(60)
            until(lambda: early.skips("P1") == [0, 1, 2])
            with system.consumer("C1", committed=False) as consumer:
                batches = list(consumer.until_end(timeout=60))
            values = [record.value for batch in batches for record in batch.records]
            assert values == [b"behind"]


def test_a_topic_that_was_made_again_is_never_filled(monkeypatch):
    monkeypatch.setattr(clock, "TICK_S", 3600.0)  # this test ticks itself
    made = chain()
    with Small(made) as empty:
        ids = empty.log.topic_ids(["A"])
    with Small(replace(made, topic_ids=ids)) as system, Early(system) as early:
        early.begin("K1", "P1")
        system.log.recreate("A")
        for _ in range(2):
            early.nodes["K1"]._runner.tick()
        until(early.nodes["K1"].ended.is_set)
        assert isinstance(system.errors["K1"], TopicChanged)
        assert early.skips("P1") == []
        with pytest.raises(TopicChanged, match="topic A is not the one that epoch 1"):
            system.consumer("C1")
        with pytest.raises(TopicChanged):
            system.run("K1")


def test_a_collector_stops_when_a_log_that_it_watches_was_made_again():
    made = chain()
    with Small(made) as empty:
        ids = empty.log.topic_ids(["A"])
    with Small(replace(made, topic_ids=ids)) as system, Early(system) as early:
        for _ in range(3):
            early.producer.multicast(b"x", to={"P1"}).ordered(60)
        system.log.recreate("A")
        until(early.nodes["K1"].ended.is_set)
        assert isinstance(system.errors["K1"], TopicChanged)


# -- on a real broker -------------------------------------------------------------------------


@pytest.mark.campaign
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_on_a_real_broker_a_producer_that_died_leaves_a_skip_and_no_gap(kafka_cluster, tmp_path):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as system:
        host = system.collectors()
        host.wait_healthy(120)
        top = system.plan.top("P3").name
        with Producer(topic=system.topic, driver=system.driver) as producer:
            sent = [b"%d" % number for number in range(20)]
            for value in sent:
                producer.multicast(value, to={"P3"}).ordered(PATIENCE_S)
            # An older program has ordered messages whose producer then died.
            forge(system, top, far("P3", 3))
            until(lambda: host.status(top)["skips"] >= 3, 120, pause=0.2)
            producer.multicast(b"behind", to={"P3"}).ordered(PATIENCE_S)
        for name in ("C1", "C2", "C3"):
            with Consumer(topic=system.topic, name=name, driver=system.driver) as consumer:
                values = [
                    record.value for batch in consumer.until_end() for record in batch.records
                ]
            assert values == [*sent, b"behind"]
