"""Bugs planted into a copy of the source, one clause of the rule each: the tests find all."""

import pytest

from tests.running.planted import bugs, copied_source, hunt_by_tests

BUGS = bugs("multicast/conditional/planted.toml")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the source, in which one bug at a time is planted."""
    return copied_source(tmp_path_factory.mktemp("source"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug, copy):
    hunt_by_tests(bug, copy, "multicast/conditional", ["test_judge"])


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_each_patch_has_one_place(bug):
    assert all(patch.place() for patch in bug.patches)


def test_each_bug_has_one_name():
    assert len({bug.name for bug in BUGS}) == len(BUGS)
