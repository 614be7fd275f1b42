"""A producer's own order: what a message waits for, and what a producer does about it."""

import asyncio

import pytest

from multicast import Producer
from multicast.aio import AsyncProducer
from multicast.drivers.protocol import Appended, AppendFailed
from multicast.errors import (
    AppendRefused,
    AppendUnknown,
    EarlierPending,
    EarlierUnknown,
    UndeclaredDestination,
    UsageError,
)
from multicast.messages import MessageID
from multicast.producing.own_order import (
    Earlier,
    Missing,
    OrderView,
    OwnOrder,
    SendingWait,
    bound_of,
    wait_of,
)
from multicast.testing import system
from tests.helpers.plans import chain
from tests.helpers.small import Small, values

UNKNOWN = AppendFailed(AppendUnknown("nobody knows"))
REFUSED = AppendFailed(AppendRefused("refused"))


# -- what a message has to wait for -----------------------------------------------------------


def view(positions, **starts):
    """The chain's epoch: `positions` by collector and log, "K1 P1" (-1: not known)."""
    first = dict.fromkeys(("P1", "P2", "P3", "P4"), 0) | starts
    return OrderView(chain(), first, lambda node, log: positions.get(f"{node} {log}", -1))


# The earlier message, the log of the later one, what is known, the newest epoch, and the bound.
BOUNDS = [
    # K1 is the top of both: what its stream says, not how far the log has come.
    ("P1:4", "P2", {"K1 P1": 5, "K1 P2": 11}, 1, 11),
    ("P1:4", "P2", {"K1 P1": 4, "K1 P2": 11}, 1, None),
    # K2 is the lower top, also of an earlier message that K1 has ordered, and K2 not yet.
    ("P2:4", "P3", {"K1 P2": 9, "K2 P2": 4, "K2 P3": 7}, 1, None),
    ("P2:4", "P3", {"K1 P2": 9, "K2 P2": 5, "K2 P3": 7}, 1, 7),
    ("P3:4", "P2", {"K1 P2": 9, "K2 P2": 3, "K2 P3": 5}, 1, 3),
    # Nobody reads both: only the epoch of the earlier message has to be known.
    ("P1:4", "P3", {"K1 P1": 4, "K2 P3": 9}, 1, None),
    ("P1:4", "P3", {"K1 P1": 5, "K2 P3": 9}, 1, 2),
    ("P1:4", "P3", {"K1 P1": 5, "K2 P3": 9}, 2, 2),
    ("P4:4", "P3", {}, 1, 2),
    ("P4:4", "P3", {}, 2, None),  # it may be behind the marker
    ("P4:0", "P3", {}, 2, 2),  # of the epoch before
    # A log that this epoch does not have: it will have an epoch, or has had its last one.
    ("P1+P2:4", "P3", {}, 2, None),
    ("P1+P2:4", "P3", {}, 1, 2),
    ("P3:4", "P1+P2", {"K2 P3": 5}, 2, 0),
]


@pytest.mark.parametrize(("earlier", "log", "positions", "newest", "bound"), BOUNDS)
def test_the_bound_of_a_message_is_its_log_s_position_where_the_earlier_one_is_ordered(
    earlier, log, positions, newest, bound
):
    message = MessageID.parse(earlier)
    known = view(positions, P3=2, P4=1)
    told = bound_of(log, Earlier(message.log, message.offset), known, newest=newest)
    assert told == bound


def test_a_message_waits_for_the_highest_bound_until_its_log_has_that():
    known = view({"K2 P2": 5, "K2 P3": 7, "K1 P1": 5}, P3=2)
    earlier = [Earlier("P1", 4), Earlier("P2", 4)]
    assert wait_of("P3", earlier, known, newest=1, end=6) == SendingWait(Missing.END, "P2", 7)
    assert wait_of("P3", earlier, known, newest=1, end=7) is None
    unordered = [*earlier, Earlier("P4", 0)]
    assert wait_of("P3", unordered, known, newest=2, end=7) == SendingWait(Missing.ORDER, "P4")


