"""What a collector states of its logs' ends and losses, on hand-made answers of leaders."""

import pytest

from collectors.core.collector import LIMITS, Collector
from collectors.core.collector_core import CollectorCore, FillHole
from collectors.core.sights import EpochEnd, Question, Sights
from multicast.drivers.protocol import LeaderEnd
from multicast.order.records import Loss, OwnRecord, SeenEnd, SightRecord, Ticket, decode, encode
from multicast.order.rule import RecordStream, StreamShape
from multicast.order.runs import ORDERED_MAX
from tests.helpers.plans import chain, first_stream, tag_in

TAG, PARENT_TAG = b"t" * 16, b"u" * 16
A, B = 0, 1
BEHIND_MS = 30_000


class Stated:
    """Sights of one instance, whose records are read back as soon as they are due."""

    def __init__(self, *, parent=None):
        inherited = {} if parent is None else {B: 0}
        shape = StreamShape(TAG, {A: 0}, inherited, 0, None if parent is None else 0)
        self.own = RecordStream(shape)
        self.now = 0
        self.begin(parent)

    def begin(self, parent=None):
        """Another instance begins, which has read the stream."""
        self.sights = Sights(self.own, parent)

    def read(self, record):
        self.own.read(self.own.offset_next, encode(TAG, record))

    def due(self, *, is_lost=False):
        record = self.sights.due(self.now)
        if record is not None and not is_lost:
            self.read(record)
        return record

    def ask(self, end, epoch, *, epoch_ends=None):
        """Let log A end there under this leader; give what it is asked, and what is stated."""
        self.sights.log_end(A, end)
        question = self.sights.question()
        present = {A: LeaderEnd(end, epoch)}
        epochs = self.sights.epochs(question, present)
        ends = {log: EpochEnd(each, (epoch_ends or {})[each]) for log, each in epochs.items()}
        self.sights.answered(question, present, ends, self.now)
        return epochs, self.due()


def seen(end, epoch):
    return SightRecord((SeenEnd(A, end, epoch),))


def lost(first):
    return SightRecord((), (Loss(A, first),))


def test_an_end_is_stated_with_its_leaders_epoch_once():
    stated = Stated()
    assert stated.ask(10, 0) == ({}, seen(10, 0))
    assert stated.due() is None
    stated.sights.log_end(A, 10)
    assert stated.sights.question() is None
    assert not stated.sights.to_ask
    assert stated.ask(12, 0) == ({}, seen(12, 0))


def test_a_statement_that_is_lost_comes_with_the_next_question():
    stated = Stated()
    stated.sights.log_end(A, 10)
    for _ in range(2):
        question = stated.sights.question()
        stated.sights.answered(question, {A: LeaderEnd(10, 0)}, {}, 0)
        assert stated.due(is_lost=True) == seen(10, 0)
        assert stated.sights.to_ask


def test_what_was_stated_is_compared_before_it_is_read_back():
    stated = Stated()
    stated.sights.log_end(A, 10)
    stated.sights.answered(stated.sights.question(), {A: LeaderEnd(10, 0)}, {}, 0)
    assert stated.due(is_lost=True) == seen(10, 0)
    assert stated.ask(15, 1, epoch_ends={0: 7}) == ({A: 0}, lost(7))


def test_nothing_is_stated_of_a_leader_that_does_not_answer_or_name_its_epoch():
    stated = Stated()
    stated.sights.log_end(A, 10)
    stated.sights.answered(stated.sights.question(), {}, {}, 0)
    assert stated.due() is None
    assert stated.ask(10, -1) == ({}, None)
    assert stated.sights.question() == Question({A: ()})


def test_another_leader_that_has_what_was_seen_is_stated_after_it_is_compared():
    stated = Stated()
    stated.ask(10, 0)
    stated.sights.log_end(A, 15)
    question = stated.sights.question()
    stated.sights.answered(question, {A: LeaderEnd(15, 2)}, {}, 0)  # not compared
    assert stated.due() is None
    assert not stated.sights.is_judged(A)
    assert stated.ask(15, 2, epoch_ends={0: 10}) == ({A: 0}, seen(15, 2))
    assert stated.sights.is_judged(A)
    assert stated.ask(16, 2) == ({}, seen(16, 2))


def test_a_leader_whose_earlier_epoch_ends_below_a_seen_end_has_lost_what_was_behind_that():
    stated = Stated()
    stated.ask(10, 0)
    assert stated.ask(15, 1, epoch_ends={0: 7}) == ({A: 0}, lost(7))
    assert stated.own.state.lost == {A: 7}
    assert not stated.sights.is_judged(A)
    assert stated.ask(20, 1) == ({}, None)  # no end of a lost log
    assert stated.ask(25, 2, epoch_ends={0: 5}) == ({A: 0}, lost(5))  # once more, and more


def test_a_leader_that_ends_below_an_end_of_its_own_epoch_has_lost_the_rest():
    stated = Stated()
    stated.ask(10, 0)
    assert stated.ask(4, 0) == ({}, lost(4))


def test_a_restarted_instance_compares_before_the_log_moves():
    stated = Stated()
    stated.ask(10, 0)
    stated.begin()
    assert stated.ask(10, 1, epoch_ends={0: 8}) == ({A: 0}, lost(8))


def test_a_loss_is_handed_out_until_the_stream_says_it():
    stated = Stated()
    stated.ask(10, 0)
    stated.sights.log_end(A, 4)
    stated.sights.answered(stated.sights.question(), {A: LeaderEnd(4, 0)}, {}, 0)
    assert stated.due(is_lost=True) == lost(4)
    assert stated.due() is None
    stated.sights.append_failed()
    assert stated.due() == lost(4)
    stated.sights.append_failed()
    assert stated.due() is None


