"""What a group has committed: after its coordinator's death, and while a transaction is open."""

import contextlib
import uuid
from types import SimpleNamespace

import confluent_kafka
import pytest

from multicast.drivers.kafka import Admin, KafkaPythonDriver, TopicSpec
from multicast.drivers.kafka.group_member import find_coordinator
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError
from tests.helpers.system import PATIENCE_S, until


@contextlib.contextmanager
def committing(bootstrap):
    """A driver, a partition of a new topic, and a group's name."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap) as admin, KafkaPythonDriver(bootstrap) as driver:
        admin.create_topics({name: TopicSpec(1)})
        yield driver, TopicPartition(name, 0), name


@pytest.mark.parametrize(
    ("codes", "stable"),
    [([0], [True]), ([88, 0], [True, False]), ([88, None, 0], [True, False, True])],
)
def test_stable_offsets_are_asked_for_but_once_after_an_unstable_one(
    kafka_cluster, monkeypatch, codes, stable
):
    seen = []

    async def ask(_group, request, errors, **_):
        for code in codes:
            seen.append(request().require_stable)
            part = SimpleNamespace(partition_index=0, error_code=code)
            part.committed_offset, part.committed_metadata, part.metadata = 7, "", ""
            topic = SimpleNamespace(name="t", partitions=[part])
            answer = SimpleNamespace(error_code=0, topics=[topic])
            answer = SimpleNamespace(error_code=0, groups=[answer])
            if code is not None:  # None: the connection is lost
                assert ("t", code) in errors(answer)
        return answer

    with KafkaPythonDriver(kafka_cluster.bootstrap) as driver:
        monkeypatch.setattr(driver, "_ask_coordinator", ask)
        assert driver.committed("g", [TopicPartition("t", 0)]) == {TopicPartition("t", 0): (7, "")}
    assert seen == stable


def test_what_a_transaction_holds_open_holds_nobody_up(kafka_cluster):
    with committing(kafka_cluster.bootstrap) as (driver, partition, group):
        driver.commit(group, {partition: (1, "before")})
        shared = {"bootstrap.servers": kafka_cluster.bootstrap, "log_level": 0}
        producer = confluent_kafka.Producer({**shared, "transactional.id": group})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        consumer = confluent_kafka.Consumer({**shared, "group.id": group})
        with contextlib.closing(consumer):
            place = confluent_kafka.TopicPartition(*partition, 2)
            who = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction([place], who, PATIENCE_S)
        assert driver.committed(group, [partition]) == {partition: (1, "before")}
        producer.commit_transaction(PATIENCE_S)
        until(lambda: driver.committed(group, [partition])[partition][0] == 2, "the offset")


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_what_was_acknowledged_is_read_at_once_after_the_coordinators_death(kafka_cluster_of_three):
    cluster, number = kafka_cluster_of_three, 0
    cluster.start()
    with committing(cluster.bootstrap) as (driver, partition, group):
        for _ in range(5):
            for _ in range(50):
                number += 1
                driver.commit(group, {partition: (number, "")})
            connection = driver._connection
            cluster.kill(connection.run(find_coordinator, connection, group))
            read = []

            def answered(read=read):
                with contextlib.suppress(AmcastError):
                    read.append(driver.committed(group, [partition])[partition][0])
                return len(read) > 100

            until(answered, "answers")
            assert set(read) == {number}
            cluster.start()

            def committed(offset=number):
                with contextlib.suppress(AmcastError):
                    driver.commit(group, {partition: (offset, "")})
                    return True
                return False

            until(committed, "a coordinator")
