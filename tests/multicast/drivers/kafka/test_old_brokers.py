"""Brokers of Kafka 3.0, the oldest ones that are used: requests in the versions that they know."""

import pytest
from kafka import KafkaAdminClient

from multicast import Consumer, Producer
from multicast.control import control_partition
from multicast.drivers.kafka import Admin, KafkaPythonDriver
from multicast.drivers.kafka.private import KafkaConnectionManager
from multicast.errors import AmcastError
from tests.helpers.plans import poster
from tests.helpers.system import PATIENCE_S, System


@pytest.fixture
def known_as(monkeypatch):
    """Have clients take brokers for those of an older Kafka."""

    def version(*numbers):
        for client in (KafkaConnectionManager, KafkaAdminClient):
            monkeypatch.setitem(client.DEFAULT_CONFIG, "api_version", numbers)

    return version


@pytest.mark.parametrize("version", [(2, 1), (2, 8)])
def test_brokers_that_are_too_old_are_refused_in_one_sentence(kafka_cluster, known_as, version):
    known_as(*version)
    for opened in (KafkaPythonDriver, Admin):
        with pytest.raises(AmcastError, match=r"are older than Kafka 3\.0, which is needed\.$"):
            opened(kafka_cluster.bootstrap)


def test_a_topic_is_planned_written_read_and_committed_in_the_versions_of_kafka_3(
    kafka_cluster, known_as, tmp_path
):
    known_as(3, 0)
    with System(kafka_cluster.bootstrap, poster(), tmp_path, driver="kafka-python") as system:
        named = {"topic": system.topic, "driver": "kafka-python"}
        with Producer(system.bootstrap, **named) as producer:
            sent = producer.multicast(b"a", to={"P1"}).accepted(PATIENCE_S)
        with Consumer(system.bootstrap, name="C1", **named) as consumer:
            assert next(iter(consumer)).message_id == sent
            consumer.commit()
        with Admin(system.bootstrap) as admin:
            identity, alive = admin.members()
            assert (identity, sorted(alive)) == (admin.cluster_id(), admin.broker_ids())
            (group,) = (name for name in admin.groups("amcast.") if system.topic in name)
            assert system.driver.committed(group, [control_partition(system.topic)])
            assert admin.sizes([system.topic])
