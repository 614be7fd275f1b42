"""Plans, markers and ends form a chain: a statement of another history changes nothing."""

from dataclasses import replace

import pytest

from bench.pipeline.rule import Said, Statement
from multicast.control import ControlState, ends_record, genesis, markers_record, plan_record
from multicast.control.documents import Ended
from multicast.drivers.protocol import Record
from multicast.order.runs import digest_of
from tests.helpers.plans import chain
from topology.tree import Subscription

# P4 is retained: what is said of its end does not act.
ENDS = {"P1": 7, "P2": 7, "P3": 7}
OTHER = {"P1": 9, "P2": 9, "P3": 9}
NEXT = replace(
    chain(epoch=2), consumers=(*chain().consumers, Subscription("C9", ("P1", "P2"), "K1"))
)


def read(*statements):
    state = ControlState("A")
    for offset, (key, value) in enumerate(statements):
        state.read(Record(offset, value, key))
    return state


def history():
    """Two epochs: plan, plan, markers, ends."""
    made = [plan_record(genesis("A"), chain(), attempt="1")]
    made.append(plan_record(digest_of(made[-1][1]), NEXT, attempt="1"))
    made.append(markers_record(digest_of(made[-1][1]), 1, {**ENDS, "P4": 5}, attempt="1"))
    made.append(ends_record(digest_of(made[-1][1]), 1, ENDS, attempt="1"))
    return made


def test_each_statement_names_the_accepted_one_before_it():
    state = read(*history())
    assert (state.epoch, state.void, state.ends) == (2, 0, {1: ENDS})
    assert state.previous == digest_of(history()[-1][1])


@pytest.mark.parametrize("place", range(4))
def test_a_statement_that_follows_another_one_is_void(place):
    before = history()[:place]
    wrong = b"\1" * 16
    stray = [
        plan_record(wrong, chain(), attempt="2"),
        plan_record(wrong, chain(epoch=2), attempt="2"),
        markers_record(wrong, 1, OTHER, attempt="2"),
        ends_record(wrong, 1, OTHER, attempt="2"),
    ][place]
    state = read(*before, stray)
    assert state.void == 1
    assert state.previous == read(*before).previous
    assert read(*before, stray, *history()[place:]).ends == {1: ENDS}


def test_of_two_that_follow_the_same_statement_the_first_is_accepted():
    plan, following, markers, ends = history()
    rival = markers_record(digest_of(following[1]), 1, OTHER, attempt="2")
    assert read(plan, following, markers, rival, ends).markers == {1: ENDS}
    # The ends of the first one's history do not follow the rival, if that came first.
    state = read(plan, following, rival, markers, ends)
    assert (state.markers, state.ends) == ({1: OTHER}, {})


def test_a_log_with_another_life_may_end_below_its_start_and_for_all_readers_there():
    first = chain()
    cut = tuple(replace(log, life=int(log.name in ("P1", "P4"))) for log in first.logs)
    began = replace(first, logs=tuple(replace(log, first=6) for log in first.logs))
    plans = [began, replace(NEXT, logs=cut)]
    made = [plan_record(genesis("A"), plans[0], attempt="1")]
    made.append(plan_record(digest_of(made[-1][1]), plans[1], attempt="1"))
    ends = {"P1": 3, "P2": 7, "P3": 7, "P4": 2}
    for make, positions in ((markers_record, {**ends, "P1": 9, "P4": 9}), (ends_record, ends)):
        made.append(make(digest_of(made[-1][1]), 1, positions, attempt="1"))
    state = read(*made)
    assert (state.void, state.ends) == (0, {1: ends})
    assert [state.single_log_end(1, log) for log in ("P1", "P2", "P4")] == [3, 7, 2]
    assert state.single_log_start(2, "P4") == 2
    assert state.starts(2) == ends
    said = Said("A")
    for statement in made:
        said.take(Statement(*statement))
    assert said.ends == {1: ends}
    assert "life" not in first.to_json()["logs"][0], "plans that need none name none"


def test_other_restored_runs_make_another_statement():
    made = [
        ends_record(b"", 1, ENDS, attempt="1", ended=Ended({}, {"K1": 2}, runs=runs))[1]
        for runs in (b"a", b"b")
    ]
    assert made[0] != made[1]
