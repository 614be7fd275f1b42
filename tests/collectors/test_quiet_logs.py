"""Logs without faults get no skips: an announcement never promises what does not come."""

import pytest

from multicast import Producer
from multicast.control import log_partition
from tests.helpers.plans import poster
from tests.helpers.system import System, amcast, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]
SETS = ({"P1"}, {"P2"}, {"P3"}, {"P1", "P3"}, {"P2", "P3", "P4"})
MANY = 100_000


def records_once_all_is_ordered(system, host):
    """Count the records of all logs, once no collector waits for a message that may be a hole."""
    names = [node.name for node in system.plan.collectors]

    def quiet():
        statuses = [host.status(name) for name in names]
        return all(status and not (status["early"] or status["lag"]) for status in statuses)

    until(quiet, "an order without early offsets")
    logs = [log_partition(log) for log in system.plan.logs]
    return sum(system.driver.high_watermarks(logs).values())


@pytest.fixture
def ordered(kafka_cluster, tmp_path):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as system:
        host = system.collectors()
        host.wait_healthy(120)
        yield system, host


def test_producers_that_come_and_go_leave_no_skip(ordered):
    system, host = ordered
    sent = 0
    for _ in range(4):
        for to in SETS:
            with Producer(system.bootstrap, topic=system.topic) as producer:
                producer.multicast(b"x", to=to).accepted(60)
                sent += 1
    for to in ("P1", "P2,P3,P4"):
        done = amcast("send", "--to", to, *system.common(), stdin="x\n")
        assert done.returncode == 0, done.stderr
        sent += 1
    assert records_once_all_is_ordered(system, host) == sent


@pytest.mark.campaign
def test_a_hundred_thousand_messages_leave_no_skip(ordered):
    system, host = ordered
    with Producer(system.bootstrap, topic=system.topic) as producer:
        for number in range(MANY):
            producer.multicast(b"x", to=SETS[number % len(SETS)])
        producer.flush(240)
    assert records_once_all_is_ordered(system, host) == MANY
