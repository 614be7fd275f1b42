"""An ordering service of one's own: a broker, a topic with its plan, collectors, and the nodes.

    chain        a channel, and the partition of the same name
    collectors   whether collectors order the chains: the plan has a log for all of them at once
    node         a process `amcast osn run`, with a folder and addresses of its own

Everything ends with the context. A node may be killed, started again, frozen and released.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.harness.hosts import CollectorProcesses, end
from bench.orderer import transactions
from collectors.reconfiguration.apply import apply
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin
from multicast.errors import AmcastError, TimedOut
from multicast.local.broker import free_ports
from multicast.local.cluster import LocalCluster
from ordering_osn.node.joining import join, ledger_folder
from topology.interests import from_document
from topology.planner.solver import plan as solve

NODES = 3
HEALTHY_S = 240.0
_ORDERER = Path("crypto/ordererOrganizations/example.com/orderers/orderer.example.com/msp")
_MSP_ID = "OrdererMSP"
_HEIGHT = re.compile(r'^ledger_blockchain_height\{channel="([^"]+)"\} ([0-9.e+]+)$', re.MULTILINE)
_ASK_S = 5.0
_STOP_S = 20.0  # under a profiler, on a busy machine
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Service:
    """What is to stand: chains, and their batch settings (`timeout` as Fabric's, "2s")."""

    chains: Sequence[str] = ("chain-a",)
    collectors: bool = False
    nodes: int = NODES
    messages_max: int = 500
    bytes_preferred: int = 2 << 20
    timeout: str = "2s"
    material: Path = transactions.FOLDER
    profile: str | None = None  # the clock of `bench.orderer.profile`


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

    # -- their lives ------------------------------------------------------------------------

    def join(self) -> None:
        """Make each node's folder, and let it join every chain by its genesis block."""
        service = self.service
        for chain in service.chains:
            source = (service.material / "chain-a.block").read_bytes()
            block = transactions.genesis(
                source,
                channel=chain,
                messages_max=service.messages_max,
                bytes_preferred=service.bytes_preferred,
                timeout=service.timeout,
            )
            for number in range(service.nodes):
                join(self._home(number), block)

    def start(self, number: int) -> None:
        """Start a node's process; it is healthy some time later."""
        peers = [one for place, one in enumerate(self.addresses) if place != number]
        bootstrap, topic = self._cluster
        command = [
            *("osn", "run", "-b", bootstrap, "-t", topic, "--folder", str(self._home(number))),
            *("--listen", self.addresses[number], "--operations", self._operations[number]),
            *("--msp", str(self.service.material / _ORDERER), "--msp-id", _MSP_ID),
            *(word for peer in peers for word in ("--peer", peer)),
        ]
        run = [sys.executable, "-m", "multicast", *command]
        if self.service.profile:
            words = [str(self.profile(number)), self.service.profile, *command]
            run = [sys.executable, "-m", "bench.orderer.profile", *words]
        with self._log(number).open("ab") as out:
            self._processes[number] = subprocess.Popen(run, stdout=out, stderr=out)

    def start_all(self) -> None:
        """Start all nodes, and wait until they are healthy."""
        for number in range(self.service.nodes):
            self.start(number)
        self.wait_healthy()

    def kill(self, number: int) -> None:
        """End a node's process as a crash would."""
        process = self._processes[number]
        process.kill()
        process.wait(10)

    def freeze(self) -> None:
        """Stop all processes where they are; they go on with `release`."""
        for process in self._processes.values():
            process.send_signal(signal.SIGSTOP)

    def release(self) -> None:
        """Let all processes go on."""
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)

    def count_from_now(self) -> None:
        """Where the nodes run under a profiler: let it forget what was before."""
        self._signal(signal.SIGUSR1)

    def count_until_now(self) -> None:
        """Where the nodes run under a profiler: let it end."""
        self._signal(signal.SIGUSR2)

    def stop(self) -> None:
        """End all, within bounded time."""
        self.release()
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            end(process)

    # -- what they say ----------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """The processes' numbers, one for each node that was started."""
        return [process.pid for process in self._processes.values()]

    def ledger(self, number: int, chain: str) -> Path:
        """Give the folder of a chain's ledger at a node."""
        return ledger_folder(self._home(number), chain)

    def profile(self, number: int) -> Path:
        """Give the file that a node's profile is written to when it ends."""
        return self.folder / f"node-{number}.profile.json"

    def healthy(self, number: int) -> bool:
        """Whether a node's health check answers 200."""
        try:
            self._ask(number, "/healthz")
        except OSError:
            return False
        return True

    def heights(self, number: int) -> dict[str, int]:
        """Give the height of each of a node's chains, as its metrics say; empty while down."""
        try:
            told = self._ask(number, "/metrics")
        except OSError:
            return {}
        return {chain: int(float(height)) for chain, height in _HEIGHT.findall(told)}

    def wait_healthy(self, timeout_s: float = HEALTHY_S) -> None:
        """Wait until every node is healthy and has all chains; raises `TimedOut`."""
        deadline = time.monotonic() + timeout_s
        pause = threading.Event()
        waiting = list(self._processes)
        while waiting:
            waiting = [number for number in waiting if not self._ready(number)]
            if waiting and time.monotonic() > deadline:
                raise TimedOut(
                    f"node {waiting[0]} is not healthy after {timeout_s:g} s; "
                    f"it said: {self._said(waiting[0])}"
                )
            pause.wait(_PAUSE_S)

    def _signal(self, number: signal.Signals) -> None:
        if self.service.profile:
            for process in self._processes.values():
                process.send_signal(number)

    def _ready(self, number: int) -> bool:
        status = self._processes[number].poll()
        if status is not None:
            raise AmcastError(f"node {number} ended with {status}; it said: {self._said(number)}")
        return self.healthy(number) and set(self.heights(number)) >= set(self.service.chains)

    def _ask(self, number: int, path: str) -> str:
        address = f"http://{self._operations[number]}{path}"
        with urllib.request.urlopen(address, timeout=_ASK_S) as answer:
            return bytes(answer.read()).decode()

    def _said(self, number: int) -> str:
        return self._log(number).read_text(errors="replace").strip()[-1000:]

    def _home(self, number: int) -> Path:
        return self.folder / f"node-{number}"

    def _log(self, number: int) -> Path:
        return self.folder / f"node-{number}.log"


