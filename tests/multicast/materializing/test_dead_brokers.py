"""A copier on three brokers, each of which is killed while copies are made."""

import pytest

from tests.helpers.plans import poster
from tests.helpers.system import System, until
from tests.multicast.materializing.test_kills import SETS, Copying


@pytest.mark.campaign
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_copy_is_lost_or_repeated_whichever_broker_dies_inside_a_transaction(
    kafka_cluster_of_three, tmp_path
):
    cluster = kafka_cluster_of_three
    cluster.start()
    with System(cluster.bootstrap, poster(), tmp_path) as system:
        system.order()
        copying = Copying(system)
        with system.load(SETS):
            # One leads the target, one the transactions, one the group, or one does all.
            for broker in (1, 2, 3):
                with copying.copier() as process:
                    until(lambda: system.driver.topic_ids([copying.target.topic]), "the target")
                    copying.wait_copied(30)
                    until(copying.is_open, "an open transaction", pause=0.001)
                    cluster.kill(broker)
                    goal = copying.end() + 100
                    until(
                        lambda goal=goal, process=process: (
                            process.poll() is not None or copying.stable_end() > goal
                        ),
                        "copies of a later transaction",
                    )
                    assert process.poll() in (None, 4)  # it is to be started again
                cluster.start()
        expected = [(row["payload"], row["message_id"]) for row in copying.all_copied()]
        assert [copied[:2] for copied in copying.copies()] == expected
