"""A consumer that finds other records where it had read some stops, by one named error."""

from dataclasses import replace

import pytest

from multicast.consuming.cursor import Cursor, interest_digest
from multicast.consuming.delivery import Delivery
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import (
    control_partition,
    ends_record,
    log_partition,
    markers_record,
    stream_partition,
)
from multicast.control.codecs import named_record
from multicast.drivers import reading
from multicast.drivers.protocol import Record
from multicast.errors import ClusterUnreachable, Truncated
from multicast.messages import message_checksum, skip_header
from multicast.order.records import CheckpointRecord, OwnLog, OwnRecord, Ticket, encode
from multicast.order.runs import order_checksum
from multicast.order.stream import StreamCheckpoint
from multicast.tables.order_walk import OrderWalk
from tests.helpers.plans import chain, first_stream, tag_in

PLAN = chain()
# Of each consumer: what may lose its end. The second one reads a log alone.
LOST = {"C1": ["P1", "order"], "C4": ["P4"]}
EACH = [(name, what) for name, all_of_it in LOST.items() for what in all_of_it]


@pytest.fixture
def no_lag(monkeypatch):
    monkeypatch.setattr(reading, "END_LAGS_S", 0.0)


def write(world, count, *, first=0):
    """Send messages whose tickets order them: no collector runs, which would stop itself."""
    with world.producer() as producer:
        for number in range(first, first + count):
            for to in ({"P1"}, {"P4"}):
                producer.multicast(b"%d" % number, to=to).accepted(60)


def values(consumer):
    return [record.value for batch in consumer.until_end() for record in batch.records]


def read_on(consumer):
    with consumer:
        for _ in range(100):
            consumer.poll(0.05)


def place(world, what):
    plan = world.plan
    return stream_partition(plan, "K1") if what == "order" else log_partition(plan.log(what))


def lose(world, what, count):
    """Lose the last records of a log or of the order; give its partition."""
    partition = place(world, what)
    end = world.driver.last_stable_offsets([partition])[partition]
    world.log.lose(partition, end - count)
    return partition


@pytest.mark.parametrize(("name", "what"), EACH)
@pytest.mark.parametrize("regrown", [False, True])
def test_a_reader_that_is_there_stops(world, name, what, regrown):
    write(world, 10)
    with world.consumer(name) as consumer:
        assert len(values(consumer)) == 10
        lose(world, what, 3)
        if regrown:
            write(world, 9, first=100)
        partition = place(world, what)
        with pytest.raises(Truncated, match=f"^{partition.topic}/{partition.partition} has lost"):
            read_on(consumer)


@pytest.mark.parametrize(("name", "what"), EACH)
@pytest.mark.parametrize("regrown", [False, True])
@pytest.mark.parametrize("kept", ["commit", "text"])
def test_a_reader_that_goes_on_stops(world, name, what, regrown, kept):
    write(world, 10)
    with world.consumer(name) as consumer:
        assert len(values(consumer)) == 10
        cursor = str(consumer.position)
        if kept == "commit":
            consumer.commit()
    lose(world, what, 3)
    if regrown:
        write(world, 9, first=100)
    options = {} if kept == "commit" else {"committed": False, "start": cursor}
    with pytest.raises(Truncated, match=r"committed=False|begin at another place"):
        read_on(world.consumer(name, **options))


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("kept", ["commit", "text"])
def test_a_reader_that_went_on_and_has_got_nothing_since_stops(world, name, kept):
    write(world, 10)
    with world.consumer(name) as consumer:
        assert len(values(consumer)) == 10
        cursor = str(consumer.position)
        consumer.commit()
    options = {} if kept == "commit" else {"committed": False, "start": cursor}
    with world.consumer(name, **options) as consumer:
        assert values(consumer) == []
        lose(world, LOST[name][0], 3)
        write(world, 9, first=100)
        with pytest.raises(Truncated, match="another record is there"):
            read_on(consumer)


def skip(world):
    """Fill a hole of P1."""
    world.log.write(place(world, "P1"), b"", headers=[skip_header("P1")])
    world.log.write(
        place(world, "order"), encode(tag_in(PLAN, "K1"), OwnRecord((Ticket(0, 1, 0),)))
    )


