"""The watcher of the kafka-python driver: what it reports, and that it reads no payload.

The request and its connection are tested without a broker, the watcher on real ones.
"""

import socket
import time
import uuid
from struct import pack

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse

from collectors.reconfiguration.apply import append_sentinels, apply
from multicast.control import sentinel_topic
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.kafka.fetch_request import (
    EndsRequest,
    FetchAnswer,
    FetchPartition,
    frame_size,
)
from multicast.drivers.kafka.watch_connection import SentinelRecord, WatchConnection
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
from tests.helpers.system import until
from tests.running.parts import sample

A, B = TopicPartition("A", 0), TopicPartition("A.groups", 3)
SENTINEL = TopicPartition("A.bells", 1)


class World:
    """A topic with its sentinel records on a real cluster."""

    def __init__(self, bootstrap, *, logs=3, sentinels=True, client=None, **settings):
        self.topic = f"t-{uuid.uuid4().hex[:8]}"
        self.sentinel_topic = sentinel_topic(self.topic)
        self.bootstrap = bootstrap
        self.admin = Admin(bootstrap, client)
        self.driver = open_driver("kafka-python", bootstrap, client)
        self.appender = self.driver.appender()
        self.admin.create_topics({self.topic: TopicSpec(logs, settings={**LARGE, **settings})})
        self.logs = [TopicPartition(self.topic, number) for number in range(logs)]
        if sentinels:
            assert append_sentinels(self.driver, self.admin, self.topic)
        self._watchers = []

    def watcher(self):
        """Open a watcher that has reported all ends and measured its sentinel records."""
        watcher = self.driver.watcher(
            dict.fromkeys(self.logs, 0), sentinel_topic=self.sentinel_topic
        )
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


# --- the request, held to kafka-python's own classes ----------------------------------------------


def test_a_request_equals_the_one_of_the_package_and_its_offsets_can_be_moved():
    request = EndsRequest(
        "me",
        [FetchPartition(SENTINEL, 7, 1000), FetchPartition(A, 5, 1), FetchPartition(B, 2**40, 1)],
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
                topic=partition.topic,
                partitions=[
                    topic.FetchPartition(
                        partition=partition.partition, fetch_offset=offset, partition_max_bytes=most
                    )
                ],
            )
            for partition, offset, most in [(SENTINEL, 7, 1000), (A, 6, 1), (B, 2**40, 1)]
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
                topic=partition.topic,
                partitions=[
                    topic.PartitionData(
                        partition_index=partition.partition,
                        error_code=error,
                        high_watermark=end + 3,
                        last_stable_offset=end,
                        aborted_transactions=[aborted, aborted] if records else None,
                        records=records,
                    )
                ],
            )
            for partition, error, end, records in parts
        ],
        version=4,
    )
    theirs.with_header(correlation_id=number)
    return theirs.encode(framed=True, header=True)


def test_an_answer_is_decoded_whatever_records_and_aborted_transactions_it_holds():
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


# --- a connection, with a broker that the test plays ----------------------------------------------


class Played:
    """A connection whose broker is the test; `exchange` is one request, answered after a time."""

    def __init__(self, sentinel):
        ours, self._theirs = socket.socketpair()
        ours.setblocking(False)
        self.connection = WatchConnection(ours, "me", sentinel)
        self.connection.add(A, 5)
        self.now = 0.0

    def request(self, *, wait_s=0.5):
        """Send a request; return it as the package decodes it."""
        self.connection.request(self.now, wait_s=wait_s, timeout_s=1.0)
        return FetchRequest.decode(self._theirs.recv(10_000), version=4, header=True, framed=True)

    def exchange(self, *parts, after_s):
        number = self.request().header.correlation_id
        self.now += after_s
        self._theirs.sendall(answer(number, *parts))
        return self.connection.receive(self.now)

    def close(self):
        self.connection.close()
        self._theirs.close()


@pytest.fixture
def played():
    made = Played(SentinelRecord(SENTINEL, 0))
    yield made
    made.close()


def offsets(request):
    return {
        TopicPartition(topic.topic, part.partition): (part.fetch_offset, part.partition_max_bytes)
        for topic in request.topics
        for part in topic.partitions
    }


