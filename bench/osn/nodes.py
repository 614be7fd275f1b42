"""Deploy an ordering service: brokers, a topic with its plan, collectors, and nodes.

    chain   a channel, and the partition of the same name; every node runs every chain
    node    a process `amcast osn run`, with its own folder and addresses

Everything ends with the context manager. A node can be killed, restarted, frozen and released.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.harness.processes import CollectorProcesses, end
from bench.osn import transactions
from collectors.reconfiguration.apply import apply
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin
from multicast.errors import AmcastError, TimedOut
from multicast.local.broker import free_ports
from multicast.local.cluster import LocalCluster
from ordering_osn.node.joining import join, ledger_folder
from topology.interests import from_document
from topology.planner.solver import plan as solve
from topology.tree import Plan

HEALTHY_S = 240.0  # a restarted node reads what it missed
_ORDERER = Path("crypto/ordererOrganizations/example.com/orderers/orderer.example.com/msp")
_MSP_ID = "OrdererMSP"
_HEIGHT = re.compile(r'^ledger_blockchain_height\{channel="([^"]+)"\} ([0-9.e+]+)$', re.MULTILINE)
_GET_S = 5.0  # an HTTP answer; a node that takes longer counts as not healthy yet
_STOP_S = 20.0  # on a busy machine; then it is killed
_POLL_S = 0.05  # between health checks, which happen outside of what is measured


@dataclass(frozen=True, slots=True)
class Service:
    """What to deploy: chains, and their batch settings (`timeout` in Fabric's form, "2s").

    `sets`: the sets of several chains that the plan declares.
    """

    chains: Sequence[str] = ("chain-a",)
    sets: Sequence[Sequence[str]] = ()
    nodes: int = 3  # as in docs/benchmarks.md
    brokers: int = 1
    messages_max: int = 500
    timeout: str = "2s"


class NodeProcesses:
    """The nodes as processes, numbered from 0; a context manager that ends what it started."""

    def __init__(self, service: Service, bootstrap: str, topic: str, folder: Path) -> None:
        self.service = service
        self.folder = folder
        self._cluster = (bootstrap, topic)
        ports = free_ports(2 * service.nodes)
        self.addresses = [f"127.0.0.1:{port}" for port in ports[: service.nodes]]
        self._operations = [f"127.0.0.1:{port}" for port in ports[service.nodes :]]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- starting and stopping --------------------------------------------------------------

    def join(self) -> None:
        """Create each node's folder with all chains, from their genesis blocks."""
        service = self.service
        for chain in service.chains:
            block = transactions.genesis(
                channel=chain, messages_max=service.messages_max, timeout=service.timeout
            )
            for number in range(service.nodes):
                join(self._home(number), block)

    def start(self, number: int) -> None:
        """Start a node's process; does not wait until it is healthy."""
        peers = [address for other, address in enumerate(self.addresses) if other != number]
        bootstrap, topic = self._cluster
        run = [
            *(sys.executable, "-m", "multicast"),
            *("osn", "run", "-b", bootstrap, "-t", topic, "--folder", str(self._home(number))),
            *("--listen", self.addresses[number], "--operations", self._operations[number]),
            *("--msp", str(transactions.FOLDER / _ORDERER), "--msp-id", _MSP_ID),
            *(word for peer in peers for word in ("--peer", peer)),
        ]
        with self._log(number).open("ab") as out:
            self._processes[number] = subprocess.Popen(run, stdout=out, stderr=out)

    def start_all(self) -> None:
        """Start all nodes, and wait until they are healthy."""
        for number in range(self.service.nodes):
            self.start(number)
        self.wait_healthy()

    def kill(self, number: int) -> None:
        """Kill a node's process, as a crash would."""
        process = self._processes[number]
        process.kill()
        process.wait(10)

    def freeze(self) -> None:
        """Freeze all processes (SIGSTOP) until `release`."""
        for process in self._processes.values():
            process.send_signal(signal.SIGSTOP)

    def release(self) -> None:
        """Continue all frozen processes."""
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop all nodes, in bounded time."""
        self.release()
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            end(process)

    # -- their state ------------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """The process IDs, one for each node that was started."""
        return [process.pid for process in self._processes.values()]

    def ledger(self, number: int, chain: str) -> Path:
        """Return the folder of a chain's ledger at a node."""
        return ledger_folder(self._home(number), chain)

    def healthy(self, number: int) -> bool:
        """Whether a node's health check answers 200."""
        try:
            self._get(number, "/healthz")
        except OSError:
            return False
        return True

    def heights(self, number: int) -> dict[str, int]:
        """Return the height of each of a node's chains, from its metrics; empty while down."""
        try:
            metrics = self._get(number, "/metrics")
        except OSError:
            return {}
        return {chain: int(float(height)) for chain, height in _HEIGHT.findall(metrics)}

    def wait_healthy(self, timeout_s: float = HEALTHY_S) -> None:
        """Wait until all nodes are healthy and run all chains; raises `TimedOut`."""
        deadline = time.monotonic() + timeout_s
        pause = threading.Event()
        waiting = list(self._processes)
        while waiting:
            waiting = [number for number in waiting if not self._ready(number)]
            if waiting and time.monotonic() > deadline:
                raise TimedOut(
                    f"node {waiting[0]} is not healthy after {timeout_s:g} s; "
                    f"the end of its log: {self._log_end(waiting[0])}"
                )
            pause.wait(_POLL_S)

    def _ready(self, number: int) -> bool:
        status = self._processes[number].poll()
        if status is not None:
            raise AmcastError(
                f"node {number} ended with {status}; the end of its log: {self._log_end(number)}"
            )
        return self.healthy(number) and set(self.heights(number)) >= set(self.service.chains)

    def _get(self, number: int, path: str) -> str:
        address = f"http://{self._operations[number]}{path}"
        with urllib.request.urlopen(address, timeout=_GET_S) as answer:
            return bytes(answer.read()).decode()

    def _log_end(self, number: int) -> str:
        return self._log(number).read_text(errors="replace").strip()[-1000:]

    def _home(self, number: int) -> Path:
        return self.folder / f"node-{number}"

    def _log(self, number: int) -> Path:
        return self.folder / f"node-{number}.log"


@dataclass(frozen=True, slots=True)
class OrdererDeployment:
    """Brokers with an applied plan, its collectors, and nodes that have joined, but do not run."""

    bootstrap: str
    cluster: LocalCluster
    plan: Plan
    collectors: CollectorProcesses
    nodes: NodeProcesses
    folder: Path

    @property
    def pids(self) -> dict[str, list[int]]:
        """The process IDs by role."""
        brokers = self.cluster.status().brokers
        return {
            "nodes": self.nodes.pids,
            "broker": [broker.pid for broker in brokers if broker.pid is not None],
            "collectors": self.collectors.pids,
        }


@contextmanager
def deployed(
    service: Service, say: Callable[[str], None] = lambda _: None
) -> Iterator[OrdererDeployment]:
    """Deploy a service on brokers of its own; `say` is called with what begins."""
    with ExitStack() as stack:
        say("starting a broker (the first time Kafka is fetched) …")
        cluster = stack.enter_context(LocalCluster(brokers=service.brokers))
        bootstrap = cluster.bootstrap
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-osn-")))
        driver = open_driver("librdkafka", bootstrap)
        stack.callback(driver.close)
        interests = from_document(
            {
                "topic": f"osn-{time.time_ns()}",
                "partitions": list(service.chains),
                "destinations": [list(to) for to in service.sets],
                "consumer": [{"name": chain, "interest": [chain]} for chain in service.chains],
            }
        )
        say("planning, and starting collectors …")
        with Admin(bootstrap) as admin:
            plan = apply(driver, admin, solve(interests)).plan
        collectors = CollectorProcesses(bootstrap, plan.topic, "librdkafka", plan, folder)
        stack.enter_context(collectors)
        collectors.wait_healthy(HEALTHY_S)
        nodes = stack.enter_context(NodeProcesses(service, bootstrap, plan.topic, folder))
        nodes.join()
        yield OrdererDeployment(bootstrap, cluster, plan, collectors, nodes, folder)
