"""What the drivers' tests share: clusters real and fake, and bounded ways to wait for a driver."""

import time
import uuid
from collections import defaultdict

import confluent_kafka
import pytest

from multicast.drivers import open_driver
from multicast.kafka_python import Admin, TopicSpec
from multicast.log import TopicPartition
from multicast.memory import MemoryDriver, MemoryLog

REAL = [
    pytest.param("kafka-python", marks=pytest.mark.kafka),
    pytest.param("librdkafka", marks=pytest.mark.kafka),
]
LARGE = {"max.message.bytes": "12000000"}


class MemoryWorld:
    """A log in memory with what tests do to a cluster behind a driver's back."""

    def __init__(self):
        self.held = []
        self.log = MemoryLog(threaded=True)
        self.driver = self.impatient = MemoryDriver(self.log, step=self._step)
        self.hold_appends = False

    def topic(self, partitions=1):
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.log.create(name, partitions)
        return [TopicPartition(name, number) for number in range(partitions)]

    def transaction(self):
        return self.log.transaction()

    def trim(self, at, offset):
        self.log.trim(at, offset)

    def recreate(self, topic):
        self.log.recreate(topic)

    def close(self):
        self.driver.close()

    def _step(self, append):
        if self.hold_appends:
            self.held.append(append)
        else:
            append.settle(append.store())


class RealTransaction:
    def __init__(self, bootstrap):
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex}
        )
        self._producer.init_transactions(20)
        self._producer.begin_transaction()

    def append(self, at, value, *, key=None):
        offsets = []
        self._producer.produce(
            at.topic,
            value,
            key,
            at.partition,
            on_delivery=lambda error, message: offsets.append(error or message.offset()),
        )
        assert self._producer.flush(10) == 0
        return offsets[0]

    def commit(self):
        self._producer.commit_transaction(10)

    def abort(self):
        self._producer.abort_transaction(10)


class RealWorld:
    def __init__(self, name, bootstrap):
        self.bootstrap = bootstrap
        self.admin = Admin(bootstrap)
        self.driver = open_driver(name, bootstrap)
        self.impatient = open_driver(name, bootstrap, request_timeout_s=2.0)
        self.hold_appends = False

    def topic(self, partitions=1):
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.admin.create_topics({name: TopicSpec(partitions, settings=LARGE)})
        return [TopicPartition(name, number) for number in range(partitions)]

    def transaction(self):
        return RealTransaction(self.bootstrap)

    def trim(self, at, offset):
        self.admin.delete_records({at: offset})

    def recreate(self, topic):
        count = self.admin.partitions([topic])[topic]
        self.admin.delete_topics([topic])
        self.admin.create_topics({topic: TopicSpec(count, settings=LARGE)})

    def close(self):
        self.driver.close()
        self.impatient.close()
        self.admin.close()


def append_all(appender, at, values, **fields):
    outcomes = []
    for value in values:
        appender.append(at, value, done=outcomes.append, **fields)
    assert appender.flush(10)
    return outcomes


def read(reader, wanted, timeout_s=10.0):
    """Poll until the positions are reached; gives records and positions by Kafka partition."""
    records, positions = defaultdict(list), {}
    deadline = time.monotonic() + timeout_s
    while any(positions.get(at, -1) < position for at, position in wanted.items()):
        left_s = deadline - time.monotonic()
        assert left_s > 0, f"read {positions} of {wanted}"
        for at, some, position in reader.poll(left_s):
            assert position > positions.get(at, -1)
            assert all(record.offset < position for record in some)
            records[at] += some
            positions[at] = position
    return records, positions


def watch(watcher, wanted, timeout_s=10.0):
    """Poll until the ends are told; gives all that was told."""
    told = {}
    deadline = time.monotonic() + timeout_s
    while any(told.get(at) != end for at, end in wanted.items()):
        left_s = deadline - time.monotonic()
        assert left_s > 0, f"told {told}, not {wanted}"
        told.update(watcher.poll(left_s))
    return told


def values(records):
    return [record.value for record in records]
