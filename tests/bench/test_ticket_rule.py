"""Two readings of the order records, written independently, agree on every record."""

import random
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from bench.pipeline.rule import EPOCH_PLACES, PlannedOrder, Statement, read_control
from bench.pipeline.ticket_rule import StreamReading, scan
from collectors.reconfiguration.survey import counted_runs
from multicast.control import plan_record, stream_partition
from multicast.drivers.protocol import TopicPartition
from multicast.order.records import (
    Correction,
    FreezeRecord,
    Loss,
    OwnRecord,
    Position,
    RelayRecord,
    RestoredRecord,
    SeenEnd,
    SightRecord,
    Ticket,
    encode,
)
from multicast.order.rule import NotCounted
from multicast.order.runs import digest_of
from tests.bench.test_pipeline import (
    session,  # noqa: F401 - a fixture
)
from tests.collectors.core.test_recover import CHILD, forge, multicast, ordered, recovered
from tests.collectors.core.test_recover import PLAN as RECOVERED
from tests.helpers.driver_worlds import whole
from tests.helpers.forged import jump
from tests.helpers.plans import chain, first_stream, tag_in
from tests.helpers.small import Small, state_of

PLAN = chain()
SEEDS = range(60)
LENGTH = 120


def rule_of(plan, collector):
    order = PlannedOrder()
    said = plan_record(digest_of(b"amcast genesis\0" + plan.topic.encode()), plan, attempt="a")
    read_control(plan.topic, [Statement(*said)], order)
    (rule,) = (rule for rule in order.rules if rule.collector == collector)
    return rule


def drawn(stream, rng):
    """A record that may count now, or is wrong in one respect."""
    state = stream.state
    own = [log for log in sorted(state.positions) if log in stream.own or rng.random() < 0.05]
    positions = state.positions
    if state.restored < stream.shape.owed and rng.random() < 0.5:
        first = max(0, state.restored + rng.choice((0, 0, 0, -1, 1)))
        entries = [Position(log, positions[log] + rng.randint(0, 5)) for log in positions]
        entries = rng.choices([*entries, Position(99, 1)], [9] * len(entries) + [1], k=2)
        entries = entries[: rng.randint(0, 2)]
        return RestoredRecord(first, first + len(entries) + rng.choice((0, 0, 0, 1)), (*entries,))
    kinds = ("tickets", "tickets", "tickets", "corrections", "relay", "relay", "mark", "sight")
    kind = rng.choice(kinds)
    if kind == "tickets":
        tickets = []
        for log in rng.choices(own, k=rng.randint(0, 3)):
            near = max(0, positions[log] + rng.randint(-3, 9))
            upto = rng.choice((*[near] * 20, 0, 2**30, near + 2**14, near + 2**15))
            tickets.append(Ticket(log, rng.choice((0, 1, 1, 2, 7)), upto))
        return OwnRecord(tuple(tickets))
    if kind == "corrections":
        return OwnRecord(
            tuple(Ticket(log, 1, 0) for log in own if rng.random() < 0.3),
            tuple(
                Correction(
                    log,
                    state.corrections.get(log, 0) + rng.choice((0, 1, 1, 2)),
                    rng.randint(0, 5),
                    rng.random() < 0.3,
                )
                for log in own
            ),
        )
    if kind == "relay":
        inherited = sorted(stream.inherited) or [0]
        entries = tuple(
            Position(log, max(0, positions[log] + rng.randint(-2, 6)))
            for log in rng.choices(inherited, k=rng.randint(0, 3))
        )
        first = max(0, state.parent_next + rng.choice((0, 0, -2, 1)))
        end = state.parent_next + rng.choice((0, 1, 4))
        if rng.random() < 0.05:
            return RestoredRecord(first, end, entries)
        before = state.parent_last + (rng.random() < 0.1)
        return RelayRecord(first, end, entries, before, rng.randrange(5))
    if kind == "sight":
        logs = rng.choices([*positions, 99], [9] * len(positions) + [1], k=rng.randint(0, 3))
        seen = [
            SeenEnd(log, positions.get(log, 0) + rng.choice((-2, 1, 5, 9, 30, 2**25)), 3)
            for log in logs
        ]
        seen = [
            SeenEnd(each.log, max(0, each.end), rng.randrange(6), rng.randrange(3)) for each in seen
        ]
        lost = [Loss(log, rng.randrange(100)) for log in logs if rng.random() < 0.2]
        return SightRecord(tuple(seen), tuple(lost))
    point = stream.marked if rng.random() < 0.7 else stream.checkpoint()
    return replace(point, mark=max(0, point.mark + rng.choice((0, 0, 0, -1, 1))))


