"""Faults that bring mended defects back: the tests that came with each mend find them."""

import pytest

from tests.running.planted import bugs, copied_source, hunt_by_tests

BUGS = bugs("simulation/mends.toml")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the source, in which one bug at a time is planted."""
    return copied_source(tmp_path_factory.mktemp("source"))


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug, copy):
    hunt_by_tests(bug, copy, ".", bug.by)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_each_patch_has_one_place(bug):
    assert all(patch.place() for patch in bug.patches)
