"""Starts, kills and reads a streaming query that runs as a process (tests/spark/stream_program)."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys

from tests.helpers.system import PATIENCE_S, until


class StreamedQuery:
    """One query with its checkpoint and its sink, as often started as a test likes."""

    def __init__(self, topic, folder, sink, **options):
        self.folder = folder
        self.document = {
            "options": {
                "kafka.bootstrap.servers": topic.bootstrap,
                "topic": topic.topic,
                "startingOffsets": "earliest",
                **options,
            },
            "sink": sink,
            "path": str(folder / sink),
            "checkpoint": str(folder / "checkpoint"),
        }
        self._log = folder / "log"

    @contextlib.contextmanager
    def running(self, trigger="always", **settings):
        """Start the query; kill its driver, with all its processes, at the end of the block."""
        document = {**self.document, "trigger": trigger, "settings": settings}
        command = [sys.executable, "-m", "tests.spark.stream_program", json.dumps(document)]
        with (
            self._log.open("ab") as log,
            subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True) as process,
        ):
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def finish(self):
        """Run the query until it has read what is there; give its exit code."""
        with self.running("now") as process:
            return process.wait(PATIENCE_S)

    def log(self):
        return self._log.read_text()

    def count(self):
        """How many batches are in the checkpoint as committed."""
        folder = self.folder / "checkpoint" / "commits"
        return len([file for file in folder.glob("*") if file.name.isdecimal()])

    def wait_for_batches(self, process, count):
        until(
            lambda: self.count() >= count or process.poll() is not None,
            f"{count} batches",
            pause=0.05,
        )
        assert process.poll() is None, self.log()

    def messages(self):
        """What the SQLite sink holds, in the order in which it was stored."""
        with contextlib.closing(sqlite3.connect(self.document["path"], timeout=60)) as database:
            return [
                name for (name,) in database.execute("select message from rows order by number")
            ]
