"""The window of the always-on check: bounded, without false alarms, and it finds a wrong order."""

import itertools
from dataclasses import replace

import pytest

from multicast.consuming.subscription import SubscriptionRequest
from multicast.testing import system
from multicast.verification.window import DeliveryWindow
from tests.helpers.small import state_of

INTERESTS = {
    "consumers": {"C1": {"P1", "P2"}, "C2": {"P1", "P2", "P3"}},
    "destinations": [{"P1", "P2"}],
}
ROUNDS = 40


@pytest.fixture(scope="module")
def deliveries():
    """What two consumers deliver, batch by batch, and the control topic's state."""
    with system(INTERESTS, seed=3) as double:
        producer = double.producer()
        for _ in range(ROUNDS):
            for to in ({"P1"}, {"P2"}, {"P1", "P2"}, {"P3"}):
                producer.multicast(b"x", to=to)
            double.run(0.01)
        double.settle()
        batches = {name: list(double.consumer(name).until_end()) for name in INTERESTS["consumers"]}
        yield batches, state_of(double)


def window_of(batches, *, messages_max=10_000):
    window = DeliveryWindow(messages_max)
    for name in batches:
        window.begins(name, "", SubscriptionRequest.of(name, None), 1)
    for name, each in batches.items():
        for batch in each:
            window.delivered(name, "", batch, batch.records)
            assert window.messages <= messages_max
    return window


def singles(batches):
    """The same deliveries with one message in each batch."""
    return [replace(batch, records=(record,)) for batch in batches for record in batch.records]


def test_what_a_system_delivers_is_in_order_whatever_the_window_has_dropped(deliveries):
    batches, state = deliveries
    for messages_max in (10_000, 100, 37, 5, 1):
        report = window_of(batches, messages_max=messages_max).judge(state)
        assert report.violations == ()
    assert window_of(batches).judge(state).deliveries == 7 * ROUNDS


def test_two_messages_in_opposite_orders_are_found_with_a_witness(deliveries):
    batches, state = deliveries
    wrong = singles(batches["C2"])
    common = [place for place, batch in enumerate(wrong) if batch.log.name != "P3"]
    place = next(
        index
        for index, later in itertools.pairwise(common[20:])
        if later == index + 1 and wrong[index].log != wrong[later].log
    )
    wrong[place], wrong[place + 1] = wrong[place + 1], wrong[place]
    report = window_of({"C1": batches["C1"], "C2": wrong}).judge(state)
    assert "uniform prefix order" in [verdict.guarantee for verdict in report.violations]
    assert "C2" in str(report.violations[0].witness)


def test_a_hole_between_two_deliveries_is_found(deliveries):
    batches, state = deliveries
    wrong = singles(batches["C2"])
    del wrong[next(i for i, batch in enumerate(wrong) if i > 20 and batch.log.name == "P1+P2")]
    report = window_of({"C1": batches["C1"], "C2": wrong}).judge(state)
    assert "hole" in [verdict.witness.kind for verdict in report.violations]


def test_a_message_delivered_twice_is_found_and_nothing_after_the_window_was_cleared(deliveries):
    batches, state = deliveries
    wrong = singles(batches["C1"])
    wrong.insert(30, wrong[30])
    window = window_of({"C1": wrong})
    assert "uniform integrity" in [each.guarantee for each in window.judge(state).violations]
    window.clear()
    assert window.messages == 0
    assert window.judge(state).violations == ()


def test_a_reading_that_ends_leaves_nothing_in_the_window(deliveries):
    batches, _ = deliveries
    window = window_of(batches)
    for name in batches:
        window.ends(name, "")
    assert window.messages == 0
