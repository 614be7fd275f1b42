"""Metrics of producers and consumers, on the test double: what moves them, and their table."""

import asyncio
import itertools
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from multicast import nothing_after
from multicast.consuming.subscription import Bounds
from multicast.control import log_partition, stream_partition
from multicast.errors import ClusterUnreachable, UsageError
from multicast.metrics import ClientMetrics, clients
from multicast.metrics.exposition import MetricsPage
from multicast.metrics.families import MetricKind
from multicast.order.records import OwnRecord, Ticket, encode
from tests.helpers.plans import chain, tag_in
from tests.helpers.scraped import samples
from tests.helpers.small import Small, until
from tests.multicast.aio.worlds import consumer_of, producer_of, running

DOC = Path(__file__).parents[3] / "docs" / "metrics.md"
INTERESTS = {
    "consumers": {"C1": {"P1", "P2", "P3"}, "C2": {"P2", "P3", "P4"}, "C4": {"P4"}},
    "destinations": [{"P1", "P3"}],
}


def shown(metrics):
    """Scrape once; give a function that reads a value by a name without "amcast_", and labels."""
    values = samples(MetricsPage(metrics).text())
    return lambda name, *labels: values.get((f"amcast_{name}", labels))


def lag(metrics, *labels):
    """The lag in messages; a scrape that got no answer in time is made again."""
    answers = []

    def answered():
        answers.append(shown(metrics)("consumer_lag_messages", *labels))
        return answers[-1] is not None

    until(answered)
    return answers[-1]


@pytest.mark.parametrize("room", ["multicast", "collectors"])
def test_the_tables_in_the_docs_are_made_from_the_code(room):
    made = subprocess.run(
        [sys.executable, "-m", f"{room}.metrics"], check=True, capture_output=True, text=True
    ).stdout
    assert len(made.splitlines()) == len(clients.FAMILIES) + 2 or room != "multicast"
    assert made in DOC.read_text()


def test_counters_alone_end_in_total_and_durations_are_in_seconds():
    names = [family.name for family in clients.FAMILIES]
    assert len(set(names)) == len(names)
    for family in clients.FAMILIES:
        assert family.name.endswith("_total") is (family.kind is MetricKind.COUNTER), family.name
        assert not family.name.endswith(("_ms", "_s"))


def test_a_producer_shows_its_outcomes_what_is_in_flight_and_how_long_appends_took(double):
    producer = double.producer()
    metrics = ClientMetrics(producer)
    assert shown(metrics)("producer_accepted_total", "P1") is None  # it has sent nothing there
    double.refuse("P1")
    double.lose("P1")
    producer.multicast(b"refused", to={"P1"})
    producer.multicast(b"lost", to={"P1"})
    double.settle()
    double.delay("P1", 0.3)
    producer.multicast(b"late", to={"P1"})
    producer.multicast_all([b"a", b"b"], to={"P2"})
    now = shown(metrics)
    assert now("producer_refused_total", "P1") == 1
    assert now("producer_unknown_total", "P1") == 1
    assert now("producer_accepted_total", "P1") == 0
    assert now("producer_in_flight_messages", "P1") == 1
    assert now("producer_accepted_total", "P2") == 2
    double.settle()
    now = shown(metrics)
    assert now("producer_accepted_total", "P1") == 1
    assert now("producer_in_flight_messages", "P1") == 0
    assert now("producer_append_seconds_count") == 1
    assert now("producer_append_seconds_sum") == pytest.approx(0.3)
    assert now("producer_append_seconds_bucket", "0.25") == 0
    assert now("producer_append_seconds_bucket", "0.5") == 1
    assert now("producer_accepted_total", "P3") is None


def test_a_consumer_shows_what_it_read_delivered_and_lacks(double):
    producer, consumer = double.producer(), double.consumer("C2")
    metrics = ClientMetrics(consumer)
    sent = [b"%d" % number for number in range(20)]
    for payload, name in zip(sent, itertools.cycle(["P2", "P3", "P4"]), strict=False):
        producer.multicast(payload, to={name})
    producer.multicast(b"to others", to={"P1"})
    double.settle()
    (batch,) = consumer.poll(1.0, messages_max=1)
    log = batch.log.name
    now = shown(metrics)
    assert now("consumer_delivered_total", "C2", log) == 1
    assert now("consumer_epoch", "C2") == 1
    assert lag(metrics, "C2", log) == {"P2": 7, "P3": 7, "P4": 6}[log] - 1
    double.drain(consumer)
    now = shown(metrics)
    assert [now("consumer_delivered_total", "C2", name) for name in ("P2", "P3", "P4")] == [7, 7, 6]
    assert now("consumer_payload_bytes_total", "C2") == sum(map(len, sent))
    assert now("consumer_buffered_messages", "C2") == 0
    assert now("consumer_buffered_bytes", "C2") == 0
    assert now("consumer_paused_logs", "C2") == 0
    assert now("consumer_entries_read_total", "C2", "P4") == 6
    assert now("consumer_entries_dropped_total", "C2", "P1") in (None, 1)
    assert now("consumer_replanning_seconds", "C2") is None
    assert lag(metrics, "C2", "P4") == 0
    assert now("producer_accepted_total", "P2") is None


