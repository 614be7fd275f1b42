"""Bugs planted into the rule of bundles, into what nodes do with them, and what readers get."""

import pytest

from tests.running.planted import bugs, hunt_by_tests

FINDERS = (
    "test_rule",
    "test_rule_properties",
    "test_bundle",
    "test_parts",
    "test_saved",
    "test_intake",
    "../chain/test_set_records",
    "../chain/test_restarts",
)
TABLES = [f"ordering_osn/planted/{name}.toml" for name in ("rule", "nodes", "readers")]


@pytest.mark.campaign
@pytest.mark.parametrize("bug", [bug for table in TABLES for bug in bugs(table)], ids=str)
def test_a_planted_bug_is_found(bug, copy):
    hunt_by_tests(bug, copy, "ordering_osn/bundles", FINDERS)
