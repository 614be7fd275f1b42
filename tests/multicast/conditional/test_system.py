"""Conditional messages on a whole system in memory: all readers agree, whatever happens to them."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multicast import LogPosition, MessageID, WhyVoid, nothing_after
from multicast.aio import AsyncConsumer, AsyncProducer
from multicast.conditional.follower import DecisionFollower
from multicast.control import log_partition
from multicast.errors import AppendUnknown, Trimmed, UndeclaredDestination, UsageError
from multicast.testing import OrderViolation, system
from tests.helpers.small import Small
from tests.multicast.conditional.model import SEGMENT, Event, Expected, as_model, decisions
from topology.interests import from_document
from topology.planner.solver import plan as solve

pytestmark = pytest.mark.usefixtures("short_segments")
BOTH = {"P1", "P2"}
INTERESTS = {
    "consumers": {"C1": {"P1"}, "C2": {"P2"}, "C3": {"P1", "P2", "P3"}},
    "destinations": [BOTH],
}
WIDER = {
    "consumers": {**INTERESTS["consumers"], "C4": {"P2", "P3"}},
    "destinations": [BOTH, {"P2", "P3"}],
}


def of_log(messages):
    """What a consumer delivered of the log of both partitions, as the model writes it."""
    return [
        as_model(message.message_id.offset, message.decision)
        for message in messages
        if message.message_id.log == "P1+P2"
    ]


def seat(position, number):
    return {"tags": {f"seat:{number}"}, "expect": nothing_after(position, tags={f"seat:{number}"})}


# -- what a program sees --------------------------------------------------------------------


def test_of_messages_that_exclude_each_other_one_takes_effect():
    with system(INTERESTS) as s:
        producer, reader = s.producer(), s.consumer("C3")
        reader.poll(0.1)
        here = reader.seen(BOTH)
        receipts = [producer.multicast(b"%d" % n, to=BOTH, **seat(here, 1)) for n in range(5)]
        given_here = [receipt.decided() for receipt in receipts]
        assert [decision.takes_effect for decision in given_here] == [True] + [False] * 4
        assert {decision.conflict for decision in given_here[1:]} == {MessageID("P1+P2", 0)}
        assert str(given_here[1]) == "void: message P1+P2:0 conflicts"
        s.settle()
        assert [message.payload for message in s.drain(reader)] == [b"0"]
        assert reader.void == {"conflict": 4}
        assert reader.seen(BOTH) == LogPosition("P1+P2", 5)
        for log, sentence in (("P1+P2", "its set of partitions"), ({"P4"}, "reads no log P4")):
            with pytest.raises(UsageError, match=sentence):
                reader.seen(log)


def test_void_messages_are_dropped_or_marked_on_every_way_to_read():
    with system(INTERESTS) as s:
        producer = s.producer()
        start = LogPosition("P1+P2", 0)
        for number in range(3):
            producer.multicast(b"%d" % number, to=BOTH, **seat(start, 1))
        producer.multicast(b"end", to=BOTH)
        s.settle()
        kept, every = [b"0", b"end"], [b"0", b"1", b"2", b"end"]
        for void, expected in (("drop", kept), ("mark", every)):
            consumer = s.consumer("C3", void=void)
            assert [m.payload for m in s.drain(consumer)] == expected
            consumer.seek("earliest")
            batches = [batch for _ in range(9) for batch in consumer.poll(0.1)]
            assert [r.value for batch in batches for r in batch.records] == expected
            consumer.seek("earliest")
            assert [m.payload for _, m in zip(expected, consumer, strict=False)] == expected
            consumer.seek("earliest")
            iterated = consumer.batches(messages_max=1)
            assert [next(iterated).records[0].value for _ in expected] == expected
            assert {batch.decision.takes_effect for batch in batches} == {True, void == "drop"}
        with pytest.raises(UsageError, match='"drop" or "mark"'):
            s.consumer("C3", void="keep")


def test_a_message_to_a_part_of_the_boundary_reaches_only_its_addressees():
    with system(INTERESTS) as s:
        producer = s.producer()
        start = LogPosition("P1+P2", 0)
        producer.multicast(b"1", to={"P1"}, **seat(start, 1))
        producer.multicast(b"2", to={"P2"}, **seat(start, 1))
        producer.multicast(b"3", to={"P2"}, within=BOTH, tags={"seat:2"})
        producer.multicast(b"4", to={"P1"}, **seat(start, 2))
        s.settle()
        delivered = {
            name: [(m.payload, m.to) for m in s.drain(s.consumer(name))] for name in ("C1", "C2")
        }
        assert delivered == {"C1": [(b"1", ("P1",))], "C2": [(b"3", ("P2",))]}


def test_a_lost_acknowledgement_is_made_good_by_sending_again():
    """A condition that the message itself matches makes a second copy void."""
    with system(INTERESTS) as s:
        producer = s.producer()
        start = LogPosition("P1+P2", 0)
        s.lose_acknowledgement("P1+P2")
        with pytest.raises(AppendUnknown):
            producer.multicast(b"first", to=BOTH, **seat(start, 1)).accepted()
        again = producer.multicast(b"again", to=BOTH, **seat(start, 1)).decided()
        assert again.conflict == MessageID("P1+P2", 0)
        s.duplicate("P1+P2")
        producer.multicast(b"twice", to=BOTH, **seat(start, 2)).accepted()
        s.settle()
        assert [m.payload for m in s.drain(s.consumer("C3"))] == [b"first", b"twice"]


def test_who_retries_gets_past_a_border_where_all_conditions_are_too_old():
    with system(INTERESTS) as s:
        producer, reader = s.producer(), s.consumer("C3")
        reader.poll(0.1)
        done, tries, reasons = 0, 0, set()
        while done < 3 * SEGMENT:
            tries += 1
            expect = nothing_after(reader.seen(BOTH))
            decision = producer.multicast(b"", to=BOTH, expect=expect).decided()
            reasons.add(decision.reason)
            done += decision.takes_effect
            s.drain(reader)
        assert reasons == {None}  # whoever has read everything loses nothing at a border
        old = reader.seen(BOTH)
        for _ in range(SEGMENT):
            producer.multicast(b"", to={"P2"}, within=BOTH)
        late = producer.multicast(b"", to=BOTH, expect=nothing_after(old, tags={"none"}))
        assert late.decided().reason is WhyVoid.TOO_OLD
        s.drain(reader)
        again = nothing_after(reader.seen(BOTH), tags={"none"})
        assert producer.multicast(b"", to=BOTH, expect=again).decided().takes_effect


def test_what_a_producer_refuses_and_says():
    with system(INTERESTS) as s:
        producer = s.producer()
        here = LogPosition("P1+P2", 0)
        for options, error, text in [
            ({"to": {"P3"}, "expect": nothing_after(here)}, UsageError, "P3 is not part of P1.P2"),
            ({"to": BOTH, "within": {"P1"}, "expect": nothing_after(here)}, UsageError, "looks at"),
            ({"to": {"P1"}, "within": {"P1", "P3"}}, UndeclaredDestination, "is exactly P1.P3"),
            ({"to": {"P1"}, "within": {"P1", "P9"}}, UsageError, "P9 does not exist"),
            ({"to": {"P1"}, "within": "P1"}, UsageError, "not a str"),
            ({"to": BOTH, "tags": "seat"}, UsageError, "not a str"),
            ({"to": BOTH, "tags": {"a,b"}}, UsageError, "is not a tag"),
            ({"to": BOTH, "tags": map(str, range(9))}, UsageError, "9 tags are given; 8"),
        ]:
            with pytest.raises(error, match=text):
                producer.multicast(b"", **options)
        s.settle()
        assert s.drain(s.consumer("C3")) == []


def test_the_check_finds_a_void_message_that_was_delivered():
    with pytest.raises(OrderViolation, match=r"delivered P1\+P2:1"):
        deliver_a_void_message()


def deliver_a_void_message():
    with system(INTERESTS) as s:
        start = LogPosition("P1+P2", 0)
        for number in range(2):
            s.producer().multicast(b"%d" % number, to=BOTH, **seat(start, 1))
        s.settle()
        consumer = s.consumer("C3", void="mark")
        batches = list(consumer.until_end())
        reading = s._recorder.readings[-1]
        assert [batch.decision.takes_effect for batch in batches] == [True, False]
        object.__setattr__(reading.batches[1], "decision", batches[0].decision)


# -- every schedule ---------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["book", "book", "book", "plain", "other", "read", "replan", "fault"]),
        st.integers(0, 2),
        st.integers(0, 12),
    ),
    min_size=5,
    max_size=40,
)


def booked(s, producer, step, number, behind):
    """Carry out one step of a schedule that multicasts."""
    end = s.log.last_stable_offsets([log_partition(s.plan.log("P1+P2"))])
    position = LogPosition("P1+P2", max(0, max(end.values()) - behind))
    to = [{"P1"}, {"P2"}, BOTH][behind % 3]
    if step == "book":
        producer.multicast(b"", to=to, **seat(position, number))
    elif step == "plain":
        producer.multicast(b"", to=to, within=BOTH, tags={f"seat:{number}"})
    elif step == "other":
        producer.multicast(b"", to={"P3"})
    elif step == "fault":
        (s.duplicate, s.lose_acknowledgement, s.lose)[number]("P1+P2")


def as_event(record):
    """What the model sees of a stored record, from its headers' text."""
    headers = {name: value.decode() for name, value in record.headers}
    tags = headers.get("amcast.tags", "|").partition("|")[2]
    expected = None
    if "amcast.expect" in headers:
        _, position, item = headers["amcast.expect"].split("|")
        expected = Expected(int(position), (frozenset({item.removeprefix("t:")}),))
    return Event(record.offset, frozenset(filter(None, tags.split(","))), None, expected)


