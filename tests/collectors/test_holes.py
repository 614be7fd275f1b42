"""Offsets that are ordered and stay empty: a collector fills them, but not in another log."""

from dataclasses import replace

import pytest

from collectors.engine import clock
from multicast.control import log_partition
from multicast.errors import TopicChanged
from multicast.messages import SKIP
from tests.helpers.forged import far, forge
from tests.helpers.plans import chain
from tests.helpers.small import Small, until


class Ahead:
    """A chain of two collectors, and logs that are ordered ahead of their ends."""

    def __init__(self, system):
        self.system = system
        self.nodes = {node.name: node for node, _ in system.run_all()}
        for node in self.nodes.values():
            until(lambda node=node: node.core._core._ends)
        self.producer = system.producer(tickets=False)

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


def test_a_hole_is_filled_and_what_stands_behind_it_is_delivered():
    with Small(chain()) as system, Ahead(system) as ahead:
        ahead.begin("K1", "P1")  # the other program's producer died
        ahead.producer.multicast(b"behind", to={"P2"}).ordered(60)
        with system.consumer("C1", committed=False) as consumer:
            batches = list(consumer.until_end(timeout=60))
            values = [record.value for batch in batches for record in batch.records]
            assert values == [b"first", b"behind"]
        assert ahead.skips("P1") == [1]
        # No consumer delivers it as a message.
        assert system.all("C1") == ["P1:0", "P2:0"]
        until(lambda: ahead.nodes["K1"].status()["skips"] == 1)
        assert ahead.nodes["K1"].status()["fills"] == 1


def test_holes_that_stand_in_a_stream_from_before_are_filled_by_whoever_starts():
    with Small(chain()) as system:
        forge(system, "K1", far("P1", 3))
        with Ahead(system) as ahead:
            ahead.producer.multicast(b"behind", to={"P2"}).ordered(60)
            until(lambda: ahead.skips("P1") == [0, 1, 2])
            with system.consumer("C1", committed=False) as consumer:
                batches = list(consumer.until_end(timeout=60))
            values = [record.value for batch in batches for record in batch.records]
            assert values == [b"behind"]


def test_a_topic_that_was_made_again_is_never_filled(monkeypatch):
    monkeypatch.setattr(clock, "TICK_S", 3600.0)  # this test ticks itself
    made = chain()
    with Small(made) as empty:
        ids = empty.log.topic_ids(["A"])
    with Small(replace(made, topic_ids=ids)) as system, Ahead(system) as ahead:
        ahead.begin("K1", "P1")
        system.log.recreate("A")
        for _ in range(2):
            ahead.nodes["K1"]._runner.tick()
        until(ahead.nodes["K1"].ended.is_set)
        assert isinstance(system.errors["K1"], TopicChanged)
        assert ahead.skips("P1") == []
        with pytest.raises(TopicChanged, match="topic A is not the one that epoch 1"):
            system.consumer("C1")
        with pytest.raises(TopicChanged):
            system.run("K1")
