"""Bugs planted into what a node does with bundles: the tests find all.

A file of its own, as `test_rule` and `test_readers`, so that three workers hunt at the same time.
"""

import pytest

from tests.ordering_osn.planted.planted_bugs import AT_NODES, hunt


@pytest.mark.campaign
@pytest.mark.parametrize("bug", AT_NODES, ids=str)
def test_a_planted_bug_is_found(bug, copy):
    hunt(bug, copy)