@settings(max_examples=40)
@given(STEPS, st.integers(0, 5))
def test_all_consumers_agree_with_the_rule_wherever_they_start(steps, seed):
    with system(INTERESTS, seed=seed) as s:
        producer = s.producer()
        live = s.consumer("C3", void="mark")
        delivered, plans = [], iter([WIDER, INTERESTS])
        for step, number, behind in steps:
            if step == "read":
                delivered += s.drain(live)
                live.commit()
                if number:
                    s.crash(live)
                    live = s.restart(live)
            elif step == "replan" and (interests := next(plans, None)):
                s.settle()
                s.replan(interests, uncovered=True)
            else:
                booked(s, producer, step, number, behind)
        s.settle()
        delivered += s.drain(live)
        partition = log_partition(s.plan.log("P1+P2"))
        stored = s.log.read(partition, 0, 10_000)
        records = stored.records if stored else []
        messages = [
            record
            for record in records
            if not any(name in ("amcast.epoch", "amcast.skip") for name, _ in record.headers)
        ]
        expected = decisions([as_event(record) for record in messages])
        assert of_log(delivered) == expected
        for name in ("C1", "C2"):
            part = of_log(s.drain(s.consumer(name, void="mark")))
            assert [entry for entry in expected if entry in part] == part
        for message in delivered[::3]:
            later = s.drain(s.consumer("C3", void="mark", committed=False, start=message.cursor))
            assert [m.message_id for m in later] == [
                m.message_id for m in delivered[delivered.index(message) + 1 :]
            ]
            assert of_log(later) == of_log(delivered[delivered.index(message) + 1 :])
        follower = DecisionFollower(s.driver)
        follower.add(s.plan.logs)
        for offset, reason, conflict in [*expected[::-1], *expected[::2]]:
            decision = follower.wait("P1+P2", offset, 5.0)
            assert as_model(offset, decision) == (offset, reason, conflict)
        follower.close()


