"""Profiles the arms of a workload: the stages of a message, CPU time, functions.

    python -m bench.comparison.profile WORKLOAD [--set key=value …] [--functions] [-o json]

It runs the arms as `amcast bench run` does, and prints for each:

    stages      milliseconds from a message's intended time until it was sent, accepted (its append
                was acknowledged), ordered (its consumer had read the order record that names it),
                delivered: p50 and p99 of all rounds. None for a backlog
    busy        busy cores of the machine; median of the rounds
    cpu, queued microseconds a message, by role: on a CPU; ready to run while all CPUs were busy.
                Summed over a role's processes and all rounds, divided by all messages including
                the warm-up
    threads     the same by the threads' names in the kernel, the largest first; those of librdkafka
                begin with "rdk:", the broker's are Java's
    functions   with --functions, in further rounds: shares of the samples in which a thread was on
                a CPU, by Python function, including C code that it calls; py-spy takes 100 samples
                a second from outside (needs root or ptrace)

Measuring the stages slows the clients. Compare arms here, and take figures for the targets from
`amcast bench run`.
"""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from bench.cli import read_workload
from bench.comparison.arms import Arm, MeasuredCluster
from bench.comparison.events import PARTITIONS, events_topic
from bench.comparison.run import own_broker
from bench.comparison.workload import BACKLOG, SATURATE, Workload
from bench.harness import figures
from bench.harness.threads import accounts
from collectors.testing.processes import end
from multicast.drivers import open_driver
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import AmcastError, TimedOut, UsageError

_MODULE = "bench.comparison.profile"
_STAGES = {
    "sent": "producer",
    "accepted": "producer",
    "ordered": "consumer",
    "delivered": "consumer",
}
_ROLES = ("producers", "collectors", "consumers", "brokers")
_SHOWN_MAX = 10  # threads or functions of a role
_SHOWN_US_MIN = 1.0  # threads that spent less than this on a message are left out
_READ_S = 30.0  # for the next events to come
_HEAT_MESSAGES = 100_000  # of a round that warms up the broker
_HEAT_ROUNDS = 5  # some seconds in all, so that Java compiles its hot code
_SAMPLES_PER_S = 100  # py-spy's default
Accounts = dict[tuple[str, int, str], tuple[float, float]]  # by role, thread and its name


class Spent:
    """Seconds on a CPU and in the queue for one, by role and thread name."""

    def __init__(self) -> None:
        self.seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])

    @contextmanager
    def counted(self, arm: Arm) -> Iterator[None]:
        """Add the time of the arm's threads during the context; ended threads are not seen."""
        before = _accounts(arm)
        yield
        for place, after in _accounts(arm).items():
            role, _, name = place
            for index, earlier in enumerate(before.get(place, (0.0, 0.0))):
                self.seconds[role, name][index] += after[index] - earlier

    def by_message(self, messages: int) -> dict[str, Any]:
        """Return microseconds a message: of each role, and of its largest threads."""
        roles: dict[str, Any] = {
            role: {"cpu": 0.0, "queued": 0.0, "threads": {}}
            for role in _ROLES
            if any(entry == role for entry, _ in self.seconds)
        }
        for (role, name), pair in sorted(self.seconds.items(), key=lambda entry: -sum(entry[1])):
            role_cost = roles[role]
            used, queued = (round(seconds / messages * 1e6, 1) for seconds in pair)
            role_cost["cpu"] = round(role_cost["cpu"] + used, 1)
            role_cost["queued"] = round(role_cost["queued"] + queued, 1)
            if used + queued >= _SHOWN_US_MIN and len(role_cost["threads"]) < _SHOWN_MAX:
                role_cost["threads"][name] = [used, queued]
        return roles


