"""The direct appender on its own sockets: what is sent, the outcomes, broken connections."""

import select
import selectors
import socket
import threading
import uuid

import pytest
from kafka.protocol.producer import ProduceRequest as PackageRequest
from kafka.record.memory_records import MemoryRecords

from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin, TopicSpec
from multicast.drivers.kafka_python.produce_request import PRODUCE_VERSION, ProduceRequest, answered
from multicast.drivers.memory.driver import MemoryDriver
from multicast.drivers.protocol import Appended, AppendFailed, TopicPartition
from multicast.errors import AppendRefused, AppendUnknown, ProtocolViolation
from tests.helpers.driver_worlds import REAL, read, values
from tests.helpers.small import until

AT = TopicPartition("A.Msg-TO", 3)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 127, 128, 8_192, 100_000])
def test_a_request_is_what_the_package_would_read(size):
    value = bytes(number % 251 for number in range(size))
    request = ProduceRequest("amcast", AT, timeout_ms=30_000)
    frame = request.written(7, value, 1_700_000_000_000)
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    written = PackageRequest.decode(frame[4:], version=PRODUCE_VERSION, header=True)
    assert (written.acks, written.timeout_ms, written.transactional_id) == (-1, 30_000, None)
    (topic,) = written.topic_data
    (partition,) = topic.partition_data
    assert (topic.name, partition.index) == AT
    batch = MemoryRecords(partition.records).next_batch()
    assert batch.validate_crc()
    (record,) = batch
    assert (record.value, record.key, record.headers) == (value, None, [])
    assert record.timestamp == 1_700_000_000_000


def test_an_answer_to_something_else_is_refused():
    for number, topics in ((0, 1), (2, 1), (1, 2)):
        answer = b"\0\0\0\x40" + number.to_bytes(4) + topics.to_bytes(4) + bytes(60)
        with pytest.raises(ProtocolViolation):
            answered(answer, 1)


class Connected:
    """A direct appender with one partition, and its outcomes."""

    def __init__(self, driver, partition):
        self.driver = driver
        self.partition = partition
        self.direct = driver.direct_appender()
        self.direct.add([partition])
        self.outcomes = []

    def open(self):
        self.driver.last_stable_offsets([self.partition])  # its leader knows by now that it leads

        def opened():
            self.direct.reconnect()
            return self.partition in self.direct._places

        until(opened)

    @property
    def socket(self):
        return self.direct._places[self.partition].socket

    def append(self, value):
        return self.direct.append(self.partition, value, done=self.outcomes.append)

    def receive(self, count):
        def received():
            select.select([self.direct.fileno()], [], [], 0.05)
            self.direct.receive()
            return len(self.outcomes) >= count

        until(received)


@pytest.fixture(params=REAL)
def connected(kafka_cluster, request):
    partition = TopicPartition(f"t-{uuid.uuid4().hex[:8]}", 1)
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.create_topics({partition.topic: TopicSpec(2)})
    with open_driver(request.param, kafka_cluster.bootstrap) as driver:
        made = Connected(driver, partition)
        yield made
        made.direct.close()
        made.direct.close()
        assert not made.append(b"closed")


@pytest.mark.kafka
def test_records_stand_in_the_log_in_the_order_sent_and_their_offsets_are_told(connected):
    assert not connected.append(b"before there is a line")
    connected.open()
    sent = [b"%d" % number * number for number in range(40)]
    assert all(connected.append(value) for value in sent)
    connected.receive(40)
    assert connected.outcomes == [Appended(number) for number in range(40)]
    reader = connected.driver.reader({connected.partition: 0})
    assert values(read(reader, {connected.partition: 40})[0][connected.partition]) == sent
    reader.close()


@pytest.mark.kafka
def test_what_finds_no_room_is_not_sent_and_every_thread_may_append(connected):
    connected.open()
    taken = []

    def many():
        taken.extend(connected.append(b"x") for _ in range(50))

    threads = [threading.Thread(target=many) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert 0 < sum(taken) < 150
    connected.receive(sum(taken))
    assert sorted(outcome.offset for outcome in connected.outcomes) == list(range(sum(taken)))
    assert connected.append(b"again")
    connected.receive(sum(taken) + 1)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("max.message.bytes", "100", "larger than the topic's max.message.bytes"),
        ("cleanup.policy", "compact", "without a key"),
        # A record that reaches the broker within the millisecond of its time is accepted.
        ("message.timestamp.before.max.ms", "0", "check the clock of this machine"),
    ],
)
def test_a_record_that_is_refused_for_good_is_certainly_not_stored(
    kafka_cluster, setting, value, reason
):
    partition = TopicPartition(f"t-{uuid.uuid4().hex[:8]}", 0)
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.create_topics({partition.topic: TopicSpec(1, settings={setting: value})})
    with open_driver("librdkafka", kafka_cluster.bootstrap) as driver:
        made = Connected(driver, partition)

        def refused():
            made.open()  # after a failure another broker may lead
            made.append(bytes(200))
            made.receive(len(made.outcomes) + 1)
            return isinstance(made.outcomes[-1], AppendFailed)

        until(refused)
        made.direct.close()
    error = made.outcomes[-1].error
    assert isinstance(error, AppendRefused), error
    assert reason in str(error)


@pytest.mark.kafka
def test_a_broken_line_leaves_doubt_once_and_is_mended(connected):
    connected.open()
    connected.socket.socket.shutdown(socket.SHUT_RDWR)
    connected.append(b"lost")
    connected.direct.receive()
    connected.direct.reconnect()
    assert all(isinstance(outcome, AppendFailed) for outcome in connected.outcomes)
    count = len(connected.outcomes)
    connected.open()
    assert connected.append(b"found")
    connected.receive(count + 1)
    assert isinstance(connected.outcomes[-1], Appended)


@pytest.mark.kafka
def test_a_broker_that_does_not_answer_is_given_up(connected):
    connected.open()
    near, far = socket.socketpair()
    near.setblocking(False)
    with far:
        held = connected.socket
        connected.direct._selector.unregister(held.socket)
        held.socket.close()
        held.socket = near
        connected.direct._selector.register(near, selectors.EVENT_READ, held)
        assert connected.append(b"unanswered")
        connected.direct.reconnect()
        assert connected.outcomes == []
        connected.direct._timeout_s = 0.0
        connected.direct.reconnect()
        (outcome,) = connected.outcomes
        assert isinstance(outcome.error, AppendUnknown)


@pytest.mark.kafka
def test_what_a_broker_refuses_has_an_outcome_too(connected, kafka_cluster):
    connected.open()
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.delete_topics([connected.partition.topic])

    def refused():
        connected.append(b"to nowhere")
        connected.direct.receive()
        return any(isinstance(outcome, AppendFailed) for outcome in connected.outcomes)

    until(refused)
    assert not connected.append(b"nowhere any more")


def test_in_memory_there_is_no_shorter_way():
    assert MemoryDriver().direct_appender() is None
