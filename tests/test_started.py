"""Appends without an outcome: each is handed one, once, in the order in which they were started."""

import logging

from multicast.librdkafka.outcomes import unknown
from multicast.librdkafka.started import Many, One, Started
from multicast.log import Appended, TopicPartition

AT, OTHER = TopicPartition("A", 0), TopicPartition("A", 1)
LOG = logging.getLogger("tests")


def not_known(at):
    return unknown(at, "nobody knows")


class Told:
    """Takes outcomes, in their order."""

    def __init__(self):
        self.outcomes = []

    def one(self, name):
        return lambda outcome: self.outcomes.append((name, type(outcome)))

    def many(self, name):
        return lambda index, outcome: self.outcomes.append((f"{name}{index}", type(outcome)))

    def names(self):
        return [name for name, _ in self.outcomes]


def test_an_append_that_was_given_up_waits_no_longer_and_its_late_outcome_is_not_handed_on():
    # Init
    started, told = Started(LOG), Told()
    first = started.enter(One(AT, 1.0, told.one("first")))
    second = started.enter(One(OTHER, 2.0, told.one("second")))
    # Test
    started.give_up(1.5, not_known)
    # Check: the client still holds the first one.
    assert told.names() == ["first"]
    assert started.oldest().since_s == 1.0
    assert started.at(first) == AT
    assert not started.waits(first)
    assert started.waits(second)
    started.settle(first, Appended(7))
    started.settle(second, Appended(8))
    assert told.outcomes[1:] == [("second", Appended)]
    assert not started
    assert started.oldest() is None
    assert started.at(first) is None


def test_of_many_some_have_outcomes_when_the_rest_is_given_up():
    started, told = Started(LOG), Told()
    number = started.enter(Many(AT, 1.0, told.many("m"), 4))
    started.settle_of_many(number, 1, Appended(0))
    started.give_up(1.0, not_known)
    assert told.names() == ["m1", "m0", "m2", "m3"]
    assert not started
    for index in (0, 2, 3):
        assert started.oldest() is not None
        started.settle_of_many(number, index, Appended(index))
    assert started.oldest() is None
    assert len(told.outcomes) == 4


def test_what_was_not_started_after_all_gets_no_outcome_whoever_counts_last():
    for settled_first in (True, False):
        started, told = Started(LOG), Told()
        number = started.enter(Many(AT, 1.0, told.many("m"), 3))
        steps = [
            lambda s=started, n=number: s.settle_of_many(n, 0, Appended(0)),
            lambda s=started, n=number: s.drop_some(n, [1, 2]),
        ]
        for step in steps if settled_first else reversed(steps):
            step()
        assert told.outcomes == [("m0", Appended)]
        assert not started
        assert started.oldest() is None


def test_all_up_to_a_number_is_forgotten_and_what_comes_after_it_is_left_alone():
    started, told = Started(LOG), Told()
    given_up = started.enter(One(AT, 1.0, told.one("given up")))
    started.give_up(1.0, not_known)
    old = started.enter(One(AT, 2.0, told.one("old")))
    many = started.enter(Many(OTHER, 2.0, told.many("m"), 2))
    new = started.enter(One(AT, 3.0, told.one("new")))
    started.forget(many, not_known)
    assert told.names() == ["given up", "old", "m0", "m1"]
    assert [started.at(number) for number in (given_up, old, many, new)] == [None, None, None, AT]
    started.settle_of_many(many, 0, Appended(0))
    started.settle(old, Appended(0))
    assert len(told.outcomes) == 4
    assert started.waits(new)
    assert started.oldest().since_s == 3.0


def test_an_outcome_whose_taker_fails_ends_nothing(caplog):
    started, told = Started(LOG), Told()

    def fails(*_):
        raise ValueError("not mine")

    one = started.enter(One(AT, 1.0, fails))
    many = started.enter(Many(AT, 1.0, fails, 2))
    other = started.enter(One(AT, 1.0, told.one("other")))
    started.settle(one, Appended(0))
    started.settle_of_many(many, 0, Appended(1))
    started.give_up(1.0, not_known)
    assert told.names() == ["other"]
    assert not started
    assert caplog.text.count("ValueError: not mine") == 3
    started.settle(other, Appended(2))
    assert told.names() == ["other"]


def test_a_taker_may_start_another_append():
    started, told = Started(LOG), Told()
    again = []

    def appends(_):
        again.append(started.enter(One(AT, 9.0, told.one("again"))))

    number = started.enter(One(AT, 1.0, appends))
    started.give_up(5.0, not_known)
    assert started.waits(again[0])
    started.settle(number, Appended(0))
    started.settle(again[0], Appended(1))
    assert told.names() == ["again"]
