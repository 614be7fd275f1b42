"""When a consumer has read everything: over epochs, sets and interests that later plans added."""

from multicast.consuming.subscription import End, logs_wanted, missing
from multicast.control import log_partition
from multicast.history import HistoryBuilder
from multicast.properties import check_all
from multicast.verification.audit import AuditCollector
from tests.helpers.in_memory_cluster import ALL, InMemoryCluster

LOGS = ["P1", "P2"]
SET = ["P1", "P2", "P1+P2"]
C1 = {"C1": (("P1", "P2"), "K1")}


def end_of(cluster):
    state = cluster.control()
    positions = {log.name: cluster.end(log_partition(log)) for log in logs_wanted(state, None)}
    return End(state.epoch, state.begun_epoch, positions)


def waits_for(cluster, consumer, end):
    return missing(cluster.control(), consumer.wanted, consumer.delivery, end)


def order(cluster):
    """Let the newest epoch's collectors order all there is."""
    plan = cluster.control().plan()
    names = [f"{node.name}.{plan.epoch}" for node in plan.collectors]
    for name in names:
        if name not in cluster.nodes:
            cluster.node(name, epoch=cluster.control().first_epoch(plan.epoch, name.split(".")[0]))
    cluster.settle(*names)


def replanned(cluster, logs, bag, consumers, *, finished=True):
    """Plan the next epoch with one collector, and (unless it stops half-way) end the one before."""
    order(cluster)
    old = [name for name in cluster.nodes if name.endswith(f".{cluster.control().epoch}")]
    collectors = {"K1": (bag, None)} if bag else {}
    cluster.plan(logs, collectors, consumers, streams={"K1": cluster.control().epoch})
    if finished:
        finish(cluster, old)


def finish(cluster, old):
    cluster.mark()
    cluster.settle(*old)
    assert cluster.finish() is not None


def test_the_end_has_a_set_that_a_later_epoch_added():
    cluster = InMemoryCluster()
    cluster.plan(LOGS, {"K1": (LOGS, None)}, C1)
    first = cluster.multicast("P1")
    replanned(cluster, SET, SET, C1)
    second = cluster.multicast("P1+P2")
    end = end_of(cluster)
    consumer = cluster.consumer("C1")
    assert "log P1 is delivered up to" in waits_for(cluster, consumer, end)
    consumer.read_order()
    consumer.read_payloads()
    assert consumer.deliver() == [first]
    assert "epoch 1 is not delivered to its end" in waits_for(cluster, consumer, end)
    consumer.drain()
    assert "log P1+P2 is delivered up to 0 of 1" in waits_for(cluster, consumer, end)
    order(cluster)
    consumer.drain()
    assert waits_for(cluster, consumer, end) is None
    assert consumer.delivered == [first, second]


def test_the_end_follows_an_interest_through_any_number_of_epochs():
    # The consumer reads a single log, then a stream, then a wider one, then a single log again.
    cluster = InMemoryCluster()
    steps = [
        (LOGS, [], {"C1": (("P1",), None)}, "P1"),
        (SET, SET, C1, "P1+P2"),
        (SET, SET, C1, "P2"),
        (
            [*SET, "P3"],
            [*SET, "P3"],
            {"C1": (("P1", "P2", "P3"), "K1"), "C2": (("P1", "P3"), "K1")},
            "P3",
        ),
        ([*SET, "P3"], [], {"C1": (("P3",), None)}, "P3"),
    ]
    logs, _, consumers, to = steps[0]
    cluster.plan(logs, {}, consumers)
    sent = [cluster.multicast(to)]
    for logs, bag, consumers, to in steps[1:]:
        replanned(cluster, logs, bag, consumers)
        sent.append(cluster.multicast(to))
    end = end_of(cluster)
    consumer = cluster.consumer("C1")
    assert waits_for(cluster, consumer, end) is not None
    order(cluster)
    consumer.drain()
    assert waits_for(cluster, consumer, end) is None
    assert consumer.delivered == sent
    assert consumer.delivery.plan.epoch == len(steps)


def test_the_end_waits_for_a_change_that_is_under_way_only_if_messages_depend_on_it():
    cluster = InMemoryCluster()
    cluster.plan(LOGS, {"K1": (LOGS, None)}, C1)
    first = cluster.multicast("P1")
    replanned(cluster, SET, SET, C1, finished=False)
    consumer = cluster.consumer("C1")
    consumer.drain()
    # Test: a producer that knows the plan already sends to the new set; nobody has begun it.
    before = end_of(cluster)
    second = cluster.multicast("P1+P2")
    after = end_of(cluster)
    assert waits_for(cluster, consumer, before) is None
    assert "epoch 2 has not begun" in waits_for(cluster, consumer, after)
    finish(cluster, ["K1.1"])
    order(cluster)
    consumer.drain()
    assert waits_for(cluster, consumer, after) is None
    assert consumer.delivered == [first, second]


