"""What wrong order records do to correct cores, and which records a recovery writes."""

import random
from dataclasses import replace

import pytest

from bench.pipeline.rule import PlannedOrder, Statement, StreamReading, read_control
from collectors.collector import Append, Collector, CollectorLimits, Fill
from collectors.mending import (
    Harm,
    StreamRead,
    ahead_record,
    damage,
    freeze_record,
    owed_record,
    recovery_plan,
    resumed,
)
from multicast.control import ControlState, ends_record, genesis, markers_record, plan_record
from multicast.control.documents import Ended
from multicast.drivers.protocol import Record
from multicast.order import (
    ORDERED_MAX,
    OrderRecord,
    OrderStream,
    ParentNext,
    RecordKind,
    Resumed,
    Run,
    Void,
    decode,
    encode,
)
from tests.helpers.plans import chain, from_start
from topology.carry_over import retained


def opened(name):
    plan = chain()
    return OrderStream(plan, name, from_start(plan))


def record(stream, kind, *runs, relayed=0):
    records, offset = stream.state.parent_next
    after = ParentNext(records + relayed, offset + relayed)
    return encode(OrderRecord(kind, stream.state.digest, after, runs))


def core_of(name, **limits):
    own = opened(name)
    parent = opened("K1") if name == "K2" else None
    made = Collector(own, parent, writer=1, limits=CollectorLimits(**limits))
    made.own_end(0)
    return made


def appends(core):
    return [decode(action.raw) for action in core.step(0) if isinstance(action, Append)]


# -- bounds ---------------------------------------------------------------------------------


def test_a_record_orders_as_much_as_the_bound_over_all_its_runs_and_not_one_more():
    for more, fits in ((0, True), (1, False)):
        stream = opened("K1")
        raw = record(stream, RecordKind.OWN, Run(0, 0, ORDERED_MAX - 5), Run(1, 0, 5 + more))
        judged = stream.read(0, raw)
        assert judged == (decode(raw) if fits else Void.IMPOSSIBLE)


