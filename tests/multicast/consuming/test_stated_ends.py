"""A consumer delivers nothing of what a log has lost, as collectors and operators state it."""

from contextlib import suppress
from dataclasses import replace

import pytest

from collectors.core.mending import recovery_plan
from multicast.consuming import readers
from multicast.consuming.cursor import start_cursor
from multicast.consuming.delivery import Delivery
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import (
    ends_record,
    log_partition,
    loss_record,
    lost_stream_record,
    markers_record,
    stream_partition,
)
from multicast.control.codecs import named_record
from multicast.drivers.protocol import Record
from multicast.errors import Truncated
from multicast.messages import message_checksum
from multicast.order.records import (
    CheckpointRecord,
    FreezeRecord,
    Loss,
    OwnLog,
    OwnRecord,
    SeenEnd,
    SightRecord,
    Ticket,
    encode,
)
from multicast.order.stream import StreamCheckpoint
from multicast.tables.order_walk import OrderWalk
from tests.helpers.plans import chain, first_stream, tag_in

PLAN = chain()
P1, P2 = log_partition(PLAN.log("P1")), log_partition(PLAN.log("P2"))


def write(world, count, *, first=0):
    with world.producer() as producer:
        for number in range(first, first + count):
            for to in ({"P1"}, {"P2"}, {"P4"}):
                producer.multicast(b"%d" % number, to=to).accepted(60)


def state(world, *, seen=(), lost=(), collector="K1"):
    """Write what a collector saw into its stream."""
    raw = encode(tag_in(PLAN, collector), SightRecord(seen, lost))
    world.log.write(stream_partition(PLAN, collector), raw)


def named(world, *, seen=(), lost=()):
    """Name a checkpoint at the beginning of K1's stream, which holds it."""
    own = tuple(OwnLog(log, 0, 0, 0, held=False) for log in (0, 1))
    record = CheckpointRecord(0, 0, 0, own, (), 0, seen, lost)
    raw = encode(tag_in(PLAN, "K1"), record)
    offset = world.log.write(stream_partition(PLAN, "K1"), raw)
    world.write(named_record(StreamCheckpoint(1, "K1", offset, raw), 1, (0, 0)))


def deliver(consumer, log="P1"):
    """Read until nothing comes; give what was delivered of a log, and the error if one came."""
    values = []
    with consumer:
        try:
            while batches := consumer.poll(0.2):
                records = [r for batch in batches if batch.log.name == log for r in batch.records]
                values += [int(record.value) for record in records]
        except Truncated as error:
            return values, error
    return values, None


def lost_from(error, log, first):
    return error is not None and f"log {log} has lost its messages from offset {first} on" in str(
        error
    )


@pytest.mark.parametrize("where", ["at the end", "before"])
def test_what_its_stream_says_is_lost_nobody_delivers(world, where):
    if where == "before":
        state(world, lost=(Loss(0, 3),))
    write(world, 5)
    if where == "at the end":
        state(world, lost=(Loss(0, 3),))
    consumer = world.consumer("C1")
    values, error = deliver(consumer)
    assert lost_from(error, "P1", 3)
    assert values == [0, 1, 2]


def test_a_loss_stops_a_consumer_that_waits_for_what_is_lost(world):
    write(world, 5)
    world.log.lose(P1, 3)
    with world.consumer("C1") as consumer:
        while consumer.poll(0.1):
            pass
        state(world, lost=(Loss(0, 3),))
        for _ in range(2):  # and again: it delivers nothing after it
            with pytest.raises(Truncated, match="log P1 has lost its messages from offset 3 on"):
                consumer.poll(5.0)


@pytest.mark.parametrize("name", ["C1", "P1 alone"])
@pytest.mark.parametrize("known", ["stream", "checkpoint"])
def test_a_new_reader_refuses_what_has_replaced_what_a_collector_saw(world, name, known):
    seen = (SeenEnd(0, 6, 0),)
    if known == "checkpoint":
        named(world, seen=seen)
        world.log.lose(stream_partition(PLAN, "K1"), 1)
    write(world, 6)
    if known == "stream":
        state(world, seen=seen)
    world.log.lose(P1, 4)
    write(world, 9, first=100)
    options = {"interest": ["P1"]} if name == "P1 alone" else {}
    consumer = world.consumer(None if options else name, **options)
    values, error = deliver(consumer)
    assert lost_from(error, "P1", 4)
    assert values == [0, 1, 2, 3]


EACH = {"C1": "P1", "P1 alone": "P1", "C4": "P4"}


def opened(world, name, **options):
    """Open a consumer; of P4 no collector states anything."""
    options |= {"interest": ["P1"]} if name == "P1 alone" else {}
    return world.consumer(None if name == "P1 alone" else name, **options)


