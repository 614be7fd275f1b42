"""Watching ends on real brokers: what is told, and that no payload is read for it."""

import socket
import time
import uuid
from struct import pack

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse

from collectors.reconfiguration.apply import append_sentinels, apply
from multicast.control import sentinel_topic
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin, TopicSpec
from multicast.drivers.kafka_python.fetch_request import (
    EndsRequest,
    FetchAnswer,
    FetchPartition,
    frame_size,
)
from multicast.drivers.kafka_python.watch_connection import SentinelRecord, WatchConnection
from multicast.drivers.protocol import Appended, TopicPartition
from multicast.errors import ProtocolViolation
from tests.helpers.driver_worlds import (
    LARGE,
    PATIENCE_S,
    RealTransaction,
    append_all,
    cluster_with_listener,
    watch,
)
from tests.helpers.plans import poster

A, B = TopicPartition("A", 0), TopicPartition("A.groups", 3)
RUNG = TopicPartition("A.bells", 1)


# --- the request, held to kafka-python's own classes ----------------------------------------------


def test_a_request_says_what_the_package_would_say_and_its_offsets_can_be_moved():
    request = EndsRequest(
        "me", [FetchPartition(RUNG, 7, 1000), FetchPartition(A, 5, 1), FetchPartition(B, 2**40, 1)]
    )
    request.written(wait_ms=1, bytes_min=1, bytes_max=1)
    request.move(A, 6)
    frame = bytes(request.written(wait_ms=500, bytes_min=73, bytes_max=74))
    topic = FetchRequest.FetchTopic
    theirs = FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=73,
        max_bytes=74,
        isolation_level=1,
        topics=[
            topic(
                topic=at.topic,
                partitions=[
                    topic.FetchPartition(
                        partition=at.partition, fetch_offset=offset, partition_max_bytes=most
                    )
                ],
            )
            for at, offset, most in [(RUNG, 7, 1000), (A, 6, 1), (B, 2**40, 1)]
        ],
        version=4,
    )
    theirs.with_header(correlation_id=2, client_id="me")
    assert frame == theirs.encode(framed=True, header=True)
    assert frame_size(frame[:3]) is None
    assert frame_size(frame[:4]) == len(frame)


def answer(number, *parts, throttle_ms=0):
    """Write an answer with the package's classes: parts are (place, error, end, records)."""
    topic = FetchResponse.FetchableTopicResponse
    aborted = topic.PartitionData.AbortedTransaction(producer_id=1, first_offset=0)
    theirs = FetchResponse(
        throttle_time_ms=throttle_ms,
        responses=[
            topic(
                topic=at.topic,
                partitions=[
                    topic.PartitionData(
                        partition_index=at.partition,
                        error_code=error,
                        high_watermark=end + 3,
                        last_stable_offset=end,
                        aborted_transactions=[aborted, aborted] if records else None,
                        records=records,
                    )
                ],
            )
            for at, error, end, records in parts
        ],
        version=4,
    )
    theirs.with_header(correlation_id=number)
    return theirs.encode(framed=True, header=True)


def test_an_answer_is_taken_apart_whatever_records_and_aborted_transactions_it_holds():
    request = EndsRequest("me", [FetchPartition(A, 5, 1), FetchPartition(B, 0, 1)])
    request.written(wait_ms=500, bytes_min=1, bytes_max=1)
    stranger = TopicPartition("C", 0)
    frame = answer(1, (B, 0, 9, b"x" * 100), (stranger, 0, 4, b""), (A, 6, -1, b""), throttle_ms=8)
    assert request.answered(frame) == (
        8,
        [FetchAnswer(B, 0, 9, 100, 12), FetchAnswer(A, 6, -1, 0, 2)],
    )
    with pytest.raises(ProtocolViolation):
        request.answered(answer(2, (A, 0, 5, b"")))
    with pytest.raises(ProtocolViolation):
        frame_size(pack(">i", -5))


# --- a line, with a broker that the test plays ----------------------------------------------------


