"""The planner's table: the alternatives that plans are compared with are computed correctly."""

from __future__ import annotations

import pytest

from bench.baselines.trees import byzcast, flexcast, join_tree, one_root, poster
from bench.harness.interests import file_of, pairs
from bench.micro.planner import TEAMS, measures
from topology.planner.cost import Measure, TreeNode


def cost(measure: Measure, tree: TreeNode | None) -> float:
    assert tree is not None
    return measure.cost(measure.priced(tree))


@pytest.mark.parametrize(
    ("file", "root", "posters", "path", "byzcasts"),
    [
        (file_of(TEAMS), 69, 33, 34, 9),
        (file_of({"X": ["A", "B"], "Y": ["B", "C"], "Z": ["C", "A"]}), 36, 40, 40, 8),
        (pairs(3), 99, 63, 63, 11),
    ],
)
def test_the_rivals_of_small_inputs_are_known_by_hand(file, root, posters, path, byzcasts):
    (measure,) = measures(file)
    assert cost(measure, one_root(measure)) == root
    assert cost(measure, poster(measure)) == posters
    assert cost(measure, flexcast(measure)) == path
    assert byzcast(measure)[0] == byzcasts


def test_a_join_tree_exists_only_for_acyclic_interests_and_each_drop_is_one_log():
    (measure,) = measures(file_of(TEAMS))
    assert cost(measure, join_tree(measure)) == 34, "under A: 14 hops, and B and C drop one log"
    (cyclic,) = measures(file_of({"X": ["A", "B"], "Y": ["B", "C"], "Z": ["C", "A"]}))
    assert join_tree(cyclic) is None
