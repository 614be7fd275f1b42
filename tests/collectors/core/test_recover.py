"""Recoveries, on a log in memory with the engine's collectors."""

import threading
from collections import Counter
from contextlib import closing
from dataclasses import replace

import pytest

import collectors.core.mending
import collectors.engine.instance
import collectors.reconfiguration.recovery
from collectors.core.collector import LIMITS
from collectors.core.mending import Harm
from collectors.doctor.inspection import _work
from collectors.reconfiguration.drain import drain
from collectors.reconfiguration.recovery import SKIPS_MAX, recover
from collectors.reconfiguration.survey import (
    counted_runs,
    find_damage,
    read_streams,
    refuse_damaged,
)
from multicast.control import (
    ControlReader,
    collectors_partition,
    control_partition,
    log_partition,
    stream_partition,
)
from multicast.errors import Conflict, Trimmed
from multicast.order.records import OwnRecord, Ticket, encode
from tests.helpers.forged import far, freeze, is_relayed, jump
from tests.helpers.plans import chain, poster, tag_in
from tests.helpers.small import Small, state_of, until

PLAN = poster()
CHAIN = chain()
SETS = [{"P1"}, {"P2"}, {"P3"}, {"P4"}, {"P5"}, {"P1", "P3"}, {"P2", "P3", "P4"}]
NAMES = ("C1", "C2", "C3")
PLAN_NAMES = {node.name for node in PLAN.collectors}
ROOT = next(node.name for node in PLAN.collectors if node.parent is None)
CHILD = PLAN.top("P1").name


class Topics:
    """The part of an admin client that a recovery needs."""

    def __init__(self, system):
        self._log = system.log

    def create_topics(self, topics):
        for name, spec in topics.items():
            self._log.create(name, spec.partitions)


def forge(system, name, make, *, is_away=False):
    """Append what `make` says of a collector's stream, until it counts before anybody else's.

    Before, all that is ordered is relayed, unless the collector is away.
    """
    until(lambda: is_away or is_relayed(read_streams(system.driver, state_of(system))))

    def counts():
        stream = read_streams(system.driver, state_of(system))[name].stream
        partition = stream_partition(stream.plan, name)
        offset = system.log.write(partition, make(stream))
        whole, end = state_of(system).opened(1, name), offset + 1
        return offset in {where for where, _ in counted_runs(system.driver, whole, end)}

    until(counts)


def multicast(system, count):
    producer = system.producer(tickets=False)
    receipts = [producer.multicast(b"%d" % n, to=SETS[n % len(SETS)]) for n in range(count)]
    sent = [str(receipt.accepted(60)) for receipt in receipts]
    producer.close()
    return sent


def ordered(system, count):
    with system.producer(tickets=False) as producer:
        receipts = [producer.multicast(b"", to=SETS[n % len(SETS)]) for n in range(count)]
        return [str(receipt.ordered(60)) for receipt in receipts]


def found_in(system):
    """Give what is damaged; the doctor finds the same in the streams that it has read."""
    state, streams = state_of(system), {}
    found = find_damage(system.driver, state)
    _work(system.driver, state, 0.0, streams)
    assert find_damage(system.driver, state, streams) == found
    return found


def recovered(system, **options):
    return recover(system.driver, Topics(system), system.plan.topic, timeout_s=60, **options)


def check(system, sent, *, lives=False):
    """Each consumer delivers what addresses it once, and each two agree on what both deliver.

    With `lives`, messages may have other IDs than their producers got.
    """
    sequences = {name: system.all(name) for name in NAMES}
    for sequence in sequences.values():
        assert max(Counter(sequence).values()) == 1
        for other in sequences.values():
            common = [message for message in sequence if message in other]
            assert common == [m for m in other if m in sequence]
    delivered = {message for sequence in sequences.values() for message in sequence}
    if lives:
        delivered, sent = ({m.replace("~1", "") for m in each} for each in (delivered, sent))
    assert delivered == {*sent}


def test_where_nothing_is_damaged_a_recovery_changes_nothing():
    with Small(PLAN) as system:
        system.run_all()
        sent = ordered(system, 70)
        assert found_in(system) == ()
        refuse_damaged(system.driver, state_of(system))
        assert recovered(system).changed is False
        check(system, sent)


