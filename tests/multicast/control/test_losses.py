"""What logs have lost, as the control topic says it: `loss/LOG/LIFE/FIRST`."""

from dataclasses import replace
from itertools import permutations

import pytest

from multicast.control import (
    ControlState,
    collectors_partition,
    control_partition,
    ends_record,
    genesis,
    loss_record,
    lost_stream_record,
    markers_record,
    plan_record,
)
from multicast.control import losses as losses_module
from multicast.drivers.protocol import Record
from multicast.order.runs import digest_of
from tests.helpers.plans import chain

FIRST = chain()
LIVES = tuple(replace(log, life=int(log.name in ("P1", "P4"))) for log in FIRST.logs)
SECOND = replace(FIRST, epoch=2, logs=LIVES)
ENDS = {"P1": 7, "P2": 9, "P3": 9, "P4": 3}


def operators(*, until=4):
    made = [plan_record(genesis("A"), FIRST, attempt="1")]
    made.append(plan_record(digest_of(made[-1][1]), SECOND, attempt="1"))
    for make in (markers_record, ends_record):
        made.append(make(digest_of(made[-1][1]), 1, ENDS, attempt="1"))
    return made[:until]


def read(operators, collectors):
    state = ControlState("A")
    for offset, (key, value) in enumerate(operators):
        state.read_from(control_partition("A"), Record(offset, value, key))
    for offset, (key, value) in enumerate(collectors):
        state.read_from(collectors_partition("A"), Record(offset, value, key))
    return state


def test_of_the_losses_of_a_log_the_lowest_acts_until_an_operator_accepts_it():
    stated = [loss_record("P1", 0, 9), loss_record("P1", 0, 7), loss_record("P1", 0, 8)]
    for said in permutations(stated):
        state = read(operators(until=1), said)
        assert (state.loss_of(1, "P1"), state.cut_of(1, "P1")) == (7, None)
        assert (state.loss_of(1, "P2"), state.void) == (None, 0)
    assert read(operators(until=3), stated).loss_of(1, "P1") == 7, "not accepted before `ends`"
    state = read(operators(), stated)
    assert (state.loss_of(1, "P1"), state.cut_of(1, "P1")) == (None, 7)
    assert (state.cut_of(1, "P2"), state.cut_of(2, "P1")) == (None, None)


def test_a_loss_below_what_was_accepted_is_one_and_each_life_has_its_own():
    state = read(operators(), [loss_record("P1", 0, 5), loss_record("P4", 1, 6)])
    assert [state.loss_of(epoch, "P1") for epoch in (1, 2)] == [5, None]
    assert [state.loss_of(epoch, "P4") for epoch in (1, 2)] == [None, 6]


def test_a_later_life_may_lose_what_an_earlier_one_held():
    third = replace(
        SECOND,
        epoch=3,
        base_epoch=2,
        logs=tuple(replace(log, life=log.life + (log.name == "P1")) for log in LIVES),
    )
    said = [*operators(), plan_record(digest_of(operators()[-1][1]), third, attempt="1")]
    for make, positions in ((markers_record, ENDS), (ends_record, ENDS | {"P1": 5})):
        state = read(said, [loss_record("P1", 0, 7), loss_record("P1", 1, 5)])
        assert [state.loss_of(epoch, "P1") for epoch in (1, 2, 3)] == [5, 5, None]
        assert [state.cut_of(epoch, "P1") for epoch in (1, 2, 3)] == [7, None, None]
        said.append(make(digest_of(said[-1][1]), 2, positions, attempt="1"))
    state = read(said, [loss_record("P1", 0, 7), loss_record("P1", 1, 5)])
    assert [state.loss_of(epoch, "P1") for epoch in (1, 2, 3)] == [None] * 3
    assert [state.cut_of(epoch, "P1") for epoch in (1, 2, 3)] == [5, 5, None]


def test_a_key_that_is_taken_back_leaves_what_compaction_leaves():
    (key, _), other = loss_record("P1", 0, 5), loss_record("P1", 0, 8)
    for value in (None, b"no object"):
        state = read(operators(until=1), [(key, b"{}"), other, (key, value)])
        assert state.loss_of(1, "P1") == 8
        assert state.losses == read((), [other, (key, value)]).losses
    copy = state.copy()
    copy.read_collectors(Record(3, b"{}", key))
    assert (copy.loss_of(1, "P1"), state.loss_of(1, "P1")) == (5, 8)


@pytest.mark.parametrize(
    "key", [b"loss/P1/0", b"loss/P1/00/1", b"loss/P1/0/01", b"loss/P1/0/-1", b"loss/P1//1"]
)
def test_a_key_in_another_form_says_nothing(key):
    state = read(operators(until=1), [(key, b"{}")])
    assert (state.loss_of(1, "P1"), state.void) == (None, 1)
    state = ControlState("A")
    state.read(Record(0, b"{}", b"loss/P1/0/1"))
    assert (state.losses.first_of("P1", 0), state.void) == (None, 1), "not the operators' topic"


def test_only_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(losses_module, "LOSSES_MAX", 2)
    stated = [loss_record("P1", 0, first) for first in (9, 7, 8, 9)]
    state = read(operators(until=1), stated)
    assert (state.loss_of(1, "P1"), state.void) == (7, 1)


def test_a_stream_that_has_lost_its_end_is_lost_until_its_epoch_has_ended():
    stated = [lost_stream_record("K1", 1)]
    for until, lost in ((1, True), (3, True), (4, False)):
        state = read(operators(until=until), stated)
        assert state.stream_is_lost(1, "K1") == lost
        assert (state.stream_is_lost(1, "K2"), state.void) == (False, 0)
    assert not read(operators(), stated).stream_is_lost(2, "K1")
    key, _ = stated[0]
    assert not read(operators(until=1), [*stated, (key, None)]).stream_is_lost(1, "K1")
    assert read(operators(until=1), [(key + b"/", b"{}"), (b"lost-stream/K1/01", b"{}")]).void == 2
