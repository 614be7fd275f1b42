"""The test double (docs/testing-your-code.md): determinism, every fault, what its check finds."""

import itertools
import os
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from collectors.core.actions import Append
from collectors.core.collector import Collector
from collectors.testing import stepped
from multicast import Consumer, Producer
from multicast.control import log_partition
from multicast.drivers.protocol import Appended, AppendFailed
from multicast.errors import AppendRefused, AppendUnknown, TimedOut, UncoveredInterest, UsageError
from multicast.messages import skip_header
from multicast.order.records import RelayRecord, decode, encode
from multicast.testing import MemorySystem, OrderViolation, system
from tests.helpers.plans import chain, poster
from tests.helpers.small import values

ROOT = Path(__file__).parents[3]
INTERESTS = {
    "consumers": {"C1": {"P1", "P2", "P3"}, "C2": {"P2", "P3", "P4"}, "C3": {"P3", "P4", "P5"}},
    "destinations": [{"P1", "P3"}, {"P2", "P3", "P4"}],
}


@pytest.fixture
def producer(double):
    return double.producer()


@pytest.fixture
def consumer(double):
    return double.consumer("C1")


def payloads(messages):
    return [message.payload for message in messages]


def busy_run(seed):
    """A run with each kind of fault; gives its trace and what the consumers delivered."""
    with system(INTERESTS, seed=seed) as double:
        producer = double.producer()
        consumers = [double.consumer(name) for name in ("C1", "C2", "C3")]
        sets = itertools.cycle([{"P1"}, {"P2"}, {"P1", "P3"}, {"P3"}, {"P4"}, {"P2", "P3", "P4"}])
        double.delay("P1", 0.05, count=2)
        double.duplicate("K1", count=2)
        double.lose("K2")
        for number, to in zip(range(40), sets, strict=False):
            producer.multicast(b"%d" % number, to=to)
            if number == 10:
                double.fail_over("K1")
            if number == 20:
                double.crash("K2")
            if number == 30:
                double.restart("K2")
            double.run(0.002)
        double.settle()
        return double.trace, [payloads(double.drain(consumer)) for consumer in consumers]


def test_two_runs_with_one_seed_are_equal_and_another_seed_orders_otherwise():
    runs = [busy_run(seed) for seed in (1, 1, 2, 3, 4)]
    assert runs[0] == runs[1]
    assert len({trace for trace, _ in runs}) == 4
    assert len({tuple(delivered[0]) for _, delivered in runs}) > 1


@pytest.mark.campaign
def test_a_run_does_not_depend_on_the_hashes_of_the_process():
    program = "from tests.multicast.testing.test_double import busy_run; print(busy_run(5))"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(traces) == 1


def test_no_thread_is_started_and_hours_of_waiting_take_no_time():
    before = set(threading.enumerate())
    with system(INTERESTS) as double:
        began = double.now
        producer, consumer = double.producer(), double.consumer("C1")
        assert consumer.poll(3600.0) == []
        producer.multicast(b"x", to={"P1"}).ordered(3600.0)
        assert set(threading.enumerate()) <= before  # of other tests, some may have ended
        assert double.now - began >= timedelta(hours=1)
        (message,) = double.drain(consumer)
        assert message.timestamp_ms >= 1000 * (began + timedelta(hours=1)).timestamp()


