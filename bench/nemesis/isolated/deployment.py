"""A small deployment for one isolated fault: a topic with a plan, collectors, and a history.

It is for faults that would break a shared topic. Multicasts and deliveries are noted in a history,
which `multicast.properties` judges. Leaving the context ends all processes and deletes the topics.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bench.harness.processes import CollectorProcess
from bench.nemesis import running
from collectors.reconfiguration.apply import apply
from multicast import history
from multicast.consuming.batches import Batch
from multicast.consuming.consumer import Consumer
from multicast.control import control_topics, sentinel_topic, stream_partition
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Appended, Driver, Record, TopicPartition
from multicast.errors import AmcastError, TimedOut
from multicast.local.cluster import LocalCluster
from multicast.local.process import Guard, argument_of
from multicast.producing.producer import Producer
from multicast.producing.receipts import Receipt
from multicast.properties import check_all
from multicast.verification.report import OrderViolation, Report
from topology.interests import from_document
from topology.planner.solver import plan as solve
from topology.tree import PHI_DEFAULT, Plan

INTERESTS = {"C1": ("P1", "P2"), "C2": ("P2", "P3"), "C4": ("P4",)}
SETS = (("P1",), ("P2",), ("P3",), ("P1", "P2"), ("P4",))
PATIENCE_S = 180.0  # for any single step, on a loaded machine; a healthy one needs seconds


class Unexpected(AmcastError):
    """A fault had another effect than the promised one; the text says which."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class FaultSite:
    """Where a fault is injected: brokers, a folder for files, and the cluster if it is local."""

    bootstrap: str
    folder: Path
    cluster: LocalCluster | None = None


@dataclass(frozen=True, slots=True)
class FaultEffect:
    """The effect of a fault: the size of the judged history, and a sentence on what was seen."""

    name: str
    messages: int
    deliveries: int
    says: str


@dataclass(frozen=True, slots=True)
class EndedProgram:
    """A program that has ended."""

    code: int
    out: str
    err: str

    def refused(self, *words: str) -> str:
        """Return its error sentence; raises `Unexpected` unless it failed with these words."""
        lines = self.err.strip().splitlines()
        sentences = [line for line in lines if not line.startswith(("sent ", "received "))]
        plain = self.code == 1 and len(sentences) == 1 and "Traceback" not in self.err
        expect(
            plain and all(word in sentences[0] for word in words),
            f"a program should end with exit code 1 and one sentence with {' and '.join(words)}; "
            f"it ended with {self.code} and wrote: {self.err.strip()[-500:]}",
        )
        return sentences[0].removeprefix("amcast: ")


def expect(holds: object, otherwise: str) -> None:
    """Raise `Unexpected` with the sentence `otherwise` unless it holds."""
    if not holds:
        raise Unexpected(otherwise)


def until(holds: Callable[[], object], what: str) -> None:
    """Wait until it holds; raises `TimedOut`."""
    if not running.until(holds, timeout_s=PATIENCE_S):
        raise TimedOut(f"{what} did not come within {PATIENCE_S:g} s")


