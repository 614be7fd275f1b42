"""Requests of a joint appender as the package's decoder reads them, and what the next one holds."""

import socket

import pytest
from kafka.protocol.producer import ProduceRequest as PackageRequest
from kafka.protocol.producer import ProduceResponse as PackageResponse
from kafka.record.memory_records import MemoryRecords

from multicast.drivers.appender.dispatcher import first_entries
from multicast.drivers.appender.entries import QueuedRecord, queued_run
from multicast.drivers.appender.partition_appends import PartitionAppends
from multicast.drivers.appender.record_batch import (
    NO_HEADERS,
    ProducerIdentity,
    record_pieces,
    written_batch,
    written_headers,
)
from multicast.drivers.kafka.appender.link import SocketLink
from multicast.drivers.kafka.appender.request import PRODUCE_VERSION, answered, settings, written
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AppendNotStored, ProtocolViolation, UsageError

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
        b"".join(record_pieces(place, place * 40, key, value, written_headers(headers)))
        for place, (value, key, headers) in enumerate(FIELDS)
    ]
    identity = ProducerIdentity(2**40, 9)
    times = (NOW_MS, NOW_MS + 200)
    batch = written_batch(records, *times, identity, 2**31 - 2, count=len(FIELDS))
    small = written_batch(record_pieces(0, 0, None, b"ticket"), NOW_MS, NOW_MS)
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


@pytest.mark.parametrize("fields", [FIELDS, [(value, None, ()) for value, *_ in FIELDS]])
@pytest.mark.parametrize("first", [0, 62, 8190])
def test_a_run_is_what_the_package_would_read(fields, first):
    fields = [*fields * 3, *[(b"%d" % number, None, ()) for number in range(70)]]
    values, keys, headers = map(list, zip(*fields, strict=True))
    plain = not any(keys) and not any(headers)
    run = queued_run(values, None if plain else keys, None if plain else headers, print)
    assert run.count == len(fields)
    before = [b"".join(record_pieces(place, 0, None, b"")) for place in range(first)]
    later_ms = 7 if first else 0  # than the first record of the batch
    pieces = [*before, *run.pieces(first, later_ms)]
    assert sum(map(len, run.pieces(first, 7))) <= run.size
    batch = written_batch(pieces, NOW_MS, NOW_MS + 7, count=first + len(fields))
    decoded = MemoryRecords(batch).next_batch()
    assert decoded.validate_crc()
    read = list(decoded)
    assert [record.offset for record in read] == list(range(first + len(fields)))
    for record, (value, key, pairs) in zip(read[first:], fields, strict=True):
        assert (record.value, record.key, tuple(record.headers)) == (value, key, pairs)
        assert record.timestamp == NOW_MS + later_ms


def test_a_run_ends_before_the_first_that_is_no_bytes():
    class Ours(bytes):
        __slots__ = ()

    assert queued_run([b"a", Ours(b"b"), None, "c", b"d"], None, None, print).count == 3
    assert queued_run([b"a", b"b"], [b"k", "l"], [(), ()], print).count == 1
    for values, keys in ([["a"], None], [[b"a"], ["k"]]):
        with pytest.raises(UsageError, match="is str; give bytes"):
            queued_run(values, keys, None, print)


def test_a_run_in_parts_is_the_same_records():
    headers = [(("h", b"%d" % number),) for number in range(7)]
    told = []
    run = queued_run(
        [b"%d" % number for number in range(7)], None, headers, lambda *of: told.append(of)
    )
    run.counted, run.since = True, 3.0
    parts = [part for half in run.divided() for part in half.divided()]
    assert sum(part.size for part in parts) == run.size
    assert {(part.counted, part.since) for part in parts} == {(True, 3.0)}
    place, pieces = 0, []
    for part in parts:
        pieces += part.pieces(place, 0)
        part.done(place)
        place += part.count
    assert b"".join(pieces) == b"".join(run.pieces(0, 0))
    assert [(first, outcome) for first, _, outcome in told] == [(0, 0), (1, 1), (3, 3), (5, 5)]
    assert sum(count for _, count, _ in told) == 7


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


def queues(*moments, batch_bytes_max=1_000_000):
    """Make queues of what came at each moment, a mapping from a partition to sizes of records."""
    made = {}
    for since, came in enumerate(moments):
        for partition, sizes in came.items():
            appends = made.setdefault(
                partition,
                PartitionAppends(partition, requests_max=2, batch_bytes_max=batch_bytes_max),
            )
            for size in sizes:
                appends.enqueue(QueuedRecord(size, b"", None, NO_HEADERS, print, since))
    return list(made.values())


def taken(made, room):
    return {appends.partition: count for appends, count in first_entries(made, room).items()}


def test_what_fits_is_sent_whole():
    made = queues({A0: [10], B0: [10]}, {A0: [10]}, {A3: [10, 10]})
    assert taken(made, 50) == {A0: 2, B0: 1, A3: 2}


def test_a_request_takes_what_is_oldest():
    made = queues({A0: [10], B0: [10]}, {B0: [10], A0: [15]}, {A3: [1]})
    assert taken(made, 46) == {A0: 2, B0: 2, A3: 1}
    assert taken(made, 45) == {A0: 2, B0: 2}
    assert taken(made, 44) == {A0: 2, B0: 1}
    assert taken(made, 1) == {A0: 1}


def test_what_does_not_fit_in_a_batch_waits_for_the_next_request():
    made = queues({A0: [100], B0: [5]}, {B0: [5], A0: [100]}, {B0: [5]}, batch_bytes_max=200)
    assert taken(made, 1000) == {A0: 1, B0: 3}
    assert taken(made, 110) == {A0: 1, B0: 2}


def test_a_link_takes_no_other_request_until_the_held_one_is_written_and_released():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = SocketLink(1, ours, settings("me", timeout_ms=1))
        (made,) = queues({A0: [10]})
        link.ready[made] = None
        made.identity = ProducerIdentity(5, 0)
        batch = made.take(1, 0.0, NOW_MS)
        assert link.may_send(2)
        link.hold([(made, batch)], 0.0)
        assert not link.may_send(2)
        link.write_held()
        assert not link.may_send(2)
        assert not link.unsent
        link.release()
        assert link.may_send(2)
        sent = [(A0, batch.written)]
        assert theirs.recv(10_000) == b"".join(written(1, settings("me", timeout_ms=1), sent))


def test_who_sends_is_told_of_each_queue_that_has_lingered():
    (made,) = queues({A0: [10]}, {A0: [10]})
    made.identity = ProducerIdentity(5, 0)
    made.is_due = True
    made.take(1, 0.0, NOW_MS)
    assert not made.is_due
    (made,) = queues({A0: [10]})
    made.is_due = True
    made.refuse_queue(AppendNotStored("no leader"))
    assert not made.is_due