def test_code_under_test_opens_its_own_clients_with_the_driver(double):
    with Producer(topic=double.topic, driver=double.driver) as producer:
        receipts = producer.multicast_all([b"a", b"b"], to={"P2"})
        assert [message.offset for message in receipts.ordered()] == [0, 1]
    with Consumer(topic=double.topic, interest={"P2", "P3"}, driver=double.driver) as consumer:
        assert payloads(itertools.islice(consumer, 2)) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("fault", "outcome", "stored"),
    [
        ("lose", AppendUnknown, []),
        ("lose_acknowledgement", AppendUnknown, [b"x"]),
        ("refuse", AppendRefused, []),
        ("duplicate", None, [b"x", b"x"]),
    ],
)
def test_a_fault_meets_the_next_append_to_a_log_and_no_other(
    double, producer, fault, outcome, stored
):
    getattr(double, fault)({"P3", "P1"})
    assert double.faults_left == 1
    producer.multicast(b"elsewhere", to={"P2"}).ordered()
    receipt = producer.multicast(b"x", to={"P1", "P3"})
    if outcome is None:
        receipt.accepted()
    else:
        with pytest.raises(outcome):
            receipt.accepted()
    producer.multicast(b"after", to={"P1", "P3"}).ordered()
    assert double.faults_left == 0
    delivered = payloads(double.drain(double.consumer("C1")))
    assert [name for name in delivered if name != b"elsewhere"] == [*stored, b"after"]


def test_a_delayed_append_holds_back_later_ones_of_its_producer_only(double):
    slow, quick = double.producer(), double.producer()
    double.delay("P1", 5.0)
    first, second = (slow.multicast(name, to={"P1"}) for name in (b"first", b"second"))
    quick.multicast(b"quick", to={"P1"}).accepted()
    double.run(4.9)
    assert first.outcome is None
    assert second.outcome is None
    double.settle()
    assert isinstance(second.outcome, Appended)
    assert payloads(double.drain(double.consumer("C1"))) == [b"quick", b"first", b"second"]


def test_a_stopped_log_takes_nothing_and_gives_nothing_until_it_is_back(double, producer, consumer):
    producer.multicast(b"before", to={"P2"}).ordered()
    double.stop_log("P2")
    receipt = producer.multicast(b"meanwhile", to={"P2"})
    with pytest.raises(TimedOut):
        receipt.accepted(10)
    producer.multicast(b"elsewhere", to={"P1"}).ordered()
    # Whatever the order is, a message of the stopped log that comes first holds back the rest.
    assert b"before" not in values(consumer.poll(5))
    double.start_log("P2")
    receipt.ordered()
    double.drain(consumer)


def test_a_collector_that_is_down_hands_nothing_on_until_it_is_restarted(
    double, producer, consumer
):
    for name in [node.name for node in double.plan.collectors]:
        double.crash(name)
    receipt = producer.multicast(b"x", to={"P1", "P3"})
    receipt.ordered(5)  # by its ticket; but the consumer reads a child's stream
    assert consumer.poll(5) == []
    for name in [node.name for node in double.plan.collectors]:
        double.restart(name)
    receipt.ordered()
    assert payloads(double.drain(consumer)) == [b"x"]


def test_a_collector_that_fails_over_while_its_appends_fail_orders_every_message_once():
    with system(INTERESTS, seed=3) as double:
        producer, consumer = double.producer(), double.consumer("C1")
        sent = [b"%d" % number for number in range(30)]
        for number, payload in enumerate(sent):
            producer.multicast(payload, to={"P1"} if number % 2 else {"P1", "P3"})
            if number % 10 == 5:
                for name in ("K1", "K2"):
                    double.lose_acknowledgement(name)
                    double.fail_over(name)
            double.run(0.001)
        double.settle()
        assert sorted(payloads(double.drain(consumer))) == sorted(sent)
        assert double.trace.count("takes over") == 6


def test_a_consumer_that_crashed_gets_again_what_it_had_not_committed(double, producer, consumer):
    for number in range(6):
        producer.multicast(b"%d" % number, to={"P1"})
    double.settle()
    for message in itertools.islice(consumer, 4):
        if message.payload == b"2":
            consumer.commit()
    double.crash(consumer)
    consumer = double.restart(consumer)
    assert payloads(double.drain(consumer)) == [b"3", b"4", b"5"]


