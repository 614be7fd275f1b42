"""A record that is too large costs no other record; no batch is too large for its topic.

And one whose time the broker refuses is refused at once, and the clock is blamed.
"""

import contextlib
import uuid

import pytest
from confluent_kafka import KafkaError

from multicast.drivers import open_driver
from multicast.drivers.access import Access
from multicast.drivers.kafka_python import Admin, TopicSpec
from multicast.drivers.librdkafka.outcomes import Outcomes
from multicast.drivers.protocol import Appended, AppendFailed, TopicPartition
from multicast.errors import AppendNotStored, AppendRefused, AppendUnknown
from tests.helpers.driver_worlds import PATIENCE_S
from tests.helpers.small import until
from tests.running.parts import sample

MESSAGE_BYTES_MAX = 200_000
QUARTER = bytes(MESSAGE_BYTES_MAX // 4)

pytestmark = pytest.mark.kafka


@pytest.fixture
def logs(kafka_cluster):
    topic = f"narrow-{uuid.uuid4().hex[:8]}"
    settings = {"max.message.bytes": str(MESSAGE_BYTES_MAX)}
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.create_topics({topic: TopicSpec(2, settings=settings)})
    return [TopicPartition(topic, number) for number in range(2)]


@contextlib.contextmanager
def appender_of(cluster, driver, log):
    with open_driver(driver, cluster.bootstrap) as opened:
        appender = opened.appender(topics=[log.topic])
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


def outcomes_of_all(appender, log, values):
    """Append values to a log by one call; give their outcomes."""
    given = [None] * len(values)

    def done(first, count, outcome):
        assert count == 1 or isinstance(outcome, AppendFailed)
        given[first : first + count] = [outcome] * count

    # It takes none while a producer is being replaced.
    assert until(lambda: appender.append_all(log, values, done=done)) == len(values)
    assert appender.flush(PATIENCE_S)
    return given


@pytest.mark.campaign
def test_beside_a_record_that_is_too_large_all_others_are_stored(kafka_cluster, logs):
    with appender_of(kafka_cluster, "kafka-python", logs[0]) as appender:
        outcomes(appender, [(log, b"first") for log in logs])
        for _ in range(3):
            records = [(logs[number % 2], b"small") for number in range(200)]
            records[20] = (logs[0], bytes(2 * MESSAGE_BYTES_MAX))
            given = outcomes(appender, records)
            assert isinstance(given.pop(20).error, AppendRefused)
            assert all(isinstance(outcome, Appended) for outcome in given)


@pytest.mark.campaign
@pytest.mark.parametrize("by_one_call", [False, True])
def test_behind_a_record_that_is_too_large_those_of_its_log_are_certainly_not_stored(
    kafka_cluster, logs, by_one_call
):
    values = [b"small"] * 100
    values[20] = bytes(2 * MESSAGE_BYTES_MAX)
    with appender_of(kafka_cluster, "librdkafka", logs[0]) as appender:
        outcomes(appender, [(log, b"first") for log in logs])
        stored = 1
        for _ in range(3):  # each time by another producer
            if by_one_call:
                given = outcomes_of_all(appender, logs[0], values)
            else:
                given = outcomes(appender, [(logs[0], value) for value in values])
            assert type(given[20].error) is AppendRefused
            # On a busy machine the next producer is there before the last records are appended.
            later = [outcome for outcome in given[21:] if isinstance(outcome, Appended)]
            assert not (later and by_one_call)
            refused = given[21 : 100 - len(later)]
            assert all(type(outcome.error) is AppendNotStored for outcome in refused)
            offsets = [outcome.offset for outcome in given[:20] + later]
            assert offsets == list(range(stored, stored + len(offsets)))
            stored += len(offsets)
        (last,) = outcomes(appender, [(logs[0], b"last")])
        assert last == Appended(stored), "nothing else was stored"


@pytest.mark.campaign
def test_what_waits_before_a_refused_record_or_of_a_new_producer_may_be_stored():
    log = TopicPartition("t", 0)
    outcomes = Outcomes("b:1", Access("b:1", "user a"))

    def failed(place, code):
        return type(outcomes.failed(log, place, KafkaError(code), "").error)

    def around_a_refused():
        """What becomes of the records before and behind a refused one."""
        assert failed((2, 1), KafkaError.MSG_SIZE_TOO_LARGE) is AppendRefused
        places = ((1, 0), (2, 0), (2, 2), (3, 0))
        return [failed(place, KafkaError._PURGE_QUEUE) for place in places]

    unknown, not_stored = [AppendUnknown] * 2, [AppendNotStored] * 2
    assert around_a_refused() == unknown + unknown
    outcomes.stored(log, 7)
    assert around_a_refused() == unknown + not_stored
    outcomes.producer_replaced()
    assert around_a_refused() == unknown + unknown


@pytest.mark.campaign
@pytest.mark.parametrize("driver", ["kafka-python", "librdkafka"])
def test_many_records_that_a_topic_accepts_one_by_one_are_all_stored(kafka_cluster, logs, driver):
    with appender_of(kafka_cluster, driver, logs[0]) as appender:
        given = outcomes(appender, [(log, QUARTER) for log in logs for _ in range(40)])
        assert all(isinstance(outcome, Appended) for outcome in given)


def test_the_bound_of_a_batch_is_the_least_of_the_topics(kafka_cluster, logs):
    with open_driver("librdkafka", kafka_cluster.bootstrap) as driver:
        assert driver.message_bytes_max([logs[0].topic]) == MESSAGE_BYTES_MAX
        assert driver.message_bytes_max([]) is None
        assert driver.message_bytes_max([f"{logs[0].topic}-that-does-not-exist"]) is None


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("wanted", "accepted", "bound"),
    [
        (None, None, 1_000_000),
        (None, 8_000_000, 1_000_000),
        (4_000_000, 8_000_000, 4_000_000),
        (4_000_000, None, 4_000_000),
        (4_000_000, 200_000, 200_000),
    ],
)
def test_a_batch_is_as_large_as_is_wanted_if_its_topic_accepts_that(
    kafka_cluster, monkeypatch, wanted, accepted, bound
):
    with open_driver("librdkafka", kafka_cluster.bootstrap) as driver:
        monkeypatch.setattr(driver, "message_bytes_max", lambda _: accepted)
        with contextlib.closing(driver.appender(batch_bytes=wanted)) as appender:
            assert appender._settings["batch.size"] == bound


@pytest.mark.parametrize("kind", sample(["joint_appender", "appender"], of=1))
@pytest.mark.parametrize("driver", ["kafka-python", "librdkafka"])
def test_a_record_with_a_time_that_the_broker_does_not_accept_is_refused(
    kafka_cluster, driver, kind
):
    log = TopicPartition(f"timed-{uuid.uuid4().hex[:8]}", 0)
    # A record that reaches the broker within the millisecond of its time is accepted.
    settings = {"message.timestamp.before.max.ms": "0"}
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.create_topics({log.topic: TopicSpec(1, settings=settings)})
    with open_driver(driver, kafka_cluster.bootstrap, delivery_timeout_s=PATIENCE_S) as opened:
        appender = getattr(opened, kind)()
        try:
            given = []
            until(lambda: refusals(given) or given.extend(outcomes(appender, [(log, b"")])))
        finally:
            appender.close()
    (error,) = refusals(given)
    assert isinstance(error, AppendRefused)
    assert "check the clock of this machine" in str(error)


def refusals(given):
    return [outcome.error for outcome in given if isinstance(outcome, AppendFailed)]