# -- threads, asyncio, retention ----------------------------------------------------------------


@pytest.fixture
def small():
    document = {
        "topic": "A",
        "partitions": ["P1", "P2", "P3"],
        "destinations": [sorted(BOTH)],
        "consumer": [
            {"name": name, "interest": sorted(interest)}
            for name, interest in INTERESTS["consumers"].items()
        ],
    }
    with Small(solve(from_document(document))) as running:
        running.run_all()
        yield running


async def test_asyncio_awaits_the_decision(small):
    async with (
        AsyncProducer(topic="A", driver=small.driver) as producer,
        AsyncConsumer(topic="A", name="C3", driver=small.driver) as consumer,
    ):
        start = LogPosition("P1+P2", 0)
        receipts = [
            await producer.multicast(b"%d" % n, to=BOTH, **seat(start, n // 4)) for n in range(8)
        ]
        given_here = await asyncio.gather(*(receipt.decided() for receipt in receipts))
        assert [d.takes_effect for d in given_here] == [True, False, False, False] * 2
        with pytest.raises(UsageError, match="not a str"):
            await producer.multicast(b"", to=BOTH, tags="seat")
        taken = []
        async for message in consumer:
            taken.append(message.payload)
            if len(taken) == 2:
                break
        assert taken == [b"0", b"4"]
        assert consumer.seen(BOTH).next >= 5
        plain = await producer.multicast(b"", to={"P1"}, within=BOTH, tags={"x"})
        assert (await plain.decided()).takes_effect


def test_retention_that_removed_what_decides_is_a_named_error(small):
    with small.producer() as producer, small.consumer("C3", void="mark") as consumer:
        start = LogPosition("P1+P2", 0)
        for number in range(4):
            producer.multicast(b"", to=BOTH, **seat(start, number % 2))
        producer.flush()
        list(consumer.until_end())
        producer.multicast(b"", to=BOTH).accepted()  # in an order record of its own
        list(consumer.until_end())
        consumer.commit()
        fresh = nothing_after(consumer.seen(BOTH), tags={"seat:0"})
        partition = log_partition(small.plan.log("P1+P2"))
        small.log.trim(partition, 3)
        known = producer.multicast(b"known", to=BOTH, expect=fresh)
        unknown = producer.multicast(b"unknown", to=BOTH, **seat(start, 2))
        assert known.decided().takes_effect
        with pytest.raises(Trimmed, match=r"decide whether message P1\+P2:6 takes effect"):
            unknown.decided()
        with small.consumer("C3") as later:
            batches = []
            with pytest.raises(Trimmed, match=r"decide whether message P1\+P2:6 takes effect"):
                batches += later.until_end()
            assert [m.value for batch in batches for m in batch.records] == [b"known"]
        # The consumer that has read it all along knows.
        rest = [(r.value, b.decision.takes_effect) for b in consumer.until_end() for r in b.records]
        assert rest == [(b"known", True), (b"unknown", True)]


def test_a_position_passes_messages_that_are_dropped():
    """Else writers whose positions are too old would void each other for ever."""
    with system(INTERESTS) as s:
        producer, reader = s.producer(), s.consumer("C3")
        here = LogPosition("P1+P2", 0)
        first = producer.multicast(b"first", to=BOTH)
        s.settle()
        s.drain(reader)
        for _ in range(2 * SEGMENT):
            last = producer.multicast(b"again", to=BOTH, **seat(here, 1))
        assert first.decided().takes_effect
        assert last.decided().reason is WhyVoid.TOO_OLD
        s.settle()
        s.drain(reader)
        assert reader.seen(BOTH).next == 2 * SEGMENT + 1
        fresh = producer.multicast(b"fresh", to=BOTH, **seat(reader.seen(BOTH), 1))
        assert fresh.decided().takes_effect
