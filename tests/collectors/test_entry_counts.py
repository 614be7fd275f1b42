"""What a collector and a consumer count: each entry once, whatever is read again."""

import pytest

from collectors.collector import Collector
from collectors.entry_counts import EntryCounts, entries_of
from multicast.control import stream_partition
from multicast.cursor import Cursor
from multicast.entries_read import EntriesRead
from multicast.order import OrderStream, decode
from tests.helpers.in_memory_cluster import InMemoryCluster
from topology.work import collector_work, consumer_work

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
    return entries_of(node.plan, node.name, node.core.entries)


def of(logs, sent=SENT):
    return {log: sent[log] for log in sorted(logs)}


def as_planned(cluster, name, times=1):
    """Give the counts that a plan predicts for a collector, as `CollectorEntries` has them."""
    plan = cluster.control().plan()
    work = collector_work(plan, plan.collector(name))
    sent = {log: times * count for log, count in SENT.items()}
    return tuple(of(logs, sent) for logs in (work.appends, work.passes_on, work.reads, work.drops))


def shown(entries):
    return entries.appended, entries.passed_on, entries.read, entries.dropped


@pytest.mark.parametrize("name", COLLECTORS)
def test_a_drained_tree_has_counted_what_its_plan_predicts(cluster, name):
    for each in COLLECTORS:
        cluster.node(f"{each}.a")
    multicast_all(cluster)
    cluster.settle()
    assert shown(counted(cluster.nodes[f"{name}.a"])) == as_planned(cluster, name)


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
    assert {sum(counts.values()) for counts in shown(counted(new))} == {0}
    multicast_all(cluster)
    cluster.settle("K0.a", "K1.b", "K3.a")
    assert shown(counted(new)) == as_planned(cluster, "K1")


def test_entries_of_the_parent_that_nobody_had_relayed_are_new_to_a_successor(cluster):
    # Init: K0 orders everything; K1 dies before it relays anything.
    cluster.node("K0.a")
    multicast_all(cluster)
    cluster.settle("K0.a")

    # Test: the successor reads the parent's stream before its own.
    new = cluster.node("K1.b")
    cluster.settle("K1.b")
    assert shown(counted(new)) == as_planned(cluster, "K1")


def instance(cluster, writer, entries):
    """Make a core of K1 that has read nothing yet."""
    state, plan = cluster.control(), cluster.control().plan()
    own, parent = (OrderStream(plan, name, state.starts(plan.epoch)) for name in ("K1", "K0"))
    core = Collector(own, parent, writer=writer, entries=entries)
    core.own_end(cluster.end(stream_partition(plan, "K1")))
    return core


def read(cluster, core, *streams):
    """Read these streams of a core to their ends, one after the other."""
    plan = cluster.control().plan()
    for stream in streams:
        partition = stream_partition(plan, stream.collector)
        fetched = cluster.log.read(partition, stream.offset_next, 1_000_000)
        for record in fetched.records if fetched else ():
            give = core.own_read if stream is core.own else core.parent_read
            give(record.offset, record.value)
        if stream is core.own:
            core.own_passed(core.own.offset_next)


def append_all(cluster, core):
    """Store what a core appends; nobody says so to the core."""
    for action in core.step(0):
        cluster.log.write(stream_partition(core.own.plan, "K1"), action.raw)


def streams_of(core, *, own_first):
    return (core.own, core.parent) if own_first else (core.parent, core.own)


@pytest.mark.parametrize("own_first", [True, False])
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("knows", [True, False])
def test_an_instance_that_a_process_restarts_counts_no_entry_twice(
    cluster, stored, knows, own_first
):
    # Init: an instance of K1 has read K0's order, and relayed it or not. It fails before or after
    # it knows that.
    entries = EntryCounts()
    cluster.node("K0.a")
    multicast_all(cluster)
    cluster.settle("K0.a")
    first = instance(cluster, 1, entries)
    read(cluster, first, first.parent)
    if stored:
        append_all(cluster, first)
    if knows:
        read(cluster, first, first.own)

    # Test: the next one of the same process reads both streams from their start.
    second = instance(cluster, 2, entries)
    read(cluster, second, *streams_of(second, own_first=own_first))

    append_all(cluster, second)
    read(cluster, second, second.own)

    # Check: K1 has no ends of P4 here, so it has appended what it relays.
    numbers = {log: second.own.plan.number(log) for log in LOGS}
    assert entries.read() == {numbers[log]: SENT[log] for log in ("P1", "P2", "P3")}
    assert entries.appended() == {
        numbers["P1"]: SENT["P1"], numbers["P2"]: SENT["P2"], numbers["P4"]: 0,
    }  # fmt: skip


