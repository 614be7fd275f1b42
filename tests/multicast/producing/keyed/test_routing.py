"""Messages go where their keys are, by the plan and the topic that are in force, or are refused."""

from dataclasses import replace

import pytest

from multicast import keys
from multicast.consuming.batches import Message
from multicast.drivers.memory.driver import MemoryDriver
from multicast.errors import (
    BufferFull,
    ClusterUnreachable,
    PartitionsDiffer,
    TimedOut,
    TopicMissing,
    UndeclaredDestination,
    UsageError,
)
from multicast.messages import MessageID
from multicast.producing.keyed import router
from multicast.producing.keyed.partitioners import by_crc32, by_murmur2
from tests.helpers.driver_worlds import PATIENCE_S
from tests.helpers.held import SteppedDriver
from tests.helpers.plans import chain, poster
from tests.helpers.small import Small, until
from topology.tree import Log

# The partitions of these keys among five: murmur2's.
PLACES = {key: f"P{by_murmur2(key, 5) + 1}" for key in (b"%d" % number for number in range(50))}


def key_in(name):
    return next(key for key, place in PLACES.items() if place == name)


@pytest.fixture
def small():
    with Small(poster()) as made:
        yield made


def received(small, name):
    with small.consumer(name, committed=False) as consumer:
        return [
            (message.payload, message.key, message.to)
            for batch in consumer.until_end(timeout=60)
            for message in (Message(batch, record) for record in batch.records)
        ]


def test_a_message_without_a_set_goes_to_the_partition_of_its_key(small):
    with small.producer() as producer:
        ids = {key: producer.multicast(b"", key=key).accepted(PATIENCE_S).log for key in PLACES}
        text = producer.multicast(b"", key="zürich")
        assert text.to == (f"P{by_murmur2('zürich'.encode(), 5) + 1}",)
        by_set = producer.multicast(b"", to={"P5"}, key=key_in("P1"))
        assert by_set.to == ("P5",)
    assert ids == PLACES
    with small.producer(partitioner="crc32") as producer:
        for key in PLACES:
            assert producer.multicast(b"", key=key).to == (f"P{by_crc32(key, 5) + 1}",)
    with small.producer(partitioner=lambda _, count: count - 1) as producer:
        assert producer.multicast(b"", key=b"any").to == ("P5",)


def test_keys_name_the_set_of_their_partitions_and_the_first_is_the_records_key(small):
    small.run_all()
    one, three, four, two = (key_in(f"P{number}") for number in (1, 3, 4, 2))
    with small.producer() as producer:
        producer.multicast(b"declared", to=keys(three, one)).ordered(PATIENCE_S)
        producer.multicast(b"covered", to=keys(four, two), headers={"h": b"1"}).ordered(PATIENCE_S)
        producer.multicast(b"own key", to=keys(one, three), key="own").ordered(PATIENCE_S)
        producer.multicast(b"one", to=keys(one, one)).ordered(PATIENCE_S)
        producer.multicast(b"none", to={"P2"}).ordered(PATIENCE_S)
        with pytest.raises(UndeclaredDestination, match=r'covers P1\+P5; add \["P1", "P5"\]'):
            producer.multicast(b"", to=keys(one, key_in("P5")))
        assert producer.declares(keys(one, three))
        assert not producer.declares(keys(one, four))
    assert sorted(received(small, "C1")) == sorted(
        [
            (b"declared", three, ("P1", "P3")),
            (b"covered", four, ("P2", "P4")),
            (b"own key", b"own", ("P1", "P3")),
            (b"one", one, ("P1",)),
            (b"none", None, ("P2",)),
        ]
    )


def test_many_go_where_their_keys_are_and_keep_their_order_there(small):
    small.run_all()
    sent = sorted(PLACES)
    with small.producer() as producer:
        receipts = producer.multicast_all(
            [b"of " + key for key in sent], keys=sent, headers=[{"h": key} for key in sent]
        )
        messages = receipts.ordered(PATIENCE_S)
        assert [message.log for message in messages] == [PLACES[key] for key in sent]
        assert [outcome.offset for outcome in receipts.outcomes] == [
            message.offset for message in messages
        ]
        assert (len(receipts), receipts.accepted()) == (50, messages)
        for name in ("P1", "P2", "P3", "P4", "P5"):
            offsets = [message.offset for message in messages if message.log == name]
            assert offsets == list(range(len(offsets)))
        none = producer.multicast_all([], keys=[])
        assert (none.ordered(), len(none)) == ([], 0)
        mixed = producer.multicast_all([b"a", b"b"], to={"P1", "P3"}, keys=["k", None])
        shared = producer.multicast_all(
            [b"c", b"d"], to=keys(key_in("P2"), key_in("P4")), headers=[[("h", b"1")], ()]
        )
        assert mixed.ordered(PATIENCE_S) == [MessageID("P1+P3", 0), MessageID("P1+P3", 1)]
        assert shared.to == ("P2", "P4")
        assert shared.ordered(PATIENCE_S)
    by_payload = {payload: (key, to) for payload, key, to in received(small, "C2")}
    assert by_payload[b"a"] == (b"k", ("P1", "P3"))
    assert by_payload[b"b"] == (None, ("P1", "P3"))
    assert by_payload[b"c"] == by_payload[b"d"] == (key_in("P2"), ("P2", "P4"))


