"""A whole system on a real broker: a topic with a plan, its collectors as processes, clients."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import confluent_kafka
import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from bench.harness.processes import CollectorProcesses
from collectors.reconfiguration.apply import apply
from multicast import Producer, history
from multicast.control import stream_partition
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin
from multicast.properties import check_all
from tests.helpers.hosting import hosting
from tests.running.commands import PATIENCE_S, amcast
from topology.tree import Plan

_numbers = itertools.count(1)
# What long tests are run with: the usual case always, the others in the campaign only.
EACH_DRIVER = ["librdkafka", pytest.param("kafka-python", marks=pytest.mark.campaign)]


def until(condition, what, timeout=PATIENCE_S, *, pause=0.02):
    """Wait until a condition holds; a time-out only stops a hang."""
    deadline = time.monotonic() + timeout
    waiting = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {timeout:g} s"
        waiting.wait(pause)


def set_topic(admin, topic, **settings):
    """Change a topic's settings; give what they were."""
    changed = {name.replace("_", "."): value for name, value in settings.items()}
    before = admin.topic_settings([topic])[topic]
    admin._admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, changed)])
    until(lambda: changed.items() <= admin.topic_settings([topic])[topic].items(), "a setting")
    return {name: before[name.replace("_", ".")] for name in settings}


def open_transaction(system, log):
    """Begin a transaction named as the topic, and append to a log; it stays open."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": system.bootstrap,
            "transactional.id": system.topic,
            "transaction.timeout.ms": 600_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(log.topic, b"held", partition=log.partition)
    assert producer.flush(PATIENCE_S) == 0
    return producer


class System:
    """A plan applied to a topic of its own; a context manager that ends what it started."""

    def __init__(self, bootstrap: str, plan: Plan, folder: Path, *, driver: str = "librdkafka"):
        self.bootstrap = bootstrap
        self.topic = f"t{next(_numbers)}-{time.time_ns()}"
        self.driver_name = driver
        self.folder = folder
        self._stack = contextlib.ExitStack()
        self.driver = open_driver(driver, bootstrap)
        self._stack.callback(self.driver.close)
        named = replace(
            plan,
            topic=self.topic,
            logs=tuple(
                replace(log, topic=log.topic.replace(plan.topic, self.topic, 1))
                for log in plan.logs
            ),
        )
        with Admin(bootstrap) as admin:
            self.plan = apply(self.driver, admin, named).plan

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def order(self):
        """Run all collectors in one process until this closes; each of them runs on return.

        Gives what can be asked for the process's status.
        """
        host = self.start()
        self._wait_running(host, {node.name for node in self.plan.collectors})
        return host

    def start(self, *nodes: str):
        """Start a process of all collectors, or of these, and do not wait for them."""
        return self._stack.enter_context(
            hosting(self.bootstrap, self.topic, self.driver_name, self.folder, nodes=nodes)
        )

    def _wait_running(self, host, names):
        def running():
            nodes = host.status()["nodes"]
            return names <= {node["node"] for node in nodes if node["state"] == "running"}

        until(running, "a start of all collectors", pause=0.05)

    def apart(self, name: str) -> CollectorProcesses:
        """Run a collector in a process that can be killed, and all others in one process."""
        others = {node.name for node in self.plan.collectors} - {name}
        rest = self.start(*others) if others else None
        host = self._processes("apart", [name])
        host.wait_healthy(PATIENCE_S)
        if rest is not None:
            self._wait_running(rest, others)
        return host

    def collectors(self, copy: str = "a") -> CollectorProcesses:
        """Start one instance of every collector, each in a process that can be killed by itself."""
        return self._processes(copy, [node.name for node in self.plan.collectors])

    def _processes(self, copy, names):
        folder = self.folder / copy
        folder.mkdir()
        host = CollectorProcesses(self.bootstrap, self.topic, self.driver_name, self.plan, folder)
        host.names = names
        return self._stack.enter_context(host)

    def common(self) -> list[str]:
        """The flags that lead any command here."""
        return ["-b", self.bootstrap, "-t", self.topic, "--driver", self.driver_name]

    def receive(self, *arguments):
        """Run `amcast receive` to its end; give its lines."""
        done = amcast("receive", *self.common(), "--timeout", str(PATIENCE_S), *arguments)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def append_garbage(self, collector: str, record: bytes = b"garbage") -> None:
        """Append to a collector's order stream what is no order record."""
        partition = stream_partition(self.plan, collector)
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap})
        producer.produce(partition.topic, record, partition=partition.partition)
        assert producer.flush(PATIENCE_S) == 0

    @contextlib.contextmanager
    def load(self, sets):
        """Send to these sets in turn, each round acknowledged, until the block ends."""
        stop = threading.Event()

        def send():
            number = 0
            with Producer(self.bootstrap, topic=self.topic) as producer:
                while not stop.wait(0.02):
                    receipts = []
                    for to in sets:
                        receipts.append(producer.multicast(b"%d" % number, to=to, key=b"k"))
                        number += 1
                    for receipt in receipts:
                        receipt.accepted(PATIENCE_S)

        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        try:
            yield
        finally:
            stop.set()
            sending.join(PATIENCE_S)

    def void(self) -> int:
        """Count the records of all order streams that do not count."""
        done = amcast("collectors", "status", *self.common(), "-o", "json")
        assert done.returncode == 0, done.stderr
        return sum(node["void"] for node in json.loads(done.stdout)["collectors"])


def judge(plan: Plan, *files: Path, other_producers: bool = False):
    """Judge histories; the report, whose violations must be empty."""
    builder = history.HistoryBuilder()
    for file in files:
        with file.open("rb") as lines:
            history.read(lines, builder, source=str(file))
    report = check_all(builder.history(plans=[plan], other_producers=other_producers))
    assert not report.violations, "\n".join(str(v.witness) for v in report.violations)
    return report


def unheld(report, *untold: str) -> dict[str, str]:
    """Each guarantee that does not hold, but for those that a plain run's histories do not tell."""
    said = {verdict.guarantee: verdict.verdict for verdict in report.verdicts}
    untold = ("fifo order", "genuineness", *untold)
    return {name: said[name] for name in said if said[name] != "holds" and name not in untold}
