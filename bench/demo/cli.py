"""`amcast demo`: plan, order, deliver and verify 2,000 real messages on a real broker.

The demo starts a broker and plans the tree for five teams that watch overlapping modules of a real
project. It starts the collectors as processes, and a standby for one of them, multicasts the
project's commits to the modules that they touched, kills and restarts that collector meanwhile,
delivers to every team, and checks the guarantees over the complete delivery histories.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from bench.cli import refuse_files
from bench.demo import screen
from bench.demo.plain import EVERY, PlainKafka
from bench.demo.screen import Delivered
from bench.demo.work import RunWork
from bench.harness.interrupts import end_at_signals
from bench.harness.processes import CollectorProcesses
from bench.measured_work import MeasuredWork, measured_document
from collectors.reconfiguration.apply import apply
from multicast import history
from multicast.cli.options import DriverName
from multicast.consuming.batches import Batch
from multicast.consuming.consumer import Consumer
from multicast.consuming.entries_read import ConsumerEntries
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Appended, Driver
from multicast.errors import AmcastError, TimedOut, UsageError
from multicast.local.cluster import LocalCluster
from multicast.producing.producer import Producer
from multicast.producing.receipts import Receipt
from multicast.properties import check_all
from multicast.verification.report import OrderViolation, Report
from topology import draw, interests
from topology.check import figures
from topology.files import write_text
from topology.output import ForceOption, Output, OutputOption
from topology.planner import solver
from topology.tree import Plan

app = typer.Typer()

TEAMS = {
    "brokers": ("core", "group-coordinator", "metadata", "raft"),
    "clients": ("clients", "connect", "core"),
    "storage": ("core", "storage", "tools"),
    "streams": ("clients", "docs", "streams", "tests"),
    "build": ("bin", "checkstyle", "gradle", "root"),
}
# Each declared set is one more partition of the groups topic; rarer sets travel in a wider one.
DECLARED_MAX = 40
SEND_S = 12.0  # all messages are sent in this time: long enough to watch, and to kill a collector
RATE_MIN = 200.0  # messages a second; a small input file is sent in less than `SEND_S`
_OPEN_S = 60.0  # for a team's consumer; who takes longer is waited for when all is sent
_FRAME_S = 0.05  # between two updates of the progress bars: 20 a second look continuous


@dataclass(frozen=True, slots=True)
class Commit:
    """One message: its line of the input file, and the modules that it touched."""

    line: bytes
    to: tuple[str, ...]


@dataclass
class Team:
    """One team's deliveries in order: message ID, destination set, cursor, monotonic time in ns."""

    name: str
    delivered: list[tuple[str, tuple[str, ...], str, int]] = field(default_factory=list)
    opened: threading.Event = field(default_factory=threading.Event)
    error: AmcastError | None = None
    entries: ConsumerEntries | None = None  # as of its last poll


def _note(team: Team, batch: Batch, now_ns: int) -> None:
    for index, record in enumerate(batch.records):
        message = f"{batch.log.label}:{record.offset}"
        team.delivered.append((message, batch.to, str(batch.cursor(index)), now_ns))