class Deployment:
    """A new topic with a plan; a context manager. `collectors` starts the collectors."""

    def __init__(self, site: FaultSite, name: str) -> None:
        self.bootstrap = site.bootstrap
        self.topic = f"aside-{name}-{uuid.uuid4().hex[:8]}"
        self.folder = site.folder / self.topic
        self.driver: Driver
        self.admin: Admin
        self.plan: Plan
        self.epochs: list[Plan] = []
        self.lines: list[str] = []  # of the history
        self._token = uuid.uuid4().hex
        self._stack = ExitStack()
        self._read: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self.folder.mkdir(parents=True)
            self.driver = open_driver("librdkafka", self.bootstrap)
            opened.callback(self.driver.close)
            self.admin = opened.enter_context(Admin(self.bootstrap))
            opened.callback(self._delete)
            guard = Guard(self._token)
            opened.callback(guard.dismiss)
            plan = planned(self.topic)
            self.plan = apply(self.driver, self.admin, plan, timeout_s=60.0).plan
            self.epochs.append(self.plan)
            self._stack = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _delete(self) -> None:
        """Delete every topic that `apply` may have created."""
        names = [self.topic, f"{self.topic}.groups", f"{self.topic}.Msg-TO"]
        self.admin.delete_topics([*names, *control_topics(self.topic), sentinel_topic(self.topic)])

    def stream(self, collector: str) -> TopicPartition:
        """Name the Kafka partition of a collector's stream."""
        return stream_partition(self.plan, collector)

    # -- programs -----------------------------------------------------------------------------

    def _python(self, program: Sequence[str]) -> list[str]:
        """Return the options of Python: the guard finds the process by its token."""
        return ["-X", argument_of(self._token), "-m", *program]

    def _common(self, driver: str) -> list[str]:
        return ["-b", self.bootstrap, "-t", self.topic, "--driver", driver]

    def run(
        self,
        *verb: str,
        flags: Sequence[str] = (),
        before: Sequence[str] = (),
        program: Sequence[str] = ("multicast",),
        driver: str = "librdkafka",
        stdin: str = "",
        stdout: Path | None = None,
    ) -> EndedProgram:
        """Run a verb of `amcast` to its end; `before` is put before it, such as `prlimit`."""
        words = [*self._python(program), *verb, *self._common(driver), *flags]
        argv = [*before, sys.executable, *words]
        with ExitStack() as opened:
            out = subprocess.PIPE if stdout is None else opened.enter_context(stdout.open("wb"))
            try:
                done = subprocess.run(
                    argv,
                    input=stdin,
                    stdout=out,
                    stderr=subprocess.PIPE,
                    text=True,
                    timeout=PATIENCE_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise TimedOut(f"'amcast {verb[0]}' did not end within {PATIENCE_S:g} s") from None
        return EndedProgram(done.returncode, done.stdout or "", done.stderr)

    def collectors(self, program: Sequence[str] = ("multicast",)) -> CollectorProcess:
        """Start a process that hosts all collectors; wait until they run."""
        log = self.folder / f"collectors-{uuid.uuid4().hex[:8]}.log"
        options = self._common("librdkafka")
        made = self._stack.enter_context(
            CollectorProcess(log, *options, python=self._python(program))
        )
        until(lambda: _is_healthy(made), "a process of healthy collectors")
        return made

    # -- multicasting and delivering ----------------------------------------------------------

    def multicast(self, count: int) -> None:
        """Multicast messages to each set in turn, and note them."""
        with Producer(topic=self.topic, driver=self.driver) as producer:
            receipts = [
                producer.multicast(b"%d" % number, to=SETS[number % len(SETS)])
                for number in range(count)
            ]
            producer.flush(PATIENCE_S)
        self.acknowledged("desk", receipts)

    def acknowledged(self, producer: str, receipts: Iterable[Receipt]) -> None:
        """Note the outcomes of multicasts."""
        for receipt in receipts:
            message, outcome = None, "failed"
            if isinstance(receipt.outcome, Appended):
                message, outcome = str(receipt.accepted(0)), "accepted"
            elif receipt.outcome is None or not receipt.outcome.error.definite:
                outcome = "unknown"
            self.lines.append(
                history.acknowledgement_line(
                    producer=producer, message_id=message, to=receipt.to, outcome=outcome
                )
            )

    def accepted(self, producer: str, message: str, to: Iterable[str]) -> None:
        """Note a stored message."""
        self.lines.append(
            history.acknowledgement_line(
                producer=producer, message_id=message, to=to, outcome="accepted"
            )
        )

    def note(self, name: str, instance: str, batches: Iterable[Batch]) -> list[str]:
        """Note deliveries of a consumer's instance; return their IDs."""
        delivered = []
        for batch in batches:
            for record in batch.records:
                delivered.append(f"{batch.log.label}:{record.offset}")
                self.lines.append(
                    history.delivery_line(
                        consumer=name,
                        instance=instance,
                        sequence=self._read[name, instance],
                        message_id=delivered[-1],
                        to=batch.to,
                    )
                )
                self._read[name, instance] += 1
        return delivered

    def read_all(self, name: str, instance: str = "all") -> list[str]:
        """Deliver everything to a consumer from the start; note it, and return the IDs."""
        with Consumer(topic=self.topic, name=name, driver=self.driver, committed=False) as consumer:
            delivered = self.note(name, instance, consumer.until_end(timeout=PATIENCE_S))
        self.lines.append(history.end_line(consumer=name, instance=instance))
        return delivered

    def records(self, partition: TopicPartition) -> list[Record]:
        """Read a Kafka partition from its beginning to its end."""
        records: list[Record] = []
        position, last = (
            self.driver.log_start_offsets([partition])[partition],
            self.driver.last_stable_offsets([partition])[partition],
        )
        reader = self.driver.reader({partition: position})
        try:
            while position < last:
                moved = reader.poll(PATIENCE_S)
                expect(moved, f"{partition.topic}/{partition.partition} ends before {last}")
                records += [record for fetched in moved for record in fetched.records]
                position = moved[-1].position
        finally:
            reader.close()
        return records

    def judge(self, *files: Path) -> Report:
        """Judge the noted history, and histories in files; raises `OrderViolation`."""
        built = history.HistoryBuilder()
        history.read([line.encode() for line in self.lines], built, source="the desk")
        for file in files:
            with file.open("rb") as lines:
                history.read(lines, built, source=str(file))
        report = check_all(built.history(plans=self.epochs))
        if report.violations:
            raise OrderViolation(report)
        blind = [verdict for verdict in report.verdicts if verdict.verdict == "not checked"]
        blind = [verdict for verdict in blind if verdict.guarantee not in ("genuineness", "replay")]
        expect(not blind, f"{blind and blind[0].guarantee} could not be judged")
        return report

    def effect(self, name: str, report: Report, says: str) -> FaultEffect:
        """Make the fault's effect from the report and a sentence."""
        return FaultEffect(name, report.messages, report.deliveries, says)


def _is_healthy(host: CollectorProcess) -> bool:
    """Whether it has collectors and all run; raises `Unexpected` if the process has ended."""
    if host.ended():
        raise Unexpected(f"a process of collectors has ended; its log ends: {host.log_end()}")
    nodes = host.status()["nodes"]
    return bool(nodes) and all(node["state"] == "running" for node in nodes)


def planned(topic: str, *, phi: float = PHI_DEFAULT) -> Plan:
    """Plan a few interests: collectors below each other, and a log with a lone reader."""
    document: dict[str, Any] = {
        "topic": topic,
        "partitions": ["P1", "P2", "P3", "P4"],
        "destinations": [list(to) for to in SETS if len(to) > 1],
        "consumer": [{"name": n, "interest": list(i)} for n, i in INTERESTS.items()],
    }
    return solve(from_document(document), phi=phi)
