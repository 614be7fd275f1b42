"""Measures many collectors in one process: start, cost, and complete delivery.

    python -m bench.micro.many_collectors [200] [--idle-seconds 15] [--driver librdkafka]

A new broker, a binary tree of collectors with two or three own logs each, and one process of
`amcast collectors run` that hosts all of them.

    apply_s        duration of `amcast topology apply` for the plan as the first epoch
    start_s        from the start of the process until every collector has begun
    threads        of that process, as the kernel counts them; `threads_of_3` with three collectors
    resident_mb    its memory
    idle_percent   of one core, without messages
    sent, ordered  messages to every destination set, and how many of them were ordered in time
    delivered      of `expected`: messages that consumers read, spread over the tree
    change_s       duration of `amcast topology apply` for an epoch that replaces every collector
    not_running    collectors of that epoch that `apply` reports as not running
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.harness import figures
from bench.harness.hosts import cpu_seconds, resident_bytes
from bench.harness.rig import pause
from bench.harness.threads import accounts
from collectors.testing.processes import end
from multicast.consumer import Consumer
from multicast.drivers import open_driver
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError, TimedOut
from multicast.local.cluster import LocalCluster
from multicast.producer import Producer
from topology.check import check
from topology.check import figures as figures_of
from topology.tree import CollectorSpec, Log, Objective, Plan, Subscription

_PATIENCE_S = 240.0  # for any single step with 200 collectors on two cores
_POLL_S = 0.1
_SETTLE_S = 6.0  # before threads and idle CPU are measured, for the work of the start to end
_EACH = 5  # messages to each destination set
_READERS_MAX = 20  # consumers that read: all 200 would measure consumers, not collectors
_FEW = 3  # collectors to compare the number of threads with


def tree_plan(count: int, topic: str) -> Plan:
    """Lay out a binary tree: consumer i reads its own partition and its parent's.

    Each collector is the top of the log of its partition and of the log of the pair; the first is
    also the top of the log of the root's partition.
    """
    numbers = range(2, count + 2)
    partitions = tuple(f"P{number}" for number in range(1, count + 2))
    pair = {number: "+".join(sorted((f"P{number // 2}", f"P{number}"))) for number in numbers}
    logs = [Log(name, topic, number) for number, name in enumerate(partitions)]
    logs += [Log(pair[number], f"{topic}.groups", number - 2) for number in numbers]

    def bag(number: int) -> tuple[str, ...]:
        near = {number // 2, number}
        meets = [pair[other] for other in numbers if other in near or other // 2 in near]
        return tuple(sorted({*meets, f"P{number // 2}", f"P{number}"}))

    def parent(number: int) -> str | None:
        if number == numbers[0]:
            return None
        return f"K{max(number // 2, numbers[0])}"

    plan = Plan(
        topic=topic,
        epoch=1,
        base_epoch=0,
        cluster_id="",
        input_hash="",
        partitions=partitions,
        logs=tuple(logs),
        collectors=tuple(
            CollectorSpec(f"K{number}", bag(number), parent(number), number - 2)
            for number in numbers
        ),
        consumers=tuple(
            Subscription(
                f"C{number}", tuple(sorted((f"P{number // 2}", f"P{number}"))), f"K{number}"
            )
            for number in numbers
        ),
        objective=Objective(0.0, 0.0, 0.0, 0.0),
    )
    expected = figures_of(plan)
    promised = Objective(
        expected.hops,
        expected.foreign,
        expected.cost,
        1.0,
        expected.excess,
    )
    plan = replace(plan, objective=promised)
    check(plan)
    return plan


def renamed(plan: Plan, *, name: Callable[[str], str] = "N{}".format) -> Plan:
    """Lay out the next epoch with new collectors for the same logs: none is retained."""
    place = 1 + max(node.stream for node in plan.collectors)
    return replace(
        plan,
        epoch=plan.epoch + 1,
        base_epoch=plan.epoch,
        collectors=tuple(
            replace(
                node,
                name=name(node.name),
                parent=None if node.parent is None else name(node.parent),
                stream=node.stream + place,
                stream_first=0,
            )
            for node in plan.collectors
        ),
        consumers=tuple(
            replace(subscription, collector=name(subscription.collector or ""))
            for subscription in plan.consumers
        ),
    )


class Hosting:
    """One process that hosts all collectors of a topic."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._log = log

    def status(self) -> dict[str, Any]:
        """Return the process's `/status`; without collectors while it does not answer."""
        try:
            status: dict[str, Any] = json.loads(self.page("/status"))
        except (OSError, ValueError):
            return {"nodes": []}
        return status

    def page(self, path: str) -> bytes:
        """Return a page of the process; raises `OSError` while it does not answer."""
        words = self._log.read_text(errors="replace").split()
        address = next((word for word in words if word.startswith("http://127.0.0.1:")), None)
        if address is None:
            raise ConnectionRefusedError(f"{self._log} names no address yet")
        url = address.removesuffix("/status") + path
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - loopback
            return bytes(answer.read())

    def wait_begun(self, count: int, epoch: int) -> None:
        """Wait until `count` collectors of an epoch have begun; raises `TimedOut`."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            nodes = [node for node in self.status()["nodes"] if node["epoch"] == epoch]
            begun = sum(node["state"] == "running" and bool(node.get("begun")) for node in nodes)
            if begun == count:
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                log_end = self._log.read_text(errors="replace")[-500:]
                raise TimedOut(
                    f"{begun} of {count} collectors have begun; the process's log ends: {log_end}"
                )
            pause(_POLL_S)

    def threads(self) -> int:
        """Count its threads."""
        return sum(1 for _ in accounts(self.pid))

    def idle_percent(self, seconds: float) -> float:
        """Return its share of a core over a time, in percent."""
        before, began = cpu_seconds([self.pid]), time.monotonic()
        pause(seconds)
        return 100 * (cpu_seconds([self.pid]) - before) / (time.monotonic() - began)


@contextmanager
def hosting(
    bootstrap: str,
    topic: str,
    driver: str,
    folder: Path,
    *,
    nodes: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Iterator[Hosting]:
    """Run `amcast collectors run` for all collectors of a topic, or some, during the context.

    `options` are further options of the command.
    """
    log = folder / f"{topic}.log"
    command = [sys.executable, "-m", "multicast", "collectors", "run", "--web-port", "0"]
    command += ["-b", bootstrap, "-t", topic, "--driver", driver]
    command += [word for name in nodes for word in ("--node", name)]
    command += options
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield Hosting(process, log)
    finally:
        process.terminate()
        end(process)


def apply(bootstrap: str, plan: Plan, driver: str, folder: Path) -> tuple[float, dict[str, Any]]:
    """Run `amcast topology apply`; return its duration in seconds, and its document."""
    file = folder / f"{plan.topic}-{plan.epoch}.json"
    file.write_text(json.dumps(plan.to_json()), encoding="utf-8")
    command = [sys.executable, "-m", "multicast", "topology", "apply", str(file), "-o", "json"]
    command += ["-b", bootstrap, "--driver", driver, "--timeout", str(_PATIENCE_S)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took = time.monotonic() - began
    if not done.stdout:
        raise AmcastError(f"apply ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return took, {**document, "exit_code": done.returncode}


def send(driver: Driver, plan: Plan) -> tuple[int, int]:
    """Send a few messages to every destination set; return how many, and how many were ordered."""
    ordered = 0
    with Producer(topic=plan.topic, driver=driver) as producer:
        receipts = [
            producer.multicast(b"x", to=set(log.to)) for _ in range(_EACH) for log in plan.logs
        ]
        deadline = time.monotonic() + _PATIENCE_S
        for receipt in receipts:
            try:
                receipt.ordered(max(0.01, deadline - time.monotonic()))
            except AmcastError:
                continue
            ordered += 1
    return len(receipts), ordered


def delivered(driver: Driver, plan: Plan, each: int) -> tuple[int, int]:
    """Read as consumers spread over the tree; return the counts of delivered and due messages."""
    came = expected = 0
    step = max(1, len(plan.consumers) // _READERS_MAX)
    for entry in plan.consumers[::step]:
        expected += each * len(plan.logs_of(entry.interest))
        with Consumer(
            topic=plan.topic, name=entry.name, committed=False, driver=driver
        ) as consumer:
            for batch in consumer.until_end(timeout=_PATIENCE_S):
                came += len(batch.records)
    return came, expected


def measure(
    bootstrap: str, folder: Path, *, count: int, driver: str, idle_s: float
) -> dict[str, float]:
    """Apply, host, send, read, and change the tree; return the figures."""
    measured: dict[str, float] = {"collectors": count}
    plan = tree_plan(count, f"many{count}")
    with ExitStack() as opened:
        figures.progress(f"applying a plan of {count} collectors")
        measured["apply_s"], _ = apply(bootstrap, plan, driver, folder)
        ours = open_driver(driver, bootstrap)
        opened.callback(ours.close)
        figures.progress("starting them in one process")
        began = time.monotonic()
        host = opened.enter_context(hosting(bootstrap, plan.topic, driver, folder))
        host.wait_begun(count, 1)
        measured["start_s"] = time.monotonic() - began
        figures.progress("idle")
        pause(_SETTLE_S)
        measured["idle_percent"] = host.idle_percent(idle_s)
        measured["threads"] = host.threads()
        figures.progress("sending to all, reading as some")
        measured["sent"], measured["ordered"] = send(ours, plan)
        measured["delivered"], measured["expected"] = delivered(ours, plan, _EACH)
        figures.progress("changing the tree")
        after = renamed(plan)
        measured["change_s"], applied = apply(bootstrap, after, driver, folder)
        measured["not_running"] = len(applied["collectors_not_running"])
        measured["change_exit_code"] = applied["exit_code"]
        host.wait_begun(count, 2)
        more, ordered = send(ours, after)
        measured["sent"] += more
        measured["ordered"] += ordered
        measured["resident_mb"] = resident_bytes([host.pid]) / 1e6
    return measured


def main(arguments: Sequence[str]) -> None:
    """Measure once, and print the figures."""
    parser = figures.parser("many_collectors", __doc__)
    parser.add_argument("collectors", type=int, nargs="?", default=200)
    parser.add_argument("--driver", default="librdkafka")
    parser.add_argument("--idle-seconds", type=float, default=15.0)
    options = parser.parse_args(arguments)
    with LocalCluster(brokers=1) as cluster, tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        few = tree_plan(_FEW, "few")
        apply(cluster.bootstrap, few, options.driver, folder)
        with hosting(cluster.bootstrap, few.topic, options.driver, folder) as host:
            host.wait_begun(_FEW, 1)
            pause(_SETTLE_S)
            threads = host.threads()
        measured = measure(
            cluster.bootstrap,
            folder,
            count=options.collectors,
            driver=options.driver,
            idle_s=options.idle_seconds,
        )
        measured["threads_of_3"] = threads
        document = figures.document(
            "many-collectors", measured, kafka=cluster.version, arguments=arguments
        )
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
