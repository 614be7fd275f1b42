"""The judge against a model of the rule: from the start, from anywhere, and on a trimmed log."""

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from multicast import LogPosition, MessageID, nothing_after
from multicast.conditional.condition import expect_header, key_token, tags_header
from multicast.conditional.judge import EFFECTIVE, LogJudge, WhyVoid, border
from multicast.conditional.judges import LogJudges
from multicast.drivers.protocol import Record
from multicast.errors import Trimmed
from tests.multicast.conditional.model import (
    LOG,
    SEGMENT,
    Event,
    Expected,
    as_model,
    decisions,
    logs,
)
from topology.tree import Log

pytestmark = pytest.mark.usefixtures("short_segments")
PLACE = Log(LOG, "A.groups", 0)
A = frozenset("a")


def judged(events, judge):
    return [
        as_model(event.offset, judge.judge(event.record)) for event in events if not event.is_skip
    ]


def delivered(events, first, retained=0):
    """Judge from an offset on, as a delivery does; read again what it wants, if it is retained.

    Ends before the first message that cannot be judged.
    """
    judges = LogJudges()
    given = []
    for event in events:
        if event.offset < first:
            continue
        while (decision := judges.judge(0, PLACE, event.record)) is None:
            wanted = judges.wanted
            if wanted is None:
                with pytest.raises(Trimmed):
                    judges.check()
                return given
            assert wanted.next == event.offset
            assert wanted.first == border(event.offset)
            begin = min(max(wanted.first, retained), wanted.next)
            judges.look_back(begin)
            again = [e.record for e in events if begin <= e.offset < wanted.next]
            judges.read_again(again, wanted.next)
        judges.active(0)  # may give up a judge that is idle
        if not event.is_skip:
            given.append(as_model(event.offset, decision))
    return given


@given(logs())
@example([Event(8 * n + k, A, None, Expected(8 * n, (A,))) for n in (0, 1) for k in (0, 1, 7)])
def test_decisions_are_those_of_the_rule(events):
    assert judged(events, LogJudge(LOG, 0)) == decisions(events)


def decides_the_same_from(events, first):
    expected = [entry for entry in decisions(events) if entry[0] >= first]
    assert delivered(events, first) == expected


@settings(max_examples=60)
@given(logs(), st.integers(0, 50))
def test_a_reader_that_starts_anywhere_decides_the_same(events, first):
    decides_the_same_from(events, first)


@pytest.mark.campaign
@settings(max_examples=300)
@given(logs(), st.integers(0, 50))
def test_a_reader_that_starts_anywhere_decides_the_same_in_more_logs(events, first):
    decides_the_same_from(events, first)


# Message 3 is uncertain: what decides it is removed. In the first log it takes effect, so message 5
# is void; in the second it is the other way around.
UNCERTAIN = [Event(3, A, None, Expected(1, (A,))), Event(5, A, None, Expected(3, (A,)))]


def nothing_is_guessed(events, retained, later):
    """The decision alone: of two conflicts a reader of a trimmed log may know the earlier one."""
    first = retained + later
    expected = [entry[:2] for entry in decisions(events) if entry[0] >= first]
    given_here = [entry[:2] for entry in delivered(events, first, retained)]
    assert given_here == expected[: len(given_here)]


@settings(max_examples=60)
@given(logs(), st.integers(0, 40), st.integers(0, 20))
@example([Event(1, frozenset()), *UNCERTAIN], 2, 3)
@example([Event(1, A), *UNCERTAIN], 2, 3)
def test_what_retention_removed_is_never_guessed(events, retained, later):
    nothing_is_guessed(events, retained, later)


@pytest.mark.campaign
@settings(max_examples=300)
@given(logs(), st.integers(0, 40), st.integers(0, 20))
def test_what_retention_removed_is_never_guessed_in_more_logs(events, retained, later):
    nothing_is_guessed(events, retained, later)


@pytest.mark.campaign
@given(logs(), st.integers(0, 40))
def test_a_trimmed_log_is_decided_completely_from_its_next_segment_on(events, retained):
    first = border(retained) + SEGMENT
    assume(any(event.offset >= first for event in events))
    expected = [entry for entry in decisions(events) if entry[0] >= first]
    assert delivered(events, first, retained) == expected


@pytest.mark.campaign
@given(logs())
def test_a_position_at_the_message_itself_is_decided_on_a_trimmed_log(events):
    """Who has read everything is never kept waiting by retention."""
    last = events[-1].offset + 1
    fresh = Event(last, A, None, Expected(last, (A,)))
    assert delivered([fresh], last, retained=last) == [(last, None, None)]


@pytest.mark.campaign
@given(logs())
def test_replaying_gives_the_same_decisions_as_judging(events):
    judge = LogJudge(LOG, 0)
    given_here = [as_model(e.offset, judge.replay(e.record)) for e in events if not e.is_skip]
    assert given_here == decisions(events)


def message(offset, *headers, key=None):
    return Record(offset, b"", key, list(headers))


def test_a_key_matches_as_a_tag_does_and_a_long_key_by_its_digest():
    for key in (b"seat", b"", b"x" * 65, b"\xff\x00,;|"):
        judge = LogJudge(LOG, 0)
        assert judge.judge(message(0, key=key)) is EFFECTIVE
        expects = expect_header(nothing_after(LogPosition(LOG, 0), key=key))
        decision = judge.judge(message(1, expects, key=key))
        assert (decision.reason, decision.conflict) == (WhyVoid.CONFLICT, MessageID(LOG, 0))
        other = expect_header(nothing_after(LogPosition(LOG, 0), key=key + b"1"))
        assert judge.judge(message(2, other)) is EFFECTIVE
    assert len(key_token(b"x" * 1000)) < 100


def test_key_and_tags_together_match_only_a_message_with_all_of_them():
    expects = expect_header(nothing_after(LogPosition(LOG, 0), key="k", tags={"a", "b"}))
    tags = tags_header(LOG, ["a", "b"])
    for record, takes_effect in [
        (message(0, tags), True),
        (message(0, tags_header(LOG, ["a"]), key=b"k"), True),
        (message(0, tags, key=b"k"), False),
    ]:
        judge = LogJudge(LOG, 0)
        judge.judge(record)
        assert judge.judge(message(1, expects)).takes_effect is takes_effect


def test_a_log_without_conditions_gets_no_judge_and_loses_one_that_is_idle():
    judges = LogJudges()
    expects = expect_header(nothing_after(LogPosition(LOG, 1), tags={"a"}))
    assert judges.judge(0, PLACE, message(0, tags_header(LOG, ["a"]))) is EFFECTIVE
    assert not judges.active(0)
    judges.judge(0, PLACE, message(1, expects))
    assert judges.active(0)
    for offset in range(2, 2 * SEGMENT):
        judges.judge(0, PLACE, message(offset))
        assert judges.active(0)
    judges.judge(0, PLACE, message(2 * SEGMENT))
    assert not judges.active(0)
