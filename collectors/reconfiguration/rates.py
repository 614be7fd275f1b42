"""What a running system tells the planner: the plan in force, and how fast each log grows.

`amcast topology plan --from-cluster` calls `running` through the entry point `amcast.cluster`, so
that the planner itself needs no cluster.
"""

from __future__ import annotations

import threading
import time

from multicast.control import ControlReader, log_partition
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin
from multicast.errors import UncoveredInterest
from multicast.settings import settings
from topology.changes import measured_rates
from topology.tree import Plan


def running(
    topic: str, *, bootstrap: str | None, window_s: float
) -> tuple[Plan | None, dict[str, float], str, int]:
    """Read the running plan, measure its logs' rates over a window, and name the cluster.

    The last is how many partitions the topic has, 0 where it does not exist. Blocks for `window_s`
    seconds. The plan is None, and the rates empty, where none was applied.
    Rates are messages per second by log name, from end offsets: transaction markers count, too.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic)
    with Admin(chosen.bootstrap, chosen.client) as admin:
        cluster_id = admin.cluster_id()
        partitions = admin.partitions([topic]).get(topic, 0)
    driver = open_driver("kafka-python", chosen.bootstrap, chosen.client)
    try:
        try:
            control = ControlReader(driver, topic)
        except UncoveredInterest:
            return None, {}, cluster_id, partitions
        try:
            plan = control.refresh().plan()
        finally:
            control.close()
        at = {log_partition(log): log.name for log in plan.logs}
        first, began = driver.last_stable_offsets(list(at)), time.monotonic()
        threading.Event().wait(window_s)
        last, seconds = driver.last_stable_offsets(list(at)), time.monotonic() - began
    finally:
        driver.close()
    rates = measured_rates(
        {name: first[place] for place, name in at.items()},
        {name: last[place] for place, name in at.items()},
        seconds=seconds,
    )
    return plan, dict(rates), cluster_id, partitions
