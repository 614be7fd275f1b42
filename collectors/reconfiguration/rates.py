"""Reads the running plan, and measures the rates of its logs, for the planner.

`amcast topology plan --from-cluster` and `show --from-cluster` call `running` through the entry
point `amcast.cluster`, so the planner itself does not import Kafka code.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing

from multicast.control import ControlReader, log_partition
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin
from multicast.errors import UncoveredInterest
from multicast.settings import settings
from topology.changes import measured_rates
from topology.tree import Plan


def running(
    topic: str | None, *, bootstrap: str | None, window_s: float | None
) -> tuple[Plan | None, dict[str, float], str, int]:
    """Give the running plan, its logs' rates, the cluster's ID, and the partition count.

    Rates are messages per second by log name, from end offsets over `window_s` seconds, for which
    the call blocks; transaction markers count, too. If no plan was applied, the plan is None and
    the rates are empty. The partition count is of the topic: 0 if it does not exist. Without a
    topic, the settings name it.

    If `window_s` is None nothing is measured, and a missing plan raises `UncoveredInterest`.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic)
    topic = chosen.topic
    with Admin(chosen.bootstrap, chosen.client) as admin:
        cluster_id = admin.cluster_id()
        partitions = admin.partitions([topic]).get(topic, 0)
    with closing(open_driver("kafka-python", chosen.bootstrap, chosen.client)) as driver:
        try:
            control = ControlReader(driver, topic)
        except UncoveredInterest:
            if window_s is None:
                raise
            return None, {}, cluster_id, partitions
        with closing(control):
            plan = control.refresh().plan()
        if window_s is None:
            return plan, {}, cluster_id, partitions
        logs = {log_partition(log): log.name for log in plan.logs}
        first, began = driver.last_stable_offsets(list(logs)), time.monotonic()
        threading.Event().wait(window_s)
        last, seconds = driver.last_stable_offsets(list(logs)), time.monotonic() - began
    sampled = ({name: ends[log] for log, name in logs.items()} for ends in (first, last))
    return plan, measured_rates(*sampled, seconds=seconds), cluster_id, partitions
