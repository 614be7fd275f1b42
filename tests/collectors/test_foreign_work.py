"""Foreign work on a real broker: what a plan predicts, and what its collectors have counted."""

import json
import urllib.request

import pytest

from multicast import Producer
from tests.helpers.plans import with_foreign_work
from tests.helpers.system import PATIENCE_S, System, amcast, until
from topology.work import collector_work

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
SENT = {"P1": 200, "P2": 310, "P3": 120, "P4": 450, "P5": 80, "P6": 30}
KINDS = ("appended", "passed_on", "read", "dropped")


@pytest.fixture
def system(kafka_cluster, tmp_path):
    """A topic whose producers write no tickets."""
    with System(kafka_cluster.bootstrap, with_foreign_work(), tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def drained_system(kafka_cluster, tmp_path_factory):
    """All collectors in one process, which have ordered what was sent; a test sends no more."""
    plan = with_foreign_work()
    with System(kafka_cluster.bootstrap, plan, tmp_path_factory.mktemp("work")) as made:
        made.order()
        multicast(made)
        yield made


def multicast(system, sent=SENT):
    """Send, and wait until all of it is ordered by its logs' tops."""
    with Producer(topic=system.topic, driver=system.driver, tickets=False) as producer:
        receipts = [producer.multicast_all([b"m"] * count, to={log}) for log, count in sent.items()]
        for receipt in receipts:
            receipt.accepted(PATIENCE_S)
            receipt.ordered(PATIENCE_S)


def of(logs, sent):
    return {log: sent.get(log, 0) for log in logs}


def predicted(plan, sent):
    """Give by collector what the plan has it append, pass on, read and drop of these entries."""
    return {
        node.name: dict(
            zip(
                KINDS,
                (of(logs, sent) for logs in (work.appends, work.passes_on, work.reads, work.drops)),
                strict=True,
            )
        )
        for node in plan.collectors
        for work in [collector_work(plan, node)]
    }


def status(system):
    done = amcast("collectors", "status", *system.common(), "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def counted(system):
    """Give what `collectors status` shows: by collector, by kind, by log."""
    document = {}

    def complete():  # a page of a starved process comes too late for the command
        document.update(status(system))
        return document["not_counted"] == []

    until(complete, "an answer of every process", pause=0.2)
    return {row["collector"]: row["entries"] for row in document["collectors"]}


def page(url):
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return answer.read()


def drained(system, wanted):
    """Wait until the collectors have counted this much, and give what they have counted."""
    seen = {}

    def enough():
        seen.update(counted(system))
        return all(
            sum(seen[name][kind].values()) >= sum(wanted[name][kind].values())
            for name in wanted
            for kind in KINDS
        )

    until(enough, "the counts of all that was sent", pause=0.2)
    return seen


def test_predicted_and_measured_foreign_work_are_equal_once_all_is_drained(drained_system):
    system = drained_system
    wanted = predicted(system.plan, SENT)

    # The command and the pages of the process say the same, log by log.
    assert drained(system, wanted) == wanted
    rows = {row["collector"]: row for row in status(system)["collectors"]}
    assert rows["K0"]["genuineness"] == 0.0
    kept = SENT["P1"] + SENT["P2"] + SENT["P4"]
    assert rows["K1"]["genuineness"] == pytest.approx(kept / (kept + SENT["P3"]))
    url = rows["K0"]["counted_at"]
    nodes = json.loads(page(url))["nodes"]
    assert {node["node"]: node["entries"] for node in nodes} == wanted
    metrics = page(url.replace("/status", "/metrics")).decode().splitlines()
    for name, kinds in wanted.items():
        for kind, logs in kinds.items():
            for log, count in logs.items():
                labels = f'collector="{name}",log="{log}",topic="{system.topic}"'
                metric = f"amcast_collector_entries_{kind}_total"
                assert f"{metric}{{{labels}}} {float(count)}" in metrics
    table = amcast("collectors", "status", *system.common()).stdout
    (line,) = [line for line in table.splitlines() if line.startswith("K3 ")]
    assert line.split()[5:9] == [str(sum(wanted["K3"][kind].values())) for kind in KINDS]