@pytest.mark.parametrize("name", [ROOT, CHILD], ids=["a root", "a child"])
def test_a_stream_that_was_frozen_too_early_goes_on_in_the_next_epoch(name):
    with Small(PLAN) as system:
        system.run_all()
        sent = ordered(system, 21)
        forge(system, name, freeze)
        sent += multicast(system, 21)
        (damage,) = found_in(system)
        assert (damage.harm, damage.collector) == (Harm.FROZEN, name)
        with pytest.raises(Conflict, match="topology recover"):
            refuse_damaged(system.driver, state_of(system))
        assert recovered(system).epoch == 2
        system.run_all(epoch=2)
        sent += ordered(system, 21)
        assert found_in(system) == ()
        check(system, sent)


def test_a_child_that_has_relayed_another_record_than_its_parent_has_there_is_mended():
    with Small(PLAN) as system:
        system.run_all()
        sent = ordered(system, 21)
        forge(system, CHILD, jump(1))
        # It orders nothing, so only its checksum tells that it is not the one that was relayed.
        parent = PLAN.collector(CHILD).parent
        system.log.write(stream_partition(PLAN, parent), b"another record")
        # As if the parent's stream had lost what was relayed.
        harms = {(parent, Harm.CUT)}
        until(lambda: harms == {(d.collector, d.harm) for d in found_in(system)})
        assert recovered(system, lossy=True).epoch == 2
        system.run_all(epoch=2)
        sent += ordered(system, 21)
        assert found_in(system) == ()
        check(system, sent, lives=True)


@pytest.mark.parametrize("renumbers", [False, True])
def test_a_child_that_left_out_records_of_its_parent_has_them_restored_in_their_order(renumbers):
    """They go to their logs though a plan has renumbered these meanwhile."""
    epoch = 1 + renumbers
    with Small(PLAN) as system:
        system.run_all()
        sent = ordered(system, 21)
        if renumbers:
            system.propose(replace(PLAN, epoch=2, base_epoch=1, logs=PLAN.logs[::-1]))
            with closing(ControlReader(system.driver, PLAN.topic)) as control:
                control.refresh()
                drain(system.driver, control, 1, timeout_s=60, say=lambda _: None)
                assert control.refresh().retained(1).collectors == PLAN_NAMES
        forge(system, CHILD, jump(1000))  # no relay can begin behind the gap
        sent += multicast(system, 210)

        def strayed():
            return (Harm.STRAYED, CHILD) in {(d.harm, d.collector) for d in found_in(system)}

        until(strayed, pause=0.05)
        assert recovered(system).epoch == epoch + 1
        assert state_of(system).ended[epoch].restored[CHILD] > 0
        system.run_all(epoch=epoch + 1)
        sent += ordered(system, 21)
        assert found_in(system) == ()
        check(system, sent)


def test_a_child_that_ordered_what_is_its_parents_to_order_loses_and_doubles_nothing():
    """All are ordered anew from where it did: it is as if the parent had lost what it ordered."""
    with Small(PLAN) as system:
        system.run_all()
        sent = ordered(system, 21)
        forge(system, CHILD, jump(1, log="P3", by=5000))
        sent += multicast(system, 21)
        until(lambda: Harm.CUT in {damage.harm for damage in found_in(system)})
        assert recovered(system, lossy=True).epoch == 2
        assert state_of(system).plan().log("P3").life == 1
        system.run_all(epoch=2)
        sent += ordered(system, 21)
        assert found_in(system) == ()
        check(system, sent, lives=True)


def test_a_log_that_is_ordered_too_far_is_filled_and_its_epoch_goes_on(monkeypatch):
    core, changes = collectors.core, collectors.reconfiguration
    modules = (collectors.engine.instance, core.mending, changes.recovery)
    for module in modules:  # else the log would be large
        monkeypatch.setattr(module, "LIMITS", replace(LIMITS, fill_max=1000))
    with Small(PLAN) as system:
        system.run_all()
        sent = ordered(system, 21)
        forge(system, CHILD, far("P1", SKIPS_MAX + 1000))
        (damage,) = found_in(system)
        assert damage.harm is Harm.TOO_FAR
        with pytest.raises(Conflict, match="give --yes"):
            recovered(system)
        done = recovered(system, yes=True)
        assert (done.epoch, done.changed) == (1, True)
        sent += ordered(system, 21)
        assert found_in(system) == ()
        check(system, sent)