def test_each_seen_end_is_compared_the_earliest_epoch_first():
    stated = Stated()
    for end, epoch in ((10, 0), (20, 1), (30, 2)):
        stated.read(seen(end, epoch))  # all are above the position
    assert stated.ask(40, 3, epoch_ends={0: 10}) == ({A: 0}, None)
    assert stated.ask(40, 3, epoch_ends={1: 20}) == ({A: 1}, None)
    assert stated.ask(40, 3, epoch_ends={2: 25}) == ({A: 2}, lost(25))


def test_what_others_state_after_the_question_is_not_compared_with_its_answer():
    stated = Stated()
    stated.ask(10, 0)
    stated.sights.log_end(A, 12)
    question = stated.sights.question()
    stated.read(seen(20, 0))
    stated.sights.answered(question, {A: LeaderEnd(12, 0)}, {}, 0)
    assert stated.due() is None


def test_a_leader_that_was_deposed_is_not_taken_for_an_older_copy():
    stated = Stated()
    stated.ask(10, 1)
    assert stated.ask(8, 0, epoch_ends={1: -1}) == ({A: 1}, None)
    assert not stated.sights.is_judged(A)
    assert stated.ask(12, 1) == ({}, seen(12, 1))
    stated.now = BEHIND_MS
    assert stated.ask(8, 0, epoch_ends={1: -1}) == ({A: 1}, None)


@pytest.mark.parametrize(("known", "first"), [([], 0), ([seen(6, 0)], 6)])
def test_an_older_copy_has_lost_what_no_seen_end_of_its_epochs_covers(known, first):
    stated = Stated()
    for record in [*known, seen(10, 1)]:
        stated.read(record)
    answers = {0: 8, 1: -1}
    stated.ask(8, 0, epoch_ends=answers)
    stated.ask(8, 0, epoch_ends=answers)
    stated.now = BEHIND_MS
    assert stated.ask(12, 0, epoch_ends=answers)[1] == lost(first)


def test_an_end_that_is_far_above_the_position_is_stated_as_far_as_it_counts():
    stated = Stated()
    assert stated.ask(ORDERED_MAX + 5, 0)[1] == seen(ORDERED_MAX, 0)


def test_nothing_is_stated_in_a_frozen_stream():
    stated = Stated()
    stated.sights.log_end(A, 10)
    stated.sights.answered(stated.sights.question(), {A: LeaderEnd(10, 0)}, {}, 0)
    stated.own.state.frozen = True
    assert stated.due() is None


# -- what a child repeats ------------------------------------------------------------------------


def above():
    return RecordStream(StreamShape(PARENT_TAG, {A: 0, B: 0}, {}))


def say(parent, stated, record):
    parent.read(parent.offset_next, encode(PARENT_TAG, record))
    stated.sights.parent_read()


def test_a_child_repeats_losses_at_once_and_seen_ends_once_a_second():
    parent = above()
    stated = Stated(parent=parent)
    say(parent, stated, SightRecord((SeenEnd(A, 5, 0), SeenEnd(B, 5, 0))))
    assert stated.due() == SightRecord((SeenEnd(B, 5, 0),))
    assert stated.due() is None
    say(parent, stated, SightRecord((SeenEnd(B, 9, 0),), (Loss(A, 2), Loss(B, 3))))
    assert stated.due() == SightRecord((), (Loss(B, 3),))
    assert stated.due() is None
    stated.now = 1000
    assert stated.due() == SightRecord((SeenEnd(B, 9, 0),))
    stated.now = 2000
    assert stated.due() is None


def test_a_child_that_begins_repeats_what_its_parent_said_before():
    parent = above()
    for record in (SightRecord((SeenEnd(B, 5, 0),)), SightRecord((), (Loss(B, 3),))):
        parent.read(parent.offset_next, encode(PARENT_TAG, record))
    stated = Stated(parent=parent)
    assert stated.due() == SightRecord((SeenEnd(B, 5, 0),), (Loss(B, 3),))


# -- holes ---------------------------------------------------------------------------------------


def hole(*records):
    """Let A end at 3 and be ordered up to 5; give what is done at the second tick."""
    core = CollectorCore(RecordStream(StreamShape(TAG, {A: 0}, {})), None, LIMITS)
    for offset, record in enumerate([*records, OwnRecord((Ticket(A, 5, 5),))]):
        core.own_read(offset, encode(TAG, record), now=0)
    core.log_end(A, 3, now=0)
    core.tick(250)
    core.tick(500)
    return [action for action in core.step(500) if isinstance(action, FillHole)]


def test_nothing_is_filled_below_a_seen_end_nor_in_a_lost_log():
    assert hole() == hole(seen(3, 0)) == [FillHole(A, 5)]
    assert hole(seen(4, 0)) == []
    assert hole(lost(5)) == []


# -- in the whole core ---------------------------------------------------------------------------


def test_a_core_asks_and_states_once_its_own_stream_is_read():
    plan = chain()
    core = Collector(first_stream(plan, "K1"), None, writer=1, clock=lambda: 0)
    core.own_end(1)
    core.log_end(A, 3)
    assert core.question() is None
    core.own_read(0, encode(tag_in(plan, "K1"), OwnRecord((Ticket(A, 3, 3),))))
    question = core.question()
    assert core.to_ask
    assert core.epochs(question, {A: LeaderEnd(3, 0)}) == {}
    core.answered(question, {A: LeaderEnd(3, 0)}, {})
    assert core.is_judged(A)
    (action,) = core.step()
    assert decode(tag_in(plan, "K1"), action.raw) == seen(3, 0)
    assert core.pending == 1
    core.own_read(1, action.raw)
    assert (core.pending, core.counted, core.question()) == (0, 0, None)
