"""Where a workload's time goes, arm by arm: the stages of a message, the CPUs, the functions.

    python -m bench.comparison.profile WORKLOAD [--set key=value …] [--functions] [-o json]

Runs the arms of a workload as `amcast bench run` does, and tells of each:

    stages      milliseconds from a message's intended time until it was sent, accepted (its append
                was acknowledged), ordered (its consumer had read the order record that names it),
                delivered: p50 and p99 of all rounds. None for a backlog
    busy        cores that were busy, of the machine's; median of the rounds
    cpu, queued microseconds a message, by role: on a CPU; ready to run while others had the CPUs.
                Of all that a role's processes did meanwhile, all rounds, the warm-up's messages
                counted with the others
    threads     the same by the threads' names in the kernel: those of librdkafka begin with "rdk:",
                the broker's are Java's; the largest first
    functions   with --functions, of rounds of their own: shares of the samples in which a thread
                was on a CPU, by Python function, what it calls in C included; py-spy takes them, a
                hundred a second from outside (needs root or ptrace)

What is noted for the stages costs the clients some speed; compare arms, and take the figures for
marks from `amcast bench run`.
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
from bench.harness.hosts import end
from bench.harness.threads import accounts
from multicast.drivers import open_driver
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import AmcastError, TimedOut, UsageError

_STAGES = {
    "sent": "producer",
    "accepted": "producer",
    "ordered": "consumer",
    "delivered": "consumer",
}
_ROLES = ("producers", "collectors", "consumers", "brokers")
_TOLD_MAX = 10
_TOLD_US = 1.0  # threads that spent less than this on a message are left out
_READ_S = 30.0
_HOT = 100_000  # messages in a round
_HOT_ROUNDS = 5
_SAMPLES_PER_S = 100
Accounts = dict[tuple[str, int, str], tuple[float, float]]  # by role, thread and its name


class Spent:
    """Seconds on a CPU and in the queue for one, by role and thread name."""

    def __init__(self) -> None:
        self.seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])

    @contextmanager
    def counted(self, arm: Arm) -> Iterator[None]:
        """Add what the arm's threads spend meanwhile; one that ends meanwhile is not seen."""
        before = _accounts(arm)
        yield
        for place, after in _accounts(arm).items():
            role, _, name = place
            for at, earlier in enumerate(before.get(place, (0.0, 0.0))):
                self.seconds[role, name][at] += after[at] - earlier

    def by_message(self, messages: int) -> dict[str, Any]:
        """Return microseconds a message: of each role, and of its threads that count."""
        roles: dict[str, Any] = {
            role: {"cpu": 0.0, "queued": 0.0, "threads": {}}
            for role in _ROLES
            if any(one == role for one, _ in self.seconds)
        }
        for (role, name), pair in sorted(self.seconds.items(), key=lambda one: -sum(one[1])):
            told = roles[role]
            used, queued = (round(seconds / messages * 1e6, 1) for seconds in pair)
            told["cpu"] = round(told["cpu"] + used, 1)
            told["queued"] = round(told["queued"] + queued, 1)
            if used + queued >= _TOLD_US and len(told["threads"]) < _TOLD_MAX:
                told["threads"][name] = [used, queued]
        return roles


