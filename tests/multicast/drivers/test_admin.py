"""Administration of a real cluster: every call is idempotent."""

import uuid

import pytest

from multicast.drivers.kafka import Admin, TopicSpec
from multicast.errors import AmcastError, ClusterUnreachable, UsageError


@pytest.fixture(scope="module")
def admin(kafka_cluster):
    with Admin(kafka_cluster.bootstrap) as opened:
        yield opened


@pytest.fixture
def topic(admin):
    name = f"t-{uuid.uuid4().hex[:8]}"
    yield name
    admin.delete_topics([name])


def test_topics_are_made_once_grown_where_too_small_and_kept_where_larger(admin, topic):
    other = f"{topic}.groups"
    assert admin.create_topics({topic: TopicSpec(2), other: TopicSpec(1)}) == [topic, other]
    assert admin.create_topics({topic: TopicSpec(2)}) == []
    ids = admin.topic_ids([topic, other])
    assert admin.create_topics({topic: TopicSpec(5), other: TopicSpec(1)}) == []
    assert admin.partitions([topic, other, f"no-{topic}"]) == {topic: 5, other: 1}
    assert admin.create_topics({topic: TopicSpec(3)}) == []
    assert admin.partitions([topic]) == {topic: 5}
    assert admin.topic_ids([topic, other]) == ids
    assert len(set(ids.values())) == 2
    assert admin.replications([topic]) == {topic: 1}
    admin.add_partitions(topic, 6)
    admin.add_partitions(topic, 6)
    assert admin.partitions([topic]) == {topic: 6}
    with pytest.raises(UsageError, match="6 partitions, more than 4"):
        admin.add_partitions(topic, 4)
    admin.delete_topics([other, other])
    admin.delete_topics([other])
    assert admin.topic_ids([topic, other]).keys() == {topic}


def test_a_topic_is_placed_on_every_broker_once_and_what_exists_stays(admin, topic):
    (broker,) = admin.broker_ids()
    settings = {"retention.ms": "-1", "min.insync.replicas": "1"}
    assert admin.place_on_brokers(topic, settings) == {broker: 0}
    before = admin.topic_ids([topic])
    assert admin.place_on_brokers(topic, {}) == {broker: 0}
    assert admin.topic_ids([topic]) == before
    assert admin.partitions([topic]) == {topic: 1}
    assert admin.replications([topic]) == {topic: 1}
    assert settings.items() <= admin.topic_settings([topic])[topic].items()


@pytest.mark.campaign
def test_a_broker_that_a_topic_missed_is_given_a_partition_of_it(kafka_cluster_of_three, topic):
    kafka_cluster_of_three.start()
    with Admin(kafka_cluster_of_three.bootstrap, request_timeout_s=60) as admin:
        admin.create_topics({topic: TopicSpec(1, replication=1)})
        placed = admin.place_on_brokers(topic, {})
        (first,) = [(broker, number) for broker, number in placed.items() if number == 0]
        placed = admin.place_on_brokers(topic, {})
        assert admin.partitions([topic]) == {topic: 3}
        assert admin.replications([topic]) == {topic: 1}
        assert first in placed.items()
        assert sorted(placed) == [1, 2, 3]
        assert sorted(placed.values()) == [0, 1, 2]
        admin.delete_topics([topic])


def test_settings_in_force_are_told_with_defaults(admin, topic):
    wanted = {"cleanup.policy": "compact", "max.message.bytes": "2000000"}
    admin.create_topics({topic: TopicSpec(1, settings=wanted)})
    settings = admin.topic_settings([topic])[topic]
    assert wanted.items() <= settings.items()
    assert settings["unclean.leader.election.enable"] == "false"
    assert settings["min.insync.replicas"] == "1"
    assert {"retention.ms", "retention.bytes"} <= settings.keys()
    brokers = admin.broker_settings()
    assert list(brokers) == admin.broker_ids()
    assert all("auto.create.topics.enable" in settings for settings in brokers.values())
    assert len(admin.cluster_id()) > 10


def test_what_the_brokers_refuse_is_said_with_their_reason(admin, topic):
    with pytest.raises(AmcastError, match="InvalidReplicationFactor"):
        admin.create_topics({topic: TopicSpec(1, replication=7)})
    with pytest.raises(AmcastError, match=r"InvalidConfig|InvalidRequest"):
        admin.create_topics({topic: TopicSpec(1, settings={"no.such.setting": "1"})})
    assert admin.partitions([topic]) == {}


def test_a_cluster_that_is_not_there_is_said_within_the_time_out():
    with pytest.raises(ClusterUnreachable, match=r"127\.0\.0\.1:9"):
        Admin("127.0.0.1:9", request_timeout_s=0.2)
