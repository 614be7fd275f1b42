"""Appends over a socket of one's own: what is sent, what is told, and what a broken line leaves."""

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
from multicast.errors import AppendUnknown, ProtocolViolation
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


class Line:
    """A direct appender, one partition that it appends to, and what it told."""

    def __init__(self, driver, at):
        self.at = at
        self.direct = driver.direct_appender()
        self.direct.add([at])
        self.told = []

    def open(self):
        def opened():
            self.direct.reconnect()
            return self.at in self.direct._places

        until(opened)

    @property
    def socket(self):
        return self.direct._places[self.at].socket

    def append(self, value):
        return self.direct.append(self.at, value, done=self.told.append)

    def hear(self, count):
        def heard():
            select.select([self.direct.fileno()], [], [], 0.05)
            self.direct.receive()
            return len(self.told) >= count

        until(heard)


@pytest.fixture(params=REAL)
def line(kafka_cluster, request):
    at = TopicPartition(f"t-{uuid.uuid4().hex[:8]}", 1)
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.create_topics({at.topic: TopicSpec(2)})
    with open_driver(request.param, kafka_cluster.bootstrap) as driver:
        made = Line(driver, at)
        made.driver = driver
        yield made
        made.direct.close()
        made.direct.close()
        assert not made.append(b"closed")


@pytest.mark.kafka
def test_records_stand_in_the_log_in_the_order_sent_and_their_offsets_are_told(line):
    assert not line.append(b"before there is a line")
    line.open()
    sent = [b"%d" % number * number for number in range(40)]
    assert all(line.append(value) for value in sent)
    line.hear(40)
    assert line.told == [Appended(number) for number in range(40)]
    reader = line.driver.reader({line.at: 0})
    assert values(read(reader, {line.at: 40})[0][line.at]) == sent
    reader.close()


@pytest.mark.kafka
def test_what_finds_no_room_is_not_sent_and_every_thread_may_append(line):
    line.open()
    taken = []

    def many():
        taken.extend(line.append(b"x") for _ in range(50))

    threads = [threading.Thread(target=many) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert 0 < sum(taken) < 150
    line.hear(sum(taken))
    assert sorted(told.offset for told in line.told) == list(range(sum(taken)))
    assert line.append(b"again")
    line.hear(sum(taken) + 1)


@pytest.mark.kafka
def test_a_broken_line_leaves_doubt_once_and_is_mended(line):
    line.open()
    line.socket.socket.shutdown(socket.SHUT_RDWR)
    line.append(b"lost")
    line.direct.receive()
    line.direct.reconnect()
    assert all(isinstance(one, AppendFailed) for one in line.told)
    told = len(line.told)
    line.open()
    assert line.append(b"found")
    line.hear(told + 1)
    assert isinstance(line.told[-1], Appended)


@pytest.mark.kafka
def test_a_broker_that_does_not_answer_is_given_up(line):
    line.open()
    near, far = socket.socketpair()
    near.setblocking(False)
    with far:
        held = line.socket
        line.direct._selector.unregister(held.socket)
        held.socket.close()
        held.socket = near
        line.direct._selector.register(near, selectors.EVENT_READ, held)
        assert line.append(b"unanswered")
        line.direct.reconnect()
        assert line.told == []
        line.direct._timeout_s = 0.0
        line.direct.reconnect()
        (told,) = line.told
        assert isinstance(told.error, AppendUnknown)


@pytest.mark.kafka
def test_what_a_broker_refuses_has_an_outcome_too(line, kafka_cluster):
    line.open()
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.delete_topics([line.at.topic])

    def refused():
        line.append(b"to nowhere")
        line.direct.receive()
        return any(isinstance(told, AppendFailed) for told in line.told)

    until(refused)
    assert not line.append(b"nowhere any more")


def test_in_memory_there_is_no_shorter_way():
    assert MemoryDriver().direct_appender() is None
