"""The system behind the nemesis' proxy: a commit is doubled, cut, unanswered, or lands late.

Of the kinds of requests that the nemesis spoils (`faults/proxy.py`) it judges the whole.
"""

import contextlib

import pytest

from bench.nemesis.frames import Action, Api, RequestFault
from multicast.errors import AmcastError
from tests.helpers.proxied import proxied_broker, running
from tests.helpers.system import PATIENCE_S

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def behind():
    with proxied_broker() as (_, proxy, _):
        yield proxy


@pytest.fixture(scope="module", params=["librdkafka", "kafka-python"])
def world(behind, request, tmp_path_factory):
    with running(behind, request.param, tmp_path_factory.mktemp("system")) as made:
        yield made


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