class Played:
    """A line whose broker is the test; `rings` is one question, answered after so many seconds."""

    def __init__(self, bell):
        ours, self._theirs = socket.socketpair()
        ours.setblocking(False)
        self.line = WatchConnection(ours, "me", bell)
        self.line.add(A, 5)
        self.now = 0.0

    def asked(self, *, wait_s=0.5):
        """Have the line ask; gives what the package reads of it."""
        self.line.ask(self.now, wait_s=wait_s, timeout_s=1.0)
        return FetchRequest.decode(self._theirs.recv(10_000), version=4, header=True, framed=True)

    def rings(self, *parts, after_s):
        number = self.asked().header.correlation_id
        self.now += after_s
        self._theirs.sendall(answer(number, *parts))
        return self.line.receive(self.now)

    def close(self):
        self.line.close()
        self._theirs.close()


@pytest.fixture
def played():
    made = Played(SentinelRecord(RUNG, 0))
    yield made
    made.close()


def offsets(request):
    return {
        TopicPartition(topic.topic, one.partition): (one.fetch_offset, one.partition_max_bytes)
        for topic in request.topics
        for one in topic.partitions
    }


def test_a_bell_is_measured_first_and_then_rings_for_one_byte_more_than_itself(played):
    request = played.asked()
    assert (request.min_bytes, request.max_bytes) == (1, 1)
    assert list(offsets(request)) == [RUNG, A]
    played._theirs.sendall(answer(1, (RUNG, 0, 1, b"b" * 72), (A, 0, 5, b"")))
    assert played.line.receive(0.0) == []
    request = played.asked()
    assert (request.min_bytes, request.max_bytes) == (73, 73)
    assert offsets(request)[RUNG][1] > 10_000
    assert offsets(request)[A] == (5, 1)


def test_an_answer_in_pieces_is_waited_for_and_what_moved_is_asked_from_its_end(played):
    played.asked()
    frame = answer(1, (RUNG, 0, 1, b"b" * 72), (A, 0, 8, b""))
    for piece in (frame[:3], frame[3:50]):
        played._theirs.sendall(piece)
        assert played.line.receive(0.1) is None
    played._theirs.sendall(frame[50:])
    assert played.line.receive(0.1) == [FetchAnswer(A, 0, 8, 0, 11)]
    assert played.line.bytes_read == len(frame)
    assert offsets(played.asked())[A] == (8, 1)


def test_a_bell_that_was_rung_once_more_is_measured_anew_from_its_last_record(played):
    played.rings((RUNG, 0, 1, b"b" * 72), (A, 0, 5, b""), after_s=0.0)
    played.rings((RUNG, 0, 2, b"b" * 72), (A, 0, 5, b""), after_s=0.0)
    request = played.asked()
    assert offsets(request)[RUNG][0] == 1
    assert request.min_bytes == 1


@pytest.mark.parametrize(
    ("part", "log_end", "after_s"),
    [
        ((RUNG, 6, -1, b""), lambda _: 5, 0.1),  # it is led by another broker now
        ((RUNG, 0, 1, b""), lambda _: 5, 0.1),  # its record is gone
        ((RUNG, 0, 1, b"b" * 72), lambda count: 5 + count, 0.5),  # it tells when the wait is over
        ((RUNG, 0, 1, b"b" * 72), lambda _: 5, 0.1),  # it comes early, for nothing
    ],
)
def test_a_bell_that_does_not_do_is_given_up(played, part, log_end, after_s):
    played.rings((RUNG, 0, 1, b"b" * 72), (A, 0, 5, b""), after_s=0.0)
    for count in range(1, 4):
        assert played.line.bell is not None or part[3] == b""
        played.rings(part, (A, 0, log_end(count), b""), after_s=after_s)
    assert played.line.bell is None
    request = played.asked()
    assert request.min_bytes == 1
    assert list(offsets(request)) == [A]


def test_a_bell_that_rings_in_time_now_and_then_is_kept(played):
    played.rings((RUNG, 0, 1, b"b" * 72), (A, 0, 5, b""), after_s=0.0)
    for count in range(1, 20):
        late = count % 3 != 0
        played.rings((RUNG, 0, 1, b"b" * 72), (A, 0, 5 + count, b""), after_s=0.5 * late)
    for _ in range(5):
        played.rings((RUNG, 0, 1, b"b" * 72), (A, 0, 24, b""), after_s=0.5)  # nothing to tell
    assert played.line.bell is not None


def test_a_broker_that_hangs_up_breaks_the_line(played):
    played.asked()
    played._theirs.close()
    with pytest.raises(OSError, match="closed"):
        played.line.receive(0.0)


# --- on real brokers ------------------------------------------------------------------------------