@pytest.mark.parametrize("name", EACH)
def test_what_the_control_topic_says_is_lost_nobody_delivers(world, name):
    write(world, 5)
    world.write(loss_record(EACH[name], 0, 3))
    values, error = deliver(opened(world, name), EACH[name])
    assert lost_from(error, EACH[name], 3)
    assert values == [0, 1, 2]


@pytest.mark.parametrize("name", EACH)
def test_at_another_leaders_first_message_the_control_topic_is_read_again(world, name):
    write(world, 6)
    consumer = opened(world, name)
    world.log.lose(log_partition(PLAN.log(EACH[name])), 4)
    write(world, 9, first=100)
    world.write(loss_record(EACH[name], 0, 4))
    values, error = deliver(consumer, EACH[name])
    assert lost_from(error, EACH[name], 4)
    assert values == [0, 1, 2, 3]


def accept(world, name, first):
    """Accept that a log has lost its messages from an offset on, as `topology recover` does."""
    lives = tuple(replace(log, life=int(log.name == name)) for log in PLAN.logs)
    world.propose(replace(chain(epoch=2), logs=lives))
    ends = {"P1": 6, "P2": 6, "P3": 0, "P4": 6, name: first}
    for make in (markers_record, ends_record):
        world.write(make(world.previous, 1, ends, attempt="1"))
    freeze = encode(tag_in(PLAN, "K1"), FreezeRecord(0, ()))
    world.log.write(stream_partition(PLAN, "K1"), freeze)


@pytest.mark.parametrize("name", EACH)
def test_once_an_operator_has_accepted_a_loss_all_go_on_without_it(world, name):
    write(world, 6)
    world.write(loss_record(EACH[name], 0, 4))
    delivered = []
    with opened(world, name) as consumer:
        for turn in range(12):
            with suppress(Truncated):
                batches = [each for each in consumer.poll(0.1) if each.log.name == EACH[name]]
                delivered += [(each.epoch, r.offset) for each in batches for r in each.records]
            if turn == 5:
                assert delivered == [(1, 0), (1, 1), (1, 2), (1, 3)]
                accept(world, EACH[name], 4)
    assert delivered[4:] == ([] if name == "C1" else [(2, 4), (2, 5)])
    world.log.lose(log_partition(PLAN.log(EACH[name])), 4)
    assert deliver(opened(world, name), EACH[name]) == ([0, 1, 2, 3], None)


@pytest.mark.parametrize("interest", [["P1", "P2"], ["P1"]])
def test_another_leader_that_has_replaced_nothing_stops_nobody(world, interest):
    write(world, 6)
    state(world, seen=(SeenEnd(0, 4, 0),))
    world.log.lose(P1, 4)
    write(world, 2, first=6)
    state(world, seen=(SeenEnd(0, 6, 1), SeenEnd(1, 8, 0)))
    values, error = deliver(world.consumer(None, interest=interest))
    assert error is None
    assert values == [0, 1, 2, 3, 6, 7]


def test_a_stream_is_read_ahead_once_for_each_new_leader_of_a_log(world, monkeypatch):
    write(world, 3)
    state(world, seen=(SeenEnd(0, 3, 0), SeenEnd(1, 3, 0)))
    stream, read = stream_partition(PLAN, "K1"), []
    with world.consumer("C1") as consumer:
        driver = consumer._driver
        whole = driver.last_stable_offsets

        def counted(partitions):
            read.extend(partitions)
            return whole(partitions)

        monkeypatch.setattr(driver, "last_stable_offsets", counted)
        assert len(list(consumer.until_end())) > 0
        assert stream not in read
        for log in (P1, P2):
            world.log.lose(log, 3)
        write(world, 3, first=3)
        list(consumer.until_end())
        assert read.count(stream) <= 2
        del read[:]
        write(world, 3, first=6)
        list(consumer.until_end())
        assert stream not in read


def record(offset, epoch, value=b"v"):
    return Record(offset, value, None, (), 0, epoch)


def delivery(*sights):
    """A delivery of P1 and P2 whose stream has ordered ten messages of P1 and says so much."""
    made = Delivery(PLAN, ("P1", "P2"), first_stream(PLAN, "K1"), start_cursor(PLAN, "K1"))
    tag = tag_in(PLAN, "K1")
    made.order_read(Record(0, encode(tag, OwnRecord((Ticket(0, 10, 0),)))))
    for number, sight in enumerate(sights):
        made.order_read(Record(1 + number, encode(tag, sight)))
    return made


def offsets(made):
    return [each.offset for batch in made.deliver(100) for each in batch.records]


def test_the_message_right_before_a_seen_end_is_compared_where_both_checksums_are_known():
    right, wrong = record(4, 0), record(4, 0, b"w")
    for given, handed_out in ((right, [3, 4, 5]), (wrong, [3])):
        made = delivery(SightRecord((SeenEnd(0, 5, 0, message_checksum(right)),)))
        made.payload_read(0, [record(3, 0), given, record(5, 0)], 6)
        assert offsets(made) == handed_out
        assert made.stopped_in == (None if given is right else 0)
    made = delivery(SightRecord((SeenEnd(0, 5, 0, message_checksum(right)),)))
    made.payload_read(0, [wrong._replace(leader_epoch=-1)], 5)
    assert offsets(made) == [4]