def the_same(point):
    """A checkpoint's state as the judge keeps it."""
    own = [(*log[:4], int(log.held)) for log in point.own]
    seen, lost = [tuple(each) for each in point.seen], [tuple(each) for each in point.lost]
    inherited = [tuple(each) for each in point.inherited]
    return point.parent_next, point.parent_last, point.restored, own, inherited, seen, lost


def judged(seed):
    """Yield what each of the two readings says of a stream as a log may come to hold it."""
    rng = random.Random(seed)
    collector, owed = ("K1", "K2")[seed % 2], seed % 3
    real = first_stream(PLAN, collector, owed=owed)
    mine = StreamReading(replace(rule_of(PLAN, collector), restored=owed))
    tag, raws = tag_in(PLAN, collector), []
    for offset in range(LENGTH):
        record = drawn(real, rng)
        if offset > LENGTH - 10 and rng.random() < 0.4:
            ends = tuple(Position(*end) for end in sorted(real.state.positions.items()))
            record = FreezeRecord(real.state.parent_next + rng.choice((0, 0, 1)), ends)
        raw = encode(tag, record)
        spoiled = bytearray(raw)
        spoiled[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        raw = rng.choice((*[raw] * 20, bytes(spoiled), raw[:-3], raw + b"x", b"other", *raws[-2:]))
        raws.append(raw)
        yield real.read(offset, raw), mine.take(offset, raw)
        assert {**mine.debts} == {log: real.state.debts[log] for log in mine.debts}
        assert mine.positions == real.state.positions
        assert (mine.parent_last, mine.lost) == (real.state.parent_last, real.state.lost)
        assert mine.marked == the_same(real.marked)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_readings_agree_on_every_record(seed):
    for real, mine in judged(seed):
        if isinstance(real, NotCounted):
            assert mine == real.name.lower()
        else:
            runs = [(PLAN.logs[run.log].name, run.first, run.next) for run in real]
            assert [(run.log, run.first, run.next) for run in mine] == runs


def test_over_all_seeds_every_reason_occurs():
    found = Counter(
        real.name if isinstance(real, NotCounted) else "RUNS" if real else "NO RUNS"
        for seed in SEEDS
        for real, _ in judged(seed)
    )
    assert set(found) == {reason.name for reason in NotCounted} | {"RUNS", "NO RUNS"}


def records_of(system, topic):
    """Give (partition, record) of a topic in memory, in the order of each partition."""
    return [
        (number, record)
        for number in range(system.driver.partition_counts([topic])[topic])
        for record in whole(system.driver, TopicPartition(topic, number))
    ]


def test_after_a_recovery_both_readings_count_the_same_restored_and_later_records():
    with Small(RECOVERED) as system:
        # Init: a child leaves out what its parent has ordered, and a recovery restores it.
        system.run_all()
        ordered(system, 21)
        forge(system, CHILD, jump(1000))
        multicast(system, 210)
        assert recovered(system).epoch == 2
        state = state_of(system)
        assert state.ended[1].restored[CHILD] > 0
        system.run_all(epoch=2)
        ordered(system, 21)

        # Test: the judge reads the control topic and all streams.
        order = PlannedOrder()
        said = records_of(system, "A.topology")
        read_control("A", [Statement(record.key, record.value) for _, record in said], order)
        rows = [
            ("A", number, record.offset, record.value)
            for number, record in records_of(system, "A.Msg-TO")
        ]
        runs = [run for kind, run in scan(order.rules, rows) if kind == "run"]

        # Check: it finds the runs that the product finds, in their order.
        for epoch, node in product((1, 2), RECOVERED.collectors):
            stream = state.opened(epoch, node.name)
            partition = stream_partition(stream.plan, node.name)
            end = system.driver.last_stable_offsets([partition])[partition]
            counted = counted_runs(system.driver, stream, end)
            assert [
                (run.log, run.first, run.next)
                for run in runs
                if (run.collector, run.place // EPOCH_PLACES) == (node.name, epoch)
            ] == [
                (stream.plan.logs[run.log].name, run.first, run.next)
                for _, found in counted
                for run in found
            ]