def test_what_was_sent_since_the_last_message_to_a_log_is_earlier():
    own = OwnOrder()
    own.sent("X", 1)
    assert own.is_free("X")
    assert own.stored("Z") == SendingWait(Missing.OUTCOME, "X")
    own.settled("X", 1, Appended(3))
    own.sent("Y", 2)
    own.settled("Y", 2, Appended(6))
    # X is earlier than Z, though Y came last.
    assert own.stored("Z") == [Earlier("X", 3), Earlier("Y", 7)]
    own.free("Z", own.place)
    assert own.is_free("Z")
    assert own.stored("X") == [Earlier("Y", 7)]
    own.sent("X", 1)
    own.settled("X", 1, REFUSED)
    assert own.stored("Z") == [Earlier("X", 3)]
    own.sent("X", 1)
    own.settled("X", 1, None)
    assert own.stored("Z") == [Earlier("X", 3)]


def test_after_an_unknown_outcome_only_that_log_takes_more_until_it_acknowledges():
    own = OwnOrder()
    own.sent("X", 1)
    own.settled("X", 1, UNKNOWN)
    assert own.stored("Y") == SendingWait(Missing.CERTAINTY, "X")
    assert own.is_free("X")
    own.sent("X", 2)
    assert own.stored("Y") == SendingWait(Missing.OUTCOME, "X")
    own.settled("X", 1, REFUSED)
    own.settled("X", 1, Appended(4))
    assert own.stored("Y") == [Earlier("X", 4)]


# -- producers --------------------------------------------------------------------------------

INTERESTS = {
    "consumers": {"C1": {"P1", "P2"}, "C2": {"P2", "P3"}, "C3": {"P1", "P2", "P3"}},
    "destinations": [{"P1", "P3"}, {"P1", "P2", "P3"}],
}
SETS = [{"P1"}, {"P2"}, {"P3"}, {"P1", "P3"}]


def delivered(double, name):
    return [message.payload for message in double.drain(double.consumer(name))]


def numbers(payloads):
    """The numbers of the producer that keeps its own order."""
    return [int(payload) for payload in payloads if payload.isdigit()]


def test_consumers_deliver_the_messages_of_a_fifo_producer_as_they_were_sent():
    with system(INTERESTS) as double:
        producer, other = double.producer(fifo=True), double.producer()
        for number in range(30):
            double.delay(("P1", "P2", "P3")[number % 3], 0.02)
            for to in SETS:
                other.multicast(b"other", to=to)
            producer.multicast(b"%d" % number, to=SETS[number * 7 % 4])
        producer.multicast_all([b"30", b"31"], to={"P1"})
        producer.multicast_all([b"%d" % number for number in range(32, 40)], keys=[*"abacaaca"])
        double.settle()
        for name in ("C1", "C2", "C3"):
            kept = numbers(delivered(double, name))
            assert kept == sorted(kept)
        assert kept == list(range(40))


def test_a_message_comes_after_those_that_it_names():
    with system(INTERESTS) as double:
        producer, other = double.producer(), double.producer()
        double.delay("P1", 0.5)
        first = other.multicast(b"0", to={"P1"})
        producer.multicast(b"1", to={"P2"}, after=[first])
        reader = double.consumer("C1")
        message = next(iter(reader))
        producer.multicast(b"2", to={"P1", "P3"}, after=message)
        producer.multicast(b"3", to={"P1", "P3"}, after=message.message_id)
        seen = [reader.seen({"P1"}), reader.seen({"P2"})]
        producer.multicast(b"4", to={"P2"}, after=seen)
        assert numbers(delivered(double, "C1")) == [0, 1, 2, 3, 4]
        with pytest.raises(UsageError, match="is no message to follow"):
            producer.multicast(b"", to={"P1"}, after=["P1:0"])
        double.refuse("P1")
        refused = other.multicast(b"", to={"P1"})
        with pytest.raises(AppendRefused):
            producer.multicast(b"", to={"P2"}, after=[refused])


