"""What a collector counts: each entry once, whatever is read again."""

from collectors.core.entry_counts import EntryCounts
from multicast.control import stream_partition
from multicast.order.records import OwnRecord, Ticket, encode
from tests.helpers.plans import predicted, tag_in, with_foreign_work
from tests.helpers.small import Small, until

PLAN = with_foreign_work()
SENT = {"P1": 2, "P2": 3, "P3": 5, "P4": 7, "P5": 11}


def multicast(system):
    with system.producer(tickets=False) as producer:
        for log, count in SENT.items():
            for _ in range(count):
                receipt = producer.multicast(b"", to={log})
            receipt.ordered(60)


def as_planned(name, times=1):
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
        first = counts(node, as_planned("K1"))
        node.stop()
        thread.join(60)

        again, _ = system.run("K1", entries=entries)
        other, _ = system.run("K1", standby=True, patience_s=3600)
        until(lambda: all(each.core.caught_up() for each in (again, other)))
        assert again.status()["entries"] == first
        multicast(system)
        assert counts(again, as_planned("K1", 2)) == as_planned("K1", 2)
        # A standby reads and drops like the instance that acts, and appends nothing. What K0
        # ordered after K1's last relay left no trace, so it may count that: of P3 only.
        reads = {**as_planned("K1"), "appended": {}, "passed_on": {}}
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
