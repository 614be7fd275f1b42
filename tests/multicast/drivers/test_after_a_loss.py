"""A batch that is lost costs no other record: not the next one, whose number would be too high.

kafka-python 3.0.12 gives a partition's next batch the number after a lost one's, and the broker
refuses it, unless the lost one expires between two attempts.
"""

import contextlib
import logging

import pytest

from bench.nemesis.frames import Action, Api, RequestFault
from multicast.drivers.protocol import Appended
from multicast.errors import AppendUnknown
from tests.helpers.doubled import Ours
from tests.helpers.proxied import proxied_broker
from tests.helpers.system import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
DELIVERY_S = 2.0


@pytest.fixture(scope="module")
def behind():
    with proxied_broker() as (cluster, proxy, _):
        yield cluster, proxy


def ends_by_an_attempt(world):
    """Let a batch of kafka-python end with an attempt that fails after the time-out.

    Most batches expire between two attempts, before that.
    """
    producer = world.appender._producer
    producer._sender._get_expired_inflight_batches = lambda **_: []
    producer._accumulator.expired_batches = lambda **_: []


@pytest.mark.parametrize(
    ("driver", "late"), [("librdkafka", False), ("kafka-python", False), ("kafka-python", True)]
)
def test_the_record_after_a_lost_one_is_stored(behind, driver, late, caplog):
    # Init: one record is stored, and the next one never reaches the broker.
    cluster, proxy = behind
    world = Ours(cluster, proxy.bootstrap, driver, delivery_timeout_s=DELIVERY_S)
    with contextlib.closing(world):
        partition = world.topic()
        world.append_surely(partition, b"one")
        if late:
            ends_by_an_attempt(world)
        rule = RequestFault(api=Api.PRODUCE, action=Action.CUT, nth=None, client_id=world.name)
        cut = proxy.arm(rule)
        world.append(partition, b"two")
        until(world.settled, "the outcome of the lost record")
        assert isinstance(world.outcomes[b"two"].error, AppendUnknown)
        cut.release()

        # Test
        with caplog.at_level(logging.WARNING):
            world.append(partition, b"three")
            until(world.settled, "the outcome of the next record")
            three = world.outcomes[b"three"]
            # On a busy machine it may time out, too. Then others of its kind follow.
            assert isinstance(three, Appended) or isinstance(three.error, AppendUnknown), three
            world.append_surely(partition, b"four")

        # Check
        assert max(world.copies(partition).values()) == 1
        assert world.accepted() <= set(world.copies(partition))
        assert "OutOfOrderSequence" not in caplog.text
