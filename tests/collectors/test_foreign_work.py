"""Foreign work on a real broker: what a plan predicts, and what its collectors have counted."""

import json
import urllib.request

import pytest

from multicast import Producer
from tests.helpers.plans import predicted, with_foreign_work
from tests.helpers.system import PATIENCE_S, System, amcast, until

pytestmark = pytest.mark.timeout(600)
SENT = {"P1": 200, "P2": 310, "P3": 120, "P4": 450, "P5": 80, "P6": 30}


def page(url):
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return answer.read()


def test_predicted_and_measured_foreign_work_are_equal_once_all_is_drained(kafka_cluster, tmp_path):
    # Init: all collectors in one process; the producer writes no tickets.
    with System(kafka_cluster.bootstrap, with_foreign_work(), tmp_path) as system:
        system.order()
        with Producer(topic=system.topic, driver=system.driver, tickets=False) as producer:
            for log, count in SENT.items():
                producer.multicast_all([b"m"] * count, to={log}).ordered(PATIENCE_S)

        # Test and check: the command and the pages of the process say the same, log by log.
        wanted, rows = predicted(system.plan, SENT), {}

        def complete():  # a page of a starved process comes too late for the command
            done = amcast("collectors", "status", *system.common(), "-o", "json")
            rows.update((row["collector"], row) for row in json.loads(done.stdout)["collectors"])
            return {name: row["entries"] for name, row in rows.items()} == wanted

        until(complete, "the counts of all that was sent", pause=0.2)
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
        assert line.split()[5:9] == [str(sum(logs.values())) for logs in wanted["K3"].values()]
