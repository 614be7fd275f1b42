"""Starts and kills a streaming query that runs as a process, and reads its checkpoint and sink."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

_BUSY_S = 60.0  # SQLite waits so long for a writer to end
_ROOT = Path(__file__).parents[2]  # where `tests` is imported from
Sink = Literal["files", "sqlite"]


class StreamedQuery:
    """One query with its checkpoint and its sink, started as often as its user likes.

    `options` are those of the source. `document` may be changed between two starts.
    """

    def __init__(
        self, bootstrap: str, topic: str, folder: Path, sink: Sink, **options: str
    ) -> None:
        self.document: dict[str, Any] = {
            "options": {
                "kafka.bootstrap.servers": bootstrap,
                "topic": topic,
                "startingOffsets": "earliest",
                **options,
            },
            "sink": sink,
            "path": str(folder / sink),
            "checkpoint": str(folder / "checkpoint"),
        }
        self._checkpoint = folder / "checkpoint"
        self._log = folder / "log"

    @contextlib.contextmanager
    def running(
        self, trigger: str = "always", **settings: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start the query; kill its driver, with all its processes, at the end of the block."""
        document = {**self.document, "trigger": trigger, "settings": settings}
        command = [sys.executable, "-m", "tests.spark.query", json.dumps(document)]
        with (
            self._log.open("ab") as log,
            subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, cwd=_ROOT
            ) as process,
        ):
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def finish(self, timeout_s: float) -> int:
        """Run the query until it has read what is there; give its exit code.

        Raises `subprocess.TimeoutExpired`.
        """
        with self.running("now") as process:
            return process.wait(timeout_s)

    def log(self) -> str:
        """Give what all runs have written to stdout and stderr."""
        return self._log.read_text(errors="replace")

    def begun(self) -> int:
        """Count the batches that the checkpoint has as planned."""
        return self._newest("offsets")

    def committed(self) -> int:
        """Count the batches that the checkpoint has as done."""
        return self._newest("commits")

    def _newest(self, log: str) -> int:
        """Give the newest batch's number, and one more: Spark removes old batches' files."""
        names = [file.name for file in (self._checkpoint / log).glob("*")]
        return max((int(name) + 1 for name in names if name.isdecimal()), default=0)

    def messages(self) -> list[str]:
        """Give what the SQLite sink holds, in the order in which it was stored."""
        path = self.document["path"]
        with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_S)) as database:
            return [
                name for (name,) in database.execute("select message from rows order by number")
            ]


def executors(process: subprocess.Popen[bytes]) -> list[int]:
    """List the process IDs of a query's executors, if they are processes of their own."""
    running = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                stat = (folder / "stat").read_text("ascii", errors="replace")
                session = int(stat.rpartition(")")[2].split()[3])
                command = (folder / "cmdline").read_bytes()
                if session == process.pid and b"CoarseGrainedExecutor" in command:
                    running.append(int(folder.name))
    return running
