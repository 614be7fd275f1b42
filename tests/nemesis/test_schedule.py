"""The nemesis' schedule: one seed gives one list of faults, and the list is fair."""

from collections import Counter

import pytest

from bench.nemesis.schedule import Card, schedule

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
