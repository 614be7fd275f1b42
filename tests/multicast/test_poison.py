"""What any client may write: both drivers read it alike, and no consumer stops."""

import json
import socket
import uuid
from dataclasses import replace
from struct import Struct
from types import SimpleNamespace

import pytest
from crc32c import crc32c

from multicast.cli import receive
from multicast.consuming import subscription
from multicast.consuming.batches import Batch, Message
from multicast.control import ends_record, log_partition, markers_record
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.kafka.appender.request import answered, settings, written
from multicast.drivers.kafka.fetch_request import frame_size
from multicast.drivers.protocol import Record, TopicPartition
from multicast.messages import epoch_header
from tests.helpers.driver_worlds import read
from tests.helpers.plans import chain
from tests.helpers.small import Small, until
from topology.tree import CollectorSpec

BATCH = Struct(">hiqqqhii")  # attributes, last delta, two times, producer, epoch, sequence, count
NOW_MS = 1_600_000_000_000
UNKNOWN_TOPIC, NO_LEADER_HERE = 3, 6  # error codes of Kafka's protocol
PLAIN = 500
SKIP = (b"amcast.skip", b"P1")
ODD = [  # headers as bytes, and as every driver must give them
    ([(b"\xff\xfe", b"v")], ()),
    ([(b"\xff\xfe", b"v"), SKIP], ()),
    ([SKIP, (b"\xed\xa0\x80", None)], ()),
    ([(b"amcast.skip\0more", b"P1")], [("amcast.skip", b"P1")]),
    ([(b"a\0\xff", b"v")], [("a", b"v")]),
    ([("\ufffd".encode(), b"v")], [("\ufffd", b"v")]),
    ([(b"", b"")], [("", b"")]),
    ([(b"null", None)], [("null", None)]),
    ([(b"x", b"y")] * 3000, [("x", b"y")] * 3000),
]


# Records that no client library writes, written to a broker byte by byte.


def varint(number):
    rest = number << 1 ^ number >> 63
    written = bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*written, rest])


def nullable(raw):
    return varint(-1) if raw is None else varint(len(raw)) + raw


def record(delta, value, headers=(), *, attributes=0):
    """One record with its length."""
    body = bytes([attributes]) + varint(0) + varint(delta) + nullable(None) + nullable(value)
    body += varint(len(headers))
    body += b"".join(nullable(name) + nullable(of) for name, of in headers)
    return varint(len(body)) + body


def batch(records):
    content = BATCH.pack(0, len(records) - 1, NOW_MS, NOW_MS, -1, -1, -1, len(records))
    content += b"".join(records)
    head = Struct(">qiibI").pack(0, 9 + len(content), -1, 2, crc32c(content))
    return head + content


def append(bootstrap, partition, records):
    """Append a batch to a Kafka partition of the one broker; give its error code and the offset.

    A broker names itself the leader of a new partition shortly before it serves it: until then it
    refuses, and the batch is sent again.
    """
    answers = []

    def served():
        answers.append(_append(bootstrap, partition, records))
        return answers[-1][0] not in {UNKNOWN_TOPIC, NO_LEADER_HERE}

    until(served)
    return answers[-1]


def _append(bootstrap, partition, records):
    common = settings("stranger", timeout_ms=10_000)
    frame = b"".join(written(1, common, [(partition, batch(records))]))
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as opened:
        opened.sendall(frame)
        answer = b""
        while (size := frame_size(answer)) is None or len(answer) < size:
            chunk = opened.recv(65536)
            assert chunk, "the broker closed the connection"
            answer += chunk
    return answered(answer, 1)[partition]


@pytest.mark.parametrize("name", ["kafka-python", "librdkafka"])
def test_records_with_odd_headers_are_read_alike_by_both_drivers(kafka_cluster, name):
    partition = TopicPartition(f"odd-{name}-{uuid.uuid4().hex[:8]}", 0)
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.create_topics({partition.topic: TopicSpec(1)})
    # Many records before them: Python specializes code that it has run often.
    plain = [record(delta, b"plain", [(b"a", b"b")]) for delta in range(PLAIN)]
    assert append(kafka_cluster.bootstrap, partition, plain)[0] == 0
    written = [record(delta, b"%d" % delta, headers) for delta, (headers, _) in enumerate(ODD)]
    # Kafka defines no record attributes; this value looks like a varint that continues.
    written += [record(len(ODD), b"attributes", attributes=0xFF), record(len(ODD) + 1, b"last")]
    assert append(kafka_cluster.bootstrap, partition, written)[0] == 0

    with open_driver(name, kafka_cluster.bootstrap) as driver:
        reader = driver.reader({partition: 0})
        records = read(reader, {partition: PLAIN + len(written)})[0][partition]
        reader.close()

    assert [each.offset for each in records] == list(range(PLAIN + len(written)))
    odd = records[PLAIN:]
    assert [list(each.headers) for each in odd[: len(ODD)]] == [list(given) for _, given in ODD]
    assert [each.value for each in odd[-2:]] == [b"attributes", b"last"]
    assert odd[-1].timestamp_ms == odd[0].timestamp_ms


