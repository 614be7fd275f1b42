"""What Kafka's own tools show of a consumer group: its lag in messages, log by log."""

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient, OffsetSpec

from multicast import Consumer, Producer
from multicast.consuming.batches import Batch
from multicast.consuming.cursor import Cursor
from multicast.consuming.group_positions import GroupPositions
from multicast.control import log_partition
from multicast.drivers.protocol import Record
from multicast.testing import system
from tests.helpers.plans import chain, poster
from tests.helpers.small import Small
from tests.helpers.system import PATIENCE_S, System

SETS = [{"P1"}, {"P3"}, {"P1", "P3"}, {"P2", "P3", "P4"}, {"P5"}]


def lag(bootstrap, group):
    """Give, per Kafka partition, its end minus the committed offset, as Kafka's tools do."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    committed = future.result(PATIENCE_S).topic_partitions
    answers = admin.list_offsets({partition: OffsetSpec.latest() for partition in committed})
    ends = {
        (partition.topic, partition.partition): answer.result(PATIENCE_S).offset
        for partition, answer in answers.items()
    }
    return {
        (commit.topic, commit.partition): ends[commit.topic, commit.partition] - commit.offset
        for commit in committed
    }


@pytest.mark.campaign
@pytest.mark.kafka
@pytest.mark.slow
def test_kafkas_tools_see_how_many_messages_of_each_log_a_group_has_to_read(
    kafka_cluster, tmp_path
):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as system:
        system.order()
        with Producer(topic=system.topic, driver=system.driver, tickets=False) as producer:
            sent = [producer.multicast(b"x", to=SETS[n % len(SETS)]) for n in range(100)]
            for receipt in sent:
                receipt.ordered(PATIENCE_S)
        group = f"amcast.{system.topic}.C1"
        logs = {
            log.name: tuple(log_partition(log)) for log in system.plan.logs_of({"P1", "P2", "P3"})
        }
        with Consumer(topic=system.topic, name="C1", driver=system.driver) as consumer:
            taken = dict.fromkeys(logs, 0)
            for count, message in enumerate(consumer, 1):
                taken[message.message_id.log] += 1
                if count == 33:
                    consumer.commit()
                    break
            shown = lag(system.bootstrap, group)
            ends = {name: 20 if name in {"P1", "P3", "P1+P3", "P2+P3+P4"} else 0 for name in logs}
            assert {name: shown[partition] for name, partition in logs.items()} == {
                name: ends[name] - taken[name] for name in logs
            }
            assert all(left >= 0 for left in shown.values())
        with Consumer(topic=system.topic, name="C1", driver=system.driver) as consumer:
            for batch in consumer.until_end(timeout=PATIENCE_S):
                consumer.commit(batch.cursor())
            consumer.commit()
        shown = lag(system.bootstrap, group)
        assert set(shown.values()) == {0}
        with Consumer(topic=system.topic, name="C1", driver=system.driver) as consumer:
            assert list(consumer.until_end(timeout=PATIENCE_S)) == []  # it goes on where it was


def test_commits_of_earlier_messages_and_after_a_seek_tell_each_logs_place():
    with Small(chain()) as system, system.producer() as producer:
        system.run_all()
        for number in range(20):
            producer.multicast(b"%d" % number, to={f"P{1 + number % 2}"}).ordered(60)
        places = {name: log_partition(system.plan.log(name)) for name in ("P1", "P2")}

        def committed():
            found = system.driver.committed("amcast.A.C1", list(places.values()))
            return {name: found[at][0] for name, at in places.items()}

        with system.consumer("C1") as consumer:
            messages = [message for _, message in zip(range(20), consumer, strict=False)]
            seen = dict.fromkeys(places, 0)
            for message in messages:
                seen[message.message_id.log] = message.message_id.offset + 1
                consumer.commit(message.cursor)
                assert committed() == seen
            consumer.commit(messages[4].cursor)  # back without a seek: the figures stay
            assert committed() == seen
            consumer.seek(messages[4].cursor)
            message = next(iter(consumer))
            consumer.commit()
            assert committed() == {
                name: 1 + max(m.message_id.offset for m in messages[:6] if m.message_id.log == name)
                for name in places
            }
            assert message.message_id == messages[5].message_id


def test_a_consumer_that_never_commits_keeps_a_bounded_trail():
    log = chain().log("P1")
    positions = GroupPositions()
    positions.begins(Cursor(1, "K1", 0, 0, 0), {log_partition(log): 0})
    for number in range(30_000):
        positions.handed_out(Batch(log, ("P1",), (Record(number, b""),), 1, "K1", number, 0))
    assert len(positions._trail) == 10_000
    assert positions.resume_from(Cursor(1, "K1", 100, 0, 101)) == {}
    assert positions.resume_from(Cursor(1, "K1", 29_998, 0, 29_999)) == {log_partition(log): 29_999}


def test_two_consumers_of_one_group_are_warned_once_and_a_lone_one_never(caplog):
    interests = {"consumers": {"C1": {"P1", "P2"}}, "destinations": [{"P1", "P2"}]}
    with caplog.at_level("WARNING", "amcast.consumer"), system(interests) as s:
        producer = s.producer()

        def commit(consumer):
            producer.multicast(b"", to={"P1"})
            s.settle()
            s.drain(consumer)
            consumer.commit()
            consumer.poll(2.0)  # time passes

        first = s.consumer("C1")
        for _ in range(5):
            commit(first)
        again = s.consumer("C1")  # a restart
        for _ in range(5):
            commit(again)
        assert not caplog.records
        for _ in range(5):
            commit(first)
            commit(again)
    assert [record.getMessage().partition(", at")[0] for record in caplog.records] == [
        "another consumer commits to group amcast.A.C1"
    ] * 2