@app.command()
def demo(
    *,
    input_file: Annotated[
        Path | None,
        typer.Option("--input", help="JSON lines with 'to', or .gz; default: 2,000 commits."),
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap", "-b", envvar="AMCAST_BOOTSTRAP", help="A cluster; default: a new one."
        ),
    ] = None,
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic to create.")] = "commits",
    driver: DriverName = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="Messages a second; default: all in 12 s.")
    ] = None,
    history_file: Annotated[
        Path | None,
        typer.Option("--history", readable=False, help="Write a history for 'amcast verify' here."),
    ] = None,
    force: ForceOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Order real commits for five teams on a real broker, and prove the order. Takes a minute.

    Exit code 0: every guarantee holds; 3: one is violated.
    """
    began = time.monotonic()
    refuse_files(history_file, force=force)
    end_at_signals()
    say = Console(stderr=True)
    commits = read_commits(input_file)
    name = driver or "librdkafka"
    with ExitStack() as stack:
        if bootstrap is None:
            say.print("starting a broker …")
            bootstrap = stack.enter_context(LocalCluster()).bootstrap
        opened = open_driver(name, bootstrap)
        stack.callback(opened.close)
        say.print("planning the tree …")
        planned, tree = lay_out(commits, topic)
        with Admin(bootstrap) as admin:
            plan = apply(opened, admin, planned).plan
            plain = PlainKafka(opened, admin, f"{topic}-plain")
        say.print(tree, highlight=False, soft_wrap=True)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-demo-")))
        host = stack.enter_context(CollectorProcesses(bootstrap, topic, name, plan, folder))
        for collector in host.names[-1:]:  # it will be killed
            host.stand_by(collector)
        host.wait_healthy()
        rate = rate or max(RATE_MIN, len(commits) / SEND_S)
        run = DemoRun(opened, plan, commits, rate=rate, host=host, plain=plain)
        with RunWork(opened, plan) as counting, plain:
            foreign_work = run.go(say, counting)
        work = list(host.work())
    built = history.HistoryBuilder()
    lines = [*run.lines(), *work]
    if history_file is not None:
        write_text(history_file, "".join(lines), force=True)
    history.read([line.encode() for line in lines], built, source="the demo's own history")
    report = check_all(built.history(plans=[plan]))
    result = run.result(report, time.monotonic() - began)
    result["measured_work"] = measured_document(foreign_work)
    if output is Output.JSON:
        typer.echo(json.dumps({**result, "tree": json.loads(plan.canonical())}))
    else:
        screen.show(result, report, foreign_work, run.timed())
    if result["violations"]:
        raise OrderViolation(report)


def read_commits(file: Path | None) -> list[Commit]:
    """Read the messages; raises `UsageError` with the line's number."""
    if file is None:
        packed = resources.files("bench").joinpath("workloads/kafka-commits-2000.jsonl.gz")
        raw, name = gzip.decompress(packed.read_bytes()), "the sample"
    else:
        try:
            raw, name = file.read_bytes(), str(file)
            if raw[:2] == b"\x1f\x8b":
                raw = gzip.decompress(raw)
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror or error}") from error
    commits = []
    for number, line in enumerate(raw.splitlines(), start=1):
        try:
            to = json.loads(line)["to"]
            commits.append(Commit(line, tuple(sorted({str(module) for module in to}))))
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{name}:{number}: not a JSON object with a list 'to'") from error
        if not commits[-1].to:
            raise UsageError(f"{name}:{number}: 'to' is empty")
    if not commits:
        raise UsageError(f"{name}: the file holds no messages")
    return commits


def lay_out(commits: list[Commit], topic: str) -> tuple[Plan, str]:
    """Plan the tree; declare the most frequent destination sets and the set of all modules.

    Returns the plan, and its drawing as text with the optimality gap.
    """
    modules = sorted({module for commit in commits for module in commit.to})
    counts = Counter(commit.to for commit in commits if len(commit.to) > 1)
    frequent = [list(to) for to, _ in counts.most_common(DECLARED_MAX) if to != tuple(modules)]
    teams = {name: [m for m in watched if m in modules] for name, watched in TEAMS.items()}
    teams = {name: watched for name, watched in teams.items() if watched}
    if not teams:  # a file of another project: its modules are divided among five teams
        teams = {f"team-{number + 1}": modules[number::5] for number in range(min(5, len(modules)))}
    document = {
        "topic": topic,
        "partitions": modules,
        "destinations": [*frequent, modules] if len(modules) > 1 else [],
        "consumer": [{"name": name, "interest": watched} for name, watched in teams.items()],
    }
    plan = solver.plan(interests.from_document(document))
    text = draw.text_tree(plan, figures(plan))
    return plan, f"{text}\ncost {plan.objective.cost:g}, {plan.objective.foreign:g} foreign"


