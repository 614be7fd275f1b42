"""A rolling update of collectors under load: no message is lost, doubled or out of order."""

import pytest

from bench.deployment.rolling import SharedCollectors, measure
from bench.harness.interests import file_of
from bench.micro.replanning import INTERESTS, SETS, load
from tests.helpers.system import System
from topology.planner.solver import plan as solve

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.campaign]


def test_processes_that_restart_one_by_one_under_load_violate_nothing(kafka_cluster, tmp_path):
    # Init.
    bootstrap = kafka_cluster.bootstrap
    with (
        System(bootstrap, solve(file_of(INTERESTS, SETS)), tmp_path) as system,
        SharedCollectors(bootstrap, system.topic, tmp_path, processes=2) as shared,
        load(bootstrap, system.topic, 200),
    ):
        # Test.
        seen = measure(system.driver, system.plan, shared, rounds=1)

    # Check.
    assert seen["restarts"] == 2
    assert seen["violations"] == 0
    assert seen["messages"] > 200
