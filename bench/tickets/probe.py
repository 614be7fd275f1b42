"""Measures what a message waits for its order, in several designs, on one broker.

All arms are set up first, each with its own topic and processes; then they run in interleaved
rounds, and each round is divided by the plain arm's round of the same turn. See `client` for the
arms; `ordered` and `ordered-plain` are the product with tickets and without, `ordered-1` is it with
version 1 of the order records. On a machine with other load many short rounds tell more than a few
long ones: `quiet` is the quotient of the lower quartiles. CPU is that of the arm's producers,
consumers, collectors and of the broker, for each message.
"""

from __future__ import annotations

import argparse
import secrets
import socket
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.comparison.arms import Arm, MeasuredCluster, Round
from bench.comparison.layouts import lay_out
from bench.comparison.run import own_broker
from bench.comparison.workload import FIRST, Workload
from bench.harness import figures
from bench.harness.hosts import ClientProcess
from bench.tickets.client import order_of_tickets
from collectors.reconfiguration.apply import apply
from collectors.reconfiguration.topics import topics_of
from collectors.testing.processes import CollectorProcesses
from multicast.control import control_partition
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin, TopicSpec

TICKET_ARMS = ("tickets", "tickets-shared", "shared-only")
ARMS = ("plain", "ordered", "ordered-plain", FIRST, "push", *TICKET_ARMS)
_MODULE = "bench.tickets.client"
_OPEN_S = 60.0
_ROLES = ("producers", "consumers", "collectors", "brokers")


class TicketArm(Arm):
    """An arm whose producers write tickets; its collector is beside the hot path."""

    def _collectors(self, folder: Path) -> list[int]:
        partitions = len(self._layout.partitions)
        order = order_of_tickets(self._topic).topic
        topics = {self._topic: TopicSpec(partitions), order: TopicSpec(1)}
        self._topics = list(topics)
        with Admin(self._cluster.bootstrap) as admin:
            admin.create_topics(topics)
        if self.name == "shared-only":
            return []
        spec = {**self._spec(), "role": "collector", "partitions": partitions}
        collector = self._stack.enter_context(ClientProcess("collector", spec, folder, _MODULE))
        collector.answer(_OPEN_S)
        return [collector.pid]

    def _clients(self, folder: Path) -> None:
        enter, spec = self._stack.enter_context, self._spec()
        producer = {**spec, "role": "producer"}
        self._producer = enter(ClientProcess("producer", producer, folder, _MODULE))
        for number in range(len(self._layout.consumers)):
            consumer = {**spec, "role": "consumer", "consumer": number}
            name = f"consumer-{number + 1}"
            self._consumers.append(enter(ClientProcess(name, consumer, folder, _MODULE)))
        for client in (self._producer, *self._consumers):
            client.answer(_OPEN_S)

    def _spec(self) -> dict[str, Any]:
        return {
            "workload": {**asdict(self._workload), "arms": ["plain"]},
            "arm": self.name,
            "topic": self._topic,
            "bootstrap": self._cluster.bootstrap,
        }


class PushArm(TicketArm):
    """The product in version 1, whose collector also pushes its order records to the consumer."""

    def _collectors(self, folder: Path) -> list[int]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._key = secrets.token_bytes(32)
        bootstrap = self._cluster.bootstrap
        plan = lay_out(self._workload, FIRST, self._topic).plan
        assert plan is not None
        self._topics = [*topics_of(plan), control_partition(plan.topic).topic]
        with Admin(bootstrap) as admin:
            plan = apply(self._cluster.driver, admin, plan).plan
        host = _PushingCollectors(bootstrap, self._topic, "librdkafka", plan, folder)
        host.push_to(self._port, self._key)
        self._stack.enter_context(host)
        host.wait_healthy(_OPEN_S)
        return host.pids

    def _spec(self) -> dict[str, Any]:
        return {**super()._spec(), "port": self._port, "key": self._key.hex()}


class _PushingCollectors(CollectorProcesses):
    def push_to(self, port: int, key: bytes) -> None:
        """Have the processes push to this port; call it before they start."""
        self._command[2:3] = ["bench.tickets.pushing", str(port), key.hex()]


