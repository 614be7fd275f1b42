"""What a collector and a consumer count: each entry once, whatever is read again."""

import threading
from dataclasses import asdict

import pytest

from collectors.core.entry_counts import EntryCounts, entries_of
from multicast.consuming.cursor import Cursor
from multicast.control import stream_partition
from multicast.metrics.consumed import ConsumptionCounter
from multicast.order.records import OwnRecord, Ticket, encode
from multicast.order.rule import NotCounted
from tests.helpers.in_memory_cluster import InMemoryCluster
from tests.helpers.plans import predicted, tag_in, with_foreign_work
from tests.helpers.small import Small, until

LOGS = ("P1", "P2", "P3", "P4", "P5")
COLLECTORS = {
    "K0": (("P1", "P2", "P3"), None),
    "K1": (("P1", "P2", "P4"), "K0"),
    "K3": (("P4", "P5"), "K1"),
}
CONSUMERS = {
    "C1": (("P1", "P2"), "K1"),
    "C2": (("P2", "P4"), "K1"),
    "C3": (("P1", "P4"), "K1"),
    "C4": (("P4", "P5"), "K3"),
}
SENT = {"P1": 2, "P2": 3, "P3": 5, "P4": 7, "P5": 11}
PLAN = with_foreign_work()


@pytest.fixture
def cluster():
    made = InMemoryCluster()
    made.plan(LOGS, COLLECTORS, CONSUMERS)
    return made


def multicast_all(cluster, sent=SENT):
    for log, count in sent.items():
        for _ in range(count):
            cluster.multicast(log)


def counted(node):
    return asdict(entries_of(node.plan, node.name, node.core.entries))


def as_planned(cluster, name):
    return predicted(cluster.control().plan(), SENT)[name]


def of(logs):
    return {log: SENT[log] for log in sorted(logs)}


def test_a_process_that_begins_after_a_crash_counts_only_what_is_new(cluster):
    # Init: everything is ordered and relayed, then K1's process is killed.
    for each in COLLECTORS:
        cluster.node(f"{each}.a")
    multicast_all(cluster)
    cluster.settle()

    # Test: its successor reads both streams again from their start.
    new = cluster.node("K1.b")
    cluster.settle("K1.b")

    # Check: nothing is new; then the new messages are, once.
    assert {sum(counts.values()) for counts in counted(new).values()} == {0}
    multicast_all(cluster)
    cluster.settle("K0.a", "K1.b", "K3.a")
    assert counted(new) == as_planned(cluster, "K1")


def test_entries_of_the_parent_that_nobody_had_relayed_are_new_to_a_successor(cluster):
    # Init: K0 orders everything; K1 dies before it relays anything.
    cluster.node("K0.a")
    multicast_all(cluster)
    cluster.settle("K0.a")

    # Test: the successor reads the parent's stream before its own.
    new = cluster.node("K1.b")
    cluster.settle("K1.b")
    assert counted(new) == as_planned(cluster, "K1")


def test_doubled_and_foreign_records_are_no_entries(cluster):
    multicast_all(cluster)
    node = cluster.node("K0.a")
    plan = cluster.control().plan()
    cluster.log.write(stream_partition(plan, "K0"), b"not an order record")
    cluster.settle()
    raw = cluster.log.read(stream_partition(plan, "K0"), 1, 1).records[0].value
    cluster.log.write(stream_partition(plan, "K0"), raw)  # a doubled append
    cluster.settle()
    assert sum(node.core.void.values()) == 1
    assert counted(node) == as_planned(cluster, "K0")


def entries_after(cluster, cursor):
    """Count by log, record by record, what K1's stream orders after a cursor."""
    plan = cluster.control().plan()
    counts = dict.fromkeys(sorted(plan.collector("K1").bag), 0)
    stream = cluster.control().opened(plan.epoch, "K1")
    for record in cluster.log.read(stream_partition(plan, "K1"), 0, 1_000_000).records:
        judged = stream.read(record.offset, record.value)
        runs = () if isinstance(judged, NotCounted) else judged
        for index, (log, first, end) in enumerate(runs):
            place = (record.offset, index)
            if place == (cursor.record, cursor.run):
                counts[plan.logs[log].name] += end - cursor.next
            elif place > (cursor.record, cursor.run):
                counts[plan.logs[log].name] += end - first
    return counts


def counter():
    return ConsumptionCounter("", None, threading.RLock(), None)