def test_a_sentinel_is_measured_first_and_then_one_byte_more_is_requested(played):
    request = played.request()
    assert (request.min_bytes, request.max_bytes) == (1, 1)
    assert list(offsets(request)) == [SENTINEL, A]
    played._theirs.sendall(answer(1, (SENTINEL, 0, 1, b"b" * 72), (A, 0, 5, b"")))
    assert played.connection.receive(0.0) == []
    request = played.request()
    assert (request.min_bytes, request.max_bytes) == (73, 73)
    assert offsets(request)[SENTINEL][1] > 10_000
    assert offsets(request)[A] == (5, 1)


def test_an_answer_in_pieces_is_completed_and_a_moved_log_is_requested_from_its_end(played):
    played.request()
    frame = answer(1, (SENTINEL, 0, 1, b"b" * 72), (A, 0, 8, b""))
    for piece in (frame[:3], frame[3:50]):
        played._theirs.sendall(piece)
        assert played.connection.receive(0.1) is None
    played._theirs.sendall(frame[50:])
    assert played.connection.receive(0.1) == [FetchAnswer(A, 0, 8, 0, 11)]
    assert played.connection.bytes_read == len(frame)
    assert offsets(played.request())[A] == (8, 1)


def test_a_sentinel_partition_with_a_new_record_is_measured_again_at_its_last_record(played):
    played.exchange((SENTINEL, 0, 1, b"b" * 72), (A, 0, 5, b""), after_s=0.0)
    played.exchange((SENTINEL, 0, 2, b"b" * 72), (A, 0, 5, b""), after_s=0.0)
    request = played.request()
    assert offsets(request)[SENTINEL][0] == 1
    assert request.min_bytes == 1


@pytest.mark.parametrize(
    ("part", "log_end", "after_s"),
    [
        ((SENTINEL, 6, -1, b""), lambda _: 5, 0.1),  # it is led by another broker now
        ((SENTINEL, 0, 1, b""), lambda _: 5, 0.1),  # its record is gone
        (
            (SENTINEL, 0, 1, b"b" * 72),
            lambda count: 5 + count,
            0.5,
        ),  # it answers after the full wait
        ((SENTINEL, 0, 1, b"b" * 72), lambda _: 5, 0.1),  # it comes early, for nothing
    ],
)
def test_a_sentinel_that_does_not_work_is_dropped(played, part, log_end, after_s):
    played.exchange((SENTINEL, 0, 1, b"b" * 72), (A, 0, 5, b""), after_s=0.0)
    for count in range(1, 4):
        assert played.connection.sentinel is not None or part[3] == b""
        played.exchange(part, (A, 0, log_end(count), b""), after_s=after_s)
    assert played.connection.sentinel is None
    request = played.request()
    assert request.min_bytes == 1
    assert list(offsets(request)) == [A]


def test_a_sentinel_that_works_now_and_then_is_kept(played):
    played.exchange((SENTINEL, 0, 1, b"b" * 72), (A, 0, 5, b""), after_s=0.0)
    for count in range(1, 20):
        late = count % 3 != 0
        played.exchange((SENTINEL, 0, 1, b"b" * 72), (A, 0, 5 + count, b""), after_s=0.5 * late)
    for _ in range(5):
        played.exchange(
            (SENTINEL, 0, 1, b"b" * 72), (A, 0, 24, b""), after_s=0.5
        )  # nothing to tell
    assert played.connection.sentinel is not None


def test_a_broker_that_closes_the_socket_breaks_the_connection(played):
    played.request()
    played._theirs.close()
    with pytest.raises(OSError, match="closed"):
        played.connection.receive(0.0)


# --- on real brokers ------------------------------------------------------------------------------


def rest(watcher):
    """Let a watcher send no request any more, and wait for the answers to those it has sent."""
    watcher.spacing_s = 3600.0

    def rests():
        watcher.poll(0.05)
        return not any(watch.due for watch in watcher._watches.values())

    until(rests, "the answers")


@pytest.fixture
def world(kafka_cluster):
    made = World(kafka_cluster.bootstrap)
    yield made
    made.close()


@pytest.mark.parametrize("size", sample([10_000, 100, 1_000_000], of=1))
def test_no_payload_is_read_whatever_its_size(world, size):
    watcher = world.watcher()
    read, requests = watcher.bytes_read, watcher.requests
    for number in range(1, 11):
        for log in world.logs:
            append_all(world.appender, log, [b"x" * size])
            assert watch(watcher, {log: number}) == {log: number}
    requests = watcher.requests - requests
    assert requests >= 30
    assert watcher.bytes_read - read < 400 * requests


