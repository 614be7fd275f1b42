"""The system behind the nemesis' proxy: a request is doubled, delayed, cut, unanswered."""

import contextlib

import pytest

from bench.nemesis.frames import Action, Api, RequestFault
from multicast.errors import AmcastError
from tests.helpers.proxied import proxied_broker, running
from tests.helpers.system import PATIENCE_S, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def behind():
    with proxied_broker() as (_, proxy, _):
        yield proxy


@pytest.fixture(scope="module", params=["librdkafka", "kafka-python"])
def world(behind, request, tmp_path_factory):
    with running(behind, request.param, tmp_path_factory.mktemp("system")) as made:
        yield made


def produces(action, **more):
    return RequestFault(api=Api.PRODUCE, action=action, client_id="p1", **more)


def test_an_order_record_whose_produce_is_doubled_stands_in_its_stream_once(world):
    records = world.proxy.arm(
        RequestFault(
            api=Api.PRODUCE,
            action=Action.DOUBLE,
            nth=None,
            contains=f"{world.system.topic}.Msg-TO".encode(),
        )
    )
    before = world.system.void()
    world.send_each(40)
    assert records.count >= 10
    assert world.system.void() == before
    world.judge()


def test_a_delayed_produce_is_overtaken_and_takes_its_place_when_it_lands(world):
    world.send("P2").ordered(PATIENCE_S)
    held = world.proxy.arm(produces(Action.DELAY))
    late = world.send("P2")
    assert held.fired.wait(PATIENCE_S)
    early = [world.send("P2", name="p2").ordered(PATIENCE_S) for _ in range(10)]
    assert late.outcome is None
    held.release()
    assert late.ordered(PATIENCE_S) > max(early)
    world.judge()


def test_a_spoilt_fetch_loses_and_repeats_nothing(world):
    with world.consumer("C1") as first, world.consumer("C2") as second:
        for action in (Action.CUT, Action.LOSE_ANSWER, Action.DOUBLE, Action.STRAND):
            # The first may be a consumer's, the fourth a collector's: both ways are gone.
            spoilt = [
                world.proxy.arm(
                    RequestFault(api=Api.FETCH, action=action, nth=nth, client_id=client)
                )
                for client in ("consumer-C1", "consumer-C2", "amcast")
                for nth in (1, 4)
            ]
            world.send_each(8)
            world.read(first, "C1", "live")
            world.read(second, "C2", "live")
            until(lambda spoilt=spoilt: spoilt[-2].fired.is_set(), "a collector's fetch")
            assert spoilt[0].fired.is_set()
            assert spoilt[2].fired.is_set()
            world.proxy.disarm()
    world.judge()


def commits(action, **more):
    return RequestFault(api=Api.OFFSET_COMMIT, action=action, client_id="consumer-C1", **more)


@pytest.mark.parametrize("action", [Action.CUT, Action.LOSE_ANSWER, Action.DOUBLE])
def test_after_a_spoilt_commit_the_next_instance_goes_on_where_the_cursor_is(world, action):
    world.send_each(8)
    with world.consumer("C1") as consumer:
        world.read(consumer, "C1", f"{action}-1")
        spoilt = world.proxy.arm(commits(action))
        with contextlib.suppress(AmcastError):  # said, then; the cursor is the old or the new one
            consumer.commit()
        assert spoilt.fired.is_set()
        world.proxy.disarm()
        consumer.commit()
        place = consumer.position
    world.send_each(8)
    with world.consumer("C1") as consumer:
        assert consumer.position == place
        world.read(consumer, "C1", f"{action}-2")
    world.judge()


def test_a_commit_that_lands_late_repeats_deliveries_in_the_same_order_and_loses_none(world):
    # Init: a commit is delayed for so long that its instance continues and commits again.
    world.send_each(4)
    with world.consumer("C1") as consumer:
        world.read(consumer, "C1", "late-1")
        stranded = world.proxy.arm(commits(Action.STRAND))
        with contextlib.suppress(AmcastError):
            consumer.commit()
        assert stranded.fired.is_set()
        old = consumer.position
        world.send_each(4)
        world.read(consumer, "C1", "late-1")
        consumer.commit()
        assert consumer.position != old

    # Test: the first commit reaches the broker.
    stranded.release()
    assert stranded.answered.wait(PATIENCE_S)

    # Check: the committed cursor is the older one. The messages after it are delivered again.
    with world.consumer("C1") as consumer:
        assert consumer.position == old
        world.read(consumer, "C1", "late-2")
    world.judge()
