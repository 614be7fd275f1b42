"""Processes of a benchmark or the demo, collectors and clients, and their CPU and memory.

Each class is a context manager that ends its processes within bounded time.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from multicast import history
from multicast.errors import AmcastError, TimedOut
from topology.tree import Plan

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_HEALTHY_S = 120.0  # a start takes seconds, and on a busy machine the collectors' add up
_STOP_S = 5.0  # for a process to end after SIGTERM, before it is killed


def cpu_seconds(pids: Iterable[int]) -> float:
    """Sum the CPU seconds of processes so far, all threads; an ended process counts as 0."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
            fields = stat.rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S


def busy_seconds() -> float:
    """Return the CPU seconds of the whole machine so far."""
    first = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0].split()
    user, nice, system, _, _, irq, softirq = map(int, first[1:8])
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def resident_bytes(pids: Iterable[int]) -> int:
    """Sum the current resident memory of processes."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class CollectorProcesses:
    """The plan's collectors, one process each; a context manager that ends them.

    `options` are further ones of `amcast collectors run`.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        driver: str,
        plan: Plan,
        folder: Path,
        *,
        options: Sequence[str] = (),
    ) -> None:
        self._command = [sys.executable, "-m", "multicast", "collectors", "run"]
        self._command += ["-b", bootstrap, "-t", topic, "--driver", driver, *options]
        self._folder = folder
        self.names = [node.name for node in plan.collectors]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            for name in self.names:
                self.start(name)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str) -> None:
        """Start a collector's process; it logs its web address first."""
        self._start(name, "--node", name)

    def stand_by(self, name: str) -> None:
        """Start one more process, a standby for this collector."""
        self._start(f"{name}-standby", "--node", name, "--standby")

    def _start(self, process: str, *options: str) -> None:
        log = self._folder / f"{process}.log"
        with log.open("wb") as out:
            self._processes[process] = subprocess.Popen(
                [*self._command, *options, "--web-port", "0"], stderr=out, stdout=out
            )

    def kill(self, name: str) -> None:
        """End a collector's process as a crash would."""
        process = self._processes[name]
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    def ended(self) -> list[str]:
        """Name the collectors whose processes were started and have ended."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

    def stop(self) -> None:
        """End all, within bounded time."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            end(process)

    @property
    def pids(self) -> list[int]:
        """The process IDs: one for each collector, and the standbys'."""
        return [process.pid for process in self._processes.values()]

    def wait_healthy(self, timeout: float = _HEALTHY_S) -> None:
        """Wait until every process's loop runs.

        Raises `AmcastError` at once if a process has ended, or `TimedOut`; both give the end of its
        log.
        """
        deadline = time.monotonic() + timeout
        waiting = set(self._processes)
        pause = threading.Event()
        while waiting:
            ended = self.ended()
            waiting = {name for name in waiting if not self.status(name)}
            gone = waiting.intersection(ended)
            if gone:
                name = min(gone)
                raise AmcastError(
                    f"collector {name} has ended; its log ends: {self._log_end(name)}"
                )
            if waiting and time.monotonic() > deadline:
                name = min(waiting)
                raise TimedOut(
                    f"collector {name} is not healthy after {timeout:g} s; its log ends: "
                    f"{self._log_end(name)}"
                )
            pause.wait(0.05)

    def _log_end(self, name: str) -> str:
        log = (self._folder / f"{name}.log").read_text(errors="replace").strip()
        return log[-500:]

    def work(self) -> Iterator[str]:
        """Yield the collectors' counts of ordered records, as lines of a history."""
        for name in self.names:
            for log, records in self.status(name).get("ordered", {}).items():
                if records:
                    yield history.work_line(process=name, log=log, records=records)

    def address(self, name: str) -> str | None:
        """Return the URL of the process's status; None before it serves it."""
        log = (self._folder / f"{name}.log").read_text(errors="replace")
        return next((word for word in log.split() if word.startswith("http://127.0.0.1:")), None)

    def status(self, name: str) -> dict[str, Any]:
        """Return the collector's status; empty while it does not run."""
        address = self.address(name)
        if address is None:
            return {}
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310 - loopback
                nodes: list[dict[str, Any]] = json.load(answer)["nodes"]
        except (OSError, ValueError):
            return {}
        return nodes[0] if nodes and nodes[0]["state"] == "running" else {}


class ClientProcess:
    """A process of `bench.comparison.client`, or like it; it answers commands in order."""

    def __init__(
        self,
        name: str,
        spec: Mapping[str, Any],
        folder: Path,
        module: str = "bench.comparison.client",
    ) -> None:
        self._module = module
        self._name = name
        self._spec = spec
        self._log = folder / f"{name}.log"
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        with self._log.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        threading.Thread(target=self._read, daemon=True).start()
        self.tell(self._spec)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        end(self._process)

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    def tell(self, command: Mapping[str, Any]) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # if the process has ended, `answer` raises
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the next answer; raises `TimedOut`, or `AmcastError` with the client's error."""
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise TimedOut(f"{self._name} did not answer within {timeout_s:g} s") from None
        if line is None:
            log_end = self._log.read_text(errors="replace").strip()
            raise AmcastError(f"{self._name} has ended; its log ends: {log_end[-500:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise AmcastError(f"{self._name}: {answer['error']}")
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._answers.put(line)
        self._answers.put(None)


class Poster:
    """The poster's collector as a process (`bench.baselines.poster`)."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, folder: Path) -> None:
        self._command = [
            sys.executable,
            "-m",
            "bench.baselines.poster",
            bootstrap,
            topic,
            str(partitions),
        ]
        self._log = folder / "poster.log"
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        with self._log.open("wb") as err:
            self._process = subprocess.Popen(self._command, stderr=err, stdout=err)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        end(self._process)

    @property
    def pids(self) -> list[int]:
        """The process ID."""
        return [self._process.pid]


def end(process: subprocess.Popen[Any]) -> None:
    """Wait for a terminated process; kill it if it does not end in time."""
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_S)
