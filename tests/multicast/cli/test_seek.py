"""Groups whose position another tool has changed, and `amcast seek`, which can place one."""

import json

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from multicast import Consumer, Producer
from multicast.control import control_partition, log_partition
from multicast.errors import UsageError
from multicast.testing import system
from tests.helpers.plans import poster
from tests.helpers.system import PATIENCE_S, System, amcast

GROUP = "amcast.A.C1"


@pytest.fixture
def topic():
    with system({"consumers": {"C1": {"P1", "P2"}, "C2": {"P2", "P3"}}}) as double:
        producer = double.producer()
        for _ in range(3):
            producer.multicast(b"1", to={"P1"}).ordered()
            producer.multicast(b"2", to={"P2"}).ordered()
        yield double


def reset(topic, *partitions):
    """Set offsets as Kafka's tools do: with no word beside them."""
    topic.driver.commit(GROUP, dict.fromkeys(partitions, (0, "")))


def test_a_reset_of_all_topics_is_refused_with_the_way_to_place_a_group(topic):
    logs = [log_partition(topic.plan.log(name)) for name in ("P1", "P2")]
    with topic.consumer("C1") as consumer:
        assert len(topic.drain(consumer)) == 6
        consumer.commit()
    reset(topic, *logs, control_partition("A"))
    with pytest.raises(UsageError, match=r"another tool has set its offsets \('amcast seek'"):
        topic.consumer("C1")


def test_a_reset_of_data_topics_is_told_and_changes_nothing(topic, caplog):
    consumer = topic.consumer("C1")
    for count, _ in enumerate(consumer, 1):
        if count == 2:
            break
    consumer.commit()
    with topic.consumer("C1") as again:  # an own commit, also of a log without a message, is none
        assert len(topic.drain(again)) == 4
        again.seek("earliest")
        again.commit()
    assert len(topic.drain(topic.consumer("C1"))) == 6
    assert not caplog.records
    reset(topic, log_partition(topic.plan.log("P2")))
    assert len(topic.drain(topic.consumer("C1"))) == 6
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("another tool has set offsets of group amcast.A.C1, in A/1: ")
    assert "'amcast seek' places a group" in told


def test_a_group_is_placed_after_kafkas_tool_has_reset_it(kafka_cluster, tmp_path):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as system:
        system.order()
        with Producer(topic=system.topic, driver=system.driver) as producer:
            for number in range(5):
                producer.multicast(b"%d" % number, to={"P1", "P3"}).ordered(PATIENCE_S)

        def left(**options):
            with Consumer(topic=system.topic, driver=system.driver, **options) as consumer:
                got = [r.value for batch in consumer.until_end() for r in batch.records]
                consumer.commit()
            return got

        place = Place(*control_partition(system.topic), 0)
        group = f"amcast.{system.topic}.C1"
        assert len(left(name="C1")) == 5
        request = ConsumerGroupTopicPartitions(group, [place])
        admin = AdminClient({"bootstrap.servers": system.bootstrap})
        (answer,) = admin.alter_consumer_group_offsets([request]).values()
        answer.result(PATIENCE_S)
        common = system.common()
        refused = amcast("receive", "-n", "C1", "--group", "C1", *common)
        assert (refused.returncode, "amcast seek" in refused.stderr) == (2, True)

        for words, count in [
            (["C1", "--to", "earliest"], 5),
            (["C1", "--to", "latest"], 0),
            (["C1", "--to", "2000-01-01"], 5),
            (["mine", "--to", "earliest", "-i", "P1"], 5),
        ]:
            done = amcast("seek", *words, *common, "-o", "json")
            assert done.returncode == 0, done.stderr
            said = json.loads(done.stdout)
            options = {"interest": {"P1"}, "group": "mine"} if "-i" in words else {"name": "C1"}
            assert (said["group"], said["omitted"]) == (words[0], "")
            assert len(left(**options)) == count
        with Consumer(topic=system.topic, driver=system.driver, interest={"P1"}) as consumer:
            kept = next(iter(consumer)).cursor
        other = amcast("seek", "C1", "--to", str(kept), *common)
        assert (other.returncode, "another interest" in other.stderr) == (2, True)
