"""Reads the running plan and measures the rates of its logs, for the planner.

`amcast topology plan --from-cluster` calls `running` through the entry point `amcast.cluster`, so
the planner itself does not import Kafka code.
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
    """Give the running plan, its logs' rates, the cluster's ID, and the topic's partition count.

    Rates are messages per second by log name, from end offsets over `window_s` seconds, for which
    the call blocks; transaction markers count, too. If no plan was applied, the plan is None and
    the rates are empty. The count is 0 if the topic does not exist.
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
        logs = {log_partition(log): log.name for log in plan.logs}
        first, began = driver.last_stable_offsets(list(logs)), time.monotonic()
        threading.Event().wait(window_s)
        last, seconds = driver.last_stable_offsets(list(logs)), time.monotonic() - began
    finally:
        driver.close()
    rates = measured_rates(
        {name: first[partition] for partition, name in logs.items()},
        {name: last[partition] for partition, name in logs.items()},
        seconds=seconds,
    )
    return plan, dict(rates), cluster_id, partitions
