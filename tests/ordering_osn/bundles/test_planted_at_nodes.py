"""Bugs planted into what a node does with bundles: the tests find all."""

import pytest

from tests.ordering_osn.helpers.planted_bugs import (
    bug_id,
    check_patches,
    copied_source,
    hunt,
    planted_bugs,
)

BUGS = planted_bugs("planted_at_nodes.toml")
of_each_bug = pytest.mark.parametrize("bug", BUGS, ids=bug_id)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return copied_source(tmp_path_factory.mktemp("planted"))


@pytest.mark.campaign
@pytest.mark.slow
@of_each_bug
def test_a_planted_bug_is_found(bug, copy):
    hunt(bug, copy)


@of_each_bug
def test_a_patch_matches_its_file_once(bug):
    check_patches(bug)


def test_each_bug_has_one_name():
    assert len({bug.name for bug in BUGS}) == len(BUGS)