class World:
    """A topic with its bells on a real cluster."""

    def __init__(self, bootstrap, *, logs=3, bells=True, client=None, **settings):
        self.topic = f"t-{uuid.uuid4().hex[:8]}"
        self.bells = sentinel_topic(self.topic)
        self.bootstrap = bootstrap
        self.admin = Admin(bootstrap, client)
        self.driver = open_driver("kafka-python", bootstrap, client)
        self.appender = self.driver.appender()
        self.admin.create_topics({self.topic: TopicSpec(logs, settings={**LARGE, **settings})})
        self.logs = [TopicPartition(self.topic, number) for number in range(logs)]
        if bells:
            assert append_sentinels(self.driver, self.admin, self.topic)
        self._watchers = []

    def watcher(self):
        """Open a watcher that has told all ends and measured its bells."""
        watcher = self.driver.watcher(dict.fromkeys(self.logs, 0), sentinel_topic=self.bells)
        self._watchers.append(watcher)
        watch(watcher, self.driver.last_stable_offsets(self.logs))
        assert not watcher.poll(0.3)
        return watcher

    def close(self):
        for watcher in self._watchers:
            watcher.close()
        self.appender.close()
        self.driver.close()
        self.admin.close()


@pytest.fixture
def world(kafka_cluster):
    made = World(kafka_cluster.bootstrap)
    yield made
    made.close()


@pytest.mark.kafka
@pytest.mark.parametrize("size", [100, 10_000, 1_000_000])
def test_no_payload_is_read_whatever_its_size(world, size):
    watcher = world.watcher()
    read, asked = watcher.bytes_read, watcher.asks
    for number in range(1, 11):
        for at in world.logs:
            append_all(world.appender, at, [b"x" * size])
            assert watch(watcher, {at: number}) == {at: number}
    asked = watcher.asks - asked
    assert asked >= 30
    assert watcher.bytes_read - read < 400 * asked


@pytest.mark.kafka
def test_without_bells_the_ends_are_told_all_the_same(kafka_cluster):
    world = World(kafka_cluster.bootstrap, bells=False)
    try:
        watcher = world.watcher()
        read = watcher.bytes_read
        for number in range(1, 4):
            append_all(world.appender, world.logs[1], [b"x" * 100_000])
            watch(watcher, {world.logs[1]: number})
        assert watcher.bytes_read - read > 300_000
    finally:
        world.close()


@pytest.mark.kafka
def test_a_bell_is_rung_by_what_is_stable_only(world):
    first, second, _ = world.logs
    watcher = world.watcher()
    transaction = RealTransaction(world.bootstrap)
    transaction.append(first, b"x" * 10_000)
    assert append_all(world.appender, first, [b"held back"]) == [Appended(1)]
    asked = watcher.asks
    assert not watcher.poll(0.3)
    assert watcher.asks - asked < 20  # one that spins asks hundreds of times
    append_all(world.appender, second, [b"free"])
    assert watch(watcher, {second: 1}) == {second: 1}
    read = watcher.bytes_read
    transaction.commit()  # the marker is 2
    assert watch(watcher, {first: 3}) == {first: 3}
    assert watcher.bytes_read - read < 2_000


@pytest.mark.kafka
def test_ends_are_told_while_logs_roll_and_are_trimmed(kafka_cluster):
    world = World(kafka_cluster.bootstrap, **{"segment.bytes": str(1024 * 1024)})
    try:
        at = world.logs[0]
        watcher = world.watcher()
        read = watcher.bytes_read
        for number in range(1, 13):
            append_all(world.appender, at, [b"x" * 300_000])
            assert watch(watcher, {at: number}) == {at: number}
            if number == 6:
                world.admin.delete_records({at: 6})
        assert watcher.bytes_read - read < 10_000
    finally:
        world.close()


@pytest.mark.kafka
def test_a_bell_that_gets_another_record_keeps_ringing_and_nobody_spins(world):
    watcher = world.watcher()
    append_all(world.appender, TopicPartition(world.bells, 0), [b"once", b"more" * 100])
    watcher.poll(0.3)
    read, asked = watcher.bytes_read, watcher.asks
    assert not watcher.poll(1.2)
    assert watcher.asks - asked < 50  # one that spins asks thousands of times
    for number in range(1, 4):
        append_all(world.appender, world.logs[0], [b"x" * 1_000_000])
        assert watch(watcher, {world.logs[0]: number}) == {world.logs[0]: number}
    assert watcher.bytes_read - read < 20_000


