"""Wrong order records on a real broker: `doctor` names the damage, `recover` repairs it."""

import json

import pytest

from collectors.reconfiguration.apply import apply
from multicast import Producer
from multicast.drivers.kafka import Admin
from multicast.errors import Conflict
from multicast.properties import check_all
from multicast.verification.from_cluster import ReplayedConsumer, replayed
from tests.collectors.test_replanning import planned
from tests.helpers.forged import forge, freeze
from tests.helpers.plans import poster
from tests.helpers.system import PATIENCE_S, System, amcast

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

SETS = ({"P1"}, {"P2"}, {"P3"}, {"P4"}, {"P5"}, {"P1", "P3"}, {"P2", "P3", "P4"})
SEATS = [
    ReplayedConsumer("C1", None),
    ReplayedConsumer("C2", None),
    ReplayedConsumer("C3", None),
    ReplayedConsumer(None, ("P1",)),
]


@pytest.fixture
def system(kafka_cluster, tmp_path):
    """The poster's tree, with one kind of client."""
    with System(kafka_cluster.bootstrap, poster(), tmp_path, driver="kafka-python") as made:
        yield made


def send(system, count=1, sets=SETS):
    """Send so many messages to each set, and wait until they are stored."""
    with Producer(topic=system.topic, driver=system.driver) as producer:
        receipts = [producer.multicast(b"x", to=to) for _ in range(count) for to in sets]
        for receipt in receipts:
            receipt.accepted(PATIENCE_S)


def root(system):
    return next(node.name for node in system.plan.collectors if node.parent is None)


def child(system, log):
    top = system.plan.top(log)
    assert top.parent is not None
    return top.name


def doctor(system):
    done = amcast("doctor", "-b", system.bootstrap, "-t", system.topic, "-o", "json")
    document = json.loads(done.stdout)
    return done.returncode, [
        finding for finding in document["findings"] if "recover" in finding["do"]
    ]


def mended(system, *arguments):
    done = amcast("topology", "recover", *system.common(), "-o", "json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def judged(system):
    """Check that all consumers deliver all messages of their logs, in one order."""
    report = check_all(replayed(system.driver, system.topic, SEATS, timeout_s=60.0))
    assert not report.violations, [str(violation.witness) for violation in report.violations]
    return report


def ordered_again(system):
    """Check that the collectors order new messages."""
    with Producer(topic=system.topic, driver=system.driver) as producer:
        receipts = [producer.multicast(b"after", to=to) for to in SETS]
        for receipt in receipts:
            receipt.ordered(PATIENCE_S)


@pytest.mark.parametrize("where", ["root", pytest.param("child", marks=pytest.mark.campaign)])
def test_a_stream_that_was_ended_too_early_goes_on_in_the_next_epoch(system, where):
    system.order()
    send(system, 3)
    name = root(system) if where == "root" else child(system, "P1")
    forge(system, name, freeze)
    send(system, 3)
    code, results = doctor(system)
    assert code == 1
    assert f"collector {name}" in results[0]["says"]
    with pytest.raises(Conflict, match="topology recover"), Admin(system.bootstrap) as admin:
        apply(system.driver, admin, planned(system.plan), timeout_s=PATIENCE_S)
    # The refusal has changed nothing.
    assert mended(system)["epoch"] == 2
    ordered_again(system)
    assert doctor(system)[1] == []
    judged(system)
