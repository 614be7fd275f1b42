"""The other half of the bugs planted into the rule of bundles: files run side by side."""

import pytest

from tests.ordering_osn.planted.planted_bugs import OF_THE_RULE, hunt


@pytest.mark.campaign
@pytest.mark.parametrize("bug", OF_THE_RULE[1::2], ids=str)
def test_a_planted_bug_is_found(bug, copy):
    hunt(bug, copy)