@pytest.mark.parametrize("own_first", [True, False])
@pytest.mark.parametrize("restarted", [True, False])
def test_what_another_process_relayed_is_not_counted_but_what_waits_is(
    cluster, restarted, own_first
):
    # Init: another process has relayed all, then K0 orders more. This process has either never run
    # K1, or run it before there was anything.
    entries = EntryCounts()
    cluster.node("K0.a")
    if restarted:
        idle = instance(cluster, 1, entries)
        read(cluster, idle, idle.own, idle.parent)
    multicast_all(cluster)
    cluster.settle("K0.a")
    other = instance(cluster, 2, EntryCounts())
    read(cluster, other, other.own, other.parent)
    append_all(cluster, other)
    more = {"P1": 13, "P2": 17, "P3": 19}
    multicast_all(cluster, more)
    cluster.settle("K0.a")

    # Test: an instance reads both streams from their start, and relays what waits.
    core = instance(cluster, 3, entries)
    read(cluster, core, *streams_of(core, own_first=own_first))
    append_all(cluster, core)
    read(cluster, core, core.own)

    # Check.
    numbers = {log: core.own.plan.number(log) for log in LOGS}
    assert entries.read() == {numbers[log]: count for log, count in more.items()}
    assert entries.appended() == {numbers["P1"]: 13, numbers["P2"]: 17, numbers["P4"]: 0}


def test_two_instances_that_both_append_share_the_entries_between_them(cluster):
    for name in ("K0.a", "K0.b"):
        cluster.node(name)
    for turn in range(6):
        multicast_all(cluster)
        order = ("K0.a", "K0.b") if turn % 2 else ("K0.b", "K0.a")
        for name in order:
            cluster.nodes[name].look()
            cluster.nodes[name].step()
        for name in order:  # the second one's records are void
            cluster.nodes[name].store()
    cluster.settle()
    first, second = (counted(cluster.nodes[name]).appended for name in ("K0.a", "K0.b"))
    assert min(sum(first.values()), sum(second.values())) > 0
    assert {log: first[log] + second[log] for log in first} == as_planned(cluster, "K0", 6)[0]


def test_void_and_foreign_records_are_no_entries(cluster):
    multicast_all(cluster)
    node = cluster.node("K0.a")
    plan = cluster.control().plan()
    cluster.log.write(stream_partition(plan, "K0"), b"not an order record")
    cluster.settle()
    raw = cluster.log.read(stream_partition(plan, "K0"), 1, 1).records[0].value
    cluster.log.write(stream_partition(plan, "K0"), raw)  # a doubled append
    cluster.settle()
    assert sum(node.core.void.values()) == 2
    assert shown(counted(node)) == as_planned(cluster, "K0")


def entries_after(cluster, cursor):
    """Count by log, record by record, what K1's stream orders after a cursor."""
    plan = cluster.control().plan()
    counts = dict.fromkeys(sorted(plan.collector("K1").bag), 0)
    for record in cluster.log.read(stream_partition(plan, "K1"), 0, 1_000_000).records:
        for index, (log, first, end) in enumerate(decode(record.value).runs):
            place = (record.offset, index)
            if place == (cursor.record, cursor.run):
                counts[plan.logs[log].name] += end - cursor.next
            elif place > (cursor.record, cursor.run):
                counts[plan.logs[log].name] += end - first
    return counts


@pytest.mark.parametrize("name", ["C2", "C3"])
def test_a_consumer_counts_what_it_reads_and_drops_from_its_cursor_on(cluster, name):
    for each in COLLECTORS:
        cluster.node(f"{each}.a")
    multicast_all(cluster)
    cluster.settle()
    whole = cluster.consumer(f"{name}.a")
    plan = cluster.control().plan()
    work = consumer_work(plan, plan.subscription(name))

    # Test: it reads everything; another begins in the middle of a run.
    cursors = []
    while whole.read_order() or whole.read_payloads() or whole.deliver(1):
        cursors.append(whole.cursor)
    entries = EntriesRead()
    entries.begin(whole.delivery)
    sums = entries.sums()
    assert (sums.read, sums.dropped) == (of(work.reads), of(work.drops))
    for place, cursor in enumerate(cursors):
        rest = cluster.consumer(f"{name}.{place}", cursor=cursor)
        rest.drain()
        entries = EntriesRead()
        entries.begin(rest.delivery)
        later = entries.sums()

        # Check: each entry after the cursor is counted, none before it is.
        assert later.read == entries_after(cluster, Cursor.parse(cursor))
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
    entries = EntriesRead()
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
    sums = entries.sums()
    assert sums.read == {"P1": 2 + 1 + 1, "P2": 3 + 1, "P4": 7 + 1 + 1}
    assert sums.dropped == {"P2": 3 + 1}