def test_a_new_plan_begins_under_load_and_a_collector_that_is_down_does_not_stop_it(
    double, producer, consumer
):
    sent = [producer.multicast(b"%d" % number, to={"P1", "P3"}) for number in range(5)]
    double.crash("K1")
    wider = {**INTERESTS["consumers"], "C1": {"P1", "P2", "P3", "P6"}, "C4": {"P1", "P6"}}
    plan = double.replan({**INTERESTS, "consumers": wider})
    assert plan.epoch == 2
    assert all(isinstance(receipt.outcome, Appended) for receipt in sent)
    double.restart("K1")
    producer.multicast(b"new", to={"P6"}).ordered()
    assert sorted(payloads(double.drain(consumer))) == [b"0", b"1", b"2", b"3", b"4", b"new"]
    assert b"new" in payloads(double.drain(double.consumer("C4")))
    with pytest.raises(UsageError, match="would end consumer C2, which reads"):
        double.replan({"consumers": {"C1": {"P1"}}, "partitions": ["P1"]})


def test_a_refused_message_leaves_a_hole_that_a_collector_fills(double, producer, consumer):
    double.refuse("P1")
    with pytest.raises(AppendRefused):
        producer.multicast(b"refused", to={"P1"}).accepted()
    double.run(1)  # until then its ticket would be that of the next message
    producer.multicast(b"elsewhere", to={"P1", "P3"}).ordered()
    double.settle()
    assert payloads(double.drain(consumer)) == [b"elsewhere"]
    (skip,) = double.log.read(log_partition(double.plan.log("P1")), 0, 10).records
    assert skip.headers == (skip_header("P1"),)


def test_a_message_whose_ticket_is_lost_is_ordered_by_a_collector(double, producer, consumer):
    double.lose(double.plan.top("P1").name)
    producer.multicast(b"x", to={"P1"}).ordered()
    assert double.faults_left == 0
    assert payloads(double.drain(consumer)) == [b"x"]


def test_a_plan_cannot_begin_while_a_stream_is_away_and_is_finished_afterwards():
    more = {**INTERESTS, "consumers": {**INTERESTS["consumers"], "C4": {"P1", "P5"}}}
    with system(INTERESTS) as double:
        double.stop_log("K1")
        with pytest.raises(TimedOut, match="run 'amcast topology apply' again"):
            double.replan(more)
        double.start_log("K1")
        double.replan(more)
        double.producer().multicast(b"x", to={"P5"}).ordered()
        assert payloads(double.drain(double.consumer("C4"))) == [b"x"]


class Swapping(Collector):
    """A wrong core: a child hands on what one of its parent's records ordered the other way."""

    def step(self):
        return [
            Append(self._swapped(action.raw)) if isinstance(action, Append) else action
            for action in super().step()
        ]

    def _swapped(self, raw):
        tag = self.own.shape.tag
        record = decode(tag, raw)
        if not isinstance(record, RelayRecord):
            return raw
        return encode(tag, replace(record, entries=tuple(reversed(record.entries))))


def run_of_forty(seed):
    with system(INTERESTS, seed=seed) as double:
        producer = double.producer()
        for number in range(40):
            producer.multicast(b"%d" % number, to=({"P2"}, {"P3"}, {"P2", "P3", "P4"})[number % 3])
        double.settle()


def test_the_check_finds_a_collector_that_swaps(monkeypatch):
    run_of_forty(2)
    monkeypatch.setattr(stepped, "Collector", Swapping)
    with pytest.raises(OrderViolation, match=r"prefix order|acyclic") as found:
        run_of_forty(2)
    assert found.value.__notes__ == ["system in memory with seed 2"]


class Forgetful(Consumer):
    """A wrong consumer: it drops a message before the application gets it."""

    drops = 3

    def _deliver(self, messages_max):
        kept = []
        for batch in super()._deliver(messages_max):
            records = [r for r in batch.records if r.value != b"%d" % self.drops]
            if records:
                kept.append(replace(batch, records=records))
        return kept


@pytest.mark.parametrize("drops", [0, 3])
def test_the_check_finds_a_consumer_that_loses_a_message(drops, monkeypatch):
    monkeypatch.setattr(Forgetful, "drops", drops)
    with system(INTERESTS) as double:
        producer = double.producer()
        for number in range(6):
            producer.multicast(b"%d" % number, to={"P1"} if number % 2 else {"P2"})
        double.settle()
        with Forgetful(topic="A", name="C1", driver=double.driver) as consumer:
            assert len(double.drain(consumer)) == 5
            with pytest.raises(OrderViolation, match=rf"P[12]:{drops // 2} .*C1 did not") as found:
                double.check()
        assert found.value.report.violations[0].guarantee == "validity"
        double.close()
        double._recorder.readings.clear()  # the violation is found: the end must not find it again