def profile(
    workload: Workload, *, functions: bool, progress: Callable[[str], None]
) -> tuple[dict[str, Any], str]:
    """Run a workload's rounds on a new broker; return each arm's profile, and Kafka's version.

    Raises `UsageError` for a share of plain Kafka's maximum, `AmcastError` if a message was lost, a
    process ended, or no samples can be taken.
    """
    if workload.share is not None:
        raise UsageError(
            f"load {workload.load} is a share of a maximum that 'amcast bench run' measures first; "
            f"give the measured rate: --set load=…"
        )
    run = f"profile-{time.time_ns()}"
    staged = workload.load != BACKLOG
    with ExitStack() as stack:
        brokers = stack.enter_context(own_broker(progress))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-bench-")))
        driver = open_driver(workload.driver, brokers.bootstrap)
        stack.callback(driver.close)
        cluster = MeasuredCluster(brokers.bootstrap, driver, brokers.pids, folder, run)
        progress("letting the broker compile its code")
        _heat(workload, replace(cluster, run=None))
        arms = [stack.enter_context(Arm(workload, name, cluster)) for name in workload.arms]
        for arm in arms:
            progress(f"warming up {arm.name}")
            arm.warm_up()
        spent = {arm.name: Spent() for arm in arms}
        busy: dict[str, list[float]] = {arm.name: [] for arm in arms}
        for pair in range(1, workload.pairs + 1):
            for arm in arms:
                progress(f"pair {pair} of {workload.pairs}: {arm.name}")
                with spent[arm.name].counted(arm):
                    busy[arm.name].append(arm.round(pair).figures["busyCores"])
                if staged:
                    arm.write_events(pair)
        stages = _stages(driver, run) if staged else {}
        sent = workload.pairs * (workload.warm_up + workload.messages)
        by_arm: dict[str, Any] = {}
        for arm in arms:
            by_arm[arm.name] = {"busy_cores": statistics.median(busy[arm.name])}
            by_arm[arm.name]["us_a_message"] = spent[arm.name].by_message(sent)
            if staged:
                by_arm[arm.name]["stages_ms"] = stages[arm.name]
        if functions:
            for arm in arms:
                progress(f"sampling {arm.name}")
                by_arm[arm.name]["functions"] = _sampled(arm, workload, folder)
        return by_arm, brokers.kafka


def _heat(workload: Workload, cluster: MeasuredCluster) -> None:
    """Keep a new broker busy for some seconds: at first its compiler takes most of its CPU."""
    hot = replace(
        workload,
        load=SATURATE,
        message_bytes=100,
        messages=_HEAT_MESSAGES,
        warm_up=0,
        arms=("plain",),
    )
    folder = cluster.folder / "heat"
    folder.mkdir()
    with Arm(hot, "plain", replace(cluster, folder=folder)) as arm:
        for number in range(_HEAT_ROUNDS):
            arm.round(number)


def _accounts(arm: Arm) -> Accounts:
    return {
        (role, account.thread, re.sub(r"[0-9]+$", "N", account.name)): (
            account.used,
            account.queued,
        )
        for role, pids in arm.pids.items()
        for pid in pids
        for account in accounts(pid)
    }


# -- stages -----------------------------------------------------------------------------------


def _stages(driver: Driver, run: str) -> dict[str, dict[str, dict[str, float]]]:
    """Read a run's events; return p50 and p99 of each stage, by arm."""
    taken: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for event in _events(driver, events_topic(run)):
        if event["measured"]:
            for stage, role in _STAGES.items():
                if event["role"] == role and event[stage] is not None:
                    taken[event["arm"]][stage].append(event[stage] - event["intended"])
    return {
        arm: {stage: _percentiles(stages[stage]) for stage in _STAGES if stage in stages}
        for arm, stages in taken.items()
    }


def _events(driver: Driver, topic: str) -> Iterator[dict[str, Any]]:
    """Yield the events up to the current end of the topic; raises `TimedOut`."""
    partitions = [TopicPartition(topic, number) for number in range(1, PARTITIONS)]
    ends = driver.last_stable_offsets(partitions)
    left = {partition for partition in partitions if ends[partition]}
    reader = driver.reader(dict.fromkeys(left, 0))
    try:
        while left:
            moved = reader.poll(_READ_S)
            if not moved:
                raise TimedOut(f"the events in {topic} could not be read within {_READ_S:g} s")
            for fetched in moved:
                for record in fetched.records:
                    yield json.loads(record.value or b"")
                if fetched.position >= ends[fetched.partition]:
                    left.discard(fetched.partition)
    finally:
        reader.close()


