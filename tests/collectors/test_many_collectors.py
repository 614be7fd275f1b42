"""More collectors in one process than any pool has threads, on a real broker; and what apply says.

Nothing here depends on how fast the machine is: each wait ends with what it waits for.
"""

import json
from pathlib import Path

import pytest

from multicast import Consumer, Producer
from tests.helpers.hosting import hosting
from tests.helpers.plans import renamed, tree_plan
from tests.helpers.system import PATIENCE_S, System, amcast, until

pytestmark = [pytest.mark.campaign, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

MANY = 40
EACH = 5  # messages to each destination set
READERS_MAX = 20  # consumers that read


def applied(system, plan, *more, patiently=False):
    file = system.folder / f"{plan.epoch}.json"
    file.write_text(json.dumps(plan.to_json()))
    flags = ["-b", system.bootstrap, "--driver", system.driver_name, "-o", "json"]
    words = ("topology", "apply", str(file), *flags, "--timeout", "240", *more)
    done = amcast(*words, patiently=patiently)
    return done.returncode, json.loads(done.stdout), done.stderr


def wait_begun(host, count, epoch):
    """Wait until so many collectors of an epoch have begun."""

    def begun():
        assert not host.ended(), host.log_end()
        nodes = [node for node in host.status()["nodes"] if node["epoch"] == epoch]
        return count == len([n for n in nodes if n["state"] == "running" and n.get("begun")])

    until(begun, f"{count} collectors of epoch {epoch}", pause=0.1)


def threads(host):
    """Count the threads of a process."""
    return sum(1 for _ in Path(f"/proc/{host.pid}/task").iterdir())


def send(driver, plan):
    """Send a few messages to every destination set, until all are ordered; give how many."""
    with Producer(topic=plan.topic, driver=driver) as producer:
        receipts = [
            producer.multicast(b"x", to=set(log.to)) for _ in range(EACH) for log in plan.logs
        ]
        for receipt in receipts:
            receipt.ordered(PATIENCE_S)
    return len(receipts)


def delivered(driver, plan):
    """Read as consumers spread over the tree; give the counts of delivered and due messages."""
    came = expected = 0
    for entry in plan.consumers[:: max(1, len(plan.consumers) // READERS_MAX)]:
        expected += EACH * len(plan.logs_of(entry.interest))
        place = {"topic": plan.topic, "driver": driver}
        with Consumer(**place, name=entry.name, committed=False) as consumer:
            came += sum(len(batch.records) for batch in consumer.until_end(timeout=PATIENCE_S))
    return came, expected


@pytest.mark.parametrize("driver", ["librdkafka", "kafka-python"])
def test_one_process_runs_forty_collectors_through_a_change_of_all_of_them(
    kafka_cluster, tmp_path, driver
):
    # Init: a first epoch needs no collectors yet.
    with System(kafka_cluster.bootstrap, tree_plan(MANY, "A"), tmp_path, driver=driver) as system:
        code, report, messages = applied(system, system.plan)
        assert (code, len(report["collectors_not_running"])) == (0, MANY)
        assert "no collector of epoch 1" in messages

        # Test: one process runs them all; then all are replaced while it runs.
        with hosting(system.bootstrap, system.topic, driver, tmp_path) as host:
            wait_begun(host, MANY, 1)
            few = threads(host)
            assert send(system.driver, system.plan) == EACH * len(system.plan.logs)
            count, expected = delivered(system.driver, system.plan)
            assert count == expected > 0
            after = renamed(system.plan)
            code, report, messages = applied(system, after, patiently=True)
            assert (code, report["collectors_not_running"]) == (0, []), messages
            wait_begun(host, MANY, 2)
            assert send(system.driver, after) == EACH * len(after.logs)

            # Check: no thread is a collector's own.
            assert few < MANY
            assert threads(host) < few + MANY // 2  # a client may start a few of its own later


def test_apply_names_the_collectors_of_a_later_epoch_that_nobody_runs(kafka_cluster, tmp_path):
    plan = tree_plan(3, "A")
    with System(kafka_cluster.bootstrap, plan, tmp_path) as system:
        first, *others = [f"N{entry.name}" for entry in plan.collectors]
        after = renamed(system.plan)
        code, report, messages = applied(system, after)
        assert (code, report["collectors_not_running"]) == (1, [first, *others])
        assert "no collector of epoch 2" in messages
        assert "did not freeze in time" in messages

        # A process that runs one of them only, and the epoch after.
        with hosting(system.bootstrap, system.topic, "librdkafka", tmp_path, nodes=[first]) as host:
            wait_begun(host, 1, 2)
            code, report, _ = applied(system, after)
            assert (code, report["collectors_not_running"]) == (1, others)
            third = renamed(after, name=lambda old: old)
            code, report, messages = applied(system, third)
            assert (code, report["collectors_not_running"]) == (1, others)
            assert f"2 of 3 collectors of epoch 3 of topic {system.topic} do not run" in messages
            wait_begun(host, 1, 3)