def test_many_by_keys_share_the_room_and_say_what_found_none(small):
    held = []
    driver = SteppedDriver(small.log, step=held.append)
    appender = driver.appender
    driver.appender = lambda **_: appender(in_flight_max=2)
    with small.producer(driver=driver, tickets=False, block_s=0.1) as producer:
        given = [key_in("P1"), key_in("P2"), key_in("P1"), key_in("P2")]
        receipts = producer.multicast_all([b"0", b"1", b"2", b"3"], keys=given)
        with pytest.raises(TimedOut):
            receipts.accepted(0.05)
        for append in held:
            append.settle(append.store())
        with pytest.raises(BufferFull):
            receipts.accepted(PATIENCE_S)
        assert [hasattr(outcome, "offset") for outcome in receipts.outcomes] == [
            True,
            False,
            True,
            False,
        ]


def test_what_names_no_place_is_refused_before_anything_is_sent(small):
    with small.producer() as producer:
        with pytest.raises(UsageError, match="give 'to', or a key"):
            producer.multicast(b"")
        with pytest.raises(UsageError, match="give 'to', or a key"):
            producer.multicast_all([b"a", b"b"], keys=[b"k", None])
        with pytest.raises(UsageError, match="give 'to', or a key"):
            producer.multicast_all([b"a"])
        with pytest.raises(UsageError, match="7 is not a key"):
            producer.multicast(b"", key=7)
        for name, value in (("keys", [b"k"]), ("keys", b"ab"), ("headers", [[]]), ("headers", {})):
            with pytest.raises(UsageError, match=f"{name} must hold one entry for each of the 2"):
                producer.multicast_all([b"a", b"b"], to={"P1"}, **{name: value})
        with pytest.raises(UsageError, match="'h' is not a header"):
            producer.multicast_all([b"a", b"b"], to={"P1"}, headers=[(), ["h"]])
        for wrong in ("text", bytearray(b"a"), 7):
            kind = type(wrong).__name__
            with pytest.raises(UsageError, match=f"a payload is bytes or None, not {kind}"):
                producer.multicast(wrong, to={"P1"})
            with pytest.raises(UsageError, match=f"a payload is bytes or None, not {kind}"):
                producer.multicast_all([b"a", wrong], to={"P1"})
        with pytest.raises(UsageError, match="not one payload"):
            producer.multicast_all(b"ab", to={"P1"})
    with (
        small.producer(partitioner=lambda _, count: count) as producer,
        pytest.raises(UsageError, match=r"gives partition 5 for key b'k'; the topic has 5, from 0"),
    ):
        producer.multicast(b"", key=b"k")
    assert small.log.last_stable_offsets([("A", number) for number in range(5)]) == {
        ("A", number): 0 for number in range(5)
    }


def test_a_topic_with_another_number_of_partitions_refuses_keys_until_the_plan_follows(
    small, monkeypatch
):
    small.log.create("A", 6)
    with small.producer() as producer:
        with pytest.raises(
            PartitionsDiffer, match="topic A has 6 partitions, but the plan of epoch 1 has 5: keys"
        ) as refused:
            producer.multicast(b"", key=b"k")
        assert (refused.value.exit_code, refused.value.definite) == (5, True)
        assert producer.multicast(b"", to={"P1"}).accepted().offset == 0

        grown = replace(
            small.plan,
            epoch=2,
            base_epoch=1,
            partitions=(*small.plan.partitions, "P6"),
            logs=(*small.plan.logs, Log("P6", "A", 5)),
        )
        small.propose(grown)
        monkeypatch.setattr(router, "_RETRY_S", 0.0)
        placed = {producer.multicast(b"", key=key).to for key in PLACES}
        assert placed == {(f"P{by_murmur2(key, 6) + 1}",) for key in PLACES}


def test_partitions_that_are_added_while_a_producer_runs_are_noticed(small, monkeypatch):
    monkeypatch.setattr(router, "_CHECK_EVERY_S", 0.0)
    with small.producer() as producer:
        producer.multicast(b"", key=b"k")
        small.log.create("A", 6)

        def refused():
            try:
                producer.multicast(b"", key=b"k")
            except PartitionsDiffer:
                return True
            return False

        until(refused)


def test_an_outage_leaves_the_partitions_that_are_known(small, monkeypatch):
    monkeypatch.setattr(router, "_CHECK_EVERY_S", 0.0)
    driver = MemoryDriver(small.log)
    with small.producer(driver=driver) as producer:
        producer.multicast(b"", key=b"k")
        asked = []

        def unreachable(topics):
            asked.append(topics)
            raise ClusterUnreachable("no broker answers")

        driver.partition_counts = unreachable

        def twice():
            producer.multicast(b"", key=b"k")
            return len(asked) > 2

        until(twice)


def test_a_key_whose_partition_no_plan_declares_is_refused_by_name():
    plan = chain()
    gap = replace(plan, logs=(*plan.logs[:3], Log("P4", "A", 6)))
    with Small(gap) as small:
        key = next(key for key in PLACES if by_murmur2(key, 4) == 3)
        with (
            small.producer() as producer,
            pytest.raises(
                UndeclaredDestination,
                match=rf"key b'{key.decode()}' goes to Kafka partition 3, for",
            ),
        ):
            producer.multicast(b"", key=key)


def test_a_topic_that_does_not_exist_is_named(small):
    driver = MemoryDriver(small.log)
    driver.partition_counts = lambda _: {}
    with small.producer(driver=driver) as producer, pytest.raises(TopicMissing, match="topic A "):
        producer.multicast(b"", key=b"k")
