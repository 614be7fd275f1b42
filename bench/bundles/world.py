"""The world of a run: brokers, a plan with a log for each set, collectors, nodes; all processes.

Every node runs every chain. Everything ends with the context manager.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.orderer.nodes import HEALTHY_S, NodeProcesses, Service
from bench.orderer.transactions import FOLDER
from collectors.reconfiguration.apply import apply
from collectors.testing.processes import CollectorProcesses
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin
from multicast.local.cluster import LocalCluster
from topology.interests import from_document
from topology.planner.solver import plan as solve
from topology.tree import Plan


@dataclass(frozen=True, slots=True)
class WorldSize:
    """What to start. `sets`: the sets of several chains that the plan declares."""

    chains: Sequence[str]
    sets: Sequence[Sequence[str]]
    nodes: int = 3
    brokers: int = 1
    messages_max: int = 50
    timeout: str = "250ms"
    fsync: str = "block"


@dataclass(frozen=True, slots=True)
class BanksWorld:
    """The running parts, and the folder of their logs."""

    size: WorldSize
    cluster: LocalCluster
    plan: Plan
    collectors: CollectorProcesses
    nodes: NodeProcesses
    folder: Path


@contextmanager
def started(size: WorldSize) -> Iterator[BanksWorld]:
    """Start a world; returns when all nodes are healthy. Raises `TimedOut`."""
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(brokers=size.brokers))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-bundles-")))
        driver = open_driver("librdkafka", cluster.bootstrap)
        stack.callback(driver.close)
        interests = from_document(
            {
                "topic": f"banks-{time.time_ns()}",
                "partitions": list(size.chains),
                "destinations": [list(to) for to in size.sets],
                "consumer": [{"name": chain, "interest": [chain]} for chain in size.chains],
            }
        )
        with Admin(cluster.bootstrap) as admin:
            plan = apply(driver, admin, solve(interests)).plan
        collectors = stack.enter_context(
            CollectorProcesses(cluster.bootstrap, plan.topic, "librdkafka", plan, folder)
        )
        service = Service(
            chains=size.chains,
            nodes=size.nodes,
            messages_max=size.messages_max,
            timeout=size.timeout,
            material=FOLDER,
        )
        nodes = stack.enter_context(NodeProcesses(service, cluster.bootstrap, plan.topic, folder))
        nodes.join()
        for number in range(size.nodes):
            nodes.start(number)
        collectors.wait_healthy(HEALTHY_S)
        nodes.wait_healthy()
        yield BanksWorld(size, cluster, plan, collectors, nodes, folder)
