"""What the drivers' tests share: clusters real and fake, and bounded ways to wait for a driver."""

import time
import uuid
from collections import defaultdict
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property

import confluent_kafka
import pytest

from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.memory.brokers import answer_at_once
from multicast.drivers.memory.driver import MemoryDriver, MemoryLog
from multicast.drivers.protocol import TopicPartition
from multicast.local.broker import free_ports
from multicast.local.cluster import LocalCluster

REAL = [
    pytest.param("kafka-python", marks=pytest.mark.kafka),
    pytest.param("librdkafka", marks=pytest.mark.kafka),
]
WORLDS = ["memory", *REAL]
AS_COLUMNS = pytest.param("kafka-python, read as columns", marks=pytest.mark.kafka)
PATIENCE_S = 60.0  # stops a hang, no more
LARGE = {"max.message.bytes": "12000000"}


class MemoryWorld:
    """A log in memory with what tests do to a cluster behind a driver's back."""

    polls_exactly = True

    def __init__(self):
        self.held = []
        self.log = MemoryLog(threaded=True)
        self.driver = self.impatient = MemoryDriver(self.log)
        self.driver.brokers.carry = self._carry
        self.hold_appends = False

    def topic(self, partitions=1):
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.log.create(name, partitions)
        return [TopicPartition(name, number) for number in range(partitions)]

    def transaction(self):
        return self.log.transaction()

    def trim(self, partition, offset):
        self.log.trim(partition, offset)

    def recreate(self, topic):
        self.log.recreate(topic)

    def close(self):
        self.driver.close()

    def release(self):
        """Store and answer what was held back."""
        while self.held:
            answer_at_once(self.held.pop(0))

    def _carry(self, request):
        if self.hold_appends:
            self.held.append(request)
        else:
            answer_at_once(request)


class RealTransaction:
    def __init__(self, bootstrap):
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex}
        )
        self._producer.init_transactions(PATIENCE_S)
        self._producer.begin_transaction()

    def append(self, partition, value, *, key=None):
        offsets = []
        self._producer.produce(
            partition.topic,
            value,
            key,
            partition.partition,
            on_delivery=lambda error, message: offsets.append(error or message.offset()),
        )
        assert self._producer.flush(PATIENCE_S) == 0
        return offsets[0]

    def commit(self):
        self._producer.commit_transaction(PATIENCE_S)

    def abort(self):
        self._producer.abort_transaction(PATIENCE_S)


class RealWorld:
    polls_exactly = True

    def __init__(self, name, bootstrap):
        self.bootstrap = bootstrap
        self._name = name
        self._opened = ExitStack()
        self.admin = self._opened.enter_context(Admin(bootstrap))
        self.driver = self._opened.enter_context(open_driver(name, bootstrap))
        self.hold_appends = False

    def release(self):
        """Hold nothing back."""

    @cached_property
    def impatient(self):
        """Half of its patience is how long a topic may be unknown."""
        driver = open_driver(self._name, self.bootstrap, request_timeout_s=5.0)
        return self._opened.enter_context(driver)

    def topic(self, partitions=1):
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.admin.create_topics({name: TopicSpec(partitions, settings=LARGE)})
        return [TopicPartition(name, number) for number in range(partitions)]

    def transaction(self):
        return RealTransaction(self.bootstrap)

    def trim(self, partition, offset):
        self.admin.delete_records({partition: offset})

    def recreate(self, topic):
        count = self.admin.partitions([topic])[topic]
        self.admin.delete_topics([topic])
        self.admin.create_topics({topic: TopicSpec(count, settings=LARGE)})

    def close(self):
        self._opened.close()


class ColumnWorld(RealWorld):
    """The driver kafka-python, whose readers give columns; they give whole batches."""

    polls_exactly = False

    def __init__(self, bootstrap):
        super().__init__("kafka-python", bootstrap)
        self.driver.reader = self.driver.column_reader


def world_of(name, bootstrap):
    """Open the world of a real cluster by its name in `REAL` or `AS_COLUMNS`."""
    return ColumnWorld(bootstrap) if "columns" in name else RealWorld(name, bootstrap)


@contextmanager
def cluster_with_listener(name, protocol, settings, *, plain=None, folder=None):
    """Start a broker that listens at one more place than port `plain`; give its address there."""
    chosen, controller, other = free_ports(3)
    plain = plain or chosen
    listeners = {"PLAINTEXT": plain, "CONTROLLER": controller, name: other}
    ours = {
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": ",".join(f"{one}://127.0.0.1:{port}" for one, port in listeners.items()),
        "listener.security.protocol.map": (
            f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{name}:{protocol}"
        ),
    }
    with LocalCluster(folder, brokers=1, port=plain, settings=ours | settings):
        yield f"127.0.0.1:{other}"


def append_all(appender, partition, values, **fields):
    outcomes = []
    for value in values:
        appender.append(partition, value, done=outcomes.append, **fields)
    assert appender.flush(PATIENCE_S)
    return outcomes


def read(reader, wanted, timeout_s=PATIENCE_S):
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


def whole(driver, partition):
    """Read a Kafka partition to its end."""
    end = driver.last_stable_offsets([partition])[partition]
    with closing(driver.reader({partition: 0})) as reader:
        return read(reader, {partition: end})[0][partition] if end else []


def watch(watcher, wanted, timeout_s=PATIENCE_S):
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
