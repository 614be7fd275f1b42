"""One process of `amcast collectors run` for all collectors of a topic, or for some."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from collectors.testing.processes import end
from multicast.errors import TimedOut

_PATIENCE_S = 240.0  # for any single step with many collectors on two cores
_POLL_S = 0.1


class Hosting:
    """One process that hosts all collectors of a topic."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._log = log

    def status(self) -> dict[str, Any]:
        """Return the process's `/status`; without collectors while it does not answer."""
        try:
            status: dict[str, Any] = json.loads(self.page("/status"))
        except (OSError, ValueError):
            return {"nodes": []}
        return status

    def page(self, path: str) -> bytes:
        """Return a page of the process; raises `OSError` while it does not answer."""
        words = self._log.read_text(errors="replace").split()
        address = next((word for word in words if word.startswith("http://127.0.0.1:")), None)
        if address is None:
            raise ConnectionRefusedError(f"{self._log} names no address yet")
        url = address.removesuffix("/status") + path
        with urllib.request.urlopen(url, timeout=30) as answer:
            return bytes(answer.read())

    def wait_begun(self, count: int, epoch: int) -> None:
        """Wait until `count` collectors of an epoch have begun; raises `TimedOut`."""
        deadline, pause = time.monotonic() + _PATIENCE_S, threading.Event()
        while True:
            nodes = [node for node in self.status()["nodes"] if node["epoch"] == epoch]
            begun = sum(node["state"] == "running" and bool(node.get("begun")) for node in nodes)
            if begun == count:
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                log_end = self._log.read_text(errors="replace")[-500:]
                raise TimedOut(
                    f"{begun} of {count} collectors have begun; the process's log ends: {log_end}"
                )
            pause.wait(_POLL_S)

    def threads(self) -> int:
        """Count its threads."""
        return sum(1 for _ in Path(f"/proc/{self.pid}/task").iterdir())


@contextmanager
def hosting(
    bootstrap: str,
    topic: str,
    driver: str,
    folder: Path,
    *,
    nodes: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Iterator[Hosting]:
    """Run `amcast collectors run` for all collectors of a topic, or some, during the context.

    `options` are further options of the command.
    """
    log = folder / f"{topic}.log"
    command = [sys.executable, "-m", "multicast", "collectors", "run", "--web-port", "0"]
    command += ["-b", bootstrap, "-t", topic, "--driver", driver]
    command += [word for name in nodes for word in ("--node", name)]
    command += options
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield Hosting(process, log)
    finally:
        process.terminate()
        end(process)
