"""A rolling update of collectors under load: no message is lost, doubled or out of order."""

import pytest

from tests.collectors.deploy.shared import SharedCollectors
from tests.collectors.test_replanning import Load, judged
from tests.helpers.plans import poster
from tests.helpers.system import System, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.campaign]
NAMES = ["C1", "C2", "C3"]


def test_processes_that_restart_one_by_one_under_load_violate_nothing(kafka_cluster, tmp_path):
    # Init.
    bootstrap = kafka_cluster.bootstrap
    with (
        System(bootstrap, poster(), tmp_path) as system,
        SharedCollectors(bootstrap, system.topic, tmp_path, processes=2) as shared,
    ):
        load = Load(system, NAMES)

        def receive(messages):
            until(lambda: all(len(got) > messages for got in load.received.values()), "deliveries")

        # Test.
        for number in range(shared.count):
            receive(100 * (number + 1))
            shared.stop(number)
            shared.start(number)

        # Check: each consumer has all messages, once.
        load.end()
        assert judged(system, *NAMES).deliveries > 600