class Killed(Exception):
    """The end of an operator's process in the middle of its work."""


def test_a_recovery_that_was_killed_at_any_step_is_finished_by_the_next(monkeypatch):
    with Small(PLAN) as system:
        system.run_all()
        sent = ordered(system, 21)
        forge(system, CHILD, jump(1000))  # no relay can begin behind the gap
        forge(system, ROOT, freeze)
        sent += multicast(system, 21)
        steps, whole = 0, type(system.driver.appender()).flush
        refused = "--accept-loss"  # unless another sentence comes
        while True:
            steps += 1
            left = steps

            def flush(appender, timeout_s):
                nonlocal left
                done = whole(appender, timeout_s)
                if threading.current_thread() is threading.main_thread():
                    left -= 1
                if left == 0:
                    raise Killed
                return done

            with monkeypatch.context() as patched:
                patched.setattr(type(system.driver.appender()), "flush", flush)
                try:
                    recovered(system)
                except Killed:
                    continue
                except Conflict as error:  # the child is frozen: a cut parent would look the same
                    refused = str(error)
                    patched.undo()
                    recovered(system, lossy=True)
                break
        assert 2 <= steps <= 30
        assert "--accept-loss" in refused
        epoch = state_of(system).begun_epoch
        assert epoch in (2, 3)
        system.run_all(epoch=epoch)
        sent += ordered(system, 21)
        check(system, sent, lives=True)


def test_what_a_plan_of_another_layout_would_lose_is_accepted_only_as_a_loss():
    with Small(CHAIN) as system:
        running = system.run_all()
        forge(system, "K1", freeze)
        with system.producer(tickets=False) as producer:
            producer.multicast(b"", to={"P2"}).accepted(60)
        ends = system.driver.last_stable_offsets([stream_partition(CHAIN, n) for n in ("K1", "K2")])
        collectors = [
            replace(node, stream_first=ends[stream_partition(CHAIN, node.name)])
            for node in CHAIN.collectors
        ]
        fewer = (CHAIN.consumers[0], CHAIN.consumers[2])
        system.propose(
            replace(CHAIN, epoch=2, base_epoch=1, consumers=fewer, collectors=tuple(collectors))
        )
        for node, thread in running:
            node.stop()
            thread.join(60)
        places = [stream_partition(CHAIN, node.name) for node in CHAIN.collectors]
        control = control_partition(CHAIN.topic), collectors_partition(CHAIN.topic)
        before = system.driver.high_watermarks([*places, *control])
        with pytest.raises(Conflict, match=r"another layout.*--accept-loss"):
            recovered(system)
        after = system.driver.high_watermarks(list(before))
        assert after == before, "refused before the first change"
        assert recovered(system, lossy=True).epoch == 2


# K2 inherits both logs of K1.
WIDE = replace(
    CHAIN,
    collectors=(CHAIN.collectors[0], replace(CHAIN.collectors[1], bag=("P1", "P2", "P3"))),
    consumers=(
        CHAIN.consumers[0],
        replace(CHAIN.consumers[1], interest=("P1", "P2", "P3")),
        CHAIN.consumers[2],
    ),
)


def ticketed(system, log):
    """Multicast a message to a log, and write its ticket into the stream of K1."""
    with system.producer(tickets=False) as producer:
        producer.multicast(b"", to={log}).accepted(60)
    raw = encode(tag_in(WIDE, "K1"), OwnRecord((Ticket(WIDE.number(log), 1, 0),)))
    system.log.write(stream_partition(WIDE, "K1"), raw)