def test_no_limits_let_an_honest_record_exceed_the_bound():
    assert CollectorLimits().run_length_max * CollectorLimits().runs_max * 32 <= ORDERED_MAX
    with pytest.raises(AssertionError):
        CollectorLimits(run_length_max=ORDERED_MAX // 512 + 1)


def test_who_relays_a_backlog_splits_it_at_the_bound():
    core = core_of("K2", pending_max=9)
    parent = opened("K1")
    half = ORDERED_MAX // 2 + 1
    for offset in range(3):
        raw = record(parent, RecordKind.OWN, Run(1, offset * half, (offset + 1) * half))
        parent.read(offset, raw)
        core.parent_read(offset, raw)
    assert [record.runs for record in appends(core)] == [
        (Run(1, part * half, (part + 1) * half),) for part in range(3)
    ]


def test_a_hole_beyond_the_bound_is_not_filled_and_one_within_it_is():
    core = core_of("K1", fill_max=10)
    core.log_end(0, 0)
    core.log_end(1, 0)
    core.own_read(0, record(core.own, RecordKind.OWN, Run(0, 0, 11), Run(1, 0, 10)))
    for _ in range(4):
        core.tick()
    assert core.step(0) == (Fill(1, 10),)
    assert core.too_far == {0: 11}
    core.log_end(0, 1)  # a message came: now it can be filled
    for _ in range(2):
        core.tick()
    assert core.step(0) == (Fill(0, 11),)
    assert core.too_far == {}


def test_a_log_is_held_while_its_end_stands_still_below_the_high_watermark():
    core = core_of("K1", pending_max=3)
    for log in (0, 1):
        core.log_end(log, 3)
    appends(core)
    core.tick({0: 5})
    core.tick({0: 5})
    assert core.held == {0}
    core.log_end(1, 5)
    assert [record.runs for record in appends(core)] == [(Run(1, 3, 5),)]
    core.log_end(0, 5)
    assert core.held == set()
    assert [record.runs for record in appends(core)] == [(Run(0, 3, 5),)]


# -- strayed streams -------------------------------------------------------------------------


def test_a_collector_that_left_out_a_parents_record_relays_nothing_more_and_does_not_fail():
    core = core_of("K2")
    core.log_end(2, 1)
    parent = opened("K1")
    core.own_read(0, record(core.own, RecordKind.PARENT, relayed=1))
    for offset in range(2):
        raw = record(parent, RecordKind.OWN, Run(1, offset, offset + 1))
        parent.read(offset, raw)
        core.parent_read(offset, raw)
    assert core.strayed
    (own,) = appends(core)
    assert (own.kind, own.runs) == (RecordKind.OWN, (Run(2, 0, 1),))
    core.freeze_after({2: 1})
    assert [record.kind for record in appends(core)] == [RecordKind.FREEZE]


def test_a_collector_that_is_ahead_of_its_parent_leaves_out_what_it_has_ordered():
    plan = chain()
    own = OrderStream(plan, "K2", from_start(plan), resumed={"P2": Resumed(5, 5)})
    core = Collector(own, opened("K1"), writer=1)
    core.own_end(0)
    parent = opened("K1")
    for offset, end in enumerate((3, 9)):
        raw = record(parent, RecordKind.OWN, Run(1, parent.state.positions[1], end))
        parent.read(offset, raw)
        core.parent_read(offset, raw)
    assert not core.strayed
    assert [record.runs for record in appends(core)] == [(Run(1, 5, 9),)]


# -- damage, and the next epoch -----------------------------------------------------------------


def test_each_kind_of_damage_is_told_apart():
    sound = opened("K1")
    assert damage([StreamRead(sound)], {"P1": 0, "P2": 0}) == ()
    far = opened("K1")
    far.read(0, record(far, RecordKind.OWN, Run(0, 0, 5000)))
    (finding,) = damage([StreamRead(far)], {"P1": 10, "P2": 0})
    assert (finding.harm, "4990 offsets beyond its end" in finding.says) == (Harm.TOO_FAR, True)
    frozen = opened("K1")
    frozen.read(0, encode(freeze_record(frozen)))
    for marked, harm in ((None, [Harm.FROZEN]), ({0: 1}, [Harm.FROZEN]), ({0: 0}, [])):
        damages = damage([StreamRead(frozen, marked=marked)], {})
        assert [each.harm for each in damages] == harm
    child = opened("K2")
    child.read(0, record(child, RecordKind.PARENT, relayed=1))
    for positions, harm in ((None, [Harm.STRAYED]), ({1: 1}, [Harm.STRAYED]), ({1: 0}, [])):
        damages = damage([StreamRead(child, parent_positions=positions)], {})
        assert [each.harm for each in damages] == harm


def test_the_next_plan_has_the_same_layout_and_carries_over_what_is_not_damaged():
    plan = chain()
    after = recovery_plan(plan, ["K2"])
    assert (after.epoch, after.base_epoch) == (2, 1)
    assert [(node.name, node.stream) for node in after.collectors] == [("K1", 2), ("K2", 1)]
    assert retained(plan, after).collectors == frozenset()
    assert retained(plan, after).logs == {"P4"}
    again = recovery_plan(after, ["K1"])
    assert [node.stream for node in again.collectors] == [0, 1]


def recovered():
    """Freeze a child early, so that it is owed runs of its parent; give both epochs' plans."""
    above, child = opened("K1"), opened("K2")
    runs = [Run(0, 0, 2), Run(1, 0, 3), Run(0, 2, 3), Run(1, 3, 7)]
    for offset, run in enumerate(runs):
        above.read(offset, record(above, RecordKind.OWN, run))
    child.read(0, record(child, RecordKind.PARENT, Run(1, 0, 3), relayed=2))
    for stream in (above, child):
        stream.read(9, encode(freeze_record(stream)))
    ends = {"P1": 3, "P2": 7, "P3": 0, "P4": 0}
    begins = resumed({"K1": above, "K2": child}, ends)
    return runs, ends, begins


def test_a_child_gets_first_what_it_is_owed_and_a_top_what_is_ordered_below_it():
    runs, ends, begins = recovered()
    assert begins == {"K2": {"P2": Resumed(3, 7)}}
    following = recovery_plan(chain(), ["K2"])
    stream = OrderStream(following, "K2", ends, resumed=begins["K2"])
    made = owed_record(stream, runs)
    assert (made.kind, made.runs) == (RecordKind.PARENT, (Run(1, 3, 7),))
    assert stream.read(0, encode(made)) == made
    assert owed_record(stream, runs) is None
    top = OrderStream(following, "K1", ends)
    made = ahead_record(top, {"P1": 3, "P2": 11})
    assert (made.kind, made.runs) == (RecordKind.OWN, (Run(1, 7, 11),))


@pytest.mark.parametrize("seed", range(20))
def test_two_readings_of_the_rule_agree_after_a_recovery(seed):
    _, ends, begins = recovered()
    plan = chain()
    following = recovery_plan(plan, ["K2"])
    state, order, statements = ControlState("A"), PlannedOrder(), []
    statements.append(plan_record(genesis("A"), plan, attempt="a"))
    state.read(Record(0, statements[0][1], statements[0][0]))
    statements.append(plan_record(state.previous, following, attempt="b"))
    statements.append(markers_record(1, ends, attempt="m"))
    statements.append(ends_record(1, ends, attempt="c", ended=Ended(begins, {"K1": 40, "K2": 4})))
    for offset, (key, value) in enumerate(statements[1:], 1):
        state.read(Record(offset, value, key))
    assert state.opened(1, "K2").stop == 4
    read_control("A", [Statement(*statement) for statement in statements], order)
    rules = {(rule.epoch, rule.collector): rule for rule in order.rules}
    assert (rules[1, "K1"].stop, rules[1, "K2"].stop, rules[2, "K2"].stop) == (40, 4, None)
    real, mine = state.opened(2, "K2"), StreamReading(rules[2, "K2"])
    rng = random.Random(seed)
    counted = 0
    for offset in range(60):
        log = rng.choice((1, 1, 2))
        first = real.state.positions[log]
        run = Run(log, first, first + rng.choice((1, 2, ORDERED_MAX, ORDERED_MAX + 1)))
        relayed = rng.choice((0, 0, 1))
        raw = record(real, rng.choice((RecordKind.OWN, RecordKind.PARENT)), run, relayed=relayed)
        judged = real.read(offset, raw)
        taken = mine.take(raw)
        if isinstance(judged, Void):
            assert taken == judged.name.lower()
        else:
            counted += 1
            assert [(each.first, each.next) for each in taken] == [(run.first, run.next)]
    assert counted > 5


def test_a_stream_that_was_said_to_be_over_ends_there_whatever_stands_there():
    plan = chain()
    stream = OrderStream(plan, "K1", from_start(plan), stop=1)
    raw = bytearray(record(stream, RecordKind.OWN, Run(0, 0, 1)))
    assert isinstance(stream.read(0, bytes(raw)), OrderRecord)
    assert stream.state.frozen
    raw[2] = 9
    assert stream.read(1, bytes(raw)) is Void.FROZEN


def test_a_lone_reader_goes_on_at_the_marker_that_it_has_read_to():
    plan = chain()
    state = ControlState("A")
    first = plan_record(genesis("A"), plan, attempt="a")
    state.read(Record(0, first[1], first[0]))
    after = replace(recovery_plan(plan, ["K1"]), input_hash="x")
    second = plan_record(state.previous, after, attempt="b")
    state.read(Record(1, second[1], second[0]))
    state.markers[1] = {"P1": 9, "P4": 4}
    assert state.single_log_end(1, "P1") is None
    state.ends[1] = {"P1": 5, "P2": 3}
    assert (state.single_log_end(1, "P1"), state.single_log_end(1, "P2")) == (9, 3)
    assert (state.single_log_start(2, "P1"), state.begun(2)["P1"]) == (9, 5)
