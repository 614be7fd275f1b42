"""The joint appender behind a proxy that spoils its requests, and with a broker that is killed."""

import time

import pytest

from bench.nemesis.frames import Action, Api, RequestFault
from multicast.drivers.appender.record_batch import ProducerIdentity
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Appended
from multicast.errors import AppendNotStored, AppendUnknown
from tests.helpers.joint import Joint, append_pairs_until
from tests.helpers.proxied import proxied_broker
from tests.helpers.system import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
DELIVERY_S = 5.0
LONG_S = 240.0  # longer than a busy machine takes to start a broker


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
def impatient(behind):
    made = opened(behind, delivery_timeout_s=DELIVERY_S)
    yield made
    behind[1].disarm()
    made.close()


@pytest.fixture
def pair(joint):
    return prepared(joint)


def prepared(joint):
    """Make two partitions of different topics; the broker knows the producer in both."""
    (log,), (order,) = joint.topic(), joint.topic()
    for partition in (log, order):
        joint.appender.prepare(partition)
    joint.append_each([log, order], b"first")
    joint.settle()
    return log, order


def test_records_that_are_given_together_share_a_request(behind, joint, pair):
    counts = behind[2].counts
    assert counts[joint.name, Api.PRODUCE] == 1
    joint.append_each(pair, b"second")
    joint.settle()
    assert counts[joint.name, Api.PRODUCE] == 2


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


def test_what_is_in_doubt_when_time_is_up_is_never_sent_again(behind, impatient):
    log, order = prepared(impatient)
    held = spoil(behind, impatient, Action.HOLD_ANSWER, log, nth=None)
    impatient.append_each([log, order], b"stored")
    until(held.answered.is_set, "a stored request")
    impatient.append_each([log, order], b"sent")
    impatient.append_each([log, order], b"waits")
    until(lambda: impatient.count() == 8, "the end of the time")
    behind[1].disarm()
    impatient.append_surely(log, b"after")
    for partition in (log, order):
        errors = impatient.judge(partition)
        assert [type(errors.pop(value)) for value in (b"stored", b"sent", b"waits")] == [
            AppendUnknown,
            AppendUnknown,
            AppendNotStored,
        ]
        assert impatient.log(partition).count(b"stored") == 1


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


def test_records_that_are_deleted_do_not_disturb_the_sequence(joint, pair):
    with Admin(joint.cluster.bootstrap) as admin:
        admin.delete_records({pair[0]: 1})
    joint.append_each(pair, b"second")
    joint.settle()
    assert joint.outcomes[pair[0]][-1] == (b"second", Appended(1))


def test_an_appender_that_is_closed_settles_all_that_it_holds(behind):
    made = opened(behind)
    log, order = prepared(made)
    held = spoil(behind, made, Action.HOLD_ANSWER, log, nth=None)
    for number in range(10):
        made.append_each([log, order], b"%d" % number)
    until(held.answered.is_set, "a stored request")
    began = time.monotonic()
    made.appender.close(0.1)
    assert made.count() == 22
    assert time.monotonic() - began < 60.0  # stops a hang
    errors = made.judge(log)
    assert {type(errors[b"%d" % number]) for number in (0, 1)} == {AppendUnknown}
    assert {type(errors[b"%d" % number]) for number in range(2, 10)} == {AppendNotStored}
    behind[1].disarm()
    made.close()


def test_a_frozen_broker_is_given_up_and_what_it_holds_is_stored_once(behind):
    made = opened(behind, request_timeout_s=6.0, delivery_timeout_s=LONG_S)
    log, order = prepared(made)
    behind[0].pause(1)
    try:
        made.append_each([log, order], b"frozen")
        first = made.appender._dispatcher.links[1]
        until(lambda: first.broken, "a time-out of the request")
    finally:
        behind[0].resume(1)
    made.settle()
    assert [made.judge(partition) for partition in (log, order)] == [{}, {}]
    made.close()
