"""A producer's own order: what a message waits for, and what a producer does about it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import pytest

from multicast import Producer
from multicast.aio import AsyncProducer
from multicast.control import ControlState
from multicast.errors import (
    AppendRefused,
    ClusterUnreachable,
    EarlierPending,
    EarlierUnknown,
    Truncated,
    UndeclaredDestination,
    UsageError,
)
from multicast.messages import MessageID
from multicast.producing.own_order import OrderView, bound_of
from multicast.producing.receipts import Settlement
from multicast.producing.sending_order import SendingOrder
from multicast.testing import system
from tests.helpers.plans import chain
from tests.helpers.small import Small, values


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
    ("P1~1:4", "P2", {"K1 P1": 9, "K1 P2": 11}, 2, None),  # nor of a life that begins later
]


@pytest.mark.parametrize(("earlier", "log", "positions", "newest", "bound"), BOUNDS)
def test_the_bound_of_a_message_is_its_log_s_position_where_the_earlier_one_is_ordered(
    earlier, log, positions, newest, bound
):
    known = view(positions, P3=2, P4=1)
    assert bound_of(log, MessageID.parse(earlier), known, newest=newest) == bound


class Asked:
    """All that a `SendingOrder` asks: nothing moves but the time of who waits."""

    moves = 0

    def __init__(self, positions, *, end=0, lost="P4:0", life=0, is_away=False, newest=0):
        self.known, self.end, self.is_away = view(positions), end, is_away
        logs = (replace(self.known.plan.logs[0], life=life), *self.known.plan.logs[1:])
        self.known = self.known._replace(plan=replace(self.known.plan, logs=logs))
        self.lost, self.lost_from = self, MessageID.parse(lost)
        self.now, self.asked_s, self.view = 0.0, [], lambda: self.known
        state = ControlState("A", plans=[self.known.plan], lives={log.name: newest for log in logs})
        settlement = Settlement(lambda: self, None, self)
        self.order = SendingOrder(self, "A", settlement, lambda _: state, fifo=False)

    def monotonic(self):
        return self.now

    def wait_for(self, _changed, _ready, timeout_s):
        self.now += timeout_s

    def wait_moved(self, _moves, timeout_s):
        self.now += timeout_s

    def refuse(self, log, offset):
        if log == self.lost_from.log and offset >= self.lost_from.offset:
            raise Truncated(f"log {log} has lost it")

    def high_watermarks(self, partitions, *, timeout_s):
        self.asked_s.append(timeout_s)
        if self.is_away:
            self.now += timeout_s
            raise ClusterUnreachable("the leader does not answer")
        return dict.fromkeys(partitions, self.end)


ORDERED = {"K1 P1": 5, "K1 P2": 11}
PENDING = {"K1 P1": 4, "K1 P2": 11}
# The earlier message, the log of the later one, what is known, and why that is not sent.
WAITS = [
    ("P1:4", "P2", Asked(ORDERED, end=11), None),
    ("P1:4", "P2", Asked(ORDERED, end=10), (EarlierPending, "its log has not reached")),
    ("P1:4", "P2", Asked(PENDING, end=99), (EarlierPending, "log P1 has no place in the order")),
    ("P1:4", "P2", Asked(ORDERED, is_away=True), (EarlierPending, "its log has not reached")),
    ("P2:7", "P2", Asked({}, end=8), None),
    ("P2:7", "P2", Asked({}, end=7), (EarlierPending, "its log has not reached")),
    # Of no log of the topic.
    ("P9:0", "P2", Asked(ORDERED, end=99), (UsageError, "P9:0 is no message of topic A")),
    ("P1~1:4", "P2", Asked(ORDERED, end=99), (UsageError, "P1~1:4 is no message of topic A")),
    ("P2~1:4", "P2", Asked(ORDERED, end=99), (UsageError, "P2~1:4 is no message of topic A")),
    # Of a life of its log that only the newest plan has.
    ("P2~1:7", "P2", Asked({}, end=8, newest=1, lost="P2:3"), None),
    ("P2~1:7", "P2", Asked({}, end=7, newest=1), (EarlierPending, "its log has not reached")),
    # A lost message is not waited for, nor what a log has to reach that has lost its end.
    ("P1:4", "P2", Asked(PENDING, end=99, lost="P1:3"), (Truncated, "P1 has lost")),
    ("P1:4", "P2", Asked(ORDERED, end=8, lost="P2:8"), (Truncated, "P2 has lost")),
    ("P1:4", "P2", Asked(ORDERED, end=11, lost="P1:3"), None),  # whoever has it had this before
    # After an operator has accepted that: of the log's new life nothing tells it, but its end.
    ("P1:40", "P2", Asked(ORDERED, end=20, life=1), None),
    ("P1:40", "P2", Asked(ORDERED, end=41, life=1), (EarlierPending, "no place in the order")),
]


@pytest.mark.parametrize(("earlier", "log", "cluster", "refusal"), WAITS)
def test_a_message_waits_within_its_time_for_what_may_come_only(earlier, log, cluster, refusal):
    refused = pytest.raises(refusal[0], match=refusal[1]) if refusal else nullcontext()
    with refused:
        cluster.order.wait(cluster.known.plan.log(log), MessageID.parse(earlier), 2.0)
    assert max([cluster.now, *cluster.asked_s]) <= 2.0


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


def test_consumers_deliver_the_messages_of_a_fifo_producer_as_they_were_sent(double):
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


def test_a_message_comes_after_those_that_it_names(double):
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
    with system({**INTERESTS, "topic": "B"}) as strange:
        receipt = strange.producer().multicast(b"", to={"P1"})
        with pytest.raises(UsageError, match="nothing in topic A can follow a message of topic B"):
            producer.multicast(b"", to={"P2"}, after=receipt)
    double.refuse("P1")
    refused = other.multicast(b"", to={"P1"})
    with pytest.raises(AppendRefused):
        producer.multicast(b"", to={"P2"}, after=[refused])


def test_after_an_unknown_outcome_messages_to_other_logs_are_refused(double):
    producer = double.producer(fifo=True)
    double.lose("P1")
    lost = producer.multicast(b"", to={"P1"})
    with pytest.raises(EarlierUnknown, match=r"message to P2 was not sent.* Send one to P1"):
        producer.multicast(b"", to={"P2"})
    # The second one's log, P1, is free: but it would be before the first one, for P2.
    keyed = producer.multicast_all([b"", b"", b""], keys=["a", "f", "a"])
    assert {type(outcome.error) for outcome in keyed.outcomes} == {EarlierUnknown}
    with pytest.raises(EarlierUnknown):
        double.producer().multicast(b"", to={"P2"}, after=[lost])
    producer.multicast(b"0", to={"P1"})
    producer.multicast(b"1", to={"P2"})
    assert numbers(delivered(double, "C1")) == [0, 1]
    counts = producer.counts().logs
    assert (counts["P1"].sent, counts["P2"].sent) == (2, 1)


def test_a_message_that_waits_too_long_for_earlier_ones_is_not_sent(double):
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


def test_a_message_waits_for_its_turn_no_longer_than_for_all_else():
    with system(INTERESTS) as double, ThreadPoolExecutor(1) as other:
        producer = double.producer(fifo=True, block_s=0)
        held = producer._order.turn(double.plan.log("P1"), (), 0.0)
        with held, pytest.raises(EarlierPending, match="others of this producer wait before it"):
            other.submit(producer.multicast, b"", to={"P2"}).result(60)


def test_a_fifo_producer_goes_on_in_another_epoch_with_new_sets(double):
    producer = double.producer(fifo=True)
    producer.multicast(b"0", to={"P1"})
    wider = {**INTERESTS, "destinations": [*INTERESTS["destinations"], {"P2", "P3"}]}
    double.replan(wider)
    for number, to in enumerate(({"P2", "P3"}, {"P1"}, {"P2", "P3"}, {"P2"}), 1):
        producer.multicast(b"%d" % number, to=to)
    double.settle()
    assert numbers(delivered(double, "C3")) == [0, 1, 2, 3, 4]


def test_through_one_set_all_messages_have_one_order_and_their_own_sets(double):
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
