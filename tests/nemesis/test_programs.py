"""The nemesis's clients as processes on a real broker: killed, frozen, cut off, stopped."""

import contextlib
import json
import signal
import subprocess

import pytest

from bench.harness.client import command
from bench.nemesis.histories import read_histories
from bench.nemesis.programs import Consume, Produce, consume, produce
from bench.nemesis.recovery import Fault, recoveries
from multicast.local.cluster import LocalCluster
from multicast.properties import check_all
from tests.helpers.plans import poster
from tests.helpers.system import System, until

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
SETS = [["P1"], ["P2"], ["P3"], ["P4"], ["P5"], ["P1", "P3"], ["P2", "P3", "P4"], ["P2", "P4"]]
NAMES = ("C1", "C2", "C3")
PATIENCE_S = 240  # stops a hang, no more
STOP_S = PATIENCE_S + 60  # for a client to read up to the end, and to close


class Clients:
    """The client processes of a system, each with a history; leaving ends them."""

    def __init__(self, system, folder):
        self.folder = folder
        folder.mkdir()
        self._errors = folder.with_suffix(".errors")  # a pipe that nobody reads fills up
        self._where = {"bootstrap": system.bootstrap, "topic": system.topic}
        self._plan = system.plan
        self._running = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._running.values():
            process.kill()
            process.wait(30)

    def start(self, role, made, name, instance, **more):
        """Start a process; wait until it is open."""
        key = f"{name}-{instance}"
        file = self.folder / key
        task = made(name=name, instance=instance, history=str(file), **self._where, **more)
        with self._errors.open("a") as errors:
            self._running[key] = process = subprocess.Popen(command(role, task), stderr=errors)
        until(
            lambda: (file.exists() and file.stat().st_size) or process.poll() is not None,
            f"the first line of {key}",
        )
        return key

    def produce(self, instance="a", **more):
        return self.start(produce, Produce, "p1", instance, sets=SETS, rate=200, **more)

    def consume(self, name, instance="a", **more):
        return self.start(consume, Consume, name, instance, **{"end_timeout_s": PATIENCE_S, **more})

    def lines(self, key):
        return (self.folder / key).read_bytes().count(b"\n")

    def grow(self, *keys, by=100):
        """Wait until these processes have written a number of further lines."""
        least = {key: self.lines(key) + by for key in keys}
        try:
            until(lambda: all(self.lines(k) >= n for k, n in least.items()), f"{by} lines more")
        except AssertionError as hangs:
            late = {
                key: self._running[key].poll()  # None: it runs; below 0: a signal has ended it
                for key, count in least.items()
                if self.lines(key) < count
            }
            raise AssertionError(f"{late} hang: {self._stacks(late)}") from hangs

    def _stacks(self, keys):
        """Let these print the stacks of their threads."""
        for key in keys:
            self.signal(key, signal.SIGUSR1)
        with contextlib.suppress(AssertionError):
            until(lambda: "most recent call" in self._errors.read_text(), "stacks", timeout=5)
        return self._errors.read_text()

    def signal(self, key, number):
        self._running[key].send_signal(number)

    def kill(self, key):
        self.signal(key, signal.SIGKILL)
        self._running[key].wait(30)

    def ended(self, key):
        """Wait until it has ended by itself; whether it did well."""
        return self._running[key].wait(STOP_S) == 0

    def stop(self, *keys, code=0):
        """Stop these; all must end with this exit code."""
        for key in keys:
            self.signal(key, signal.SIGTERM)
        for key in keys:
            assert self._running[key].wait(STOP_S) == code, (key, self._errors.read_text())

    def judge(self):
        """Audit, and judge all histories; no violation is allowed."""
        for name in NAMES:
            file = self.folder / f"{name}-audit"
            about = {"name": name, "instance": "audit", "history": str(file), **self._where}
            task = Consume(audits=True, end_timeout_s=PATIENCE_S, **about)
            done = subprocess.run(
                command(consume, task),
                stderr=subprocess.PIPE,
                text=True,
                timeout=STOP_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        run = read_histories(self.folder.iterdir())
        found = run.history(plans=[self._plan])
        report = check_all(found)
        assert not report.violations, "\n".join(str(v.witness) for v in report.violations)
        assert run.findings(found) == []
        judged = {verdict.guarantee for verdict in report.verdicts if verdict.verdict == "holds"}
        assert judged >= {"validity", "uniform agreement", "uniform integrity", "log order"}
        return run


@pytest.fixture
def system(kafka_cluster, tmp_path):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as made:
        yield made


@pytest.fixture
def clients(system, tmp_path):
    system.order()
    with Clients(system, tmp_path / "histories") as made:
        yield made


def test_clients_that_are_killed_and_frozen_go_on_and_nothing_is_lost_or_doubled(clients):
    # Init: load, and three consumers.
    clients.produce("a")
    for name in NAMES:
        clients.consume(name)
    clients.grow("C1-a", "C2-a", "C3-a")
    bulk = clients.produce("bulk", bulk=300)

    # Test: a producer and a consumer die; another freezes until its successor works.
    clients.kill("p1-a")
    clients.kill("C1-a")
    clients.signal("C2-a", signal.SIGSTOP)
    clients.produce("b")
    clients.consume("C1", "b")
    clients.consume("C2", "b")
    clients.grow("C1-b", "C2-b", "C3-a")
    clients.signal("C2-a", signal.SIGCONT)
    clients.grow("C2-a", "C2-b")
    clients.kill("C1-b")
    clients.consume("C1", "c")
    clients.grow("C1-c", "p1-b")
    clients.stop("p1-b")
    assert clients.ended(bulk)
    clients.stop("C1-c", "C2-a", "C2-b", "C3-a")

    # Check.
    run = clients.judge()
    counts = run.counts
    assert counts.begun == counts.accepted + counts.failed + counts.unknown > 300
    assert counts.accepted > 300
    assert counts.instances == 3 + 6 + 3
    assert set(run.load) == {"+".join(to) for to in SETS}
    first = min(min(recovery) for recovery in run.load.values())
    (recovery,) = recoveries(
        [Fault("none", first, first)],
        load=run.load,
        delivered=run.delivered,
        interests=run.interests,
    )
    assert recovery.took_s is not None
    assert recovery.took_s > 0


@pytest.fixture
def frail(tmp_path):
    """A cluster for one test, which may break it, and clients on it."""
    with (
        LocalCluster(tmp_path / "cluster") as cluster,
        System(cluster.bootstrap, poster(), tmp_path) as system,
        Clients(system, tmp_path / "histories") as clients,
    ):
        system.order()
        yield cluster, clients


def test_a_cluster_that_does_not_answer_is_waited_out_and_the_load_goes_on(frail):
    # Init: a buffer of half a second; and two clients that will not see the cluster again.
    cluster, clients = frail
    clients.produce(unsettled_max=100)
    for name in NAMES:
        clients.consume(name)
    clients.produce("impatient", delivery_timeout_s=5)
    clients.consume("C1", "impatient", end_timeout_s=5)
    clients.grow("C1-a", "C2-a", "C3-a", "C1-impatient")

    # Test: frozen for longer than any client waits for an answer (10 s).
    before = dropped(clients.folder / "p1-a")
    cluster.pause(1)
    until(lambda: dropped(clients.folder / "p1-a") - before > 200 * 14, "14 s of load")
    clients.stop("p1-impatient")
    clients.stop("C1-impatient", code=4)
    cluster.resume(1)
    clients.grow("C1-a", "C2-a", "C3-a", by=300)
    clients.stop("p1-a")
    clients.stop("C1-a", "C2-a", "C3-a")

    # Check: the drops were counted. A client that gave up says so; what was never sent failed for
    # certain, and is not stored.
    assert b'"end"' in (clients.folder / "p1-impatient").read_bytes()
    assert b'"end"' not in (clients.folder / "C1-impatient").read_bytes()
    run = clients.judge()
    assert run.counts.unknown > 0
    assert run.counts.dropped - before > 200 * 14
    assert b'"failed"' in (clients.folder / "p1-impatient").read_bytes()


def dropped(file):
    """Say how many calls a producer has dropped so far; its last line may be half written."""
    whole = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    counts = [json.loads(line)["dropped"] for line in whole if '"dropped"' in line]
    return counts[-1] if counts else 0
