"""The system that lives through the year: a broker, two processes of collectors, and their clients.

Leaving the context ends everything.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.harness.interests import file_of
from bench.harness.rig import ticks
from bench.year.speed import sped_up
from collectors.reconfiguration.apply import apply
from collectors.testing.processes import CollectorProcess, end
from multicast.control import collectors_partition, control_topics, order_topic
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin
from multicast.drivers.protocol import Driver, Record, TopicPartition
from multicast.errors import AmcastError, TimedOut
from multicast.local.cluster import LocalCluster
from topology.planner.solver import plan as solve
from topology.tree import Plan

RATE = 100  # messages/s
CONSUMER = "C2"
_TO = (["P1"], ["P2"], ["P3"], ["P1"], ["P2"], ["P3"], ["P1"], ["P2"], ["P3"], ["P2", "P3"])
DELIVERED = sum(1 for to in _TO if to != ["P1"])  # of each ten messages, to `CONSUMER`
# Kafka looks for old segments each five minutes, and for what to compact each 15 s. Compaction
# keeps the last batch of each process, without its records, until that was silent for a day.
_BROKER = {
    "producer.id.expiration.ms": "120000",
    "producer.id.expiration.check.interval.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
    "log.cleaner.backoff.ms": "200",
}
_HEALTHY_S = 120.0  # as `collectors.testing.processes`
_LONGEST_S = 1e6  # a run: whoever sends is told when to end
_POLL_S = 1.0
_LOOK_S = 0.1  # short against what is waited for


class Year:
    """The running system; `messages` counts what was sent."""

    def __init__(self, cluster: LocalCluster, driver: Driver, plan: Plan, folder: Path) -> None:
        self.bootstrap, self.driver, self.plan = cluster.bootstrap, driver, plan
        self.messages = 0
        self.control = collectors_partition(plan.topic)  # the one that grows
        self.named: dict[str, set[str]] = defaultdict(set)  # by collector: its checkpoints
        self.acted: Counter[str] = Counter()  # by collector: instances that began to act
        self._cluster, self.folder = cluster, folder
        self._place = ["-b", cluster.bootstrap, "-t", plan.topic]
        self.hosts: list[CollectorProcess] = []
        self.settings: Mapping[str, Mapping[str, str]] = {}  # before the speed-up

    # -- the parts ------------------------------------------------------------------------------

    def speed_up(self) -> None:
        """Divide the topics' times; not before collectors write checkpoints."""
        own = order_topic(self.plan.topic), *control_topics(self.plan.topic)
        topics = [*self.plan.topic_ids, *own]
        with Admin(self.bootstrap) as admin:
            self.settings = admin.topic_settings(topics)
            for topic in topics:
                refused = admin.change_settings(topic, sped_up(self.settings[topic]))
                if refused:
                    raise AmcastError(f"the times of topic {topic} were refused: {refused}")

    def start_host(self, index: int) -> CollectorProcess:
        """Start a process of collectors in this place; return once it is one of the group."""
        log = self.folder / f"collectors-{index}.log"
        options = (*self._place, "--driver", "librdkafka")
        host = CollectorProcess(log, *options, module="bench.year.speed")
        self.hosts[index : index + 1] = [host]

        def is_healthy() -> bool:
            if host.ended():
                raise AmcastError(f"collectors have ended; their log ends: {host.log_end()}")
            nodes = host.status()["nodes"]
            names = {node["node"] for node in nodes if node["state"] == "running"}
            return names == {node.name for node in self.plan.collectors}

        self.wait(is_healthy, "the collectors")
        return host

    def end_hosts(self) -> None:
        """End all processes of collectors."""
        for host in self.hosts:
            host.terminate()
        for host in self.hosts:
            host.close()

    @contextmanager
    def client(self, verb: str, *options: str, out: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run `amcast VERB` until the block ends."""
        command = [sys.executable, "-m", "multicast", verb, *self._place, *options]
        with out.open("wb") as file, (self.folder / f"{verb}.log").open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=log)
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.terminate()
            end(process)

    @contextmanager
    def background(self, work: Callable[..., None], *given: Any) -> Iterator[None]:
        """Run a function in a thread; it ends soon after the block, which raises what it raised."""
        ending = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(work, ending, *given)
            try:
                yield
            finally:
                ending.set()
        done.result()

    def send(self, ending: threading.Event, client: subprocess.Popen[bytes]) -> None:
        """Give a client ten messages each tenth of a second."""
        assert client.stdin is not None
        lines = [json.dumps({"to": to, "payload": "x" * 100}).encode() + b"\n" for to in _TO]
        for _ in ticks(_LONGEST_S, len(_TO) / RATE):
            if ending.is_set():
                return
            client.stdin.write(b"".join(lines))
            client.stdin.flush()
            self.messages += len(lines)

    def watch_control(self, ending: threading.Event) -> None:
        """Count what is written to the control topic, before compaction removes it."""
        with closing(self.driver.reader({self.control: 0}, wait_s=_POLL_S)) as reader:
            while not ending.is_set():
                for fetched in reader.poll(_POLL_S):
                    for record in fetched.records:
                        self._count(record)

    def _count(self, record: Record) -> None:
        kind, _, rest = (record.key or b"").decode().partition("/")
        document = json.loads(record.value or b"{}")
        if kind == "running" and "released" not in document:
            self.acted[rest] += 1
        elif kind == "checkpoint" and document:
            self.named[rest.partition("/")[0]].add(document["record"])

    # -- what is asked --------------------------------------------------------------------------

    def rolls(self, place: TopicPartition) -> int:
        """Count the segments that a Kafka partition has begun."""
        log = (self._cluster.directory / "broker-1" / "log.txt").read_text(errors="replace")
        named = f"partition={_name(place)},"
        return sum(named in line for line in log.splitlines() if "Rolled new log segment" in line)

    def control_records(self) -> int:
        """Count the records that a reader of the control topic gets."""
        end, count = self.driver.high_watermarks([self.control])[self.control], 0
        position = self.driver.log_start_offsets([self.control])[self.control]
        with closing(self.driver.reader({self.control: position}, wait_s=_POLL_S)) as reader:
            while position < end:
                for fetched in reader.poll(_POLL_S):
                    count += len(fetched.records)
                    position = fetched.position
        return count

    def control_bytes(self) -> int:
        """Sum the sizes of the control topic's segments, but for their indexes."""
        size, folder = 0, self._cluster.directory / "broker-1" / "data" / _name(self.control)
        for segment in folder.glob("*.log"):
            with suppress(FileNotFoundError):  # Kafka may just have put another one in its place
                size += segment.stat().st_size
        return size

    def wait(self, ready: Callable[[], bool], what: str, timeout_s: float = _HEALTHY_S) -> None:
        """Wait until something is so; raises `TimedOut`."""
        for _ in ticks(timeout_s, _LOOK_S):
            if ready():
                return
        raise TimedOut(f"{what} did not come within {timeout_s:g} s")


def _name(place: TopicPartition) -> str:
    return f"{place.topic}-{place.partition}"


@contextmanager
def standing() -> Iterator[Year]:
    """Start a broker with a plan of two collectors, one the other's child, and speed it up."""
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(brokers=1, settings=_BROKER))
        driver = open_driver("librdkafka", cluster.bootstrap)
        stack.callback(driver.close)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="amcast-year-")))
        interests = {"C1": ["P1", "P2"], CONSUMER: ["P2", "P3"]}
        with Admin(cluster.bootstrap) as admin:
            plan = solve(file_of(interests, [["P2", "P3"]]))
            year = Year(cluster, driver, apply(driver, admin, plan).plan, folder)
        stack.callback(year.end_hosts)
        yield year
