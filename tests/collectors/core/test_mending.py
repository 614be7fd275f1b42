"""What is damaged in streams, and the plan by which a recovery goes on."""

from dataclasses import replace

from collectors.core.mending import Harm, StreamRead, damage, recovery_plan, resumed
from multicast.control import ControlState, genesis, plan_record
from multicast.drivers.protocol import Record
from multicast.order.records import FreezeRecord, OwnRecord, Position, RelayRecord, Ticket, encode
from tests.helpers.plans import chain, first_stream
from topology.carry_over import retained


def opened(name):
    plan = chain()
    return first_stream(plan, name)


def read(stream, *records):
    for record in records:
        stream.read(stream.offset_next, encode(stream.shape.tag, record))
    return stream


def test_each_kind_of_damage_is_told_apart():
    sound = opened("K1")
    assert damage([StreamRead(sound)], {"P1": 0, "P2": 0}) == ()
    far = read(opened("K1"), OwnRecord((Ticket(0, 0, 5000),)))
    (finding,) = damage([StreamRead(far)], {"P1": 10, "P2": 0}, fill_max=4989)
    assert (finding.harm, "4990 offsets beyond its end" in finding.says) == (Harm.TOO_FAR, True)
    assert damage([StreamRead(far)], {"P1": 10, "P2": 0}, fill_max=4990) == ()
    frozen = read(opened("K1"), FreezeRecord(0, ()))
    for marked, harm in ((None, [Harm.FROZEN]), ({0: 1}, [Harm.FROZEN]), ({0: 0}, [])):
        damages = damage([StreamRead(frozen, marked=marked)], {})
        assert [each.harm for each in damages] == harm
    child = read(opened("K2"), RelayRecord(0, 1, ()))
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


def test_a_stream_goes_on_where_it_stood_and_not_where_its_logs_ended():
    above = read(opened("K1"), OwnRecord((Ticket(0, 0, 3), Ticket(1, 0, 7))), FreezeRecord(0, ()))
    child = read(opened("K2"), RelayRecord(0, 1, (Position(1, 3),)), FreezeRecord(0, ()))
    ends = {"P1": 3, "P2": 7, "P3": 0, "P4": 0}
    assert resumed({"K1": above, "K2": child}, ends) == {"K2": {"P2": 3}}
    assert resumed({"K1": above, "K2": child}, {**ends, "P2": 3}) == {}
