"""The nemesis' schedule: one seed gives one list of faults, and the list is fair."""

from collections import Counter
from itertools import pairwise

import pytest

from bench.nemesis.schedule import Card, quiet_after, schedule

CARDS = [Card(f"kind {number}", (0.5 * number, number), 1 + number % 2) for number in range(9)]


def test_a_schedule_is_the_same_on_every_machine_and_day():
    first, second = schedule(1, CARDS, faults=2)
    assert (first.kind, first.hold_s, first.seed) == ("kind 5", 4.472, 121751464)
    assert (second.kind, second.at_s) == ("kind 6", 6.005)


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_comes_before_any_comes_a_third_time(seed):
    counts = Counter()
    for planned in schedule(seed, CARDS, faults=60):
        counts[planned.kind] += 1
        if max(counts.values()) == 3:
            break
    assert len(counts) == len(CARDS)


@pytest.mark.parametrize("seed", range(20))
def test_a_quarter_of_the_time_is_quiet_and_faults_follow_one_another(seed):
    planned = schedule(seed, CARDS, faults=60)
    quiet = sum(one.quiet_s for one in planned)
    assert quiet >= 0.25 * (quiet + sum(one.hold_s for one in planned))
    for one, following in pairwise(planned):
        assert following.at_s == pytest.approx(one.at_s + one.hold_s + one.quiet_s, abs=0.01)
    assert quiet_after(30.0) == pytest.approx(10.0)