def test_what_waits_for_its_place_in_the_order_is_buffered_and_a_full_buffer_pauses_its_log(double):
    producer = double.producer()
    consumer = double.consumer("C1", bounds=Bounds(buffer_bytes_max=1))
    metrics = ClientMetrics(consumer)
    for name in ("P1", "P2"):
        producer.multicast_all([b"123"] * 10, to={name})
    double.settle()
    while not consumer.poll(1.0, messages_max=1):
        pass
    consumer.poll(0.0, messages_max=1)
    now = shown(metrics)
    delivered = sum(consumer.counts().delivered.values())
    assert now("consumer_buffered_messages", "C1") == 20 - delivered
    assert now("consumer_buffered_bytes", "C1") >= 20 * 3
    assert now("consumer_paused_logs", "C1") == 1  # the one that is not at the head of the order
    double.drain(consumer)
    now = shown(metrics)
    names = ("buffered_messages", "buffered_bytes", "paused_logs")
    assert [now(f"consumer_{name}", "C1") for name in names] == [0, 0, 0]


def test_void_messages_are_shown_by_reason(double):
    producer, reader = double.producer(), double.consumer("C1")
    metrics = ClientMetrics(reader)
    seen = reader.seen({"P1", "P3"})
    for payload in (b"first", b"second"):
        producer.multicast(
            payload, to={"P1", "P3"}, tags=["seat"], expect=nothing_after(seen, tags=["seat"])
        )
    assert len(double.drain(reader)) == 1
    assert shown(metrics)("consumer_void_total", "C1", "conflict") == 1


@pytest.mark.parametrize("name", ["C1", "C4"])
def test_a_change_of_epoch_shows_how_long_it_stopped_a_consumer(double, name):
    producer, consumer = double.producer(), double.consumer(name)
    metrics = ClientMetrics(consumer)
    to = {"P1"} if name == "C1" else {"P4"}
    producer.multicast(b"before", to=to)
    assert len(double.drain(consumer)) == 1
    double.replan({"consumers": {"C1": {"P1", "P2", "P3", "P4"}, "C2": {"P3", "P4"}, "C4": {"P4"}}})
    producer.multicast(b"after", to=to)
    assert len(double.drain(consumer)) == 1
    now = shown(metrics)
    epoch = now("consumer_epoch", name)
    assert (now("consumer_replanning_seconds", name) is not None) is (epoch == 2)
    if name == "C1":
        assert epoch == 2
        assert 0 <= now("consumer_replanning_seconds", name) < 60


def test_a_consumer_says_for_which_log_its_messages_wait_and_for_how_long():
    plan = chain()
    with Small(plan) as system, system.consumer("C1") as consumer:
        metrics = ClientMetrics(consumer)
        assert (consumer.waiting, consumer.counts().waiting) == (None, None)
        system.log.write(log_partition(plan.log("P2")), b"message")
        ticket = OwnRecord((Ticket(plan.number("P1"), 2, 2), Ticket(plan.number("P2"), 1, 1)))
        top = plan.top("P1").name
        system.log.write(stream_partition(plan, top), encode(tag_in(plan, top), ticket))

        waiting = until(lambda: consumer.poll(0.01) or consumer.waiting)
        assert (waiting.log, waiting.offset, waiting.ordered) == ("P1", 0, 2)
        assert waiting.behind == {"P2": 1}
        assert shown(metrics)("consumer_waiting_seconds", "C1", "P1") >= waiting.seconds

        for _ in range(2):
            system.log.write(log_partition(plan.log("P1")), b"late")
        until(lambda: consumer.poll(0.01))
        until(lambda: consumer.poll(0.01) or consumer.waiting is None)
        assert shown(metrics)("consumer_waiting_seconds", "C1", "P1") is None