def test_the_end_of_a_lone_reader_waits_at_the_marker_of_a_change_that_is_under_way():
    cluster = InMemoryCluster()
    cluster.plan(LOGS, {}, {"C1": (("P1",), None)})
    replanned(cluster, LOGS, LOGS, C1, finished=False)
    cluster.mark()
    second = cluster.multicast("P1")
    consumer = cluster.consumer("C1")
    consumer.drain()
    end = end_of(cluster)
    assert "epoch 2 has not begun" in waits_for(cluster, consumer, end)
    cluster.finish()
    order(cluster)
    consumer.drain()
    assert waits_for(cluster, consumer, end) is None
    assert consumer.delivered == [second]


def audit_of(cluster, audit, *names):
    """Read with every consumer up to the audit's end, and check the audit's history."""
    for name in names:
        consumer = cluster.consumer(name)
        audit.begins(name, consumer.wanted, consumer.delivery.position.epoch)
        while waits_for(cluster, consumer, audit.end) is not None:
            consumer.read_order()
            consumer.read_payloads()
            batches = consumer.delivery.deliver(ALL)
            for batch in batches:
                audit.delivered(name, "1", batch)
            assert (
                batches or consumer.turn_epoch() or waits_for(cluster, consumer, audit.end) is None
            )
        audit.ended(name, "1")
    state = cluster.control()
    for log in state.plan(audit.end.epoch).logs:
        fetched = cluster.log.read(log_partition(log), 0, ALL)
        audit.logged(state, log, fetched.records if fetched else ())
    report = check_all(audit.history(state))
    assert not report.violations, [str(verdict.witness) for verdict in report.violations]
    return report


def test_an_audit_owes_nobody_what_its_interest_had_not_yet_or_came_after_the_end():
    cluster = InMemoryCluster()
    both = {**C1, "C2": (("P2",), None)}
    cluster.plan(LOGS, {"K1": (LOGS, None)}, both)
    for to in ("P1", "P2", "P1"):
        cluster.multicast(to)
    replanned(cluster, LOGS, LOGS, {**C1, "C2": (("P1", "P2"), "K1")})
    cluster.multicast("P1")
    audit = AuditCollector(end_of(cluster))
    cluster.multicast("P1")
    order(cluster)
    report = audit_of(cluster, audit, "C1", "C2")
    assert report.deliveries == 4 + 2
    assert {verdict.guarantee for verdict in report.verdicts if verdict.verdict == "holds"} > {
        "validity",
        "uniform agreement",
        "uniform integrity",
    }


def test_an_audit_misses_what_a_grown_interest_should_have_delivered():
    cluster = InMemoryCluster()
    cluster.plan(LOGS, {"K1": (LOGS, None)}, {**C1, "C2": (("P2",), None)})
    cluster.multicast("P1")
    replanned(cluster, LOGS, LOGS, {**C1, "C2": (("P1", "P2"), "K1")})
    lost = cluster.multicast("P1")
    order(cluster)
    audit = AuditCollector(end_of(cluster))
    consumer = cluster.consumer("C2")
    audit.begins("C2", consumer.wanted, 1)
    audit.ended("C2", "1")
    state = cluster.control()
    audit.logged(
        state,
        state.plan().log("P1"),
        cluster.log.read(log_partition(state.plan().log("P1")), 0, ALL).records,
    )
    (validity,) = check_all(audit.history(state)).violations
    assert f"{lost} was multicast to P1 and acknowledged, but C2" in str(validity.witness)


def test_an_interest_that_a_history_gives_for_each_epoch_is_judged_in_each():
    def judged(*, lacks=()):
        builder = HistoryBuilder()
        builder.interest(consumer="C1", interest=["P1"])
        builder.interest(consumer="C1", interest=["P1", "P2"], epoch=2)
        builder.interest(consumer="C2", interest=["P2"], epoch=2)
        for name, to, epoch in (("P2:0", "P2", 1), ("P1:0", "P1", 1), ("P2:1", "P2", 2)):
            for consumer, wanted in (("C1", {1: "P1", 2: "P1P2"}), ("C2", {1: "", 2: "P2"})):
                if to in wanted[epoch] and name not in lacks:
                    builder.delivery(consumer=consumer, message_id=name, to=[to], epoch=epoch)
            builder.acknowledgement(
                producer="p", message_id=name, to=[to], outcome="accepted", epoch=epoch
            )
        builder.end(consumer="C1")
        builder.end(consumer="C2")
        return [str(verdict.witness) for verdict in check_all(builder.history()).violations]

    assert judged() == []
    assert any("P2:1 was multicast to P2" in witness for witness in judged(lacks=["P2:1"]))
