"""A control topic that has lost its end is not taken for one in which less was stated."""

from dataclasses import replace

import pytest

from multicast.control import (
    ControlReader,
    collectors_partition,
    control_partition,
    ends_record,
    markers_record,
    plan_record,
    running_record,
)
from multicast.control import follower as follower_module
from multicast.drivers import reading
from multicast.errors import ClusterUnreachable, Truncated
from tests.helpers.plans import chain
from tests.helpers.small import Small, until

PLAN, SECOND = chain(), chain(epoch=2)
OPERATORS, COLLECTORS = control_partition("A"), collectors_partition("A")
LOST = "the control topic A.topology has lost its end"


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(reading, "END_LAGS_S", 0.0)
    monkeypatch.setattr(follower_module, "_EVERY_S", 0.0)
    monkeypatch.setattr(follower_module, "_WAIT_S", 0.05)
    with Small(PLAN) as made:
        made.propose(SECOND)
        made.write(markers_record(made.previous, 1, {"P4": 0}, attempt="1"))
        yield made


@pytest.fixture
def control(world):
    reader = ControlReader(world.driver, "A")
    reader.refresh()
    yield reader
    reader.close()


def other_markers(world, position):
    world.write(markers_record(world.previous, 1, {"P4": position}, attempt="2"))


@pytest.mark.parametrize("partition", [OPERATORS, COLLECTORS])
def test_a_topic_that_ends_below_what_was_read_is_refused(world, control, partition):
    world.write(running_record(1, "K1"))
    control.refresh()
    world.log.lose(partition, 0)
    for _ in range(2):
        with pytest.raises(Truncated, match="has lost its end"):
            control.refresh()
    with pytest.raises(Truncated, match="has lost its end"):
        control.follow(0.1)


@pytest.mark.parametrize("how", ["refresh", "follow"])
def test_other_statements_below_what_was_read_are_refused(world, control, how):
    world.log.lose(OPERATORS, 2)
    other_markers(world, 7)
    if how == "follow":
        world.write(
            ends_record(world.previous, 1, dict.fromkeys(["P1", "P2", "P3"], 0), attempt="1")
        )
    for _ in range(2):
        with pytest.raises(Truncated, match=f"{LOST}: other plans, markers or ends"):
            control.refresh() if how == "refresh" else control.follow(0.1)
    assert control.state.markers == {1: {}}


def test_another_leader_that_has_lost_nothing_costs_one_reading(world, control):
    for partition in (OPERATORS, COLLECTORS):
        world.log.lose(partition, world.driver.last_stable_offsets([partition])[partition])
    world.write(running_record(1, "K1"))
    ends = dict.fromkeys(("P1", "P2", "P3", "P4"), 0)
    world.write(ends_record(world.previous, 1, ends, attempt="1"))
    state = control.refresh()
    assert (state.begun_epoch, state.advertised.running) == (2, {"K1": 1})


def test_what_was_lost_behind_a_statement_of_the_same_chain_is_no_loss(world, control):
    world.log.compact(OPERATORS)
    world.log.lose(OPERATORS, 2)
    world.write(markers_record(world.previous, 1, {"P4": 0}, attempt="1"))
    assert control.refresh().markers == {1: {}}


def test_of_collectors_statements_those_of_the_new_end_are_read(world, control):
    world.write(running_record(1, "K1"))
    control.refresh()
    world.log.lose(COLLECTORS, 0)
    world.write(running_record(1, "K2"))
    assert control.refresh().advertised.running.keys() == {"K1", "K2"}


def test_a_comparison_that_fails_loses_no_statement(world, control, monkeypatch):
    def away(_):
        raise ClusterUnreachable("no answer")

    world.log.lose(OPERATORS, 3)
    ends = dict.fromkeys(("P1", "P2", "P3", "P4"), 0)
    world.write(ends_record(world.previous, 1, ends, attempt="1"))
    with monkeypatch.context() as patched:
        patched.setattr(world.driver, "log_start_offsets", away)
        with pytest.raises(ClusterUnreachable):
            control.follow(0.1)
    assert control.follow(0.1).begun_epoch == 2


def test_a_producer_that_is_open_hears_of_it(world):
    with world.producer() as producer:
        world.log.lose(OPERATORS, 2)

        def refused():
            try:
                producer.multicast(b"", to={"P1"})
            except Truncated as error:
                return str(error)
            return None

        assert until(refused).startswith(LOST)


def test_a_consumer_that_waits_for_the_end_of_an_epoch_hears_of_it(world):
    world.write(markers_record(world.previous, 1, {}, attempt="2"))
    with world.consumer("C4") as consumer:
        world.log.lose(OPERATORS, 1)
        world.write(plan_record(world.previous, replace(SECOND, input_hash="x"), attempt="2"))
        other_markers(world, 3)
        with pytest.raises(Truncated, match=LOST):
            consumer.seek("latest")