def test_a_pause_begins_where_the_consumer_stops_and_a_forged_marker_begins_none(double):
    counter = double.consumer("C4")._counter
    delivery = counter._delivery
    counter.resumed(1.0)
    assert counter.counts().replanning_s is None
    delivery.marker = 5
    counter.stopped(delivery, 10.0)  # at what only looks like a marker
    delivery.marker = 9
    counter.stopped(delivery, 20.0)
    counter.stopped(delivery, 21.0)
    counter.resumed(23.5)
    assert counter.counts().replanning_s == 3.5
    counter.stopped(delivery, 30.0)
    other = double.consumer("C4")._counter._delivery
    other.marker = 9
    counter.stopped(other, 40.0)  # after a seek
    counter.resumed(41.0)
    assert counter.counts().replanning_s == 1.0


def test_a_closed_client_keeps_its_counters_loses_its_gauges_and_is_let_go(double):
    first, second = double.producer(), double.producer()
    consumer = double.consumer("C4")
    metrics = ClientMetrics(first, consumer)
    metrics.add(second)
    for producer in (first, second):
        producer.multicast(b"x", to={"P4"})
    double.drain(consumer)
    now = shown(metrics)
    assert now("producer_accepted_total", "P4") == 2  # of both
    assert now("consumer_epoch", "C4") == 1
    for client in (first, consumer):
        client.close()
    for _ in range(2):
        now = shown(metrics)
        assert now("producer_accepted_total", "P4") == 2
        assert now("consumer_delivered_total", "C4", "P4") == 2
        assert now("consumer_epoch", "C4") is None
        assert now("consumer_lag_messages", "C4", "P4") is None
        assert metrics._clients == [second]
    again = double.consumer("C4")
    metrics.add(again)
    double.drain(again)
    assert shown(metrics)("consumer_delivered_total", "C4", "P4") == 4
    assert shown(metrics)("consumer_epoch", "C4") == 1


def test_a_cluster_that_does_not_answer_leaves_out_the_lag_and_nothing_else(double, monkeypatch):
    consumer = double.consumer("C4")
    metrics = ClientMetrics(consumer)
    double.producer().multicast(b"x", to={"P4"})
    double.drain(consumer)
    assert lag(metrics, "C4", "P4") == 0

    class Away:
        """The cluster of a consumer that gets no answer."""

        def __init__(self, ends):
            self.last_stable_offsets = ends

    def unreachable(_):
        raise ClusterUnreachable("no broker answers")

    counter = consumer._counter
    before, counter._driver = counter._driver, Away(unreachable)
    now = shown(metrics)
    assert now("consumer_lag_messages", "C4", "P4") is None
    assert now("consumer_delivered_total", "C4", "P4") == 1

    answer = threading.Event()

    def silent(logs):
        answer.wait(60)
        return before.last_stable_offsets(logs)

    counter._driver = Away(silent)
    monkeypatch.setattr(clients, "_ENDS_S", 0.01)  # whoever waits for it gets nothing
    try:
        assert shown(metrics)("consumer_lag_messages", "C4", "P4") is None
        waiting = metrics._asking
        assert waiting.is_alive()
        assert shown(metrics)("consumer_delivered_total", "C4", "P4") == 1
        assert metrics._asking is waiting  # nobody asks again meanwhile
    finally:
        counter._driver = before
        monkeypatch.undo()
        answer.set()
    assert lag(metrics, "C4", "P4") == 0


def test_clients_of_an_event_loop_are_scraped_from_another_thread():
    async def run():
        async with producer_of(world) as producer, consumer_of(world, "C1") as consumer:
            metrics = ClientMetrics(producer, consumer)
            await (await producer.multicast(b"12345", to={"P1"})).ordered()
            async for _ in consumer:
                break
            now = await asyncio.to_thread(shown, metrics)
            assert now("producer_accepted_total", "P1") == 1
            assert now("consumer_delivered_total", "C1", "P1") == 1
            assert now("consumer_payload_bytes_total", "C1") == 5
            assert await asyncio.to_thread(lag, metrics, "C1", "P1") == 0
        return metrics, producer

    with running() as world:
        with pytest.raises(UsageError, match="not open"):
            ClientMetrics(producer_of(world))
        with pytest.raises(UsageError, match="not open"):
            ClientMetrics(consumer_of(world, "C1"))
        metrics, producer = asyncio.run(run())
        assert producer.counts().closed
        assert shown(metrics)("producer_accepted_total", "P1") == 1
        assert shown(metrics)("consumer_epoch", "C1") is None