def profile(
    workload: Workload, *, functions: bool, progress: Callable[[str], None]
) -> tuple[dict[str, Any], str]:
    """Run a workload's rounds on an own broker; return what each arm spent, and Kafka's version.

    Raises `UsageError` for a share of plain Kafka's maximum, `AmcastError` where a message was
    lost, a process ended, or no samples can be taken.
    """
    if workload.share is not None:
        raise UsageError(
            f"load {workload.load} is a share of a maximum that 'amcast bench run' finds first; "
            f"give what it found as a rate: --set load=…"
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
        told: dict[str, Any] = {}
        for arm in arms:
            told[arm.name] = {"busy_cores": statistics.median(busy[arm.name])}
            told[arm.name]["us_a_message"] = spent[arm.name].by_message(sent)
            if staged:
                told[arm.name]["stages_ms"] = stages[arm.name]
        if functions:
            for arm in arms:
                progress(f"sampling {arm.name}")
                told[arm.name]["functions"] = _sampled(arm, workload, folder)
        return told, brokers.kafka


def _heat(workload: Workload, cluster: MeasuredCluster) -> None:
    """Keep the broker busy for some seconds: a new one's compiler takes more than its work."""
    hot = replace(
        workload, load=SATURATE, message_bytes=100, messages=_HOT, warm_up=0, arms=("plain",)
    )
    folder = cluster.folder / "heat"
    folder.mkdir()
    with Arm(hot, "plain", replace(cluster, folder=folder)) as arm:
        for number in range(_HOT_ROUNDS):
            arm.round(number)


def _accounts(arm: Arm) -> Accounts:
    return {
        (role, one.thread, re.sub(r"[0-9]+$", "N", one.name)): (one.used, one.queued)
        for role, pids in arm.pids.items()
        for pid in pids
        for one in accounts(pid)
    }


# -- stages -----------------------------------------------------------------------------------


def _stages(driver: Driver, run: str) -> dict[str, dict[str, dict[str, float]]]:
    """Read a run's events; give p50 and p99 of each stage, by arm."""
    found: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for event in _events(driver, events_topic(run)):
        if event["measured"]:
            for stage, role in _STAGES.items():
                if event["role"] == role and event[stage] is not None:
                    found[event["arm"]][stage].append(event[stage] - event["intended"])
    return {
        arm: {stage: _percentiles(stages[stage]) for stage in _STAGES if stage in stages}
        for arm, stages in found.items()
    }


def _events(driver: Driver, topic: str) -> Iterator[dict[str, Any]]:
    """Read the events to where the topic ends now; raises `TimedOut`."""
    places = [TopicPartition(topic, number) for number in range(1, PARTITIONS)]
    ends = driver.last_stable_offsets(places)
    left = {at for at in places if ends[at]}
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
    """Run a round more while py-spy looks; give each role's largest functions, by their shares."""
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
            said = (folder / f"{pid}.samples.log").read_text(errors="replace").strip()
            raise AmcastError(
                f"py-spy wrote no samples of the {role}: {said[-300:] or error.strerror}"
            ) from error
        for line in lines:
            stack_, _, count = line.rpartition(" ")
            counts[role][stack_.rpartition(";")[2]] += int(count)
    return {role: _shares(found) for role, found in counts.items()}


@contextmanager
def _sampler(pid: int, file: Path) -> Iterator[None]:
    """Sample a process from outside, without stopping it, until the context ends."""
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
            raise AmcastError(
                f"py-spy does not run ({error.strerror}); is it installed?"
            ) from error
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            end(process)


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    largest = sorted(counts.items(), key=lambda pair: -pair[1])[:_TOLD_MAX]
    return {name: round(count / total, 3) for name, count in largest}


# -- the command ------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Profile a workload and print it; return the exit code."""
    parser = figures.parser("profile", __doc__, room="comparison")
    parser.add_argument("workload", help="a workload file, or the name of one that comes along")
    parser.add_argument("--set", action="append", default=[], metavar="key=value", dest="changes")
    parser.add_argument("--functions", action="store_true", help="sample Python's functions, too")
    asked = parser.parse_args(arguments)
    try:
        workload = read_workload(asked.workload, asked.changes)
        told, kafka = profile(workload, functions=asked.functions, progress=figures.progress)
    except AmcastError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    document = figures.document(
        "profile", told, kafka=kafka, arguments=arguments, room="comparison"
    )
    if asked.output == "json":
        figures.show(document, asked.output)
    else:
        for line in table(told):
            typer.echo(line)
    return 0


def table(told: Mapping[str, Any]) -> Iterator[str]:
    """Write the figures for people."""
    for arm, found in told.items():
        yield f"{arm}: {found['busy_cores']:.2f} cores busy"
        for stage, taken in found.get("stages_ms", {}).items():
            yield f"  {stage:12} p50 {taken['p50']:9.3f} ms   p99 {taken['p99']:9.3f} ms"
        for role, spent in found["us_a_message"].items():
            yield f"  {role:12} cpu {spent['cpu']:8.1f} µs   queued {spent['queued']:8.1f} µs"
            for name, (used, queued) in spent["threads"].items():
                yield f"    {name:16} {used:8.1f} {queued:15.1f}"
        for role, shares in found.get("functions", {}).items():
            yield f"  functions of the {role}"
            for name, share in shares.items():
                yield f"    {share:5.1%} {name}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