def test_a_null_header_is_printed_as_null_and_a_repeated_one_with_all_its_values():
    headers = [("h", None), ("twice", b"1"), ("twice", b"2")]
    batch = Batch(chain().log("P1"), ("P1",), [Record(0, b"v", None, headers)], 1, "@P1", 0, 0)

    document = receive._document(Message(batch, batch.records[0]))

    assert json.loads(json.dumps(document))["headers"] == {"h": None, "twice": ["1", "2"]}


def write(system, *what):
    """Write messages to P4, C4's single log; a number is a marker of that epoch."""
    partition = log_partition(chain().log("P4"))
    for item in what:
        if isinstance(item, int):
            system.log.write(partition, b"?", headers=[epoch_header("P4", item)])
        else:
            system.log.write(partition, item)


def next_plan(system):
    """Plan epoch 2, in which another collector orders P4."""
    plan = chain(epoch=2)
    collectors = (plan.collectors[0], CollectorSpec("K2", ("P2", "P3", "P4"), "K1", 1))
    system.propose(replace(plan, collectors=collectors))


def end_epoch(system, end):
    system.write(markers_record(system.previous, 1, {"P4": end}, attempt="1"))
    system.write(
        ends_record(system.previous, 1, {"P1": 0, "P2": 0, "P3": 0, "P4": end}, attempt="1")
    )


def deliveries(consumer, count):
    delivered = []

    def poll():
        delivered.extend((b.epoch, r.value) for b in consumer.poll(0.01) for r in b.records)
        return len(delivered) >= count

    until(poll, timeout=60)
    return delivered


def test_a_strangers_marker_stops_no_lone_reader():
    with Small(chain()) as system, system.consumer("C4") as consumer:
        write(system, b"one", 2, b"two", 7, 2, b"three")

        assert deliveries(consumer, 3) == [(1, b"one"), (1, b"two"), (1, b"three")]


def test_a_lone_reader_that_passed_a_strangers_marker_stops_at_the_epochs_own():
    with Small(chain()) as system, system.consumer("C4") as consumer:
        write(system, b"one", 2, b"two")
        assert deliveries(consumer, 2) == [(1, b"one"), (1, b"two")]

        next_plan(system)
        write(system, 2, b"three")
        assert consumer.poll(0.05) == []
        end_epoch(system, 4)

        assert deliveries(consumer, 1) == [(2, b"three")]


def test_a_strangers_marker_of_the_true_epoch_moves_no_message_to_another_epoch():
    with Small(chain()) as system, system.consumer("C4") as consumer:
        next_plan(system)
        write(system, b"one", 2, b"two", 2, b"three", 2, b"four")
        assert deliveries(consumer, 1) == [(1, b"one")]
        assert consumer.poll(0.05) == []

        end_epoch(system, 5)

        rest = [(1, b"two"), (1, b"three"), (2, b"four")]
        assert deliveries(consumer, 3) == rest
        with system.consumer("C4") as late:
            assert deliveries(late, 4) == [(1, b"one"), *rest]


def test_what_is_said_of_an_epochs_end_before_the_next_plan_does_not_count():
    with Small(chain()) as system, system.consumer("C4") as consumer:
        end_epoch(system, 1)
        write(system, b"one", b"two")
        assert deliveries(consumer, 2) == [(1, b"one"), (1, b"two")]

        next_plan(system)
        write(system, 2)
        end_epoch(system, 3)
        write(system, b"three")

        assert deliveries(consumer, 1) == [(2, b"three")]


def test_ends_that_leave_out_a_log_do_not_count():
    with Small(chain()) as system, system.consumer("C4") as consumer:
        write(system, b"one")
        next_plan(system)
        write(system, 2, b"two")
        system.write(markers_record(system.previous, 1, {}, attempt="x"))
        system.write(markers_record(system.previous, 1, {"P4": 2}, attempt="1"))
        system.write(ends_record(system.previous, 1, {"P4": 2}, attempt="x"))
        system.write(
            ends_record(system.previous, 1, {"P1": 0, "P2": 0, "P3": 0, "P4": -1}, attempt="y")
        )
        assert deliveries(consumer, 1) == [(1, b"one")]

        end_epoch(system, 2)

        assert deliveries(consumer, 1) == [(2, b"two")]


def test_a_marker_is_ignored_only_by_what_the_control_topic_says_after_it_was_read(monkeypatch):
    monkeypatch.setattr(subscription, "single_log_end", lambda *_: None)
    before, after = (SimpleNamespace(last_epoch=lambda *_, e=e: e) for e in (None, 1))
    ignored = []
    delivery = SimpleNamespace(
        plan=chain(),
        position=SimpleNamespace(source="@P4"),
        ignore_markers=lambda: ignored.append(True),
    )
    assert subscription.pass_marker(before, delivery, lambda: after)
    assert ignored == []
    assert subscription.pass_marker(before, delivery, lambda: before)
    assert ignored == [True]
