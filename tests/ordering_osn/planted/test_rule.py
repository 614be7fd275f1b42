"""Bugs planted into the rule of bundles and into the core: the tests find all."""

import pytest

from tests.ordering_osn.planted.planted_bugs import (
    AT_NODES,
    AT_READERS,
    OF_THE_RULE,
    hunt,
)

EVERY_BUG = [*OF_THE_RULE, *AT_NODES, *AT_READERS]


@pytest.mark.campaign
@pytest.mark.parametrize("bug", OF_THE_RULE[::2], ids=str)  # the others: test_rule_others.py
def test_a_planted_bug_is_found(bug, copy):
    hunt(bug, copy)


@pytest.mark.parametrize("bug", EVERY_BUG, ids=str)
def test_each_patch_has_one_place(bug):
    assert all(patch.place() for patch in bug.patches)


def test_each_bug_has_one_name():
    assert len({bug.name for bug in EVERY_BUG}) == len(EVERY_BUG)