def test_after_an_unknown_outcome_messages_to_other_logs_are_refused():
    with system(INTERESTS) as double:
        producer = double.producer(fifo=True)
        double.lose("P1")
        lost = producer.multicast(b"", to={"P1"})
        with pytest.raises(EarlierUnknown, match=r"message to P2 was not sent.* Send one to P1"):
            producer.multicast(b"", to={"P2"})
        with pytest.raises(EarlierUnknown):
            producer.multicast_all([b"", b""], to={"P2"}).accepted()
        with pytest.raises(EarlierUnknown):
            double.producer().multicast(b"", to={"P2"}, after=[lost])
        producer.multicast(b"0", to={"P1"})
        producer.multicast(b"1", to={"P2"})
        assert numbers(delivered(double, "C1")) == [0, 1]
        assert producer.counts().logs["P2"].sent == 1


def test_a_message_that_waits_too_long_for_earlier_ones_is_not_sent():
    with system(INTERESTS) as double:
        producer = double.producer(fifo=True, block_s=2, tickets=False)
        for node in double.plan.collectors:
            double.crash(node.name)
        producer.multicast(b"0", to={"P1"})
        with pytest.raises(EarlierPending, match="message of log P1 has no place in the order yet"):
            producer.multicast(b"", to={"P2"})
        with pytest.raises(EarlierPending):
            producer.multicast(b"", to={"P2"}, after=[MessageID("P1", 7)])
        for node in double.plan.collectors:
            double.restart(node.name)
        producer.multicast(b"1", to={"P2"})
        assert numbers(delivered(double, "C1")) == [0, 1]


def test_a_fifo_producer_goes_on_in_another_epoch_with_new_sets():
    with system(INTERESTS) as double:
        producer = double.producer(fifo=True)
        producer.multicast(b"0", to={"P1"})
        wider = {**INTERESTS, "destinations": [*INTERESTS["destinations"], {"P2", "P3"}]}
        double.replan(wider)
        for number, to in enumerate(({"P2", "P3"}, {"P1"}, {"P2", "P3"}, {"P2"}), 1):
            producer.multicast(b"%d" % number, to=to)
        double.settle()
        assert numbers(delivered(double, "C3")) == [0, 1, 2, 3, 4]


def test_through_one_set_all_messages_have_one_order_and_their_own_sets():
    with system(INTERESTS) as double:
        producer = double.producer(through={"P1", "P2", "P3"})
        receipts = [producer.multicast(b"%d" % each, to=SETS[each % 4]) for each in range(12)]
        assert {receipt.log.name for receipt in receipts} == {"P1+P2+P3"}
        assert [receipt.to for receipt in receipts[:4]] == [("P1",), ("P2",), ("P3",), ("P1", "P3")]
        double.settle()
        assert numbers(delivered(double, "C3")) == list(range(12))
        assert numbers(delivered(double, "C1")) == [each for each in range(12) if each % 4 != 2]
        with pytest.raises(UndeclaredDestination, match=r"is exactly P1\+P2;"):
            Producer(topic=double.topic, driver=double.driver, through={"P1", "P2"})
        narrow = double.producer(through={"P1", "P3"})
        with pytest.raises(UsageError, match=r"P2 is not part of P1\+P3"):
            narrow.multicast(b"", to={"P2"})


def test_an_asynchronous_producer_keeps_the_order_of_its_calls():
    async def send(options):
        async with AsyncProducer(**options, fifo=True, block_s=120) as producer:
            calls = [producer.multicast(b"%d" % n, to={f"P{n % 3 + 1}"}) for n in range(9)]
            receipts = await asyncio.gather(*calls)
            some = await producer.multicast_all([b"9", b"10"], to={"P1"})
            await some.accepted()
            last = await producer.multicast(b"11", to={"P2"}, after=receipts)
            await last.accepted()

    with Small(chain()) as running:
        running.run_all()
        asyncio.run(send({"topic": running.topic, "driver": running.driver}))
        with running.consumer("C1") as consumer:
            payloads = values(consumer.until_end(timeout=60))
    assert numbers(payloads) == [0, 1, 3, 4, 6, 7, 9, 10, 11]
