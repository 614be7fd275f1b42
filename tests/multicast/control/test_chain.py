"""Plans, markers and ends form a chain: a statement of another history changes nothing."""

import pytest

from multicast.control import ControlState, ends_record, genesis, markers_record, plan_record
from multicast.drivers.protocol import Record
from multicast.order.runs import digest_of
from tests.helpers.plans import chain

ENDS = {log.name: 7 for log in chain().logs}
OTHER = {log.name: 9 for log in chain().logs}


def read(*statements):
    state = ControlState("A")
    for offset, (key, value) in enumerate(statements):
        state.read(Record(offset, value, key))
    return state


def history():
    """Two epochs: plan, plan, markers, ends."""
    made = [plan_record(genesis("A"), chain(), attempt="1")]
    made.append(plan_record(digest_of(made[-1][1]), chain(epoch=2), attempt="1"))
    made.append(markers_record(digest_of(made[-1][1]), 1, ENDS, attempt="1"))
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
