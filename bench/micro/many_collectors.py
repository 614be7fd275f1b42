"""Many collectors in one process: how soon they start, what they cost, and that all deliver.

    python -m bench.micro.many_collectors [200] [--idle-seconds 15] [--driver librdkafka]

A broker of one's own, a binary tree of so many collectors with three logs of their own or two, and
one process of `amcast collectors run` that hosts all of them.

    apply_s        `amcast topology apply` of the plan as a first epoch, the command from start to
                   end
    start_s        from the start of the process until every collector has begun
    threads        of that process, as the kernel counts them; `threads_of_3` with three collectors
    resident_mb    its memory
    idle_percent   of one core, while nothing comes
    sent, ordered  messages to every destination set, and how many of them came to stand in the
                   order within minutes
    delivered      of `expected`: what consumers read that are spread over the tree
    change_s       `amcast topology apply` of a next epoch in which every collector is another one
    not_running    collectors of that epoch that `apply` says do not run
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
from bench.harness.hosts import cpu_seconds, end, resident_bytes
from bench.harness.rig import pause
from bench.harness.threads import accounts
from multicast.consumer import Consumer
from multicast.drivers import open_driver
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError, TimedOut
from multicast.local.cluster import LocalCluster
from multicast.producer import Producer
from topology.check import check
from topology.check import figures as figures_of
from topology.tree import CollectorSpec, Log, Objective, Plan, Subscription

_PATIENCE_S = 240.0
_POLL_S = 0.1
_SETTLE_S = 6.0
_EACH = 5
_READERS = 20
_FEW = 3


def tree_plan(count: int, topic: str) -> Plan:
    """Lay out a binary tree: consumer i reads its own partition and its parent's.

    Each collector takes in the log of its partition and the log of the pair; the first one that of
    the root's partition, too.
    """
    numbers = range(2, count + 2)
    partitions = tuple(f"P{number}" for number in range(1, count + 2))
    pair = {number: "+".join(sorted((f"P{number // 2}", f"P{number}"))) for number in numbers}
    logs = [Log(name, topic, number) for number, name in enumerate(partitions)]
    logs += [Log(pair[number], f"{topic}.groups", number - 2) for number in numbers]

    def bag(number: int) -> tuple[str, ...]:
        near = {number // 2, number}
        meets = [pair[one] for one in numbers if one in near or one // 2 in near]
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
    found = figures_of(plan)
    promised = Objective(found.hops, found.foreign, found.cost, 1.0, found.excess)
    plan = replace(plan, objective=promised)
    check(plan)
    return plan


def renamed(plan: Plan, *, name: Callable[[str], str] = "N{}".format) -> Plan:
    """Lay out the next epoch with other collectors for the same logs: nothing is carried over."""
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
            replace(one, collector=name(one.collector or "")) for one in plan.consumers
        ),
    )


class Hosting:
    """One process that hosts all collectors of a topic."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._log = log

    def status(self) -> dict[str, Any]:
        """Return what `/status` says; nothing while it does not answer."""
        words = self._log.read_text(errors="replace").split()
        address = next((word for word in words if word.startswith("http://127.0.0.1:")), None)
        if address is None:
            return {"nodes": []}
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - loopback
                found: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return {"nodes": []}
        return found

    def wait_begun(self, count: int, epoch: int) -> None:
        """Wait until so many collectors of an epoch have begun; raises `TimedOut`."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            nodes = [one for one in self.status()["nodes"] if one["epoch"] == epoch]
            begun = sum(one["state"] == "running" and bool(one.get("begun")) for one in nodes)
            if begun == count:
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self._log.read_text(errors="replace")[-500:]
                raise TimedOut(
                    f"{begun} of {count} collectors have begun; the process said: {said}"
                )
            pause(_POLL_S)

    def threads(self) -> int:
        """Count its threads."""
        return sum(1 for _ in accounts(self.pid))

    def idle_percent(self, seconds: float) -> float:
        """Return its share of a core over so long."""
        before, began = cpu_seconds([self.pid]), time.monotonic()
        pause(seconds)
        return 100 * (cpu_seconds([self.pid]) - before) / (time.monotonic() - began)


@contextmanager
def hosting(
    bootstrap: str, topic: str, driver: str, folder: Path, *, nodes: Sequence[str] = ()
) -> Iterator[Hosting]:
    """Start `amcast collectors run` for all of a topic, or for some; it ends with the context."""
    log = folder / f"{topic}.log"
    command = [sys.executable, "-m", "multicast", "collectors", "run", "--web-port", "0"]
    command += ["-b", bootstrap, "-t", topic, "--driver", driver]
    command += [word for name in nodes for word in ("--node", name)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield Hosting(process, log)
    finally:
        process.terminate()
        end(process)


def apply(bootstrap: str, plan: Plan, driver: str, folder: Path) -> tuple[float, dict[str, Any]]:
    """Run `amcast topology apply`; give how long it took, and its document."""
    file = folder / f"{plan.topic}-{plan.epoch}.json"
    file.write_text(json.dumps(plan.to_json()), encoding="utf-8")
    command = [sys.executable, "-m", "multicast", "topology", "apply", str(file), "-o", "json"]
    command += ["-b", bootstrap, "--driver", driver, "--timeout", str(_PATIENCE_S)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took = time.monotonic() - began
    if not done.stdout:
        raise AmcastError(f"apply ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return took, {**found, "exit_code": done.returncode}


def send(driver: Driver, plan: Plan) -> tuple[int, int]:
    """Send a few messages to every destination set; count them, and those that were ordered."""
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
    """Read as consumers that are spread over the tree; count what came and what had to."""
    came = expected = 0
    step = max(1, len(plan.consumers) // _READERS)
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
    found: dict[str, float] = {"collectors": count}
    plan = tree_plan(count, f"many{count}")
    with ExitStack() as opened:
        figures.progress(f"applying a plan of {count} collectors")
        found["apply_s"], _ = apply(bootstrap, plan, driver, folder)
        ours = open_driver(driver, bootstrap)
        opened.callback(ours.close)
        figures.progress("starting them in one process")
        began = time.monotonic()
        host = opened.enter_context(hosting(bootstrap, plan.topic, driver, folder))
        host.wait_begun(count, 1)
        found["start_s"] = time.monotonic() - began
        figures.progress("idle")
        pause(_SETTLE_S)
        found["idle_percent"] = host.idle_percent(idle_s)
        found["threads"] = host.threads()
        figures.progress("sending to all, reading as some")
        found["sent"], found["ordered"] = send(ours, plan)
        found["delivered"], found["expected"] = delivered(ours, plan, _EACH)
        figures.progress("changing the tree")
        after = renamed(plan)
        found["change_s"], told = apply(bootstrap, after, driver, folder)
        found["not_running"] = len(told["collectors_not_running"])
        found["change_exit_code"] = told["exit_code"]
        host.wait_begun(count, 2)
        more, ordered = send(ours, after)
        found["sent"] += more
        found["ordered"] += ordered
        found["resident_mb"] = resident_bytes([host.pid]) / 1e6
    return found


def main(arguments: Sequence[str]) -> None:
    """Measure once and print it."""
    parser = figures.parser("many_collectors", __doc__)
    parser.add_argument("collectors", type=int, nargs="?", default=200)
    parser.add_argument("--driver", default="librdkafka")
    parser.add_argument("--idle-seconds", type=float, default=15.0)
    asked = parser.parse_args(arguments)
    with LocalCluster(brokers=1) as cluster, tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        few = tree_plan(_FEW, "few")
        apply(cluster.bootstrap, few, asked.driver, folder)
        with hosting(cluster.bootstrap, few.topic, asked.driver, folder) as host:
            host.wait_begun(_FEW, 1)
            pause(_SETTLE_S)
            threads = host.threads()
        found = measure(
            cluster.bootstrap,
            folder,
            count=asked.collectors,
            driver=asked.driver,
            idle_s=asked.idle_seconds,
        )
        found["threads_of_3"] = threads
        told = figures.document(
            "many-collectors", found, kafka=cluster.version, arguments=arguments
        )
    figures.show(told, asked.output)


if __name__ == "__main__":
    main(sys.argv[1:])
