"""Measures ordered tables in Spark beside Spark's own Kafka source on the same topic.

    python -m bench.micro.tables [--rows 1000000] [--rounds 5] [--kinds batch,stream,live]
                                 [--live-s 15] [--workers 0]

One broker; one collector orders the messages of 100 bytes in two partitions. In one Spark session,
both arms read the same rows in turns, all columns, into Spark's sink "noop":

    amcast    `format("amcast")`, the delivery order of the consumer of both partitions
    kafka     `format("kafka")` of the same topic, read_committed, with headers: no order

    batch     `spark.read`: rows/s, CPU a row
    stream    `readStream` with the trigger availableNow over all rows, from a new checkpoint
    live      `readStream` while a producer sends; the median time of the micro-batches with rows

CPU is that of Spark: Java, Python workers, and the processes of a standalone cluster; not
the broker, the collector or the producer. A first round, which compiles everything, does not count;
with `--rounds 0` it is the only one and counts, for tables so large that this is a small part.
Printed are the medians of the rounds, and of the rounds' ratios amcast / kafka. With `--workers N`
a standalone master with N workers of one core each runs on this machine, else `local[2]`.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import figures
from bench.harness.background import BackgroundThread
from bench.harness.rig import Rig, pause, standing, ticks
from bench.pipeline.session import LOCAL, spark, spark_class
from multicast.consumer import Consumer
from multicast.errors import AmcastError, TimedOut
from multicast.local.broker import free_ports
from multicast.spark import register

_PARTITIONS = 2
_MESSAGE_BYTES = 100
_SLOWEST_PER_S = 10_000  # rows/s; sets the time-outs, so a slower run fails
_LIVE_PER_S = 2_000  # messages/s while micro-batches are measured
_TICK_S = 0.05  # between two portions of these
_PEAK_S = 1.0  # between two looks at the memory; a worker of a large table lives for many
_START_S = 60.0  # for the processes of a standalone cluster, on a busy machine
_ARMS = ("amcast", "kafka")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class _Work:
    """What one arm took for its rows."""

    seconds: float
    cpu_s: float


class _Arms:
    """Both arms over one topic, in one session."""

    def __init__(self, session: Any, rig: Rig, roots: Sequence[int], folder: Path) -> None:
        self._session = session
        self._rig = rig
        self._roots = roots
        self._folder = folder
        self._numbers = itertools.count()

    def frame(self, arm: str, *, stream: bool = False, start: str = "earliest") -> Any:
        reader = self._session.readStream if stream else self._session.read
        reader = reader.format(arm).option("kafka.bootstrap.servers", self._rig.bootstrap)
        reader = reader.option("startingOffsets", start)
        if arm == "amcast":
            return reader.option("topic", self._rig.topic).option("consumer", "C1").load()
        reader = reader.option("subscribe", self._rig.topic).option("includeHeaders", "true")
        return reader.option("kafka.isolation.level", "read_committed").load()

    def batch(self, arm: str) -> None:
        self.frame(arm).write.format("noop").mode("overwrite").save()

    def stream(self, arm: str, timeout_s: float) -> None:
        writer = self.frame(arm, stream=True).writeStream.format("noop")
        query = writer.trigger(availableNow=True).options(**self._checkpoint()).start()
        if not query.awaitTermination(timeout_s):
            query.stop()
            raise TimedOut(f"a stream did not end within {timeout_s:g} s")

    def live(self, arm: str, seconds: float) -> list[float]:
        """Follow what a producer sends; return the milliseconds of each micro-batch with rows."""
        writer = self.frame(arm, stream=True, start="latest").writeStream.format("noop")
        query = writer.options(**self._checkpoint()).start()
        try:
            deadline = time.monotonic() + _START_S
            while not query.recentProgress:  # the first trigger compiles the plan
                if time.monotonic() > deadline:
                    raise TimedOut(f"a stream did not start within {_START_S:g} s")
                pause(_TICK_S)
            with self._producing():
                pause(seconds)
            return [
                progress["durationMs"]["triggerExecution"]
                for progress in query.recentProgress[1:]
                if "addBatch" in progress["durationMs"]
            ]
        finally:
            query.stop()

    def measured(self, work: Callable[[], None]) -> _Work:
        cpu = tree_cpu_seconds(self._roots)
        began = time.monotonic()
        work()
        return _Work(time.monotonic() - began, tree_cpu_seconds(self._roots) - cpu)

    def _checkpoint(self) -> dict[str, str]:
        return {"checkpointLocation": str(self._folder / f"checkpoint-{next(self._numbers)}")}

    @contextmanager
    def _producing(self) -> Iterator[None]:
        """Send in a thread until the block ends."""
        stop = threading.Event()

        def send() -> None:
            for _ in ticks(3600.0, _TICK_S):
                if stop.is_set():
                    return
                self._rig.fill(round(_LIVE_PER_S * _TICK_S), _MESSAGE_BYTES)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def measure(
    arms: _Arms, kinds: Sequence[str], *, rows: int, rounds: int, live_s: float
) -> dict[str, float]:
    """Run the arms in turns; return the figures of these kinds."""
    timeout_s = _START_S + rows / _SLOWEST_PER_S
    measured: dict[str, float] = {}
    works: dict[str, Callable[[str], None]] = {
        "batch": arms.batch,
        "stream": lambda arm: arms.stream(arm, timeout_s),
    }
    for kind, work in works.items():
        if kind not in kinds:
            continue
        taken: dict[str, list[_Work]] = {arm: [] for arm in _ARMS}
        for number in range(rounds + 1):
            figures.progress(f"{kind}, round {number} of {rounds}")
            for arm in _ARMS if number % 2 else reversed(_ARMS):
                took = arms.measured(lambda arm=arm, work=work: work(arm))  # type: ignore[misc]
                if number or not rounds:
                    taken[arm].append(took)
        pairs = list(zip(taken["amcast"], taken["kafka"], strict=True))
        for arm in _ARMS:
            rate = statistics.median(rows / took.seconds for took in taken[arm])
            cpu = statistics.median(1e6 * took.cpu_s / rows for took in taken[arm])
            measured[f"{kind}_{arm}_rows_per_s"] = round(rate)
            measured[f"{kind}_{arm}_cpu_us_per_row"] = round(cpu, 2)
        ratios = [theirs.seconds / ours.seconds for ours, theirs in pairs]
        measured[f"{kind}_rate_ratio"] = round(statistics.median(ratios), 3)
        measured[f"{kind}_rate_ratio_least"] = round(min(ratios), 3)
        measured[f"{kind}_rate_ratio_greatest"] = round(max(ratios), 3)
        cpu_ratios = [ours.cpu_s / theirs.cpu_s for ours, theirs in pairs]
        measured[f"{kind}_cpu_ratio"] = round(statistics.median(cpu_ratios), 3)
    if "live" in kinds:
        measured |= _live(arms, rounds, live_s)
    return measured


def _live(arms: _Arms, rounds: int, live_s: float) -> dict[str, float]:
    medians: dict[str, list[float]] = {arm: [] for arm in _ARMS}
    for number in range(rounds + 1):
        figures.progress(f"live, round {number} of {rounds}")
        for arm in _ARMS if number % 2 else reversed(_ARMS):
            batches = arms.live(arm, live_s)
            if not batches:
                raise AmcastError(f"no micro-batch of {arm} ended within {live_s:g} s")
            if number or not rounds:
                medians[arm].append(statistics.median(batches))
    ratios = [a / b for a, b in zip(medians["amcast"], medians["kafka"], strict=True)]
    shown = {f"live_{arm}_p50_ms": round(statistics.median(medians[arm]), 1) for arm in _ARMS}
    return {
        **shown,
        "live_p50_ratio": round(statistics.median(ratios), 3),
        "live_p50_ratio_least": round(min(ratios), 3),
        "live_p50_ratio_greatest": round(max(ratios), 3),
    }


def tree_cpu_seconds(roots: Sequence[int]) -> float:
    """Sum the CPU seconds of processes and their descendants, those that have ended too."""
    return sum(
        sum(map(int, fields[11:15])) / _TICKS_PER_S for _, fields in _tree(roots)
    )  # utime, stime, and those of ended children


class _Peaks(BackgroundThread):
    """The greatest peak of a Java and of a Python process among some trees, in MiB.

    Python workers end with their work, so a thread looks at them while the block runs.
    """

    def __init__(self, roots: Sequence[int]) -> None:
        super().__init__()
        self.mib = {"java": 0.0, "python": 0.0}
        self._roots = roots

    def run(self) -> None:
        """Look again and again."""
        while True:
            for pid, _ in _tree(self._roots):
                with suppress(OSError, ValueError):
                    self._look(pid)
            if self.stop.wait(_PEAK_S):
                return

    def _look(self, pid: int) -> None:
        # A child of Java's that has not begun its own program has another name and Java's size.
        name = Path(f"/proc/{pid}/exe").readlink().name
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        kind = "java" if name == "java" else "python"
        self.mib[kind] = max(self.mib[kind], round(int(line.split()[1]) / 1024))


def _tree(roots: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
    """Give each process of these trees, with the fields of its stat from the state on."""
    stats: dict[int, list[str]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                text = (folder / "stat").read_text(encoding="ascii", errors="replace")
                stats[int(folder.name)] = text.rpartition(")")[2].split()
    inside = set(roots)
    grown = True
    while grown:
        more = {pid for pid, fields in stats.items() if int(fields[1]) in inside} - inside
        inside |= more
        grown = bool(more)
    for pid in sorted(inside & stats.keys()):
        yield pid, stats[pid]


@contextmanager
def _cluster(workers: int, folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Run a standalone master with workers of one core each; give its URL and process IDs."""
    if not workers:
        yield LOCAL, []
        return
    (port,) = free_ports(1)
    url = f"spark://127.0.0.1:{port}"
    common = ["--host", "127.0.0.1", "--webui-port", "0"]
    commands = [["master.Master", *common, "--port", str(port)]]
    commands += [["worker.Worker", *common, "--cores", "1", "--memory", "1g", url]] * workers
    with ExitStack() as stack:
        log = stack.enter_context((folder / "cluster.log").open("wb"))
        processes = []
        for command in commands:
            process = subprocess.Popen(
                [str(spark_class()), f"org.apache.spark.deploy.{command[0]}", *command[1:]],
                env={**os.environ, "SPARK_WORKER_DIR": str(folder), "SPARK_LOCAL_IP": "127.0.0.1"},
                stdout=log,
                stderr=log,
            )
            stack.callback(_stop, process)
            processes.append(process.pid)
        yield url, processes


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _order(rig: Rig, rows: int) -> None:
    """Wait until all rows are ordered; a plain consumer delivers them."""
    with Consumer(rig.bootstrap, topic=rig.topic, name="C1", committed=False) as consumer:
        delivered = sum(len(batch.records) for batch in consumer.until_end())
    if delivered != rows:
        raise AmcastError(f"{delivered} of {rows} messages were delivered")


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the figures."""
    parser = figures.parser("tables", __doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="messages that are read")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count; 0: the first one")
    parser.add_argument("--kinds", default="batch,stream,live", help="what is measured")
    parser.add_argument("--live-s", type=float, default=15.0, help="seconds of a live round")
    parser.add_argument("--workers", type=int, default=0, help="of a standalone cluster; 0: local")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        rig = stack.enter_context(standing(_PARTITIONS))
        stack.enter_context(rig.collectors()).wait_healthy()
        figures.progress(f"appending {options.rows} messages")
        rig.fill(options.rows, _MESSAGE_BYTES)
        _order(rig, options.rows)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-tables-")))
        master, processes = stack.enter_context(_cluster(options.workers, folder))
        session = stack.enter_context(spark(master=master, progress=figures.progress))
        register(session)
        gateway: Any = session.sparkContext._gateway  # noqa: SLF001 - pyspark has no other way
        java = gateway.proc.pid
        arms = _Arms(session, rig, [java, *processes], folder)
        for arm in _ARMS:
            counted = arms.frame(arm).count()
            if counted != options.rows:
                raise AmcastError(f"{arm} reads {counted} of {options.rows} rows")
        with _Peaks([java, *processes]) as peaks:
            measured = measure(
                arms,
                options.kinds.split(","),
                rows=options.rows,
                rounds=options.rounds,
                live_s=options.live_s,
            )
        for kind, peak in peaks.mib.items():
            measured[f"peak_{kind}_mib"] = peak
        document = figures.document("tables", measured, kafka=rig.kafka, arguments=arguments)
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