@pytest.mark.parametrize("regrown", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_commit_knows_the_last_record_of_each_log(world, regrown, dropped):
    write(world, 10)
    if dropped:
        skip(world)
    with world.producer() as producer:
        producer.multicast(b"last", to={"P2"}).accepted(60)
    for _ in range(2):  # the second consumer delivers nothing, and commits what it knows
        with world.consumer("C1") as consumer:
            list(consumer.until_end())
            consumer.commit()
    lose(world, "P1", 1 if dropped else 3)
    if regrown:
        write(world, 9, first=100)
    with pytest.raises(Truncated, match=r"^this consumer cannot continue .* A/0 has lost its end"):
        world.consumer("C1")
    with world.consumer("C1", committed=False) as consumer:
        list(consumer.until_end()) if regrown else consumer.poll(0.1)


@pytest.mark.parametrize("goes_on", ["there", "commit"])
@pytest.mark.parametrize("before", [0, 10])
def test_offsets_passed_without_a_record_must_not_get_one(world, goes_on, before):
    write(world, before)
    aborted = world.log.transaction()
    aborted.append(place(world, "P1"), b"aborted")
    aborted.abort()
    tag = tag_in(PLAN, "K1")
    world.log.write(place(world, "order"), encode(tag, OwnRecord((Ticket(0, 2, 0),))))
    with world.producer() as producer:
        producer.multicast(b"last", to={"P2"}).accepted(60)
    with world.consumer("C1") as consumer:
        assert values(consumer)[-1] == b"last"
        consumer.commit()
        lose(world, "P1", 2)
        if goes_on == "commit":
            consumer.close()
        write(world, 9, first=100)
        with pytest.raises(
            Truncated, match=f"a record is at offset {before}, where there was none"
        ):
            read_on(consumer if goes_on == "there" else world.consumer("C1"))


@pytest.mark.parametrize("name", LOST)
def test_what_was_not_read_may_be_lost_and_another_leader_costs_nothing(world, name):
    write(world, 10)
    with world.consumer(name) as consumer:
        batch = consumer.poll(1.0, messages_max=5)[-1]
        cursor = batch.cursor()
        assert batch.records[-1].offset == 4
    for what in LOST[name]:
        lose(world, what, 0 if what == "order" else 3)
    write(world, 9, first=100)
    with world.consumer(name, committed=False, start=cursor) as consumer:
        assert values(consumer) == [b"5", b"6", *[b"%d" % n for n in range(100, 109)]]
        for what in LOST[name]:
            lose(world, what, 0)
        write(world, 3, first=200)
        assert values(consumer) == [b"200", b"201", b"202"]


@pytest.mark.parametrize(("run", "last"), [(0, 3), (1, 1), (0, 0)])
def test_a_cursor_into_a_record_that_orders_less_in_this_history_is_refused(run, last):
    counts = encode(tag_in(PLAN, "K1"), OwnRecord((Ticket(0, 2, 0),)))
    for raw in (counts, b"of another history"):
        record = Record(0, raw)
        cursor = Cursor(1, "K1", 0, run, last, "0" * 16, order_checksum(record))
        delivery = Delivery(PLAN, ("P1", "P2"), first_stream(PLAN, "K1"), cursor)
        with pytest.raises(Truncated):
            delivery.order_read(record)
        with pytest.raises(Truncated):  # and again: nothing was delivered meanwhile
            delivery.order_read(Record(1, counts))


def test_a_message_has_the_same_checksum_for_readers_of_each_library():
    known = Record(5, b"v", b"k", (("amcast.to", b"A|B"),), 7, 3)
    assert message_checksum(known) == message_checksum(known._replace(headers=[*known.headers]))
    assert message_checksum(known) != message_checksum(known._replace(leader_epoch=4))
    assert message_checksum(known._replace(leader_epoch=-1)) == 0
    # A name that is not UTF-8: one library gives no header at all, others a substitute.
    bare = message_checksum(known._replace(headers=()))
    assert message_checksum(known._replace(headers=(("x\ufffd", b""), *known.headers))) == bare
    assert message_checksum(known._replace(headers=(("x", b""), *known.headers))) != bare


@pytest.mark.parametrize("what", ["P1", "order"])
def test_a_comparison_that_fails_loses_nothing(world, monkeypatch, what):
    def away(_):
        raise ClusterUnreachable("no answer")

    write(world, 5)
    with world.consumer("C1") as consumer:
        values(consumer)
        lose(world, what, 0)  # another leader, and nothing is lost
        write(world, 5, first=5)
        with monkeypatch.context() as patched:
            patched.setattr(consumer._driver, "log_start_offsets", away)
            with pytest.raises(ClusterUnreachable):
                values(consumer)
        assert values(consumer) == [b"5", b"6", b"7", b"8", b"9"]


def in_one_run(world, count):
    """Send messages that one order record orders; give the first one's offset."""
    with world.producer() as producer:
        producer.multicast_all([b"%d" % number for number in range(count)], to={"P1"})
        producer.flush(60)


def test_only_what_comes_next_has_to_be_retained(world):
    in_one_run(world, 10)
    with world.consumer("C1") as consumer:
        consumer.poll(5.0, messages_max=5)
        consumer.commit()
        cursor = str(consumer.position)
    world.log.trim(place(world, "P1"), 5)
    with world.consumer("C1", committed=False, start=cursor) as consumer:
        assert values(consumer) == [b"5", b"6", b"7", b"8", b"9"]
    with world.consumer("C1") as consumer:
        assert values(consumer) == [b"5", b"6", b"7", b"8", b"9"]
        consumer.commit()
    world.log.trim(place(world, "P1"), 10)
    with world.consumer("C1") as consumer:
        assert values(consumer) == []


def test_nothing_of_another_tail_is_delivered_before_the_cursor_is_compared(world):
    in_one_run(world, 10)
    with world.consumer("C1") as consumer:
        cursor = consumer.poll(5.0, messages_max=5)[-1].cursor()
    lose(world, "P1", 7)
    write(world, 9, first=100)
    consumer = world.consumer("C1", committed=False, start=cursor)
    with consumer, pytest.raises(Truncated):
        consumer.poll(5.0)


def test_a_commit_of_each_message_names_the_last_ones_of_all_logs(world):
    with world.producer() as producer:
        for number in range(9):
            for to in ({"P1"}, {"P2"}):
                producer.multicast(b"%d" % number, to=to).accepted(60)
    with world.consumer("C1") as consumer:
        for number, message in enumerate(consumer):
            consumer.commit(message.cursor)
            if number == 15:
                break
    lose(world, "P1", 4)
    write(world, 9, first=100)
    with pytest.raises(Truncated):
        world.consumer("C1")
    # Whoever begins anew, and commits before the first message, is not refused for ever.
    for start in ("latest", "earliest"):
        with world.consumer("C1", committed=False, start=start) as consumer:
            consumer.commit()
        world.consumer("C1").close()


@pytest.mark.parametrize("interest", [["P1", "P2"], ["P1"]])
def test_what_a_reader_drops_behind_its_last_message_need_not_be_retained_either(world, interest):
    write(world, 6)
    skip(world)
    with world.consumer(None, interest=interest) as consumer:
        assert len(values(consumer)) == 6
        consumer.commit()
    world.log.trim(place(world, "P1"), 7)
    with world.producer() as producer:
        producer.multicast(b"next", to={"P2"}).accepted(60)
    with world.consumer(None, interest=interest) as consumer:
        assert values(consumer) == [b"next"][: len(interest) - 1]
        write(world, 1, first=7)
        assert values(consumer) == [b"7"]


@pytest.mark.parametrize("known", ["epoch", "offset"])
def test_a_control_topic_that_has_lost_its_end_is_not_taken_for_an_earlier_one(world, known):
    write(world, 5)
    control = control_partition("A")
    lives = tuple(replace(log, life=int(log.name == "P4")) for log in PLAN.logs)
    world.propose(replace(chain(epoch=2), logs=lives))
    ends = dict.fromkeys(("P1", "P2", "P3", "P4"), 5)
    for make in (markers_record, ends_record):
        world.write(make(world.previous, 1, ends, attempt="1"))
    if known == "epoch":
        cursor = Cursor(2, "@P4", 0, 0, 5, interest_digest(["P4"]))
        world.driver.commit("amcast.A.C4", {control: (0, str(cursor))})
    else:
        cursor = Cursor(1, "@P4", 0, 0, 5, interest_digest(["P4"]))
        world.driver.commit("amcast.A.C4", {control: (4, str(cursor))})
    world.consumer("C4").close()
    world.log.lose(control, 1)
    with pytest.raises(Truncated, match="the control topic has lost its end"):
        world.consumer("C4")
    if known == "epoch":
        with pytest.raises(Truncated, match="the control topic has lost its end"):
            world.consumer("C4", committed=False, start=cursor)


@pytest.mark.usefixtures("no_lag")
@pytest.mark.parametrize("reader", ["consumer", "walk", "receipt"])
def test_a_stream_that_ends_below_a_checkpoint_that_is_named_is_refused(world, reader):
    write(world, 3)
    logs = tuple(OwnLog(log, 0, 0, 0, held=False) for log in (0, 1))
    raw = encode(tag_in(PLAN, "K1"), CheckpointRecord(0, 0, 0, logs, ()))
    world.write(named_record(StreamCheckpoint(1, "K1", 30, raw), 1, (0, 0)))

    def reads():
        request = SubscriptionRequest.of("C1", None)
        if reader == "consumer":
            world.consumer("C1").close()
        elif reader == "walk":
            OrderWalk(world.driver, "A", request, "earliest").close()
        else:
            with world.producer() as producer:
                producer.multicast(b"", to={"P2"}).ordered()

    with pytest.raises(Truncated, match="a checkpoint was at offset 30, and it ends at"):
        reads()
