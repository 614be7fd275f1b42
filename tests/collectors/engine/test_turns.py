"""Collectors in the engine, as threads on a log in memory; nobody else is replaced."""

from collections import Counter
from dataclasses import replace

from collectors.core.collector import LIMITS
from multicast.control import ControlReader, log_partition, stream_partition
from multicast.order.records import OwnRecord, Ticket, encode
from tests.helpers.plans import poster, tag_in
from tests.helpers.small import Small, until

PLAN = poster()
SETS = [{"P1"}, {"P2"}, {"P3"}, {"P4"}, {"P5"}, {"P1", "P3"}, {"P2", "P3", "P4"}]
NAMES = ("C1", "C2", "C3")
P3 = PLAN.number("P3")


def multicast(producer, count):
    """Multicast messages to all sets in turn; return once they are ordered at their tops."""
    receipts = [producer.multicast(b"%d" % n, to=SETS[n % len(SETS)]) for n in range(count)]
    return [str(receipt.ordered(60)) for receipt in receipts]


def check_agreement(system, sent):
    """Each consumer delivers what addresses it once, and each two agree on what both deliver."""
    sequences = {name: system.all(name) for name in NAMES}
    for sequence in sequences.values():
        assert max(Counter(sequence).values()) == 1
        others = [[m for m in other if m in sequence] for other in sequences.values()]
        for other in others:
            assert other == [m for m in sequence if m in other]
    assert {message for sequence in sequences.values() for message in sequence} == {*sent}
    return sequences


def ticket(system, log, messages):
    top = PLAN.top(PLAN.logs[log].name).name
    raw = encode(tag_in(PLAN, top), OwnRecord((Ticket(log, messages, 0),)))
    system.log.write(stream_partition(PLAN, top), raw)


def test_a_tree_orders_messages_without_tickets_and_a_standby_goes_on_for_whoever_ends():
    with Small(PLAN) as system, system.producer(tickets=False) as producer:
        first = [node for node, _ in system.run_all()]
        sent = multicast(producer, 140)
        second = [node for node, _ in system.run_all(standby=True)]
        for node in first:
            node.stop()
        sent += multicast(producer, 140)
        assert all(node.status()["takeovers"] >= 1 for node in second)
        check_agreement(system, sent)
        assert all(node.error is None for node in (*first, *second))


def test_an_instance_that_ends_fills_no_further():
    with Small(PLAN) as system:
        node, thread = system.run(PLAN.top("P3").name)
        ticket(system, P3, 60_000)
        until(lambda: node.status()["skips"])
        node.stop()
        thread.join(60)
        log = log_partition(PLAN.logs[P3])
        assert 0 < system.log.high_watermarks([log])[log] < 60_000


def test_an_instance_and_a_consumer_begin_at_a_checkpoint():
    limits = replace(LIMITS, checkpoint_records=20)
    with Small(PLAN, limits=limits) as system, system.producer(tickets=False) as producer:
        first = [node for node, _ in system.run_all()]
        with system.consumer("C2") as consumer:
            sent = []
            for _ in range(60):
                sent += multicast(producer, 7)
            seen = list(consumer.until_end(timeout=60))
            cursors = [batch.cursor() for batch in seen]
        control = ControlReader(system.driver, PLAN.topic)

        def named():
            stream = control.refresh().stream(1, "K1", below=2**62)
            return stream.offset_next > stream.offset_first

        until(named)
        control.close()
        for node in first:
            node.stop()
        again = [node for node, _ in system.run_all()]
        assert all(node.core.own.count < 60 for node in again)
        sent += multicast(producer, 70)
        whole = check_agreement(system, sent)["C2"]
        for cursor in (cursors[len(cursors) // 2], cursors[-1]):
            with system.consumer("C2", start=cursor, committed=False) as consumer:
                rest = [
                    f"{batch.log.name}:{record.offset}"
                    for batch in consumer.until_end(timeout=60)
                    for record in batch.records
                ]
            assert rest == whole[len(whole) - len(rest) :]
            assert len(rest) < len(whole)
