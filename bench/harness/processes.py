"""A plan's collectors on a real broker as processes, which can be killed.

A context manager ends what was started, within bounded time.
"""

from __future__ import annotations

import json
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
_ANSWER_S = 30.0  # for a page of a process, on a busy machine


class CollectorProcess:
    """One process of `amcast collectors run` with these options, from its creation to `close`.

    `python` has the interpreter's options, of which the last ones name what runs as `amcast`.
    """

    def __init__(
        self, log: Path, *options: str, python: Sequence[str] = ("-m", "multicast")
    ) -> None:
        self._log = log
        command = [sys.executable, *python, "collectors", "run", "--web-port", "0"]
        with log.open("wb") as out:
            self._process = subprocess.Popen([*command, *options], stdout=out, stderr=out)
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def terminate(self) -> None:
        """Ask it to end, and return at once."""
        self._process.terminate()

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        end(self._process)

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.wait(_ANSWER_S)

    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def log_end(self) -> str:
        """Return the end of what it has said."""
        return self._log.read_text(errors="replace").strip()[-500:]

    def address(self) -> str:
        """Return "http://host:port" of its pages; empty before it serves them."""
        words = self._log.read_text(errors="replace").split()
        said = next((word for word in words if word.startswith("http://127.0.0.1:")), "")
        return said.removesuffix("/status")

    def page(self, path: str) -> bytes:
        """Return a page; raises `OSError` while it does not answer."""
        address = self.address()
        if not address:
            raise ConnectionRefusedError(f"{self._log} names no address yet")
        with urllib.request.urlopen(address + path, timeout=_ANSWER_S) as answer:  # noqa: S310 - loopback
            return bytes(answer.read())

    def status(self) -> dict[str, Any]:
        """Return its `/status`; without collectors while it does not answer."""
        try:
            status: dict[str, Any] = json.loads(self.page("/status"))
        except (OSError, ValueError):
            return {"nodes": []}
        return status


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
        self._options = ["-b", bootstrap, "-t", topic, "--driver", driver, *options]
        self._folder = folder
        self.names = [node.name for node in plan.collectors]
        self._processes: dict[str, CollectorProcess] = {}

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
        """Start a collector's process."""
        self._start(name, "--node", name)

    def stand_by(self, name: str) -> None:
        """Start one more process, a standby for this collector."""
        self._start(f"{name}-standby", "--node", name, "--standby")

    def _start(self, process: str, *options: str) -> None:
        log = self._folder / f"{process}.log"
        self._processes[process] = CollectorProcess(log, *self._options, *options)

    def kill(self, name: str) -> None:
        """End a collector's process as a crash would."""
        self._processes[name].kill()

    def ended(self) -> list[str]:
        """Name the collectors whose processes were started and have ended."""
        return [name for name, process in self._processes.items() if process.ended()]

    def stop(self) -> None:
        """End all, within bounded time."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.close()

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
                    f"collector {name} has ended; its log ends: {self._processes[name].log_end()}"
                )
            if waiting and time.monotonic() > deadline:
                name = min(waiting)
                raise TimedOut(
                    f"collector {name} is not healthy after {timeout:g} s; its log ends: "
                    f"{self._processes[name].log_end()}"
                )
            pause.wait(0.05)

    def work(self) -> Iterator[str]:
        """Yield the collectors' counts of ordered records, as lines of a history."""
        for name in self.names:
            for log, records in self.status(name).get("ordered", {}).items():
                if records:
                    yield history.work_line(process=name, log=log, records=records)

    def address(self, name: str) -> str:
        """Return "http://host:port" of a collector's process; empty before it serves its pages."""
        return self._processes[name].address()

    def status(self, name: str) -> dict[str, Any]:
        """Return the collector's status; empty while it does not run."""
        nodes: list[dict[str, Any]] = self._processes[name].status()["nodes"]
        return nodes[0] if nodes and nodes[0]["state"] == "running" else {}


def end(process: subprocess.Popen[Any]) -> None:
    """Wait for a terminated process; kill it if it does not end in time."""
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_S)
