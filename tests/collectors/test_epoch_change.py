"""The drain between two epochs: markers, ends, rivals, consumers that join meanwhile, pauses."""

from dataclasses import replace

import pytest

from collectors.change_pauses import ChangePauses
from collectors.core.epoch_change import ends_of, freeze_positions, logs_to_mark
from multicast.consuming.cursor import single_log_cursor
from multicast.consuming.subscription import Bounds, SubscriptionRequest, resume
from multicast.control import ControlState, markers_record, plan_record, running_record
from multicast.drivers.protocol import Record
from multicast.order.runs import digest_of
from tests.helpers.in_memory_cluster import CONTROL, InMemoryCluster
from topology.carry_over import Retained

NOTHING = Retained(frozenset(), frozenset())


def two_logs():
    cluster = InMemoryCluster()
    cluster.plan(["P1", "P2"], {"K1": (["P1", "P2"], None)}, {"C1": (["P1", "P2"], "K1")})
    return cluster


def test_logs_that_may_be_read_alone_or_have_no_collector_get_a_marker():
    cluster = InMemoryCluster()
    plan = cluster.plan(["P1", "P2", "P3", "P2+P3"], {"K1": (["P2", "P2+P3"], None)})
    # P1 is read alone; P2 and P3 never are, because P2+P3 meets them; P3 has no collector.
    assert logs_to_mark(plan, NOTHING) == ("P1", "P3")


def test_ends_are_unknown_until_every_collector_is_frozen():
    cluster = two_logs()
    cluster.multicast("P1")
    cluster.node("K1.a")
    cluster.settle()
    plan = cluster.control().plan()
    streams = {"K1": cluster.stream(plan, "K1")}
    assert ends_of(plan, streams, {}, NOTHING) is None
    streams["K1"].state.frozen = True
    assert ends_of(plan, streams, {}, NOTHING) == {"P1": 1, "P2": 0}


def test_a_log_without_a_collector_ends_at_its_marker():
    cluster = InMemoryCluster()
    plan = cluster.plan(["P1"], {})
    assert ends_of(plan, {}, {"P1": 7}, NOTHING) == {"P1": 7}


def test_markers_of_logs_that_the_plan_has_not_ask_nothing():
    plan = two_logs().control().plan()
    assert freeze_positions(plan, {"P2": 4, "P9": 1}) == {plan.number("P2"): 4}


@pytest.mark.parametrize("kind", ["plan", "markers"])
def test_a_statement_made_again_stays_first_when_the_control_topic_is_compacted(kind):
    cluster = two_logs()
    state = cluster.control()
    plan = replace(state.plan(), epoch=2, base_epoch=1)
    if kind == "plan":
        rival = replace(plan, input_hash="another")
        made = [
            plan_record(state.previous, each, attempt=str(number))
            for number, each in enumerate((plan, rival, plan))
        ]
    else:
        made = [plan_record(state.previous, plan, attempt="first")]
        made += [
            markers_record(digest_of(made[0][1]), 1, {"P1": offset, "P2": 0}, attempt=str(number))
            for number, offset in enumerate((4, 5, 4))
        ]
    for key, value in made:
        cluster.log.write(CONTROL, value, key=key)
    before = cluster.control()
    assert len(before.plans) == 2
    assert bool(before.markers) is (kind == "markers")

    cluster.log.compact(CONTROL)

    assert cluster.control().plans == before.plans
    assert cluster.control().markers == before.markers


def test_a_lone_reader_that_joins_behind_the_marker_waits_for_the_end_of_the_epoch():
    cluster = InMemoryCluster()
    consumers = {"C1": (["P1", "P2"], "K1"), "C2": (["P2"], None)}
    cluster.plan(["P1", "P2"], {"K1": (["P1", "P2"], None)}, consumers)
    cluster.node("K1.a")
    cluster.plan(["P1", "P2"], {"K1": (["P1", "P2"], None)}, consumers, streams={"K1": 1})
    cluster.mark()
    cursor = single_log_cursor(cluster.control().plan(1), "P2", 1)  # the end of the log: "latest"
    consumer = cluster.consumer("C2.a", cursor=str(cursor))

    cluster.multicast("P2")
    before = consumer.drain()
    cluster.settle()
    cluster.finish()

    assert before == []
    assert consumer.drain() == ["P2:1"]
    assert consumer.delivery.plan.epoch == 2


def test_a_control_state_that_is_copied_reads_on_without_touching_the_other():
    state = two_logs().control()
    other = state.copy()
    key, value = running_record(1, "K1")

    other.read_collectors(Record(9, value, key))

    assert (state.advertised.running, other.advertised.running) == ({}, {"K1": 1})
    assert (other.plans, other.previous) == (state.plans, state.previous)
    assert ControlState("A").copy().previous == ControlState("A").previous


# -- collectors ---------------------------------------------------------------------------------


def test_a_lone_reader_without_a_next_epoch_waits_for_nothing():
    cluster = InMemoryCluster()
    cluster.plan(["P1"], {}, {"C1": (["P1"], None)})
    cluster.multicast("P1")
    state = cluster.control()
    cursor = single_log_cursor(state.plan(), "P1", 0)

    delivery = resume(state, SubscriptionRequest.of("C1", None), cursor, bounds=Bounds())

    assert delivery.marker is None
    assert cluster.consumer("C1.a").drain() == ["P1:0"]


# -- how long a change stops a collector ---------------------------------------------------------


def test_a_pause_is_known_once_both_ends_of_it_were_seen():
    pauses = ChangePauses()
    pauses.begun("K1", 1, 1.0)
    assert pauses.seconds("K1", 1) is None  # nothing came before
    pauses.frozen("K1", 2, 10.0)
    assert pauses.seconds("K1", 1) is None
    assert pauses.seconds("K1", 2) is None
    pauses.begun("K1", 2, 10.5)
    assert pauses.seconds("K1", 2) == 0.5
    pauses.begun("K1", 2, 99.0)  # its instance was restarted
    assert pauses.seconds("K1", 2) == 0.5
    assert pauses.seconds("K2", 2) is None


def test_the_next_change_has_its_own_pause():
    pauses = ChangePauses()
    for epoch, froze in ((2, 10.0), (5, 20.0)):  # the plans of 3 and 4 retain it
        pauses.frozen("K1", epoch, froze)
        pauses.begun("K1", epoch, froze + epoch)
        assert pauses.seconds("K1", epoch) == epoch
    pauses.frozen("K1", 6, 30.0)
    assert pauses.seconds("K1", 5) is None  # over: the next one is what is shown
    pauses.begun("K1", 7, 40.0)  # this process has not hosted it meanwhile
    assert pauses.seconds("K1", 7) is None


def test_a_freeze_that_is_seen_late_is_no_negative_pause():
    pauses = ChangePauses()
    pauses.begun("K1", 2, 10.0)
    pauses.frozen("K1", 2, 10.1)
    assert pauses.seconds("K1", 2) == 0.0
