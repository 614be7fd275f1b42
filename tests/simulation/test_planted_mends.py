"""Bugs planted into a copy of the source that tests find: what was mended, and each other rule.

The ordering service's have a file of their own, so that two workers hunt at the same time.
"""

import ast

import pytest

from tests.running.planted import TABLES, bugs, hunt_by_tests, sources

# By table: the folder of the tests that find its bugs, and those that need not be named.
FINDERS = {
    "simulation/mends.toml": (".", ()),
    "multicast/conditional/planted.toml": ("multicast/conditional", ("test_judge",)),
}
BUGS = [pytest.param(bug, at, id=str(bug)) for at in FINDERS for bug in bugs(at)]


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("bug", "table"), BUGS)
def test_a_planted_bug_is_found(bug, table, copy):
    folder, by = FINDERS[table]
    hunt_by_tests(bug, copy, folder, by)


@pytest.mark.parametrize("bug", [bug for table in TABLES for bug in bugs(table)], ids=str)
def test_each_patch_has_one_place(bug):
    for patch in bug.patches:
        name, at = patch.place()
        text = sources()[name]
        ast.parse(text[:at] + patch.new + text[at + len(patch.old) :])


def test_each_bug_of_a_table_has_one_name():
    for table in TABLES:
        names = [bug.name for bug in bugs(table)]
        assert len(set(names)) == len(names), table
