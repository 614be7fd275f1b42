"""The joint appender on three brokers: leaders that move or die, followers that are frozen."""

import itertools
import threading

import pytest
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition as KafkaTopicPartition

from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Appended
from multicast.errors import AppendUnknown
from tests.helpers.joint import Joint, append_pairs_until
from tests.helpers.system import until

pytestmark = pytest.mark.timeout(600)
DELIVERY_S = 3.0  # where followers are frozen


@pytest.fixture
def joint(kafka_cluster_of_three):
    kafka_cluster_of_three.start()
    # A busy machine may take longer than the default time-out to start a broker.
    made = Joint(kafka_cluster_of_three, settings={"delivery_timeout_s": 240.0})
    yield made
    kafka_cluster_of_three.start()
    made.close()


def leaders(joint, topic):
    with Admin(joint.cluster.bootstrap) as admin:
        # A new topic is known to the other brokers a little later.
        until(lambda: topic in admin.holders([topic]), "the topic, at the broker that answers")
        return [leader for _, leader, _, _ in admin.holders([topic])[topic]]


def move(joint, partition, leader):
    """Make a broker the leader of a partition: its first replica, then elected as such."""
    log = KafkaTopicPartition(*partition)
    order = [leader, *(number for number in (1, 2, 3) if number != leader)]
    admin = KafkaAdminClient(bootstrap_servers=joint.cluster.bootstrap)
    admin.alter_partition_reassignments({log: order})

    def moved():
        admin.elect_leaders(0, {partition.topic: [partition.partition]}, raise_errors=False)
        return leaders(joint, partition.topic)[partition.partition] == leader

    until(moved, "another leader")
    admin.close()


def finish(joint, partitions):
    joint.settle()
    for partition in partitions:
        assert joint.judge(partition) == {}
        assert len(joint.log(partition)) == len(joint.sent[partition])


@pytest.mark.campaign
def test_pairs_of_different_leaders_are_stored_once_while_leaders_move(joint):
    log, order = joint.topic(2)
    for turn in range(4):
        for partition in (log, order):
            before = leaders(joint, log.topic)[partition.partition]
            known = joint.count()
            append_pairs_until(joint, (log, order), lambda known=known: joint.count() > known + 200)
            for number in range(200):
                joint.append_each((log, order), b"%d %d %d" % (turn, partition.partition, number))
            move(joint, partition, before % 3 + 1)
    finish(joint, (log, order))


@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.campaign)])
def test_a_leader_that_is_killed_is_followed_by_another_and_nothing_is_stored_twice(joint, kills):
    log, order = joint.topic(2)
    for partition in (log, order)[:kills]:
        known = joint.count()
        append_pairs_until(joint, (log, order), lambda known=known: joint.count() > known + 500)
        killed = leaders(joint, log.topic)[partition.partition]
        joint.cluster.kill(killed)
        known = joint.count()
        append_pairs_until(joint, (log, order), lambda known=known: joint.count() > known + 2000)
        joint.cluster.restart(killed)
    finish(joint, (log, order))


def test_what_frozen_followers_do_not_acknowledge_in_time_is_stored_once(kafka_cluster_of_three):
    # Init
    cluster = kafka_cluster_of_three
    cluster.start()
    joint = Joint(cluster, settings={"delivery_timeout_s": DELIVERY_S})
    (log,) = joint.topic(replication=3)
    joint.append_surely(log, b"before")
    (leader,) = leaders(joint, log.topic)
    followers = [number for number in (1, 2, 3) if number != leader]

    # Test: until an append is given up that started after another was given up: so each was tried
    # for the full time-out.
    for follower in followers:
        cluster.pause(follower)
    try:
        pace = threading.Event()
        started_then = None
        for number in itertools.count():
            joint.append(log, b"%d" % number)
            pace.wait(0.02)
            told = joint.outcomes[log]
            if started_then is None and not isinstance(told[-1][1], Appended):
                started_then = len(joint.sent[log])
            if started_then is not None and len(told) >= started_then:
                break
    finally:
        for follower in followers:
            cluster.resume(follower)
    joint.settle()
    joint.append_surely(log, b"after")

    # Check
    errors = joint.judge(log)
    assert any(isinstance(error, AppendUnknown) for error in errors.values())
    joint.close()
