"""The joint appender behind a proxy that spoils its requests, on a real broker."""

import pytest

from bench.nemesis.frames import Action, Api, RequestFault
from multicast.drivers.appender.record_batch import ProducerIdentity
from multicast.drivers.protocol import Appended
from multicast.errors import AppendUnknown
from tests.helpers.joint import Joint, append_pairs_until
from tests.helpers.proxied import proxied_broker
from tests.helpers.system import until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]
LONG_S = 240.0  # longer than any wait of a test


@pytest.fixture(scope="module")
def behind():
    with proxied_broker() as broker:
        yield broker


def opened(behind, **settings):
    cluster, proxy, _ = behind
    return Joint(cluster, bootstrap=proxy.bootstrap, settings=settings)


def spoil(behind, joint, action, partition, **more):
    rule = RequestFault(
        api=Api.PRODUCE,
        action=action,
        client_id=joint.name,
        contains=partition.topic.encode(),
        **more,
    )
    return behind[1].arm(rule)


@pytest.fixture
def joint(behind):
    made = opened(behind, delivery_timeout_s=LONG_S)
    yield made
    behind[1].disarm()
    made.close()


@pytest.fixture
def pair(joint):
    """Make two partitions of different topics; the broker knows the producer in both."""
    (log,), (order,) = joint.topic(), joint.topic()
    for partition in (log, order):
        joint.appender.prepare(partition)
    joint.append_each([log, order], b"first")
    joint.settle()
    return log, order


def test_what_comes_while_requests_are_in_flight_goes_together_into_the_next(behind, joint, pair):
    held = spoil(behind, joint, Action.HOLD_ANSWER, pair[0])
    for number in range(20):
        joint.append_each(pair, b"%d" % number)
    until(held.answered.is_set, "a stored request")
    held.release()
    joint.settle()
    # The first request before the test; two that were sent at once; all others.
    assert behind[2].counts[joint.name, Api.PRODUCE] == 4
    assert [joint.judge(partition) for partition in pair] == [{}, {}]


@pytest.mark.parametrize("action", [Action.LOSE_ANSWER, Action.CUT, Action.STRAND, Action.DOUBLE])
def test_what_a_broken_connection_leaves_open_is_stored_once(behind, joint, pair, action):
    for turn in range(5):
        late = {"delay_s": 0.05} if action is Action.STRAND else {}
        spoiled = spoil(behind, joint, action, pair[0], nth=2, **late)
        append_pairs_until(joint, pair, spoiled.fired.is_set)
        assert spoiled.count == 1, turn
    joint.settle()
    assert [joint.judge(partition) for partition in pair] == [{}, {}]
    assert len(joint.log(pair[0])) == len(joint.sent[pair[0]])


def test_records_whose_sequence_is_lost_are_in_doubt_or_sent_in_a_new_epoch(behind, joint, pair):
    # Init: another producer takes our ID, and appends in our next epoch.
    other = opened(behind)
    producer, epoch = joint.appender._dispatcher.partitions[pair[0]].identity
    other.appender._dispatcher.identity = ProducerIdentity(producer, epoch + 1)
    other.append_each([pair[0], pair[0]], b"foreign")
    other.settle()
    assert [type(done) for _, done in other.outcomes[pair[0]]] == [Appended] * 2
    other.close()

    # Test: a record has no answer, and its number is that of an old epoch; then others come.
    link = joint.appender._dispatcher.links[1]
    cut = spoil(behind, joint, Action.CUT, pair[0])
    joint.append_each(pair, b"cut")
    until(lambda: cut.fired.is_set() and link.broken, "the cut")
    joint.append_each(pair, b"behind")
    joint.settle()

    # Check: only what had no answer is in doubt.
    joint.append_each(pair, b"after")
    joint.settle()
    told = dict(joint.outcomes[pair[0]])
    assert isinstance(told.pop(b"cut").error, AppendUnknown)
    assert all(isinstance(outcome, Appended) for outcome in told.values())
    assert joint.log(pair[0]) == [b"first", b"foreign", b"foreign", b"behind", b"after"]
    assert joint.judge(pair[1]) == {}
    assert joint.appender._dispatcher.partitions[pair[0]].identity.epoch > epoch + 1
