"""A joint appender that lingers, compresses or has a batch size, on a real broker.

Where a record must go at once the linger is longer than the tests' patience.
"""

import pytest

from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, TopicSpec, codecs
from multicast.drivers.protocol import Appended, JointRecord, TopicPartition
from multicast.errors import UsageError
from tests.helpers.joint import Joint
from tests.helpers.system import until

FOR_EVER_MS = 900_000


@pytest.fixture
def opened(kafka_cluster):
    """Open appenders with the settings of a producer; `requests` notes what each one starts."""
    made = []

    def open_one(cluster=kafka_cluster, beside=None, **tuning):
        requests = []

        def noted(started):
            requests.append(dict(started))
            return beside(started) if beside is not None else []

        settings = {"delivery_timeout_s": 2 * FOR_EVER_MS / 1000}
        made.append(Joint(cluster, beside=noted, tuning=tuning, settings=settings))
        made[-1].requests = requests
        return made[-1]

    yield open_one
    for joint in made:
        joint.close()


def appended(joint, partition):
    return [value for value, out in joint.outcomes[partition] if isinstance(out, Appended)]


def test_records_that_linger_share_a_request_which_goes_without_a_flush(opened):
    joint = opened(linger_ms=1000)
    first, second = joint.topic(2)
    for partition in (first, second):
        joint.appender.prepare(partition)
    joint.append_surely(first, b"a broker takes one batch before it knows the producer")
    joint.append_surely(second, b"likewise")
    joint.requests.clear()
    for number in range(50):
        joint.append(first, b"%d" % number)
        joint.append(second, b"%d" % number)
    until(lambda: joint.count() == 102, "the outcomes")
    # A slow machine may need more than a second for the appends, and so more than one request.
    assert len(joint.requests) < 10
    assert sum(sum(started.values()) for started in joint.requests) == 100
    assert joint.judge(first) == joint.judge(second) == {}


def test_a_flush_ends_the_linger(opened):
    joint = opened(linger_ms=FOR_EVER_MS)
    (log,) = joint.topic()
    joint.append(log, b"first")  # its leader is not known yet
    joint.settle()
    joint.append(log, b"second")
    joint.settle()
    assert appended(joint, log) == [b"first", b"second"]
    joint.append(log, b"third")
    joint.appender.close()
    assert appended(joint, log) == [b"first", b"second", b"third"]


def test_a_full_batch_does_not_linger(opened):
    joint = opened(linger_ms=FOR_EVER_MS, batch_bytes=10_000)
    log, other = joint.topic(2)
    for partition in (log, other):
        joint.appender.prepare(partition)
    joint.append(other, b"lingers")
    joint.append(log, b"small")
    assert joint.count() == 0
    for number in range(10):
        joint.append(log, b"%d" % number * 1000)
    # What waits for that broker goes along, or with the next request.
    until(lambda: joint.count() >= 10, "the outcomes of a batch")
    until(lambda: appended(joint, other) == [b"lingers"], "the outcome of what lingered")
    assert appended(joint, log) == joint.sent[log][: len(joint.outcomes[log])]


def test_what_goes_beside_does_not_linger_on_its_way_to_another_broker(
    kafka_cluster_of_three, opened
):
    kafka_cluster_of_three.start()
    stored = []

    def beside(_):
        return [JointRecord(order, b"ticket", stored.append, None)]

    joint = opened(kafka_cluster_of_three, beside, linger_ms=FOR_EVER_MS, batch_bytes=2000)
    with Admin(kafka_cluster_of_three.bootstrap) as admin:
        admin.create_topics({joint.name: TopicSpec(3, replication=1)})
    partitions = [TopicPartition(joint.name, number) for number in range(3)]
    leaders = {}
    for partition in partitions:
        joint.appender.prepare(partition)
        leaders[partition] = joint.appender._dispatcher.appends(partition).leader
    log = partitions[0]
    order = next(one for one in partitions if leaders[one] != leaders[log])
    joint.append(log, b"x" * 3000)
    until(lambda: stored and joint.count(), "both outcomes")
    assert isinstance(stored[0], Appended)
    assert appended(joint, log) == joint.sent[log]


@pytest.mark.parametrize("linger_ms", [0, 20])
def test_batches_are_compressed_and_small_ones_and_those_that_would_grow_are_not(opened, linger_ms):
    joint = opened(linger_ms=linger_ms, compression="gzip")
    # The broker takes no batch as large as these records are uncompressed.
    (log,) = joint.topic(settings={"max.message.bytes": "2000"})
    values = [b"1" * 100_000, b"", b"small", bytes(range(256)) * 4]
    for value in values:
        joint.append(log, value)
    joint.appender.append_all(log, [b"2" * 500] * 100, done=lambda *_: None)
    joint.settle()
    assert appended(joint, log) == values
    assert joint.log(log) == [*values, *[b"2" * 500] * 100]


@pytest.mark.parametrize("kind", ["kafka-python", "librdkafka"])
def test_a_linger_that_leaves_the_brokers_too_little_time_is_refused(kafka_cluster, kind):
    with open_driver(kind, kafka_cluster.bootstrap, delivery_timeout_s=2.0) as driver:
        with pytest.raises(UsageError, match="linger for 1001 ms"):
            driver.appender(linger_ms=1001)
        driver.appender(linger_ms=1000).close()


def test_a_codec_without_its_package_is_named(opened, monkeypatch):
    gone = codecs._BY_NAME["zstd"]._replace(is_installed=lambda: False)
    monkeypatch.setitem(codecs._BY_NAME, "zstd", gone)
    with pytest.raises(UsageError, match="needs the package zstandard"):
        opened().driver.appender(compression="zstd")