@dataclass(frozen=True, slots=True)
class OrdererStage:
    """What stands: a broker with an applied plan, and nodes that have joined but do not run."""

    bootstrap: str
    kafka: str
    topic: str
    nodes: NodeProcesses
    pids: Mapping[str, Sequence[int]]
    """The processes beside the nodes, by what they are: "broker", "collectors"."""


@contextmanager
def staged(service: Service, bootstrap: str | None = None) -> Iterator[OrdererStage]:
    """Set a service up, on a broker of one's own or on the cluster at `bootstrap`."""
    with ExitStack() as stack:
        kafka, brokers = "as found", []
        if bootstrap is None:
            cluster = stack.enter_context(LocalCluster(brokers=1))
            bootstrap, kafka = cluster.bootstrap, cluster.version
            brokers = [one.pid for one in cluster.status().brokers if one.pid is not None]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-osn-")))
        driver = open_driver("librdkafka", bootstrap)
        stack.callback(driver.close)
        wanted = from_document(
            {
                "topic": f"osn-{time.time_ns()}",
                "partitions": list(service.chains),
                "destinations": [list(service.chains)] if service.collectors else [],
                "consumer": [{"name": chain, "interest": [chain]} for chain in service.chains],
            }
        )
        with Admin(bootstrap) as admin:
            plan = apply(driver, admin, solve(wanted)).plan
        collectors = CollectorProcesses(bootstrap, plan.topic, "librdkafka", plan, folder)
        stack.enter_context(collectors)
        collectors.wait_healthy(HEALTHY_S)
        nodes = stack.enter_context(NodeProcesses(service, bootstrap, plan.topic, folder))
        nodes.join()
        pids = {"broker": brokers, "collectors": collectors.pids}
        yield OrdererStage(bootstrap, kafka, plan.topic, nodes, pids)