class DemoRun:
    """Multicasts all messages, delivers them at all teams, and records both."""

    def __init__(
        self,
        driver: Driver,
        plan: Plan,
        commits: list[Commit],
        *,
        rate: float,
        host: CollectorProcesses,
        plain: PlainKafka,
    ) -> None:
        self._driver = driver
        self._plan = plan
        self._commits = commits
        self._rate = rate
        self._host = host
        self._plain = plain
        self._receipts: list[Receipt] = []
        self._sent_ns: list[int] = []
        self._began_ns = 0
        self.killed: str | None = None
        self._killed_ns: int | None = None
        self.teams = [Team(entry.name) for entry in plan.consumers]
        self.replay = Team("")
        self._replay_s = 0.0
        self._goal = {
            entry.name: sum(not set(entry.interest).isdisjoint(commit.to) for commit in commits)
            for entry in plan.consumers
        }

    def go(self, say: Console, counting: RunWork) -> MeasuredWork:
        """Send and deliver; give the foreign work of this.

        Raises the error that stopped a team, or `TimedOut`.
        """
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._deliver, args=(team, stop), daemon=True)
            for team in self.teams
        ]
        for thread in threads:
            thread.start()
        for team in self.teams:  # to open takes seconds on a slow machine, which is no latency
            team.opened.wait(_OPEN_S)
        try:
            with Progress(
                TextColumn("{task.description:>10}"),
                BarColumn(),
                MofNCompleteColumn(),
                console=say,
                disable=not say.is_terminal,
            ) as bars:
                sending = bars.add_task("multicast", total=len(self._commits))
                tasks = {
                    t.name: bars.add_task(t.name, total=self._goal[t.name]) for t in self.teams
                }

                def show() -> None:
                    bars.update(sending, completed=len(self._sent_ns))
                    for team in self.teams:
                        bars.update(tasks[team.name], completed=len(team.delivered))

                self._send(show)
                self._wait(show)
            work = counting.measured(self._entries)
        finally:
            stop.set()
            for thread in threads:
                thread.join(10)
        self._replay(say)
        return work

    def _entries(self) -> dict[str, ConsumerEntries]:
        return {team.name: team.entries for team in self.teams if team.entries is not None}

    def _replay(self, say: Console) -> None:
        """Deliver to one team once more, from the start: the sequence must be the same."""
        first = min(self.teams, key=lambda team: self._goal[team.name])
        say.print(f"replaying {first.name} from the start …")
        again = self.replay = Team(first.name)
        began = time.monotonic()
        with Consumer(
            topic=self._plan.topic, name=first.name, driver=self._driver, committed=False
        ) as consumer:
            for batch in consumer.until_end():
                _note(again, batch, time.monotonic_ns())
        self._replay_s = time.monotonic() - began

    def _send(self, show: Any) -> None:
        """Multicast at the intended rate; after two fifths, kill and restart a collector."""
        pause = threading.Event()
        with Producer(topic=self._plan.topic, driver=self._driver) as producer:
            self._began_ns = time.monotonic_ns()
            for number, commit in enumerate(self._commits):
                intended = self._began_ns + int(number / self._rate * 1e9)
                early = intended - time.monotonic_ns()
                if early > 0:
                    show()
                    pause.wait(early / 1e9)
                if number == len(self._commits) * 2 // 5 and self._host.names:
                    self.killed = self._host.names[-1]
                    self._host.kill(self.killed)
                    self._killed_ns = time.monotonic_ns()
                    self._host.start(self.killed)
                self._sent_ns.append(intended)
                self._receipts.append(producer.multicast(commit.line, to=commit.to))
                if number % EVERY == 0:
                    self._plain.send(commit.line, intended)
            producer.flush()

    def _wait(self, show: Any, timeout: float = 60.0) -> None:
        """Wait until every team has delivered all messages that are addressed to it."""
        deadline = time.monotonic() + timeout
        pause = threading.Event()
        while any(len(team.delivered) < self._goal[team.name] for team in self.teams):
            show()
            for team in self.teams:
                if team.error is not None:
                    raise team.error
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"after {timeout:g} s "
                    + ", ".join(
                        f"{t.name} delivered {len(t.delivered)} of {self._goal[t.name]}"
                        for t in self.teams
                    )
                )
            pause.wait(_FRAME_S)
        show()

    def _deliver(self, team: Team, stop: threading.Event) -> None:
        try:
            with Consumer(topic=self._plan.topic, name=team.name, driver=self._driver) as consumer:
                while not stop.is_set():
                    for batch in consumer.poll(0.2):
                        _note(team, batch, time.monotonic_ns())
                    team.entries = consumer.entries()
                    team.opened.set()
        except AmcastError as error:
            team.error = error
            team.opened.set()

    # -- results ----------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """Yield the run's history."""
        for receipt in self._receipts:
            yield history.acknowledgement_line(
                producer="demo",
                message_id=str(receipt.accepted(0)),
                to=receipt.to,
                outcome="accepted",
            )
        instances = [(team, "a") for team in self.teams] + [(self.replay, "b")]
        for team, instance in instances:
            for sequence, (message, to, cursor, _) in enumerate(team.delivered):
                yield history.delivery_line(
                    consumer=team.name,
                    instance=instance,
                    sequence=sequence,
                    message_id=message,
                    to=to,
                    cursor=cursor,
                )
            yield history.end_line(consumer=team.name, instance=instance)

    def result(self, report: Report, total_s: float) -> dict[str, Any]:
        """Return the figures."""
        timed = self.timed()
        times = sorted(one.ms for deliveries in timed.values() for one in deliveries)
        last = max(delivered_ns for team in self.teams for _, _, _, delivered_ns in team.delivered)
        affected = screen.affected_teams(self._plan, self.killed)
        phases = screen.phases(
            timed, affected, self._began_ns, self._killed_ns, self._plain.delivered
        )
        covered = sum(receipt.to != receipt.log.to for receipt in self._receipts)
        elapsed = (last - self._began_ns) / 1e9
        return {
            "schema_version": 1,
            "messages": len(self._receipts),
            "deliveries": len(times),
            "violations": len(report.violations),
            "not_checked": [v.guarantee for v in report.verdicts if v.verdict == "not checked"],
            "covered": covered,
            "killed": self.killed,
            "rate_per_s": self._rate,
            "latency_ms": {
                f"p{q:g}": round(times[min(len(times) - 1, int(len(times) * q / 100))], 3)
                for q in (50, 90, 99)
            },
            "throughput_per_s": round(len(times) / elapsed, 1),
            "seconds": round(total_s, 1),
            "teams": {team.name: len(team.delivered) for team in self.teams},
            "phases": screen.document(phases),
            "replay": {
                "team": self.replay.name,
                "deliveries": len(self.replay.delivered),
                "seconds": round(self._replay_s, 3),
                "same": self._is_same(),
            },
        }

    def timed(self) -> dict[str, list[Delivered]]:
        """Give each team's deliveries in order, with the time at which each was to be sent."""
        sent: dict[str, int] = {}
        for receipt, intended in zip(self._receipts, self._sent_ns, strict=True):
            assert isinstance(receipt.outcome, Appended)
            sent[f"{receipt.log.label}:{receipt.outcome.offset}"] = intended
        return {
            team.name: [
                Delivered(message, sent[message], delivered_ns)
                for message, _, _, delivered_ns in team.delivered
            ]
            for team in self.teams
        }

    def _is_same(self) -> bool:
        """Whether the replay was the team's own sequence."""
        first = next(team for team in self.teams if team.name == self.replay.name)
        return [m for m, *_ in first.delivered] == [m for m, *_ in self.replay.delivered]
