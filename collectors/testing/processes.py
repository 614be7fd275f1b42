"""A plan's collectors on a real broker, each a process of its own, which a test can kill.

A context manager ends what was started, within bounded time.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from multicast import history
from multicast.errors import AmcastError, TimedOut
from topology.tree import Plan

_HEALTHY_S = 120.0  # a start takes seconds, and on a busy machine the collectors' add up
_STOP_S = 5.0  # for a process to end after SIGTERM, before it is killed


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


def end(process: subprocess.Popen[Any]) -> None:
    """Wait for a terminated process; kill it if it does not end in time."""
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_S)
