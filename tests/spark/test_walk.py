"""The walk along an order, and reading its slices, on a real broker; no Spark is started."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from multicast.consuming.cursor import Cursor
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import log_partition
from multicast.errors import TimedOut, Trimmed, UncoveredInterest, UsageError
from multicast.tables.between import between
from multicast.tables.options import table_options
from multicast.tables.order_walk import OrderWalk
from multicast.tables.slices import Place, Slice, read, slices, tasks
from multicast.testing import MemorySystem, system
from tests.helpers.system import PATIENCE_S
from tests.spark.rows import INTERESTS, send, send_oddities
from topology.tree import Log

kafka = pytest.mark.kafka
C1 = SubscriptionRequest.of("C1", None)
C5 = SubscriptionRequest.of("C5", None)


def rows_of(topic, pieces, *, slice_offsets=40):
    """The cursors and positions of all messages in some pieces, in delivery order."""
    rows = []
    for part in slices(pieces, slice_offsets):
        for some in read(topic.driver, part, timeout_s=PATIENCE_S):
            places = [place for place, length in some.spans for _ in range(length)]
            for place, record in zip(places, some.records, strict=True):
                cursor = (
                    f"{part.epoch}/{part.source}/{place.record}/{place.run}/{record.offset + 1}"
                )
                rows.append((part.epoch, place.position + record.offset - place.first, cursor))
    return sorted(rows)


def cursors(rows):
    return [cursor for _, _, cursor in rows]


def delivered(topic, name):
    messages = topic.drain(topic.consumer(name, committed=False))
    return [message.cursor.place for message in messages]


def all_now(topic, request, start="earliest", until=None):
    return between(topic.driver, topic.topic, request, start, until, timeout_s=PATIENCE_S)


def two_epochs(amcast_topic):
    topic = amcast_topic(INTERESTS)
    send(topic, 200)
    send_oddities(topic)
    wider = [{"name": "C1", "interest": ["P1", "P2", "P3", "P4"]}, *INTERESTS["consumer"][1:]]
    topic.replan({**INTERESTS, "topic": topic.topic, "consumer": wider})
    send(topic, 200, seed=2)
    return topic


@kafka
@pytest.mark.parametrize("request_", [C1, C5], ids=["C1", "C5"])
def test_small_steps_and_any_start_give_the_same_rows_at_the_same_positions(amcast_topic, request_):
    topic = two_epochs(amcast_topic)
    whole = rows_of(topic, all_now(topic, request_))
    assert cursors(whole) == delivered(topic, request_.name)

    # In steps of 7 offsets: the same, and each piece of the way by its two cursors again.
    with OrderWalk(topic.driver, topic.topic, request_, "earliest") as walk:
        end, steps, ways = walk.end(), [], []
        before = walk.position
        while more := walk.advance(7):
            assert sum(piece.next - piece.first for piece in more) <= 7
            ways.append((before, walk.position, more))
            before = walk.position
            steps += more
        assert walk.lacks(end) is None
    assert rows_of(topic, steps) == whole
    for first, last, pieces in ways[::9]:
        assert all_now(topic, request_, first, last) == pieces

    # From any row's cursor on: the rest.
    for index in range(0, len(whole), max(1, len(whole) // 6)):
        start = Cursor.parse(whole[index][2])
        assert rows_of(topic, all_now(topic, request_, start)) == whole[index + 1 :]


@kafka
@pytest.mark.parametrize("interest", [["P1", "P2", "P3"], ["P2"]], ids=["collector", "log"])
def test_a_time_in_an_epoch_that_has_ended_is_a_place_in_that_epoch(amcast_topic, interest):
    # Init: moments before all messages, in each of two epochs, and between the two.
    topic = amcast_topic(INTERESTS)
    request = SubscriptionRequest.of(None, interest)

    def read(start="earliest"):
        consumer = topic.consumer(interest=interest, committed=False, start=start)
        return [message.cursor.place for message in topic.drain(consumer)]

    moments, counts = [datetime.now(UTC)], [0]
    for seed in range(4):
        send(topic, 100, seed=seed)
        counts.append(len(read()))
        moments.append(datetime.now(UTC))
        if seed == 1:
            wider = {"name": "C1", "interest": ["P1", "P2", "P3", "P4"]}
            consumers = [wider, *INTERESTS["consumer"][1:]]
            topic.replan({**INTERESTS, "topic": topic.topic, "consumer": consumers})
    whole = cursors(rows_of(topic, all_now(topic, request)))
    assert {cursor[0] for cursor in whole} == {"1", "2"}

    for moment, count in zip(moments, counts, strict=True):
        # Test.
        head = cursors(rows_of(topic, all_now(topic, request, until=moment)))
        tail = cursors(rows_of(topic, all_now(topic, request, moment)))

        # Check.
        assert (head, tail, read(moment)) == (whole[:count], whole[count:], whole[count:])


def test_what_cannot_be_read_is_a_named_error():
    with system(INTERESTS) as topic:
        send(topic, 20)
        with pytest.raises(UncoveredInterest):
            all_now(topic, SubscriptionRequest.of(None, {"P1", "P5"}))
        whole = rows_of(topic, all_now(topic, C1))
        first, last = Cursor.parse(whole[0][2]), Cursor.parse(whole[-1][2])
        with pytest.raises(UsageError, match="lies before the start"):
            all_now(topic, C1, last, first)
        beyond = Cursor(last.epoch, last.source, last.record + 1000, 0, 0)
        with pytest.raises(TimedOut, match="does not reach cursor"):
            between(topic.driver, topic.topic, C1, first, beyond, timeout_s=0.1)
        with pytest.raises(Trimmed, match="is beyond the end"):
            all_now(topic, C1, beyond)
        (single,) = {Cursor.parse(text) for _, _, text in rows_of(topic, all_now(topic, C5))[-1:]}
        with pytest.raises(Trimmed, match="is beyond the end"):
            all_now(topic, C5, replace(single, next=single.next + 1000))
        # What retention has removed, at a cursor; "earliest" is behind it (test_first_place).
        topic.log.trim(log_partition(topic.plan.log("P1")), 1)
        with pytest.raises(Trimmed, match="log P1 begins at offset 1"):
            all_now(topic, C1, replace(first, record=0, run=0, next=0))


def interests(*consumers):
    known = [*consumers, {"name": "C2", "interest": ["P2", "P3"]}]
    return {"topic": "A", "partitions": ["P1", "P2", "P3"], "consumer": known}


def send_in_memory(topic: MemorySystem, count):
    producer = topic.producer()
    for _ in range(count):
        producer.multicast(b"", to={"P1"}).ordered()
        producer.multicast(b"", to={"P2"}).ordered()


def test_up_to_a_cursor_of_a_later_epoch_that_has_another_source():
    # Init: in the second epoch the consumer reads a single log, whose cursors have record 0.
    with system(interests({"name": "C1", "interest": ["P1", "P2"]})) as topic:
        send_in_memory(topic, 10)
        topic.replan(interests({"name": "C1", "interest": ["P1"]}))
        send_in_memory(topic, 5)
        messages = topic.drain(topic.consumer("C1", committed=False))
        assert [message.cursor.epoch for message in messages] == [1] * 20 + [2] * 5

        for count, message in enumerate(messages, 1):
            # Test.
            pieces = all_now(topic, C1, until=message.cursor)

            # Check: the marker's offset between the epochs is no message.
            given = [(e.log.name, number) for e in pieces for number in range(e.first, e.next)]
            known = [(each.message_id.log, each.message_id.offset) for each in messages]
            assert [place for place in given if place in known] == known[:count]


def test_an_epoch_between_that_does_not_cover_the_interest_is_an_error_and_no_gap():
    covering = {"name": "C1", "interest": ["P1", "P2"]}
    with system(interests(covering)) as topic:
        send_in_memory(topic, 3)
        with OrderWalk(topic.driver, topic.topic, C1, "earliest") as walk:
            first = walk.position
        alone = {"name": "C3", "interest": ["P1"]}
        topic.replan(interests(alone), uncovered=True)
        topic.replan(interests(covering), uncovered=True)
        send_in_memory(topic, 3)
        last = topic.drain(topic.consumer("C1", committed=False))[-1].cursor
        assert (first.epoch, last.epoch) == (1, 3)
        with pytest.raises(UncoveredInterest, match="no collector of epoch 2 decides"):
            all_now(topic, C1, first, until=last)


def test_small_slices_share_a_task_and_large_ones_do_not():
    def part(offsets):
        return Slice(1, "K1", ("P1",), Log("P1", "A", 0), (Place(0, 0, 5, 5 + offsets, 0, 0),))

    def sizes(offsets, offsets_max):
        made = tasks([part(count) for count in offsets], offsets_max)
        return [[each.places[0].next - 5 for each in group] for group in made]

    assert sizes([10] * 20, 500_000) == [[10] * 8, [10] * 8, [10] * 4]
    assert sizes([500_000, 500_000, 3], 500_000) == [[500_000], [500_000], [3]]
    assert sizes([30_000, 20_000, 1], 500_000) == [[30_000, 20_000], [1]]
    assert sizes([20, 20, 5, 10, 10], 20) == [[20], [20], [5, 10], [10]]  # as the user bounds them
    assert sizes([], 20) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "kafka.bootstrap.servers is missing"),
        ({"subscribe": "A"}, "option 'subscribe' is unknown; known are"),
        ({"consumer": "C1", "startingOffsets": "{}"}, "earliest, latest or a cursor"),
        ({"consumer": "C1", "endingOffsets": "earliest"}, "latest or a cursor"),
        ({"consumer": "C1", "failOnDataLoss": "false"}, "failOnDataLoss is true only"),
        ({"consumer": "C1", "maxOffsetsPerTrigger": "5"}, "is for a stream only"),
        ({"consumer": "C1", "maxRecordsPerPartition": "0"}, "give a whole number from 1"),
        ({"consumer": "C1", "kafka.acks": "0"}, "acks is refused"),
        ({"consumer": "C1", "startingTimestamp": "1", "startingOffsets": "latest"}, "not both"),
        ({"consumer": "C1", "endingTimestamp": "1", "endingOffsets": "latest"}, "not both"),
        ({"consumer": "C1", "endingTimestamp": str(10**18)}, "no time in ms"),
        ({"consumer": "C1", "startingTimestamp": "-1"}, "give a whole number from 0"),
        ({"interest": ""}, "interest is ''; give names of partitions, as in P1,P3"),
        ({"interest": "P1, ,P3"}, "give names of partitions, as in P1,P3"),
        ({"topic": "A"}, "needs a name from the plan, or an interest"),
    ],
)
def test_a_wrong_option_is_one_sentence(options, sentence):
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", **options} if options else {}
    with pytest.raises(UsageError, match=sentence.replace(".", r"\.")):
        table_options(given, stream=False)


def test_options_have_no_case_and_settings_of_kafka_are_passed_through():
    given = {
        "KAFKA.bootstrap.servers": "h:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "u",
        "kafka.sasl.password": "p",
        "INTEREST": "P2,P1",
        "startingoffsets": "1/K/3/2/9",
        "maxoffsetspertrigger": "7",
    }
    read_ = table_options(given, stream=True)
    assert read_.client == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    assert read_.request.interest == ("P1", "P2")
    assert read_.start == Cursor(1, "K", 3, 2, 9)
    assert read_.offsets_max == 7
    assert table_options({**given, "startingOffsets": "latest"}, stream=True).start == "latest"