def test_what_is_at_hand_is_judged_again_when_its_stream_says_more():
    made = delivery()
    made.payload_read(0, [record(offset, 0 if offset < 3 else 2) for offset in range(5)], 5)
    assert offsets(made) == [0, 1, 2]  # nobody knows what was stated when the second leader came
    assert made.stopped_in == 0
    made.saw(SightRecord((SeenEnd(0, 4, 1),)))
    with pytest.raises(Truncated, match="from offset 3 on"):
        made.all_told()


def test_where_an_operator_has_accepted_the_loss_the_rest_is_dropped():
    made = delivery(SightRecord(lost=(Loss(0, 4),)))
    made.order_read(Record(2, encode(tag_in(PLAN, "K1"), OwnRecord((Ticket(1, 1, 0),)))))
    made.payload_read(0, [record(offset, 0) for offset in range(10)], 10)
    made.payload_read(1, [record(0, 0)], 1)
    assert len(offsets(made)) == 4
    made.saw(SightRecord(), {0: 4})
    made.all_told()
    (batch,) = made.deliver(100)
    assert batch.log.name == "P2"
    assert made.progress() == {"P1": 10, "P2": 1}


def test_nobody_begins_in_a_stream_that_has_lost_its_end(world):
    write(world, 3)
    world.write(lost_stream_record("K1", 1))
    with pytest.raises(Truncated, match=r"order stream of collector K1, .*, has lost its end"):
        world.consumer("C1")
    values, error = deliver(world.consumer("C4"), "P4")  # it reads no stream
    assert (values, error) == ([0, 1, 2], None)
    world.consumer("C2").close()  # what its own stream has relayed stays


@pytest.mark.parametrize("before", [0, 2], ids=["of one leader", "of two leaders"])
@pytest.mark.parametrize("often", ["_LOOK_EVERY_S", "_LOOK_LATER_S"])
def test_a_new_reader_of_a_later_leaders_records_meets_a_statement_that_comes_late(
    world, monkeypatch, often, before
):
    monkeypatch.setattr(readers, often, 0.0)
    if often == "_LOOK_LATER_S":  # after the first minute
        monkeypatch.setattr(readers, "_LOOKS_S", 0.0)
    order = stream_partition(PLAN, "K1")
    write(world, before)
    world.log.lose(order, world.log.high_watermarks([order])[order])
    write(world, 3, first=before)
    with world.consumer("C1") as consumer:
        assert consumer.poll(0.2)
        world.write(lost_stream_record("K1", 1))
        write(world, 1, first=before + 3)
        with pytest.raises(Truncated):
            consumer.poll(0.2)


@pytest.mark.parametrize("later", [False, True])
def test_who_reads_on_under_another_leader_meets_the_statement_that_a_stream_is_lost(
    world, later, monkeypatch
):
    monkeypatch.setattr(readers, "_LOOK_EVERY_S", 0.0)
    write(world, 3)
    with world.consumer("C1") as consumer:
        assert consumer.poll(0.2)
        order = stream_partition(PLAN, "K1")
        world.log.lose(order, world.log.high_watermarks([order])[order])  # another leader
        if not later:
            world.write(lost_stream_record("K1", 1))
        write(world, 2, first=3)
        if later:
            assert consumer.poll(0.2)
            world.write(lost_stream_record("K1", 1))
        with pytest.raises(Truncated):
            consumer.poll(0.2)


@pytest.mark.parametrize("reader", ["consumer", "walk"])
def test_whose_freeze_is_gone_begins_no_epoch_that_begins_elsewhere(world, reader):
    order, freeze = stream_partition(PLAN, "K1"), encode(tag_in(PLAN, "K1"), FreezeRecord(0, ()))
    request = SubscriptionRequest.of("C1", None)
    write(world, 6)
    with (
        world.consumer("C1") as consumer,
        OrderWalk(world.driver, "A", request, "earliest") as walk,
    ):
        go_on = (lambda: consumer.poll(0.2)) if reader == "consumer" else walk.advance
        lost = world.log.write(order, freeze)
        while go_on():
            pass
        world.log.lose(order, lost)
        write(world, 3, first=6)
        world.log.write(order, freeze)
        world.propose(recovery_plan(PLAN, ["K1"]))
        for make in (markers_record, ends_record):
            ends = {"P1": 9, "P2": 9, "P3": 0, "P4": 9}
            world.write(make(world.previous, 1, ends, attempt="1"))
        write(world, 3, first=9)
        with pytest.raises(Truncated, match="has lost its end: this consumer had read"):
            go_on()
