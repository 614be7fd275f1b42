"""The joint appender at a broker that soon forgets the producers that it has not heard of."""

import pytest
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition as KafkaTopicPartition

from multicast.local.cluster import LocalCluster
from tests.helpers.joint import Joint
from tests.helpers.system import until

pytestmark = pytest.mark.kafka
FORGETFUL = {"producer.id.expiration.ms": "1000", "producer.id.expiration.check.interval.ms": "100"}


@pytest.mark.campaign
def test_a_producer_that_the_broker_has_forgotten_goes_on_with_its_numbers():
    with LocalCluster(brokers=1, settings=FORGETFUL) as cluster:
        joint = Joint(cluster)
        log, order = joint.topic(2)
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)

        def known():
            (described,) = admin.describe_producers([KafkaTopicPartition(*log)]).values()
            return described.active_producers

        def appended():
            joint.append_each([log, order], b"%d" % len(joint.sent[log]))
            joint.settle()

        def heard():
            appended()
            return known()

        for _ in range(2):
            until(heard, "the broker to know the producer")
            until(lambda: not known(), "the broker to forget the producer")
        appended()
        assert [joint.judge(partition) for partition in (log, order)] == [{}, {}]
        appends = joint.appender._dispatcher.partitions[log]
        assert (appends.identity.epoch, appends._sequence) == (0, len(joint.sent[log]))
        admin.close()
        joint.close()
