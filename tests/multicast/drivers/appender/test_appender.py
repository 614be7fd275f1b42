"""The joint appender on a real broker: requests, outcomes, limits."""

import threading

import pytest

from multicast.drivers.protocol import Appended
from multicast.errors import AppendUnknown, UsageError
from tests.helpers.driver_worlds import PATIENCE_S
from tests.helpers.joint import Joint

PAIRS = 10_000


@pytest.fixture
def joint(kafka_cluster):
    made = Joint(kafka_cluster)
    yield made
    made.close()
    made.close()


def test_pairs_from_several_threads_are_stored_once_and_in_order(joint):
    (log,), (order,) = joint.topic(), joint.topic()
    lock = threading.Lock()

    def append(name):
        for number in range(PAIRS // 4):
            with lock:  # so that the order of the appends is known
                joint.append_each([log, order], b"%s %d" % (name, number))

    threads = [threading.Thread(target=append, args=(name,)) for name in (b"a", b"b", b"c", b"d")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    joint.settle()
    for partition in (log, order):
        assert joint.judge(partition) == {}
        assert len(joint.log(partition)) == PAIRS


def test_what_goes_beside_is_made_for_each_request_and_counts_every_record(kafka_cluster):
    counted = []

    def beside(started):
        counted.append(dict(started))
        assert len(counted) != 2, "a mistake of the caller"
        return [made.record(order, b"%d" % len(counted))]

    made = Joint(kafka_cluster, beside=beside)
    first, second = made.topic(2)
    (order,) = made.topic()
    made.append(first, b"0")
    made.settle()
    for number in range(1, 500):
        made.append((first, second)[number % 2], b"%d" % number)
    made.settle()
    for partition in (first, second):
        assert sum(one.get(partition, 0) for one in counted) == 250
        assert len(made.log(partition)) == 250
    assert order not in set().union(*counted)
    assert len(made.log(order)) == len(counted) - 1
    for partition in (first, second, order):
        assert made.judge(partition) == {}
    made.close()


def test_a_record_above_the_size_of_a_batch_goes_alone_and_above_a_request_too(joint):
    (log,) = joint.topic(settings={"max.message.bytes": "50000000"})
    sent = [b"%d" % number + b"x" * 900_000 for number in range(4)] + [
        b"y" * 10_000_000,
        b"z" * 40_000_000,
        b"z",
    ]
    for value in sent:
        joint.append(log, value)
    joint.settle()
    assert joint.judge(log) == {}


def test_an_appender_may_be_used_and_closed_within_an_outcome(joint):
    (log,) = joint.topic()
    ended = threading.Event()
    outcomes = []

    def again(outcome):
        outcomes.append(outcome)
        joint.appender.append(log, b"second", done=last)

    def last(outcome):
        outcomes.append(outcome)
        joint.appender.close()
        ended.set()

    joint.appender.append(log, b"first", done=again)
    assert ended.wait(PATIENCE_S)
    assert outcomes == [Appended(0), Appended(1)]
    joint.appender._reader.join(PATIENCE_S)
    assert not joint.appender._reader.is_alive()


def test_a_defect_ends_the_appender_and_every_record_has_its_outcome(joint):
    (log,) = joint.topic()
    joint.append(log, b"before")
    joint.settle()

    def broken(_):
        raise ZeroDivisionError

    joint.appender._dispatcher.receive = broken
    joint.append(log, b"after")
    joint.settle()
    assert isinstance(joint.judge(log)[b"after"], AppendUnknown)
    with pytest.raises(UsageError, match="closed"):
        joint.append(log, b"too late")


@pytest.mark.parametrize("wrong", [{"value": "text"}, {"value": b"", "key": bytearray(b"k")}])
def test_what_is_no_bytes_is_refused_at_once(joint, wrong):
    (log,) = joint.topic()
    with pytest.raises(UsageError, match="give bytes or None"):
        joint.appender.append(log, **wrong, done=print)
    joint.append(log, b"right")
    joint.settle()
    assert joint.judge(log) == {}
