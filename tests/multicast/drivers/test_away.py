"""What the drivers say of a cluster that is not there, goes away, or is named wrongly."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest

from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.protocol import Appended, AppendFailed, TopicPartition
from multicast.errors import (
    AppendNotStored,
    AppendUnknown,
    ClusterUnreachable,
    TopicMissing,
    UsageError,
)
from multicast.local.cluster import LocalCluster
from tests.helpers.driver_worlds import PATIENCE_S, append_all, read, values, watch
from tests.helpers.system import until

NAMES = ("kafka-python", "librdkafka")
# A driver with a time-out of 0.2 or 2 s that waits longer than this ignores it: no time-out of
# Kafka's clients that it may have taken instead is shorter than 30 s.
IN_TIME_S = 25.0


def appended(appender, partition, value):
    """Append until the record is stored; return its offset. Failed attempts may be stored, too."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        (outcome,) = append_all(appender, partition, [value])
        if isinstance(outcome, Appended):
            return outcome.offset
    raise AssertionError(outcome)


def patiently(ask, *arguments):
    """Call until a broker answers: on a busy machine even a running one may take 2 s."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask(*arguments)
        except ClusterUnreachable:
            if time.monotonic() > deadline:
                raise


# --- without a cluster --------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_an_unreachable_cluster_is_said_within_the_time_out(name):
    began = time.monotonic()
    with pytest.raises(ClusterUnreachable, match=r"127\.0\.0\.1:9 answered within 0\.2 s"):
        open_driver(name, "127.0.0.1:9", {}, request_timeout_s=0.2)
    assert time.monotonic() - began < IN_TIME_S


def test_an_unknown_driver_is_refused_by_name():
    with pytest.raises(UsageError, match=r"'librdkafak'.*known are"):
        open_driver("librdkafak", "127.0.0.1:9", {})


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_client_setting_is_refused_and_the_known_ones_listed(name):
    with pytest.raises(UsageError, match=r"ssl\.ca\.loaction; known are .*ssl\.ca\.location"):
        open_driver(name, "127.0.0.1:9", {"ssl.ca.loaction": "ca.pem"})
    with pytest.raises(UsageError, match=r"TLS.*PLAINTEXT, SSL"):
        open_driver(name, "127.0.0.1:9", {"security.protocol": "TLS"})


@pytest.mark.parametrize("name", NAMES)
def test_an_unusable_bootstrap_address_is_said(name):
    with pytest.raises((UsageError, ClusterUnreachable), match="nowhere"):
        open_driver(name, "nowhere:port", {}, request_timeout_s=0.2)


# --- a cluster that goes away and comes back ------------------------------------------------------


@pytest.fixture(scope="module")
def lone_cluster():
    with LocalCluster(brokers=1) as cluster:
        yield cluster


def at_once(work, parties):
    """Do it with every client at the same time: what a broker does is waited for once."""
    with ThreadPoolExecutor(len(parties)) as pool:
        list(pool.map(work, parties))


class Alone:
    """A client of one broker with a time-out of 2 s."""

    def __init__(self, name, cluster, opened):
        self.partition = TopicPartition(f"t-{uuid.uuid4().hex[:8]}", 0)
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({self.partition.topic: TopicSpec(1)})
        driver = partial(open_driver, request_timeout_s=2.0, delivery_timeout_s=2.5)
        self.driver = opened(patiently(driver, name, cluster.bootstrap))
        self.appender = opened(patiently(self.driver.appender))
        self.reader = opened(patiently(self.driver.reader, {self.partition: 0}))
        self.watcher = opened(patiently(self.driver.watcher, {self.partition: 0}))

    def writes_and_reads(self):
        """Append one record, read it, and see the end move."""
        end = appended(self.appender, self.partition, b"x") + 1
        records, _ = patiently(read, self.reader, {self.partition: end})
        patiently(watch, self.watcher, {self.partition: end})
        assert patiently(self.driver.last_stable_offsets, [self.partition]) == {self.partition: end}
        assert records[self.partition][-1].offset == end - 1

    def hears_that_nobody_answers(self):
        outcomes = []
        self.appender.append(self.partition, b"lost?", done=outcomes.append)
        driver, partition = self.driver, self.partition
        for ask in (
            lambda: driver.last_stable_offsets([partition]),
            lambda: driver.committed("g", [partition]),
        ):
            began = time.monotonic()
            with pytest.raises(ClusterUnreachable):
                ask()
            assert time.monotonic() - began < IN_TIME_S
        for polls in (self.reader, self.watcher):
            began = time.monotonic()
            with pytest.raises(ClusterUnreachable):  # noqa: PT012
                while time.monotonic() - began < PATIENCE_S:
                    polls.poll(0.5)
        assert self.appender.flush(PATIENCE_S)
        assert [type(outcome) for outcome in outcomes] == [AppendFailed]
        assert isinstance(outcomes[0].error, (AppendUnknown, AppendNotStored))


@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["frozen", pytest.param("killed", marks=pytest.mark.campaign)])
def test_a_broker_that_goes_away_is_said_in_time_and_found_again(lone_cluster, how, opened):
    parties = [Alone(name, lone_cluster, opened) for name in NAMES]
    at_once(Alone.writes_and_reads, parties)
    lone_cluster.kill(1) if how == "killed" else lone_cluster.pause(1)
    try:
        at_once(Alone.hears_that_nobody_answers, parties)
    finally:
        lone_cluster.restart(1) if how == "killed" else lone_cluster.resume(1)
    at_once(Alone.writes_and_reads, parties)


def asks_for_ever(driver, partition):
    """Ask what no broker answers, by each call that repeats its request; count what is left."""
    for ask in (
        lambda: driver.topic_ids([partition.topic]),
        lambda: driver.last_stable_offsets([partition]),
        lambda: driver.committed("g", [partition]),
    ):
        with pytest.raises(ClusterUnreachable):
            ask()
    return len(driver._connection.net._pending_tasks)


@pytest.mark.campaign
@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_calls_that_nobody_answers_leave_nothing_that_asks_on(lone_cluster, opened):
    partition = TopicPartition(f"t-{uuid.uuid4().hex[:8]}", 0)
    with Admin(lone_cluster.bootstrap) as admin:
        admin.create_topics({partition.topic: TopicSpec(1)})
    driver = opened(
        patiently(partial(open_driver, request_timeout_s=0.2), NAMES[0], lone_cluster.bootstrap)
    )
    lone_cluster.kill(1)
    try:
        first = asks_for_ever(driver, partition)
        # What a call leaves ends in one of the next calls; the last three may still be there.
        left = [asks_for_ever(driver, partition) for _ in range(10)]
        assert max(left) <= first + 3, left
    finally:
        lone_cluster.restart(1)
    assert patiently(driver.last_stable_offsets, [partition]) == {partition: 0}


class Spread:
    """A client with six logs on three brokers."""

    def __init__(self, name, cluster, opened):
        topic = f"t-{uuid.uuid4().hex[:8]}"
        self.logs = [TopicPartition(topic, number) for number in range(6)]
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({topic: TopicSpec(6)})
            # The broker that answers may hear of the topic later than the one that made it.
            until(lambda: admin.replications([topic]) == {topic: 3}, "a topic on three brokers")
        self.driver = opened(open_driver(name, cluster.bootstrap))
        self.appender = opened(self.driver.appender())
        self.reader = opened(self.driver.reader({}))
        self.watcher = opened(self.driver.watcher(dict.fromkeys(self.logs, 0)))
        self.reader.add(dict.fromkeys(self.logs, 0))
        self.outcomes = {partition: [] for partition in self.logs}

    def fifty_more(self):
        """Append fifty to each log; all must be accepted and read in order, once."""
        start = len(self.outcomes[self.logs[0]])
        for number in range(start, start + 50):
            for partition in self.logs:
                self.appender.append(
                    partition, b"%d" % number, done=self.outcomes[partition].append
                )
        assert self.appender.flush(PATIENCE_S)
        ends = dict.fromkeys(self.logs, start + 50)
        records, _ = read(self.reader, ends)
        for partition in self.logs:
            assert self.outcomes[partition] == [Appended(offset) for offset in range(start + 50)]
            assert values(records[partition]) == [b"%d" % n for n in range(start, start + 50)]
        watch(self.watcher, ends)
        assert self.driver.last_stable_offsets(self.logs) == ends


@pytest.mark.timeout(300)
def test_a_dead_leader_is_replaced_and_nothing_is_lost(kafka_cluster_of_three, opened):
    cluster = kafka_cluster_of_three
    cluster.start()
    parties = [Spread(name, cluster, opened) for name in NAMES]
    at_once(Spread.fifty_more, parties)
    cluster.kill(2)
    try:
        at_once(Spread.fifty_more, parties)
    finally:
        cluster.restart(2)


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_that_missed_its_topic_reads_it_once_it_exists(kafka_cluster, opened, name):
    bootstrap = kafka_cluster.bootstrap
    partition = TopicPartition(f"t-{uuid.uuid4().hex[:8]}", 0)
    driver = opened(open_driver(name, bootstrap, request_timeout_s=5.0))
    reader = opened(driver.reader({partition: 0}))
    deadline = time.monotonic() + PATIENCE_S
    with pytest.raises(TopicMissing):  # noqa: PT012
        while time.monotonic() < deadline:
            reader.poll(0.1)
    with Admin(bootstrap) as admin:
        admin.create_topics({partition.topic: TopicSpec(1)})
    appended(opened(driver.appender()), partition, b"first")

    def got():
        try:
            return [value for fetched in reader.poll(0.1) for value in values(fetched.records)]
        except TopicMissing:
            return []

    until(lambda: got() == [b"first"], "the record")


# --- leaders that are silent, and that follow each other ----------------------------------------


@pytest.mark.campaign
@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_a_silent_leader_is_left_out_and_the_next_one_has_what_it_had():
    topic = f"t-{uuid.uuid4().hex[:8]}"
    a, b = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with (
        LocalCluster(brokers=3) as cluster,
        open_driver("kafka-python", cluster.bootstrap) as driver,
        Admin(cluster.bootstrap) as admin,
    ):
        admin.create_topics({topic: TopicSpec(2)})
        with closing(driver.appender()) as appender:
            append_all(appender, a, [b"0", b"1"])
        before = driver.leader_ends([a, b])
        leaders = {number: leader for number, leader, *_ in admin.holders([topic])[topic]}
        assert leaders[a.partition] != leaders[b.partition]
        cluster.pause(leaders[a.partition])
        answers = [patiently(partial(driver.leader_ends, [a, b], timeout_s=1.0)) for _ in range(2)]
        assert {b: before[b]} in answers

        def has_moved():
            ends = patiently(partial(driver.leader_ends, [a], timeout_s=1.0))
            return a in ends and ends[a].leader_epoch > before[a].leader_epoch

        until(has_moved, "another leader")
        assert driver.leader_ends([a])[a].end == 2
        assert driver.epoch_ends({a: before[a].leader_epoch}) == {a: 2}
        cluster.resume(leaders[a.partition])
