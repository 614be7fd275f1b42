"""Appenders under test, what became of each append, and how often each value stands in its log."""

import collections
import uuid

import confluent_kafka

from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin, TopicSpec
from multicast.drivers.protocol import Appended, AppendFailed, TopicPartition
from multicast.errors import AppendUnknown
from tests.helpers.driver_worlds import PATIENCE_S, read, values
from tests.helpers.system import until


class World:
    """An appender, and all that was appended by it; `bootstrap` is how it reaches the cluster."""

    def __init__(self, cluster, bootstrap, name):
        self.cluster = cluster
        self.bootstrap = bootstrap
        self.name = f"{name}-{uuid.uuid4().hex[:8]}"
        self.outcomes = {}

    def topic(self, settings=None):
        topic = f"doubles-{uuid.uuid4().hex[:8]}"
        with Admin(self.cluster.bootstrap) as admin:
            admin.create_topics({topic: TopicSpec(1, settings=settings or {})})
        return TopicPartition(topic, 0)

    def append(self, partition, value):
        self.outcomes[value] = None

        def done(outcome):
            assert self.outcomes[value] is None, f"a second outcome of {value}"
            self.outcomes[value] = outcome

        self.start(partition, value, done)

    def settled(self):
        self.serve()
        return all(outcome is not None for outcome in self.outcomes.values())

    def accepted(self):
        return {value for value, outcome in self.outcomes.items() if isinstance(outcome, Appended)}

    def failed(self):
        self.serve()
        return any(isinstance(outcome, AppendFailed) for outcome in list(self.outcomes.values()))

    def append_surely(self, partition, value):
        """Append until one is accepted: a client may still be about to take up its work again.

        Nothing is in flight afterwards.
        """
        known = self.accepted()

        def accepted():
            if not self.settled():
                return False
            if self.accepted() - known:
                return True
            self.append(partition, b"%s %d" % (value, len(self.outcomes)))
            return False

        until(accepted, "an acknowledgement")

    def copies(self, partition):
        """Count the copies of each value in a log; what was accepted stands where it was told."""
        with open_driver("librdkafka", self.cluster.bootstrap) as driver:
            end = driver.last_stable_offsets([partition])[partition]
            reader = driver.reader({partition: 0})
            records, _ = read(reader, {partition: end}) if end else ({partition: []}, None)
            reader.close()
        found = {record.offset: record.value for record in records[partition]}
        for value in self.accepted() & set(found.values()):
            assert found[self.outcomes[value].offset] == value
        return collections.Counter(values(records[partition]))


class Ours(World):
    """One of our appenders."""

    def __init__(self, cluster, bootstrap, driver, *, delivery_timeout_s):
        super().__init__(cluster, bootstrap, f"ours-{driver}")
        self.driver = open_driver(
            driver,
            bootstrap,
            {"client.id": self.name},
            delivery_timeout_s=delivery_timeout_s,
            request_timeout_s=delivery_timeout_s,
        )
        self.appender = self.driver.appender()

    def start(self, partition, value, done):
        self.appender.append(partition, value, done=done)

    def serve(self):
        pass

    def close(self):
        self.appender.close()
        self.driver.close()


class Bare(World):
    """librdkafka's idempotent producer, as an application would open it."""

    def __init__(self, cluster, bootstrap, *, delivery_timeout_s):
        super().__init__(cluster, bootstrap, "bare")
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": self.name,
                "acks": "all",
                "enable.idempotence": True,
                "delivery.timeout.ms": int(delivery_timeout_s * 1000),
                "linger.ms": 0,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
            }
        )

    def start(self, partition, value, done):
        def delivered(error, message):
            done(AppendFailed(AppendUnknown(str(error))) if error else Appended(message.offset()))

        self.producer.produce(
            partition.topic, value, partition=partition.partition, on_delivery=delivered
        )

    def serve(self):
        self.producer.poll(0)

    def close(self):
        self.producer.purge()
        self.producer.flush(PATIENCE_S)