def test_only_stable_records_end_a_long_poll(world):
    first, second, _ = world.logs
    watcher = world.watcher()
    transaction = RealTransaction(world.bootstrap)
    transaction.append(first, b"x" * 10_000)
    assert append_all(world.appender, first, [b"held back"]) == [Appended(1)]
    requests = watcher.requests
    assert not watcher.poll(0.3)
    assert watcher.requests - requests < 20  # a busy loop sends hundreds
    append_all(world.appender, second, [b"free"])
    assert watch(watcher, {second: 1}) == {second: 1}
    read = watcher.bytes_read
    transaction.commit()  # the marker is 2
    assert watch(watcher, {first: 3}) == {first: 3}
    assert watcher.bytes_read - read < 2_000


def test_with_a_wide_spacing_a_question_waits_for_no_message_until_all_is_at_rest(
    world, monkeypatch
):
    waits, request = [], WatchConnection.request

    def noted(self, now, *, wait_s, timeout_s):
        waits.append(wait_s)
        request(self, now, wait_s=wait_s, timeout_s=timeout_s)

    monkeypatch.setattr(WatchConnection, "request", noted)
    watcher, log = world.watcher(), world.logs[0]
    until(lambda: watcher.poll(0.1) == {} and waits and waits[-1] > 0.1, "a long poll at rest")
    for number, spacing_s in enumerate((0.02, 0.05), start=1):
        watcher.spacing_s = spacing_s
        waits.clear()
        append_all(world.appender, log, [b"x"])
        watch(watcher, {log: number})
        until(lambda: watcher.poll(0.1) == {} and len(waits) > 1, "the next question")
        assert (0.0 in waits) is (spacing_s == 0.05)
        until(lambda: watcher.poll(0.1) == {} and waits[-1] > 0.1, "a long poll at rest")


def test_applying_a_plan_appends_the_sentinels_and_applying_it_again_adds_missing_ones(world):
    plan = poster(topic=f"{world.topic}-plan")
    sentinel = TopicPartition(sentinel_topic(plan.topic), 0)
    assert apply(world.driver, world.admin, plan).changed
    assert append_sentinels(world.driver, world.admin, plan.topic)
    assert world.admin.partitions([sentinel.topic]) == {sentinel.topic: 1}
    assert world.driver.high_watermarks([sentinel]) == {sentinel: 1}
    world.admin.delete_topics([sentinel.topic])
    assert not apply(world.driver, world.admin, plan).changed
    assert world.driver.high_watermarks([sentinel]) == {sentinel: 1}


def test_a_cluster_that_refuses_the_sentinel_topic_is_no_error(world):
    assert not append_sentinels(
        world.driver, world.admin, "t" * 245
    )  # no topic's name may be so long


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_a_broker_that_requires_reauthentication_is_connected_again():
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
            while watcher.connections_opened < 3:
                assert time.monotonic() < deadline
                number += 1
                append_all(world.appender, world.logs[0], [b"x" * 1000])
                watch(watcher, {world.logs[0]: number})
            assert watcher.bytes_read < 1000 * watcher.requests
        finally:
            world.close()


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_three_brokers_have_a_sentinel_each_and_one_may_die(kafka_cluster_of_three):
    cluster = kafka_cluster_of_three
    cluster.start()
    world = World(cluster.bootstrap, logs=6)
    try:
        placed = world.admin.place_on_brokers(world.sentinel_topic, {})
        assert sorted(placed) == [1, 2, 3]
        sentinels = [
            TopicPartition(world.sentinel_topic, partition) for partition in placed.values()
        ]
        assert world.driver.high_watermarks(sentinels) == dict.fromkeys(sentinels, 1)
        watcher = world.watcher()

        def append_round(number):
            read, requests = watcher.bytes_read, watcher.requests
            for log in world.logs:
                append_all(world.appender, log, [b"x" * 100_000])
            watch(watcher, dict.fromkeys(world.logs, number))
            assert watcher.bytes_read - read < 1_000 * (watcher.requests - requests)

        for number in range(1, 6):
            append_round(number)
        rest(watcher)  # so that no request is outstanding when the broker dies
        for log in world.logs:
            append_all(world.appender, log, [b"unreported"])
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
