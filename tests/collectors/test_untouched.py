"""A change of one tree, on a real broker: the other trees are retained."""

import pytest

from collectors.cli.main import describe
from multicast import Consumer, Producer
from tests.collectors.test_replanning import applied, judged
from tests.helpers.small import state_of
from tests.helpers.system import PATIENCE_S, System, amcast, until
from topology.changes import with_kept_names, with_running_logs
from topology.interests import from_document
from topology.planner.solver import plan as solve

pytestmark = [pytest.mark.campaign, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

LEFT = {"name": "C1", "interest": ["P1", "P2"]}
RIGHT = {"name": "C2", "interest": ["P3", "P4"]}
ALONE = {"name": "C5", "interest": ["P5"]}


def interests(topic, *consumers):
    partitions = ["P1", "P2", "P3", "P4", "P5", "P6"]
    return from_document({"topic": topic, "partitions": partitions, "consumer": list(consumers)})


@pytest.fixture
def system(kafka_cluster, tmp_path):
    plan = solve(interests("A", LEFT, RIGHT, ALONE))
    with System(kafka_cluster.bootstrap, plan, tmp_path) as made:
        yield made


def changed(system, *consumers):
    """Make the plan of the next epoch for these consumers."""
    wanted = with_running_logs(interests(system.topic, *consumers), system.plan)
    made = solve(wanted, base_epoch=system.plan.epoch, cluster_id=system.plan.cluster_id)
    return with_kept_names(system.plan, made)


def multicast(system, value, *partitions):
    with Producer(topic=system.topic, driver=system.driver) as producer:
        for partition in partitions:
            producer.multicast(value, to={partition}).ordered(PATIENCE_S)


def delivered(consumer):
    return [(b.epoch, r.value) for b in consumer.until_end() for r in b.records]


def states(system):
    state = state_of(system)
    plan = state.plan()
    rows = [describe(system.driver, state, plan, node.name) for node in plan.collectors]
    homes = {node.name: state.first_epoch(plan.epoch, node.name) for node in plan.collectors}
    return homes, {row["collector"]: row["state"] for row in rows}


class Stopped(Exception):
    """The end of an operator's process in the middle of its work."""


def test_a_tree_that_a_change_leaves_alone_goes_on_while_another_one_stands_still(system):
    left, right = (system.plan.subscription(name).collector for name in ("C1", "C2"))
    host = system.collectors()
    host.wait_healthy(120)
    multicast(system, b"before", "P1", "P2", "P3", "P4", "P5")

    # The drain of the right tree waits: its collector does not run, and apply is killed.
    host.kill(right)
    after = changed(system, LEFT, ALONE, {"name": "C2", "interest": ["P3", "P4", "P6"]})

    def stop(sentence):
        if "freeze" in sentence:
            raise Stopped

    with pytest.raises(Stopped):
        applied(system, after, say=stop)
    consumers = {
        name: Consumer(topic=system.topic, name=name, driver=system.driver)
        for name in ("C1", "C2", "C5")
    }
    multicast(system, b"meanwhile", "P1", "P2", "P5")
    before, meanwhile = [(1, b"before")], [(1, b"meanwhile")]
    assert delivered(consumers["C1"]) == 2 * before + 2 * meanwhile
    assert delivered(consumers["C5"]) == before + meanwhile

    # It is finished: the right tree is in epoch 2, the others are still in epoch 1.
    host.start(right)
    system.plan = applied(system, after)
    done = ({left: 1, right: 2}, {left: "up to date", right: "up to date"})
    until(lambda: states(system) == done, "all that was sent is ordered")
    multicast(system, b"after", "P1", "P3", "P5", "P6")
    assert delivered(consumers["C1"]) == [(1, b"after")]
    assert delivered(consumers["C5"]) == [(1, b"after")]
    assert delivered(consumers["C2"]) == 2 * before + 2 * [(2, b"after")]

    # The retained tree changes at last, from epoch 2 to 3.
    right_now = {"name": "C2", "interest": ["P3", "P4", "P6"]}
    more = {"name": "C6", "interest": ["P2", "P5"]}
    system.plan = applied(system, changed(system, LEFT, right_now, ALONE, more))
    for node in system.plan.collectors:
        if node.name not in host.names:
            host.start(node.name)
    multicast(system, b"last", "P1", "P3", "P5")
    assert delivered(consumers["C1"]) == [(3, b"last")]
    assert delivered(consumers["C5"]) == [(3, b"last")]
    assert delivered(consumers["C2"]) == [(2, b"last")]
    assert states(system)[0][right] == 2
    verify = ("topology", "verify", *system.common())
    until(lambda: amcast(*verify).returncode == 0, "what was applied")
    for consumer in consumers.values():
        consumer.close()
    judged(system, "C1", "C2", "C5", "C6")  # C2 has had two interests
