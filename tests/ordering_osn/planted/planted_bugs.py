"""The bugs planted into the ordering service, and the tests that must find those that name none."""

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
OF_THE_RULE, AT_NODES, AT_READERS = (
    bugs(f"ordering_osn/planted/{table}.toml") for table in ("rule", "nodes", "readers")
)


def hunt(bug, copy):
    """Fail unless a test finds the bug."""
    hunt_by_tests(bug, copy, "ordering_osn/bundles", FINDERS)