def _percentiles(taken_ns: list[int]) -> dict[str, float]:
    taken_ns.sort()
    last = len(taken_ns) - 1
    return {
        name: round(taken_ns[int(share * last)] / 1e6, 3)
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }


# -- functions --------------------------------------------------------------------------------


def _sampled(arm: Arm, workload: Workload, folder: Path) -> dict[str, dict[str, float]]:
    """Run one more round under py-spy; return the shares of each role's largest functions."""
    pids = [(role, pid) for role in arm.pids if role != "brokers" for pid in arm.pids[role]]
    with ExitStack() as stack:
        for _, pid in pids:
            stack.enter_context(_sampler(pid, folder / f"{pid}.samples"))
        arm.round(workload.pairs + 1)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for role, pid in pids:
        try:
            lines = (folder / f"{pid}.samples").read_text(encoding="utf-8").splitlines()
        except OSError as error:
            log_end = (folder / f"{pid}.samples.log").read_text(errors="replace").strip()
            raise AmcastError(
                f"py-spy wrote no samples of the {role}: {log_end[-300:] or error.strerror}"
            ) from error
        for line in lines:
            stack_, _, count = line.rpartition(" ")
            counts[role][stack_.rpartition(";")[2]] += int(count)
    return {role: _shares(samples) for role, samples in counts.items()}


@contextmanager
def _sampler(pid: int, file: Path) -> Iterator[None]:
    """Sample a process until the context ends, without pausing it."""
    command = [
        str(Path(sys.executable).parent / "py-spy"),
        "record",
        "--pid",
        str(pid),
        "--format",
        "raw",
        "--output",
        str(file),
    ]
    command += [
        "--duration",
        "unlimited",
        "--rate",
        str(_SAMPLES_PER_S),
        "--nonblocking",
        "--function",
    ]
    with file.with_suffix(".samples.log").open("wb") as log:
        try:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        except OSError as error:
            raise AmcastError(f"py-spy cannot be started ({error.strerror}); install it") from error
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            end(process)


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    largest = sorted(counts.items(), key=lambda pair: -pair[1])[:_SHOWN_MAX]
    return {name: round(count / total, 3) for name, count in largest}


# -- the command ------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Profile a workload and print it; return the exit code."""
    parser = figures.parser(_MODULE, __doc__)
    parser.add_argument("workload", help="a workload file, or the name of a packaged workload")
    parser.add_argument("--set", action="append", default=[], metavar="key=value", dest="changes")
    parser.add_argument("--functions", action="store_true", help="also sample Python functions")
    options = parser.parse_args(arguments)
    try:
        workload = read_workload(options.workload, options.changes)
        by_arm, kafka = profile(workload, functions=options.functions, progress=figures.progress)
    except AmcastError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    document = figures.document(_MODULE, by_arm, kafka=kafka, arguments=arguments)
    if options.output == "json":
        figures.show(document, options.output)
    else:
        for line in table(by_arm):
            typer.echo(line)
    return 0


def table(by_arm: Mapping[str, Any]) -> Iterator[str]:
    """Yield the profiles as lines of text."""
    for arm, figures_of_arm in by_arm.items():
        yield f"{arm}: {figures_of_arm['busy_cores']:.2f} cores busy"
        for stage, taken in figures_of_arm.get("stages_ms", {}).items():
            yield f"  {stage:12} p50 {taken['p50']:9.3f} ms   p99 {taken['p99']:9.3f} ms"
        for role, spent in figures_of_arm["us_a_message"].items():
            yield f"  {role:12} cpu {spent['cpu']:8.1f} µs   queued {spent['queued']:8.1f} µs"
            for name, (used, queued) in spent["threads"].items():
                yield f"    {name:16} {used:8.1f} {queued:15.1f}"
        for role, shares in figures_of_arm.get("functions", {}).items():
            yield f"  functions of the {role}"
            for name, share in shares.items():
                yield f"    {share:5.1%} {name}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
