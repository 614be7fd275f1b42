"""Appends without an outcome: each gets one, once, in the order in which they started."""

import logging

from multicast.drivers.librdkafka.outcomes import unknown
from multicast.drivers.librdkafka.started import Many, Started
from multicast.drivers.protocol import Appended, TopicPartition

AT, OTHER = TopicPartition("A", 0), TopicPartition("A", 1)
LOG = logging.getLogger("tests")


def not_known(partition):
    return unknown(partition, "the test gave it up")


def settle(started, many, index, outcome):
    """Do what the appender does when the client reports one outcome of many."""
    if many.open[index]:
        many.open[index] = 0
        many.done(index, 1, outcome)
    many.left -= 1
    started.finish(many)


class Recorder:
    """Records outcomes in their order."""

    def __init__(self):
        self.outcomes = []

    def single(self, name):
        return lambda outcome: self.outcomes.append((name, type(outcome)))

    def many(self, name):
        def done(index, count, outcome):
            assert count == 1
            self.outcomes.append((f"{name}{index}", type(outcome)))

        return done

    def names(self):
        return [name for name, _ in self.outcomes]


def test_an_append_that_was_given_up_waits_no_longer_and_its_late_outcome_is_not_handed_on():
    # Init
    started, recorder = Started(LOG), Recorder()
    first = started.enter((AT, recorder.single("first")))
    second = started.enter((OTHER, recorder.single("second")))
    # Test
    started.give_up(first, not_known)
    # Check: the client still holds the first one.
    assert recorder.names() == ["first"]
    assert started.oldest() == first
    assert started.partition_of(first) == AT
    assert not started.waits(first)
    assert started.waits(second)
    started.settle(first, Appended(7))
    started.settle(second, Appended(8))
    assert recorder.outcomes[1:] == [("second", Appended)]
    assert not started.waiting
    assert started.oldest() is None
    assert started.partition_of(first) is None


def test_of_many_some_have_outcomes_when_the_rest_is_given_up():
    started, recorder = Started(LOG), Recorder()
    many = Many(AT, recorder.many("m"), 4)
    number = started.enter(many)
    settle(started, many, 1, Appended(0))
    started.give_up(number, not_known)
    assert recorder.names() == ["m1", "m0", "m2", "m3"]
    assert not started.waiting
    for index in (0, 2, 3):
        assert started.oldest() == number
        settle(started, many, index, Appended(index))
    assert started.oldest() is None
    assert len(recorder.outcomes) == 4


def test_what_was_not_started_after_all_gets_no_outcome_whoever_counts_last():
    for settled_first in (True, False):
        started, recorder = Started(LOG), Recorder()
        many = Many(AT, recorder.many("m"), 3)
        started.enter(many)
        steps = [
            lambda s=started, m=many: settle(s, m, 0, Appended(0)),
            lambda s=started, m=many: s.drop_some(m, [1, 2]),
        ]
        for step in steps if settled_first else reversed(steps):
            step()
        assert recorder.outcomes == [("m0", Appended)]
        assert not started.waiting
        assert started.oldest() is None


def test_all_up_to_a_number_is_forgotten_and_what_comes_after_it_is_left_alone():
    started, recorder = Started(LOG), Recorder()
    given_up = started.enter((AT, recorder.single("given up")))
    started.give_up(given_up, not_known)
    old = started.enter((AT, recorder.single("old")))
    some = Many(OTHER, recorder.many("m"), 2)
    many = started.enter(some)
    new = started.enter((AT, recorder.single("new")))
    started.forget(many, not_known)
    assert recorder.names() == ["given up", "old", "m0", "m1"]
    assert [started.partition_of(number) for number in (given_up, old, many, new)] == [
        None,
        None,
        None,
        AT,
    ]
    settle(started, some, 0, Appended(0))
    started.settle(old, Appended(0))
    assert len(recorder.outcomes) == 4
    assert started.waits(new)
    assert started.oldest() == new


def test_an_outcome_whose_callback_fails_ends_nothing(caplog):
    started, recorder = Started(LOG), Recorder()

    def fails(*_):
        raise ValueError("not mine")

    failing = started.enter((AT, fails))
    started.enter(Many(AT, fails, 2))
    other = started.enter((AT, recorder.single("other")))
    started.settle(failing, Appended(0))
    started.give_up(other, not_known)
    assert recorder.names() == ["other"]
    assert not started.waiting
    assert caplog.text.count("ValueError: not mine") == 3
    started.settle(other, Appended(2))
    assert recorder.names() == ["other"]


def test_a_callback_may_start_another_append():
    started, recorder = Started(LOG), Recorder()
    again = []

    def appends(_):
        again.append(started.enter((AT, recorder.single("again"))))

    number = started.enter((AT, appends))
    started.give_up(number, not_known)
    assert started.waits(again[0])
    started.settle(number, Appended(0))
    started.settle(again[0], Appended(1))
    assert recorder.names() == ["again"]


def test_a_mark_tells_what_had_been_started_by_a_time():
    started = Started(LOG)
    assert started.by(9.0) == 0
    for now in (1.0, 2.0, 3.0, 4.0):
        started.enter((AT, not_known))
        started.mark(now, keep_s=1.5)
    # What is older than what is kept is found by the last mark before it.
    assert [started.by(then) for then in (1.0, 2.0, 2.5, 3.0, 4.0, 9.0)] == [0, 2, 2, 3, 4, 4]