def overtaken(system, *, deletes=True):
    """Let K2 be away until retention deletes the first records of K1, and break its stream.

    Gives the order of K1's messages as [(log, offset)], and K1's first checkpoint that is kept.
    """
    node, thread = system.run("K1")
    while not (points := [p for p in state_of(system).checkpoints(1, "K1") if p.read_from > 0]):
        for log in ("P1", "P2"):
            ticketed(system, log)
    node.stop()
    thread.join(60)
    for log in ("P2", "P1"):
        ticketed(system, log)
    order = order_in(system, 1, "K1")
    if deletes:
        system.log.trim(stream_partition(WIDE, "K1"), points[0].read_from)
    forge(system, "K2", freeze, is_away=True)
    return order, points[0]


def order_in(system, epoch, name):
    """Give what counts in a collector's stream as [(log, offset)], in its order."""
    stream = state_of(system).opened(epoch, name)
    partition = stream_partition(stream.plan, name)
    end = system.driver.last_stable_offsets([partition])[partition]
    return [
        (log, offset)
        for _, runs in counted_runs(system.driver, stream, end)
        for log, first, end in runs
        for offset in range(first, end)
    ]


def restored(system):
    """What the recovery has written into the next stream of K2, in its order."""
    return order_in(system, 2, "K2")


def test_a_recovery_refuses_to_guess_the_order_that_retention_has_deleted():
    with Small(WIDE, limits=replace(LIMITS, checkpoint_records=6)) as system:
        order, point = overtaken(system)
        with pytest.raises(Conflict, match="messages of logs P1, P2, whose order is lost"):
            recovered(system)
        assert state_of(system).epoch == 1, "refused before the first change"

        # When retention has deleted the messages of one log, too, the others have one order.
        kept = point.positions[WIDE.number("P1")]
        system.log.trim(log_partition(WIDE.log("P1")), kept)
        assert recovered(system).epoch == 2
        left = [(log, offset) for log, offset in order if log or offset >= kept]
        assert [(log, offset) for log, offset in restored(system) if log or offset >= kept] == left


def test_what_retention_has_deleted_of_the_order_is_restored_log_by_log_where_that_is_accepted():
    with Small(WIDE, limits=replace(LIMITS, checkpoint_records=6)) as system:
        order, _ = overtaken(system)
        assert recovered(system, lossy=True).epoch == 2
        assert sorted(restored(system)) == sorted(order)
        system.run_all(epoch=2)
        delivered = [message for message in system.all("C2") if not message.startswith("P3")]
        assert sorted(delivered) == sorted(f"P{log + 1}:{offset}" for log, offset in order)


@pytest.mark.parametrize("deletes", [False, True])
def test_what_an_interrupted_recovery_has_restored_counts_unless_retention_has_gone_on(
    monkeypatch, deletes
):
    original = collectors.reconfiguration.recovery.restore

    def killed(*args, **options):
        original(*args, **options)
        raise Killed

    with Small(WIDE, limits=replace(LIMITS, checkpoint_records=6)) as system:
        order, point = overtaken(system, deletes=False)
        with monkeypatch.context() as patched:
            patched.setattr(collectors.reconfiguration.recovery, "restore", killed)
            with pytest.raises(Killed):
                recovered(system)
        partition = stream_partition(state_of(system).plan(2), "K2")
        before = system.driver.last_stable_offsets([partition])
        if deletes:
            system.log.trim(stream_partition(WIDE, "K1"), point.read_from)
            with pytest.raises(Conflict, match="whose order is lost"):
                recovered(system)
            assert 1 not in state_of(system).ends
        assert recovered(system, lossy=deletes).epoch == 2
        assert (restored(system) == order) is not deletes, "log by log"
        assert sorted(restored(system)) == sorted(order)
        assert (system.driver.last_stable_offsets([partition]) == before) is not deletes
        assert found_in(system) == ()


def test_a_recovery_says_what_to_do_where_retention_has_left_neither_start_nor_checkpoint():
    with Small(CHAIN) as system:
        node, thread = system.run("K1")
        with system.producer(tickets=False) as producer:
            producer.multicast(b"", to={"P1"}).ordered(60)
        node.stop()
        thread.join(60)
        stream = stream_partition(CHAIN, "K1")
        system.log.trim(stream, system.driver.last_stable_offsets([stream])[stream])
        with pytest.raises(
            Trimmed, match=r"delete the topics A\.groups, A\.Msg-TO, A\.topology, A\.collectors "
        ):
            recovered(system)