@pytest.mark.parametrize("name", ["C2", "C3"])
def test_a_consumer_counts_what_it_reads_and_drops_from_its_cursor_on(cluster, name):
    for each in COLLECTORS:
        cluster.node(f"{each}.a")
    multicast_all(cluster)
    cluster.settle()
    whole = cluster.consumer(f"{name}.a")
    plan = cluster.control().plan()
    entry = plan.subscription(name)
    reads = frozenset(plan.collector(entry.collector).bag)
    drops = reads - {log.name for log in plan.logs_of(entry.interest)}

    # Test: it reads everything; another begins in the middle of a run.
    cursors = []
    while whole.read_order() or whole.read_payloads() or whole.deliver(1):
        cursors.append(whole.cursor)
    entries = counter()
    entries.begin(whole.delivery)
    sums = entries.entries()
    assert (sums.read, sums.dropped) == (of(reads), of(drops))
    for place, cursor in enumerate(cursors):
        rest = cluster.consumer(f"{name}.{place}", cursor=cursor)
        rest.drain()
        entries = counter()
        entries.begin(rest.delivery)
        later = entries.entries()

        # Check: each entry after the cursor is counted, none before it is.
        assert later.read == entries_after(cluster, Cursor.of(cursor))
        count = sum(later.read.values())
        wanted = count - sum(later.dropped.values())
        assert wanted == len(rest.delivered) == len(cursors) - place - 1
        assert later.genuineness == (wanted / count if count else None)


def test_a_consumer_adds_up_what_it_read_in_each_epoch(cluster):
    for each in COLLECTORS:
        cluster.node(f"{each}.a")
    multicast_all(cluster)
    cluster.settle()
    consumer = cluster.consumer("C3.a")
    entries = counter()
    entries.begin(consumer.delivery)
    consumer.drain()

    # Test: in the next plan C3 has a collector of its own, and drops nothing.
    cluster.plan(("P1", "P4"), {"J": (("P1", "P4"), None)}, {"C3": (("P1", "P4"), "J")})
    cluster.mark()
    cluster.settle()
    cluster.finish()
    before = consumer.delivery
    while consumer.delivery is before:
        consumer.read_order()
        consumer.read_payloads()
        consumer.deliver()
        consumer.turn_epoch()
    entries.begin(consumer.delivery)
    cluster.node("J.a")
    multicast_all(cluster, {"P1": 1, "P4": 1})
    cluster.settle("J.a")
    consumer.drain()

    # Check: the markers of the first epoch are entries, too.
    sums = entries.entries()
    assert sums.read == {"P1": 2 + 1 + 1, "P2": 3 + 1, "P4": 7 + 1 + 1}
    assert sums.dropped == {"P2": 3 + 1}


def multicast(system):
    with system.producer(tickets=False) as producer:
        for log, count in SENT.items():
            for _ in range(count):
                receipt = producer.multicast(b"", to={log})
            receipt.ordered(60)


def planned(name, times=1):
    """What the plan predicts for a collector, by kind and log."""
    return predicted(PLAN, {log: times * count for log, count in SENT.items()})[name]


def counts(node, wanted):
    """What an instance has counted, once that is as much as it should be."""

    def enough():
        shown = node.status()["entries"]
        return all(sum(shown[kind].values()) >= sum(wanted[kind].values()) for kind in wanted)

    until(enough)
    return node.status()["entries"]


def test_an_instance_that_a_process_restarts_goes_on_and_another_process_counts_what_is_new():
    with Small(PLAN) as system:
        for name in ("K0", "K2", "K3"):
            system.run(name)
        entries = EntryCounts()
        node, thread = system.run("K1", entries=entries)
        multicast(system)
        first = counts(node, planned("K1"))
        node.stop()
        thread.join(60)

        again, _ = system.run("K1", entries=entries)
        other, _ = system.run("K1", standby=True, patience_s=3600)
        until(lambda: all(each.core.caught_up() for each in (again, other)))
        assert again.status()["entries"] == first
        multicast(system)
        assert counts(again, planned("K1", 2)) == planned("K1", 2)
        # A standby reads and drops like the instance that acts, and appends nothing. What K0
        # ordered after K1's last relay left no trace, so it may count that: of P3 only.
        reads = {**planned("K1"), "appended": {}, "passed_on": {}}
        shown = counts(other, reads)
        assert {**shown["appended"], **shown["passed_on"]}.items() <= dict.fromkeys(SENT, 0).items()
        assert {log: shown["read"][log] for log in ("P1", "P2")} == {"P1": 2, "P2": 3}
        assert 5 <= shown["read"]["P3"] <= 10


def test_what_a_producers_ticket_orders_no_collector_has_appended():
    with Small(PLAN) as system:
        with system.producer(tickets=False) as producer:
            for _ in range(4):
                producer.multicast(b"", to={"P1"}).accepted(60)
        raw = encode(tag_in(PLAN, "K0"), OwnRecord((Ticket(PLAN.number("P1"), 4, 0),)))
        system.log.write(stream_partition(PLAN, "K0"), raw)
        nodes = {node.name: node for node, _ in system.run_all()}
        until(lambda: nodes["K1"].status()["entries"]["appended"]["P1"] == 4)
        assert nodes["K0"].status()["entries"]["appended"]["P1"] == 0
        assert nodes["K1"].status()["entries"]["read"]["P1"] == 4
