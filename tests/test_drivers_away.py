"""What the drivers say of a cluster that is not there, goes away, or is named wrongly."""

import time
import uuid

import pytest

from multicast.drivers import open_driver
from multicast.errors import AppendUnknown, ClusterUnreachable, UsageError
from multicast.kafka_python import Admin, TopicSpec
from multicast.local import LocalCluster
from multicast.log import Appended, AppendFailed, TopicPartition
from tests.driver_worlds import REAL, append_all, read, values, watch


@pytest.fixture
def opened():
    """Closes appenders, readers and watchers, twice: that must do no harm."""
    things = []
    yield lambda thing: things.append(thing) or thing
    for thing in things:
        thing.close()
        thing.close()


# --- without a cluster --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["kafka-python", "librdkafka"])
def test_an_unreachable_cluster_is_said_within_the_time_out(name):
    began = time.monotonic()
    with pytest.raises(ClusterUnreachable, match=r"127\.0\.0\.1:9 answered within 0\.2 s"):
        open_driver(name, "127.0.0.1:9", {}, request_timeout_s=0.2)
    assert time.monotonic() - began < 2.0


def test_an_unknown_driver_is_refused_by_name():
    with pytest.raises(UsageError, match=r"'librdkafak'.*known are"):
        open_driver("librdkafak", "127.0.0.1:9", {})


@pytest.mark.parametrize("name", ["kafka-python", "librdkafka"])
def test_an_unknown_client_setting_is_refused_and_the_known_ones_listed(name):
    with pytest.raises(UsageError, match=r"ssl\.ca\.loaction; known are .*ssl\.ca\.location"):
        open_driver(name, "127.0.0.1:9", {"ssl.ca.loaction": "ca.pem"})
    with pytest.raises(UsageError, match=r"TLS.*PLAINTEXT, SSL"):
        open_driver(name, "127.0.0.1:9", {"security.protocol": "TLS"})


@pytest.mark.parametrize("name", ["kafka-python", "librdkafka"])
def test_an_unusable_bootstrap_address_is_said(name):
    with pytest.raises((UsageError, ClusterUnreachable), match="nowhere"):
        open_driver(name, "nowhere:port", {}, request_timeout_s=0.2)


# --- a cluster that goes away and comes back ------------------------------------------------------


@pytest.fixture(scope="module")
def lone_cluster():
    with LocalCluster(brokers=1) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_broker_that_goes_away_is_said_in_time_and_found_again(lone_cluster, name, how, opened):
    at = TopicPartition(f"t-{uuid.uuid4().hex[:8]}", 0)
    with Admin(lone_cluster.bootstrap) as admin:
        admin.create_topics({at.topic: TopicSpec(1)})
    driver = opened(
        open_driver(name, lone_cluster.bootstrap, request_timeout_s=1.0, delivery_timeout_s=1.5)
    )
    appender, reader = opened(driver.appender()), opened(driver.reader({at: 0}))
    watcher = opened(driver.watcher({at: 0}))
    assert append_all(appender, at, [b"0"]) == [Appended(0)]
    read(reader, {at: 1})
    watch(watcher, {at: 1})
    lone_cluster.kill(1) if how == "killed" else lone_cluster.pause(1)
    try:
        outcomes = []
        appender.append(at, b"lost?", done=outcomes.append)
        for ask in (lambda: driver.ends([at]), lambda: driver.committed("g", [at])):
            began = time.monotonic()
            with pytest.raises(ClusterUnreachable):
                ask()
            assert time.monotonic() - began < 4.0
        for polls in (reader, watcher):
            began = time.monotonic()
            with pytest.raises(ClusterUnreachable):  # noqa: PT012
                while time.monotonic() - began < 12.0:
                    polls.poll(0.5)
        assert appender.flush(10.0)
        assert [type(outcome) for outcome in outcomes] == [AppendFailed]
        assert isinstance(outcomes[0].error, AppendUnknown)
    finally:
        lone_cluster.restart(1) if how == "killed" else lone_cluster.resume(1)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        (outcome,) = append_all(appender, at, [b"after"])
        if isinstance(outcome, Appended):
            break
    assert isinstance(outcome, Appended)
    records, _ = read(reader, {at: outcome.offset + 1}, timeout_s=20)
    assert values(records[at])[-1] == b"after"
    watch(watcher, {at: outcome.offset + 1}, timeout_s=20)
    assert driver.ends([at]) == {at: outcome.offset + 1}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", REAL)
def test_a_dead_leader_is_replaced_and_nothing_is_lost(kafka_cluster_of_three, name, opened):
    cluster = kafka_cluster_of_three
    cluster.start()
    topic = f"t-{uuid.uuid4().hex[:8]}"
    logs = [TopicPartition(topic, number) for number in range(6)]
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics({topic: TopicSpec(6)})
        assert admin.replications([topic]) == {topic: 3}
    driver = opened(open_driver(name, cluster.bootstrap))
    appender = opened(driver.appender())
    reader, watcher = opened(driver.reader({})), opened(driver.watcher(dict.fromkeys(logs, 0)))
    reader.add(dict.fromkeys(logs, 0))
    outcomes = {at: [] for at in logs}

    def append_round(number):
        for at in logs:
            appender.append(at, b"%d" % number, done=outcomes[at].append)

    for number in range(50):
        append_round(number)
    assert appender.flush(10)
    read(reader, dict.fromkeys(logs, 50))
    watch(watcher, dict.fromkeys(logs, 50))
    cluster.kill(2)
    try:
        for number in range(50, 100):
            append_round(number)
        assert appender.flush(30)
        for at in logs:
            assert outcomes[at] == [Appended(offset) for offset in range(100)]
        records, _ = read(reader, dict.fromkeys(logs, 100), timeout_s=20)
        for at in logs:
            assert values(records[at]) == [b"%d" % number for number in range(50, 100)]
        watch(watcher, dict.fromkeys(logs, 100), timeout_s=20)
        assert driver.ends(logs) == dict.fromkeys(logs, 100)
    finally:
        cluster.restart(2)