def test_what_is_not_read_yet_is_no_violation(double, producer, consumer):
    for number in range(6):
        producer.multicast(b"%d" % number, to={"P1"})
    double.settle()
    next(iter(consumer))
    double.crash("K1")
    double.stop_log("P1")
    producer.multicast(b"x", to={"P1"})
    late = double.consumer("C2", start="latest")
    before = double.trace
    report = double.check()
    assert double.trace == before
    assert [verdict.guarantee for verdict in report.violations] == []
    assert late.poll(1) == []


def test_a_seek_begins_another_reading(double, producer, consumer):
    for number in range(4):
        producer.multicast(b"%d" % number, to={"P1"})
    first, *_ = double.drain(consumer)
    consumer.seek(first.cursor)
    assert payloads(double.drain(consumer)) == [b"1", b"2", b"3"]
    consumer.seek("latest")
    producer.multicast(b"4", to={"P1"})
    assert payloads(double.drain(consumer)) == [b"4"]


def test_a_test_that_would_wait_for_ever_ends_with_a_sentence():
    with system(INTERESTS) as double, pytest.raises(TimedOut, match="waits for ever"):
        for _ in double.consumer("C1"):
            pass


def test_a_callback_that_waits_is_refused():
    errors = []

    def done(_):
        try:
            consumer.poll(1)
        except UsageError as error:
            errors.append(str(error))

    with system(INTERESTS) as double:
        producer, consumer = double.producer(), double.consumer("C1")
        double.delay("P1", 1.0)
        producer.multicast(b"x", to={"P1"}, done=done)
        double.settle()
    assert len(errors) == 1
    assert "must not block" in errors[0]


@pytest.mark.parametrize(
    "interests",
    [
        chain(),
        poster(),
        ROOT / "docs/examples/poster.toml",
        str(ROOT / "docs/examples/poster.toml"),
    ],
    ids=["a plan", "a planned plan", "a path", "a path as text"],
)
def test_interests_come_as_a_plan_or_a_file(interests):
    with system(interests) as double:
        assert double.producer().multicast(b"x", to={"P2"}).ordered().offset == 0


@pytest.mark.parametrize(
    ("interests", "sentence"),
    [
        ("none.toml", "none.toml cannot be read"),
        ({"consumers": {}}, "partitions is empty"),
        ({"consumers": ["C1"]}, "not a mapping"),
        ({"consumer": {"C1": ["P1"]}}, "not a list of tables"),
        ({"consumers": {"C1": {"P1"}}, "destinations": [{"P1"}]}, "always declared"),
    ],
)
def test_wrong_interests_are_refused_with_a_sentence(interests, sentence):
    with pytest.raises(UsageError, match=sentence):
        system(interests)


def test_wrong_names_are_refused_with_a_sentence(double):
    with pytest.raises(UsageError, match="P9 is neither a log nor a collector"):
        double.lose("P9")
    with pytest.raises(UsageError, match="no collector K9"):
        double.crash("K9")
    with pytest.raises(UsageError, match="no exclusive consumer of group C9 is active"):
        double.pause_active("C9")
    with pytest.raises(UsageError, match="1 append or more"):
        double.lose("P1", count=0)
    with pytest.raises(UsageError, match="0 or more"):
        double.delay("P1", -1)
    with pytest.raises(UncoveredInterest):
        double.consumer("C9")


def test_closing_ends_what_is_on_its_way():
    double = MemorySystem(INTERESTS)
    double.delay("P1", 10)
    receipt = double.producer().multicast(b"x", to={"P1"})
    double.close()
    assert isinstance(receipt.outcome, AppendFailed)
