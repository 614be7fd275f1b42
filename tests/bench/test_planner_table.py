"""The planner's table: the alternatives that plans are compared with are computed correctly."""

from __future__ import annotations

import pytest

from bench.micro.planner import (
    TEAMS,
    byzcast,
    file_of,
    layering,
    measures,
    one_root,
    pairs,
    rooted,
    row,
)


def test_rooted_trees_are_counted_by_cayley():
    assert [len(list(rooted(count))) for count in (1, 2, 3, 4)] == [1, 2, 9, 64]


@pytest.mark.parametrize(
    ("file", "root", "layers", "byzcasts"),
    [
        (file_of(TEAMS), 69, 33, 9),
        (file_of({"X": ["A", "B"], "Y": ["B", "C"], "Z": ["C", "A"]}), 36, 40, 8),
        (pairs(3), 99, 63, 11),
    ],
)
def test_the_rivals_of_small_inputs_are_known_by_hand(file, root, layers, byzcasts):
    (measure,) = measures(file)
    assert one_root(measure) == root
    assert layering(measure) == layers
    assert byzcast(measure)[0] == byzcasts


def test_a_row_says_what_the_plan_costs_and_that_it_is_proven():
    cells = row("poster", file_of(TEAMS))
    assert cells[0:3] == ["poster", "5 / 5 / 3", "acyclic"]
    assert cells[4:9] == ["0", "3", "33", "69", "33"]
