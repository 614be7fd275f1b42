"""Measures a rolling update: collectors' processes stop and start again, one by one, under load.

    python -m bench.deployment.rolling [--brokers 1] [--rate 1000] [--processes 3] [--rounds 10]

As an operator updates: several processes of `amcast collectors run` share the collectors and stand
by for one another. Each in turn gets SIGTERM, is awaited, is started again, and is awaited until
`/healthz` answers 200; then the next. Probes read as every consumer and check the order. A window
without a restart precedes each round, for comparison.

    pause    of one restart: the longest delay of any message in its window, from the producer's
             stamp to the delivery to any consumer
    handover from SIGTERM until another process has advertised itself, of each collector that the
             process had advertised last
    stop     from SIGTERM to the end of the process
    start    from the start of the process to its first 200
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from bench.harness import figures
from bench.harness.interests import file_of
from bench.harness.rig import pause
from bench.micro.replanning import INTERESTS, SETS, WARM_S, load, refuse_blind
from collectors.reconfiguration.apply import apply
from collectors.reconfiguration.probes import Probes, Seen
from collectors.testing.processes import end
from multicast.control import control_partition
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin
from multicast.drivers.protocol import Driver
from multicast.errors import TimedOut
from multicast.local.cluster import LocalCluster
from topology.planner.solver import plan as solve
from topology.tree import Plan

_PATIENCE_S = 60.0  # for a process to stop or to be healthy; bounds a hang
_LOOK_S = 0.02  # a start takes a second: a resolution of two percent
_AFTER_S = 2.0  # of a restart's window: the group hands the collectors out again


class SharedCollectors:
    """Processes of `amcast collectors run` that share a plan; a context manager that ends them."""

    def __init__(
        self, bootstrap: str, topic: str, folder: Path, *options: str, processes: int
    ) -> None:
        self._command = [sys.executable, "-m", "multicast", "collectors", "run"]
        self._command += ["-b", bootstrap, "-t", topic, "--web-port", "0", *options]
        self._folder = folder
        self.count = processes
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            for number in range(self.count):
                self.start(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            end(process)

    def start(self, number: int) -> float:
        """Start a process; return the seconds until it is healthy. Raises `TimedOut`."""
        began = time.monotonic()
        log = self._folder / f"shared-{number}.log"
        with log.open("wb") as out:
            self._processes[number] = subprocess.Popen(
                [*self._command], stdout=out, stderr=subprocess.STDOUT
            )
        waiting = threading.Event()
        while not _is_healthy(self.page(number)):
            if time.monotonic() > began + _PATIENCE_S:
                text = log.read_text(errors="replace").strip()
                raise TimedOut(
                    f"process {number} is not healthy after {_PATIENCE_S:g} s; its log ends: "
                    f"{text[-500:]}"
                )
            waiting.wait(_LOOK_S)
        return time.monotonic() - began

    def stop(self, number: int) -> float:
        """Send SIGTERM to a process; return the seconds until it has ended. Raises `TimedOut`."""
        began = time.monotonic()
        process = self._processes[number]
        process.terminate()
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise TimedOut(f"process {number} runs {_PATIENCE_S:g} s after SIGTERM") from None
        return time.monotonic() - began

    def kill(self, number: int) -> None:
        """End a process as a crash would."""
        self._processes[number].kill()
        self._processes[number].wait(_PATIENCE_S)

    def page(self, number: int) -> str:
        """Return "http://host:port" of a process; empty until it has said so."""
        log = (self._folder / f"shared-{number}.log").read_text(errors="replace")
        said = next((word for word in log.split() if word.startswith("http://127.0.0.1:")), "")
        return said.removesuffix("/status")


class _Advertised:
    """Reads from the control topic which process advertised which collector, and when."""

    def __init__(self, driver: Driver, topic: str) -> None:
        self._driver = driver
        self._partition = control_partition(topic)
        self._reader = driver.reader({self._partition: 0})
        self._read_to = 0
        self._newest: dict[str, int] = {}  # by collector: the port of the process's pages

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()

    def more(self) -> list[tuple[str, int, float]]:
        """Give what was advertised since the last call: collector, port, and time in s."""
        statements: list[tuple[str, int, float]] = []
        end = self._driver.last_stable_offsets([self._partition])[self._partition]
        while self._read_to < end:
            for fetched in self._reader.poll(1.0):
                self._read_to = fetched.position
                for record in fetched.records:
                    kind, _, name = (record.key or b"").decode().partition("/")
                    if kind == "running":
                        port = json.loads(record.value or b"")["web"]["port"]
                        statements.append((name, port, record.timestamp_ms / 1000))
                        self._newest[name] = port
        return statements

    def held_by(self, port: int) -> set[str]:
        """Give the collectors that the process with this port has advertised last."""
        self.more()
        return {name for name, newest in self._newest.items() if newest == port}

    def handovers(self, held: set[str], port: int, since_s: float) -> list[float]:
        """Give by how many seconds later another process advertised each of these, if any did."""
        after: dict[str, float] = {}
        for name, other, time_s in self.more():
            if name in held and other != port:
                after.setdefault(name, time_s - since_s)
        return list(after.values())


def _is_healthy(page: str) -> bool:
    if not page:
        return False
    try:
        with urllib.request.urlopen(f"{page}/healthz", timeout=5) as answer:  # noqa: S310 - loopback
            return bool(answer.status == 200)
    except OSError:
        return False


def measure(
    driver: Driver, plan: Plan, shared: SharedCollectors, *, rounds: int, quiet_s: float = 3.0
) -> dict[str, Any]:
    """Restart all processes one by one, `rounds` times; return what the probes saw."""
    usual: list[Seen] = []
    during: list[Seen] = []
    stops: list[float] = []
    handovers: list[float] = []
    advertised = _Advertised(driver, plan.topic)
    starts: list[float] = []
    for number in range(rounds):
        figures.progress(f"round {number + 1} of {rounds}")
        with Probes(driver, plan) as probes:
            pause(quiet_s)
            probes.wait_for_new(_PATIENCE_S)
            usual.append(probes.judged(plan))
        for process in range(shared.count):
            port = int(shared.page(process).rpartition(":")[2])
            with Probes(driver, plan) as probes:
                held, began_s = advertised.held_by(port), time.time()
                stops.append(shared.stop(process))
                starts.append(shared.start(process))
                pause(_AFTER_S)
                probes.wait_for_new(_PATIENCE_S)
                during.append(probes.judged(plan))
            handovers += advertised.handovers(held, port, began_s)
    advertised.close()
    for seen in (*usual, *during):
        refuse_blind(seen)
    pauses = [seen.delay_max_ms or 0.0 for seen in during]
    return {
        "restarts": len(during),
        "messages": sum(seen.messages for seen in (*usual, *during)),
        "violations": sum(len(seen.violations) for seen in (*usual, *during)),
        "pause_median_ms": round(_quantile(pauses, 0.5), 1),
        "pause_p99_ms": round(_quantile(pauses, 0.99), 1),
        "pause_max_ms": round(max(pauses), 1),
        "pause_each_ms": [round(each, 1) for each in pauses],
        "delay_p99_ms": round(_quantile([seen.delay_p99_ms or 0.0 for seen in during], 0.5), 1),
        "usual_longest_ms": round(_quantile([seen.delay_max_ms or 0.0 for seen in usual], 0.5), 1),
        "usual_longest_max_ms": round(max(seen.delay_max_ms or 0.0 for seen in usual), 1),
        "handovers": len(handovers),
        "handover_median_ms": round(1000 * _quantile(handovers or [0.0], 0.5), 1),
        "handover_max_ms": round(1000 * max(handovers, default=0.0), 1),
        "stop_s": round(_quantile(stops, 0.5), 2),
        "stop_max_s": round(max(stops), 2),
        "start_s": round(_quantile(starts, 0.5), 2),
    }


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main(arguments: Sequence[str]) -> None:
    """Measure once, and print the figures."""
    parser = figures.parser("rolling", __doc__, room="deployment")
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(brokers=options.brokers))
        driver = open_driver("librdkafka", cluster.bootstrap)
        stack.callback(driver.close)
        with Admin(cluster.bootstrap) as admin:
            plan = apply(driver, admin, solve(file_of(INTERESTS, SETS))).plan
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-bench-")))
        shared = stack.enter_context(
            SharedCollectors(cluster.bootstrap, plan.topic, folder, processes=options.processes)
        )
        stack.enter_context(load(cluster.bootstrap, plan.topic, options.rate))
        pause(WARM_S)
        measured = measure(driver, plan, shared, rounds=options.rounds)
        document = figures.document(
            "rolling", measured, kafka=cluster.version, arguments=arguments, room="deployment"
        )
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
