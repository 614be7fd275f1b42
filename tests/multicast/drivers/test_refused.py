"""A record that is too large costs no other record, and a batch that is too large none at all.

And one whose time the broker refuses is refused at once, and the clock is blamed.
"""

import contextlib
import uuid

import pytest

from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.protocol import Appended, AppendFailed, TopicPartition
from multicast.errors import AppendRefused
from multicast.messages import skip_header
from tests.helpers.driver_worlds import PATIENCE_S
from tests.helpers.small import until

MESSAGE_BYTES_MAX = 20_000
QUARTER = bytes(MESSAGE_BYTES_MAX // 4)
SKIPS = 2000  # more than a batch of this size holds


@pytest.fixture
def logs(kafka_cluster):
    topic = f"narrow-{uuid.uuid4().hex[:8]}"
    settings = {"max.message.bytes": str(MESSAGE_BYTES_MAX)}
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.create_topics({topic: TopicSpec(2, settings=settings)})
    return [TopicPartition(topic, number) for number in range(2)]


@contextlib.contextmanager
def opened_appender(cluster, **settings):
    with open_driver("kafka-python", cluster.bootstrap, **settings) as opened:
        appender = opened.appender()
        yield appender
        appender.close()


def outcomes(appender, records):
    """Append (log, value) one by one; give their outcomes."""
    given = [None] * len(records)
    for index, (log, value) in enumerate(records):

        def done(outcome, index=index):
            given[index] = outcome

        appender.append(log, value, done=done)
    assert appender.flush(PATIENCE_S)
    return given


def test_beside_a_record_that_is_too_large_all_others_are_stored(kafka_cluster, logs):
    with opened_appender(kafka_cluster) as appender:
        outcomes(appender, [(log, b"first") for log in logs])
        for _ in range(3):
            records = [(logs[number % 2], b"small") for number in range(200)]
            records[20] = (logs[0], bytes(2 * MESSAGE_BYTES_MAX))
            given = outcomes(appender, records)
            assert isinstance(given.pop(20).error, AppendRefused)
            assert all(isinstance(outcome, Appended) for outcome in given)


def test_many_records_that_a_topic_accepts_one_by_one_are_all_stored(kafka_cluster, logs):
    with opened_appender(kafka_cluster) as appender:
        given = outcomes(appender, [(log, QUARTER) for log in logs for _ in range(40)])
        assert all(isinstance(outcome, Appended) for outcome in given)


def test_skips_of_one_call_are_stored_though_no_batch_holds_them_all(kafka_cluster, logs):
    parts = []
    with opened_appender(kafka_cluster) as appender:
        taken = appender.append_all(
            logs[0],
            [b""] * SKIPS,
            headers=[(skip_header("P1"),)] * SKIPS,
            done=lambda *part: parts.append(part),
        )
        assert (taken, appender.flush(PATIENCE_S)) == (SKIPS, True)
    assert len(parts) > 1
    assert [(first, outcome) for first, _, outcome in parts] == [
        (first, Appended(first)) for first, _, _ in parts
    ]
    assert sum(count for _, count, _ in parts) == SKIPS


def test_a_record_with_a_time_that_the_broker_does_not_accept_is_refused(kafka_cluster):
    log = TopicPartition(f"timed-{uuid.uuid4().hex[:8]}", 0)
    # A record that reaches the broker within the millisecond of its time is accepted.
    settings = {"message.timestamp.before.max.ms": "0"}
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.create_topics({log.topic: TopicSpec(1, settings=settings)})
    with opened_appender(kafka_cluster, delivery_timeout_s=PATIENCE_S) as appender:
        given = []
        until(lambda: refusals(given) or given.extend(outcomes(appender, [(log, b"")])))
    (error,) = refusals(given)
    assert isinstance(error, AppendRefused)
    assert "check the clock of this machine" in str(error)


def refusals(given):
    return [outcome.error for outcome in given if isinstance(outcome, AppendFailed)]
