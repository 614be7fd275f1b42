"""Bugs planted into what a node does with bundles: the tests find all.

Apart from `test_planted`, so that two workers hunt at the same time.
"""

import pytest

from tests.ordering_osn.helpers.planted_bugs import AT_NODES, bug_id, hunt


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("bug", AT_NODES, ids=bug_id)
def test_a_planted_bug_is_found(bug, copy):
    hunt(bug, copy)
