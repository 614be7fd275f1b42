"""`WorkSchedule` against a model that looks at all messages each time, in all courses of events."""

import itertools
import math
from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast.workers import schedule
from multicast.workers.schedule import WorkSchedule


class Placed(NamedTuple):
    """A message of which the schedule asks only the cursor."""

    number: int

    @property
    def cursor(self):
        return self.number + 1


class Course:
    """A schedule and its model; each step compares both."""

    def __init__(self, keys, *, in_hand_max=2, open_max=3, attempts_max=2):
        self.keys = keys
        self.limits = in_hand_max, open_max, attempts_max
        self.schedule = WorkSchedule(
            in_hand_max=in_hand_max, open_max=open_max, attempts_max=attempts_max
        )
        self.taken = 0
        self.now = 0.0
        self.waits, self.failures = {}, dict.fromkeys(range(len(keys)), 0)
        self.in_hand, self.begun, self.done, self.given_up = set(), [], [], set()
        self.until = math.inf

    @property
    def passed(self):
        return next(number for number in itertools.count() if number not in self.done)

    @property
    def free(self):
        open_now = [number for number in range(self.taken) if number not in self.done]
        return [
            number
            for number in open_now
            if number not in self.in_hand | self.given_up
            and self.waits.get(number, 0) <= self.now
            and number < self.until
            and not any(
                set(self.keys[number]) & set(self.keys[earlier])
                for earlier in open_now
                if earlier < number
            )
        ]

    def choices(self):
        """All that may happen next."""
        room = self.taken - self.passed < self.limits[1]
        if self.until == math.inf and room and self.taken < len(self.keys):
            yield "take", self.taken
        for number in sorted(self.in_hand):
            yield "done", number
            yield "failed", number
        for number in sorted(self.given_up):
            yield "done", number
        for number, due in sorted(self.waits.items()):
            if due > self.now:
                yield "wait", number

    def step(self, what, number):
        if what == "take":
            self.schedule.take(Placed(number), self.keys[number], 1)
            self.taken += 1
        elif what == "done":
            self.in_hand.discard(number)
            self.given_up.discard(number)
            self.done.append(number)
            self.schedule.done(number)
        elif what == "failed":
            self.in_hand.remove(number)
            self.failures[number] += 1
            left = self.limits[2] - self.failures[number]
            assert self.schedule.failed(number, self.now) == left
            if left:
                delay_s = schedule._RETRY_S * 2 ** (self.failures[number] - 1)
                self.waits[number] = self.now + delay_s
            else:
                self.given_up.add(number)
        elif what == "wait":
            self.now = max(self.now, self.waits[number])
        elif what == "drain":
            self.until = max(self.begun, default=-1) + 1
            self.schedule.drain()
        else:
            self.until = 0
            self.schedule.halt()
        self.begin()
        self.check()

    def begin(self):
        due = [each for each in self.waits.values() if each > self.now]
        expected = self.free[: self.limits[0] - len(self.in_hand)]
        begun = [number for number, _ in self.schedule.begin(self.now)]
        assert begun == expected, "not the oldest that are free, or not as many as may be in hand"
        assert self.schedule.next_try == min(due, default=math.inf)
        for number in begun:
            self.waits.pop(number, None)
        self.begun += begun
        self.in_hand |= set(begun)

    def check(self):
        assert self.schedule.passed == self.passed
        assert self.schedule.cursor == (self.passed or None)
        assert self.taken - self.passed <= self.limits[1]
        assert self.schedule.room == (self.taken - self.passed < self.limits[1])
        rest = range(self.passed, min(self.taken, self.until) if self.until else 0)
        assert self.schedule.busy == bool(self.in_hand or rest)
        if not self.schedule.busy and self.until:
            assert sorted(self.done) == list(range(self.passed)), "something comes again in vain"
        for key in {key for each in self.keys for key in each}:
            order = [number for number in self.done if key in self.keys[number]]
            assert order == sorted(order), f"the order of {key}"

    def state(self):
        return (
            self.taken,
            frozenset(self.done),
            frozenset(self.in_hand),
            frozenset(number for number, due in self.waits.items() if due > self.now),
            tuple(self.failures.values()),
        )

    def ended(self):
        assert self.schedule.busy is False
        assert not self.schedule._queues
        assert not self.schedule._open
        assert self.schedule._bytes == 0
        assert self.done == [] or self.passed == len(self.keys) == self.taken


def all_states(make):
    """Take each choice in each state that can be reached; gives how many these are."""
    pending, known = [()], set()
    while pending:
        path = pending.pop()
        course = make()
        for step in path:
            course.step(*step)
        state = course.state()
        if state in known:
            continue
        known.add(state)
        choices = list(course.choices())
        if not choices:
            course.ended()
        pending += [(*path, step) for step in choices]
    return len(known)


SETS = [(), ("a",), ("b",), ("a", "b")]


@pytest.mark.parametrize("attempts_max", [1, 2])
def test_in_every_course_keys_keep_their_order_and_the_watermark_is_exact(attempts_max):
    states = 0
    for keys in itertools.product(SETS, repeat=4 - attempts_max):
        states += all_states(partial(Course, keys, attempts_max=attempts_max))
    assert states > 300


KEYS = st.lists(st.sets(st.sampled_from("abcd"), max_size=3).map(sorted), max_size=14)


@given(KEYS, st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.data())
def test_whatever_ends_first_or_fails_all_is_done_in_the_order_of_each_key(
    keys, in_hand_max, open_max, attempts_max, data
):
    course = Course(keys, in_hand_max=in_hand_max, open_max=open_max, attempts_max=attempts_max)
    stops = data.draw(st.sampled_from(["never", "drain", "halt"]))
    stop_at = data.draw(st.integers(0, 20))
    for number in itertools.count():
        if stops != "never" and number == stop_at:
            course.step(stops, 0)
        choices = list(course.choices())
        if course.until == 0:
            choices = [each for each in choices if each[1] in course.in_hand]
        if not choices:
            break
        course.step(*data.draw(st.sampled_from(choices)))
    assert not course.schedule.busy
    if stops == "never":
        course.ended()


def test_a_slow_key_holds_up_nobody_until_the_bound():
    course = Course([("slow",), *[("slow",), ("x",)] * 30], in_hand_max=2, open_max=20)
    while True:
        choices = [each for each in course.choices() if each != ("done", 0)]
        choices = [each for each in choices if each[0] != "failed"]
        if not choices:
            break
        course.step(*choices[0])
    assert course.taken == 20
    assert course.done == list(range(2, 20, 2))
    assert course.schedule.passed == 0


def test_what_is_taken_is_bounded_in_bytes_and_one_large_message_passes():
    bounded = WorkSchedule(in_hand_max=1, open_max=10, attempts_max=1)
    bounded.take(Placed(0), ["a"], 2 * schedule.BYTES_MAX)
    assert not bounded.room
    assert bounded.begin(0)
    bounded.done(0)
    assert bounded.room


def test_keys_that_are_none_change_nothing():
    refusing = WorkSchedule(in_hand_max=1, open_max=10, attempts_max=1)
    for keys in (None, [[]], 5):
        with pytest.raises(TypeError):
            refusing.take(Placed(0), keys, 1)
    assert not refusing.busy
    assert not refusing._queues
