"""Requests of a joint appender as the package's decoder reads them, and what the next one holds."""

import pytest
from kafka.protocol.producer import ProduceRequest as PackageRequest
from kafka.protocol.producer import ProduceResponse as PackageResponse
from kafka.record.memory_records import MemoryRecords

from multicast.drivers.kafka_python.joint.outbox import first_groups
from multicast.drivers.kafka_python.joint.partition_appends import PartitionAppends, QueuedRecord
from multicast.drivers.kafka_python.joint.request import answered, settings, written
from multicast.drivers.kafka_python.produce_request import PRODUCE_VERSION
from multicast.drivers.kafka_python.record_batch import (
    NO_HEADERS,
    ProducerIdentity,
    written_batch,
    written_headers,
    written_record,
)
from multicast.drivers.protocol import TopicPartition
from multicast.errors import ProtocolViolation

A0, A3, B0 = TopicPartition("A", 0), TopicPartition("A", 3), TopicPartition("B.order", 0)
NOW_MS = 1_700_000_000_000
FIELDS = [
    (b"", None, ()),
    (None, b"", ()),
    (b"v" * 63, b"k" * 64, (("h", b"1"),)),
    (b"v" * 64, None, (("h", None), ("ä" * 70, b"x" * 9000))),
    (b"v" * 1_000_000, b"k" * 300, tuple((str(n), b"%d" % n) for n in range(70))),
    (b"v", b"k", ()),
]


def test_a_request_is_what_the_package_would_read():
    records = [
        written_record(place, place * 40, key, value, written_headers(headers))
        for place, (value, key, headers) in enumerate(FIELDS)
    ]
    batch = written_batch(records, NOW_MS, NOW_MS + 200, ProducerIdentity(2**40, 9), 2**31 - 2)
    small = written_batch([written_record(0, 0, None, b"ticket")], NOW_MS, NOW_MS)
    batches = [(A3, batch), (B0, small), (A0, small)]
    pieces = written(7, settings("me", timeout_ms=30_000), batches)
    assert batch in pieces, "a large batch is not copied"
    frame = b"".join(pieces)
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    read = PackageRequest.decode(frame[4:], version=PRODUCE_VERSION, header=True)
    assert (read.acks, read.timeout_ms, read.transactional_id) == (-1, 30_000, None)
    found = {
        (topic.name, entry.index): MemoryRecords(entry.records).next_batch()
        for topic in read.topic_data
        for entry in topic.partition_data
    }
    assert list(found) == [A3, A0, B0]
    large = found[A3]
    assert all(one.validate_crc() for one in found.values())
    assert (large.producer_id, large.producer_epoch, large.base_sequence) == (2**40, 9, 2**31 - 2)
    assert (found[B0].producer_id, found[B0].base_sequence) == (-1, -1)
    for place, (record, (value, key, headers)) in enumerate(zip(large, FIELDS, strict=True)):
        assert (record.value, record.key, tuple(record.headers)) == (value, key, headers)
        assert (record.offset, record.timestamp) == (place, NOW_MS + 40 * place)


def answer(*entries):
    topic = PackageResponse.TopicProduceResponse
    partition = topic.PartitionProduceResponse
    response = PackageResponse(
        responses=[
            topic(
                name=name,
                partition_responses=[
                    partition(index=index, error_code=error, base_offset=offset)
                    for index, error, offset in partitions
                ],
            )
            for name, partitions in entries
        ],
        throttle_time_ms=0,
    )
    body = response.encode(version=PRODUCE_VERSION)
    return (len(body) + 4).to_bytes(4) + (9).to_bytes(4) + body


def test_an_answer_tells_of_each_partition():
    frame = answer(("A", [(0, 0, 2**40), (3, 6, -1)]), ("B.order", [(0, 45, -1)]))
    assert answered(frame, 9) == {A0: (0, 2**40), A3: (6, -1), B0: (45, -1)}
    with pytest.raises(ProtocolViolation):
        answered(frame, 8)
    for size in range(12, len(frame) - 4):
        with pytest.raises(ProtocolViolation):
            answered(frame[:size], 9)


def queues(*groups, batch_bytes_max=1_000_000):
    """Make the queues of groups, each a mapping from a partition to sizes of its records."""
    made = {}
    for number, group in enumerate(groups):
        total = sum(map(sum, group.values()))
        for partition, sizes in group.items():
            appends = made.setdefault(
                partition,
                PartitionAppends(partition, requests_max=2, batch_bytes_max=batch_bytes_max),
            )
            for size in sizes:
                record = QueuedRecord(size, b"", None, NO_HEADERS, print, number, total)
                appends.enqueue(record)
    return list(made.values())


def taken(made, room):
    return {appends.partition: count for appends, count in first_groups(made, room).items()}


def test_what_fits_is_sent_whole():
    made = queues({A0: [10], B0: [10]}, {A0: [10]}, {A3: [10, 10]})
    assert taken(made, 50) == {A0: 2, B0: 1, A3: 2}


def test_a_request_takes_whole_groups_in_their_order():
    made = queues({A0: [10], B0: [10]}, {B0: [10], A0: [15]}, {A3: [1]})
    assert taken(made, 46) == {A0: 2, B0: 2, A3: 1}
    assert taken(made, 45) == {A0: 2, B0: 2}
    assert taken(made, 44) == {A0: 1, B0: 1}
    assert taken(made, 1) == {A0: 1, B0: 1}


def test_a_group_that_does_not_fit_in_a_batch_waits_for_the_next_request():
    made = queues({A0: [100], B0: [5]}, {B0: [5], A0: [100]}, {B0: [5]}, batch_bytes_max=200)
    assert taken(made, 1000) == {A0: 1, B0: 1}
    made = queues({A0: [100, 100], B0: [5]}, {B0: [5]}, batch_bytes_max=200)
    assert taken(made, 1000) == {A0: 1, B0: 1}