_KINDS: dict[str, type[Arm]] = {"push": PushArm, **dict.fromkeys(TICKET_ARMS, TicketArm)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round")
    parser.add_argument("--rates", default="200,2000", help="messages/s, separated by commas")
    parser.add_argument("--bytes", default="100,10000", help="message sizes, likewise")
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--arms", default=",".join(ARMS[1:]), help="compared with plain")


def run(options: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    names = ["plain", *options.arms.split(",")]
    unknown = [name for name in names if name not in ARMS]
    if unknown:
        sys.stderr.write(f"arm {unknown[0]} is not known; known: {', '.join(ARMS)}\n")
        return 2
    with own_broker(figures.progress) as brokers:
        for size in map(int, options.bytes.split(",")):
            for rate in map(int, options.rates.split(",")):
                workload = _workload(options, size, rate)
                measured = _measure(workload, names, brokers.bootstrap, brokers.pids)
                _show(workload, measured)
    return 0


def _workload(options: argparse.Namespace, size: int, rate: int) -> Workload:
    return Workload(
        name="tickets",
        kind="one",
        size=2,
        message_bytes=size,
        load=float(rate),
        messages=max(1, int(rate * options.seconds)),
        warm_up=rate // 5,
        pairs=options.rounds,
        seed=1,
        driver="librdkafka",
        to="shared",
        producers=options.producers,
        arms=("plain",),
    )


def _measure(
    workload: Workload, names: Sequence[str], bootstrap: str, pids: tuple[int, ...]
) -> dict[str, list[dict[str, float]]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-bench-")))
        driver = open_driver("librdkafka", bootstrap)
        stack.callback(driver.close)
        cluster = MeasuredCluster(bootstrap, driver, pids, folder)
        arms = []
        for name in names:
            figures.progress(f"setting up {name}")
            arms.append(stack.enter_context(_KINDS.get(name, Arm)(workload, name, cluster)))
        for arm in arms:
            arm.warm_up()
        measured: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for number in range(1, workload.pairs + 1):
            figures.progress(f"round {number} of {workload.pairs}")
            for arm in arms:
                measured[arm.name].append(_figures(workload, arm.round(number)))
    return measured


def _figures(workload: Workload, measured: Round) -> dict[str, float]:
    p50, p99 = measured.end_to_end.percentile((50.0, 99.0))
    messages = workload.messages + workload.warm_up
    cpu = {role: 1e6 * measured.figures[f"cpuSeconds.{role}"] / messages for role in _ROLES}
    return {"p50": p50, "p99": p99, "cpu": sum(cpu.values()), **cpu}


def _show(workload: Workload, measured: Mapping[str, list[dict[str, float]]]) -> None:
    write = sys.stdout.write
    write(
        f"\n{workload.message_bytes} B at {workload.rate:,.0f}/s, {workload.producers} producers, "
        f"{workload.pairs} rounds\n"
        f"{'arm':15} {'p50 ms':>7} {'p50 / plain':>20} {'quiet':>6} "
        f"{'p99 ms':>7} {'p99 / plain':>20} {'CPU us':>7} {'CPU / plain':>20}   "
        f"producer consumer collector broker\n"
    )
    base = measured["plain"]
    for name, rounds in measured.items():
        cells = [f"{name:15}"]
        for figure in ("p50", "p99", "cpu"):
            value = statistics.median(entry[figure] for entry in rounds)
            ratios = [
                entry[figure] / plain[figure] for entry, plain in zip(rounds, base, strict=True)
            ]
            spread = f"({min(ratios):.2f}-{max(ratios):.2f})"
            digits = ".0f" if figure == "cpu" else ".2f"
            cells.append(f"{value:7{digits}} {statistics.median(ratios):6.2f} {spread:>13}")
            if figure == "p50":
                cells.append(f"{_quartile(rounds) / _quartile(base):6.2f}")
        by_role = [statistics.median(entry[role] for entry in rounds) for role in _ROLES]
        cells.append("  " + " ".join(f"{value:8.0f}" for value in by_role))
        write(" ".join(cells) + "\n")
    sys.stdout.flush()


def _quartile(rounds: Sequence[Mapping[str, float]]) -> float:
    values = sorted(entry["p50"] for entry in rounds)
    return values[len(values) // 4]