@pytest.mark.kafka
def test_a_topic_that_is_made_again_is_told_from_its_new_end(world):
    watcher = world.watcher()
    for at in world.logs:
        append_all(world.appender, at, [b"0", b"1", b"2"])
    watch(watcher, dict.fromkeys(world.logs, 3))
    world.admin.delete_topics([world.topic])
    world.admin.create_topics({world.topic: TopicSpec(3)})
    watch(watcher, dict.fromkeys(world.logs, 0))


@pytest.mark.kafka
def test_a_watcher_that_is_given_spacing_asks_no_sooner(world):
    watcher = world.watcher()
    watcher.spacing_s = 3600.0
    append_all(world.appender, world.logs[0], [b"0"])
    assert watch(watcher, {world.logs[0]: 1})
    asked = watcher.asks
    append_all(world.appender, world.logs[0], [b"1"])
    assert not watcher.poll(0.3)
    assert watcher.asks == asked
    watcher.spacing_s = 0.0
    assert watch(watcher, {world.logs[0]: 2}) == {world.logs[0]: 2}


@pytest.mark.kafka
def test_bells_are_hung_once(world):
    assert append_sentinels(world.driver, world.admin, world.topic)
    bell = TopicPartition(world.bells, 0)
    assert world.admin.partitions([world.bells]) == {world.bells: 1}
    assert world.driver.high_watermarks([bell]) == {bell: 1}


@pytest.mark.kafka
def test_applying_a_plan_hangs_the_bells_and_applying_it_again_hangs_what_is_missing(world):
    plan = poster(topic=f"{world.topic}-plan")
    bell = TopicPartition(sentinel_topic(plan.topic), 0)
    assert apply(world.driver, world.admin, plan).changed
    assert world.driver.high_watermarks([bell]) == {bell: 1}
    world.admin.delete_topics([bell.topic])
    assert not apply(world.driver, world.admin, plan).changed
    assert world.driver.high_watermarks([bell]) == {bell: 1}


@pytest.mark.kafka
def test_a_cluster_that_will_not_have_bells_is_no_error(world):
    assert not append_sentinels(
        world.driver, world.admin, "t" * 245
    )  # no topic's name may be so long


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_broker_that_wants_its_clients_to_authenticate_again_is_called_again():
    plain = "listener.name.sasl.plain"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        f"{plain}.sasl.jaas.config": f'{module} required user_me="open sesame";',
        f"{plain}.connections.max.reauth.ms": "1500",
    }
    client = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "open sesame",
    }
    with cluster_with_listener("SASL", "SASL_PLAINTEXT", settings) as address:
        world = World(address, client=client)
        try:
            watcher = world.watcher()
            number, deadline = 0, time.monotonic() + PATIENCE_S
            while watcher.lines_opened < 3:
                assert time.monotonic() < deadline
                number += 1
                append_all(world.appender, world.logs[0], [b"x" * 1000])
                watch(watcher, {world.logs[0]: number})
            assert watcher.bytes_read < 1000 * watcher.asks
        finally:
            world.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_three_brokers_have_a_bell_each_and_one_may_die(kafka_cluster_of_three):
    cluster = kafka_cluster_of_three
    cluster.start()
    world = World(cluster.bootstrap, logs=6)
    try:
        placed = world.admin.place_on_brokers(world.bells, {})
        assert sorted(placed) == [1, 2, 3]
        bells = [TopicPartition(world.bells, partition) for partition in placed.values()]
        assert world.driver.high_watermarks(bells) == dict.fromkeys(bells, 1)
        watcher = world.watcher()

        def append_round(number):
            read, asked = watcher.bytes_read, watcher.asks
            for at in world.logs:
                append_all(world.appender, at, [b"x" * 100_000])
            watch(watcher, dict.fromkeys(world.logs, number))
            assert watcher.bytes_read - read < 1_000 * (watcher.asks - asked)

        for number in range(1, 6):
            append_round(number)
        watcher.spacing_s = 3600.0  # so that nothing is asked of the broker when it hangs up
        for at in world.logs:
            append_all(world.appender, at, [b"untold"])
        while watcher.poll(0.5):
            pass
        cluster.kill(2)
        try:
            watcher.poll(0.5)
            watcher.spacing_s = 0.0
            for number in range(7, 12):
                append_round(number)
        finally:
            cluster.restart(2)
    finally:
        world.close()
