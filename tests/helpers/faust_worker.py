"""Runs a worker of Faust as a process, and judges in which order its agent got the messages."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.system import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]


class FaustWorker:
    """A program that is a worker; all its starts have the same app, and write to the same file."""

    def __init__(self, program, bootstrap, topic, folder):
        self._program = program
        self.seen = folder / "seen"
        self._log = folder / "worker.log"
        self.app_id = f"agents-{uuid.uuid4().hex[:8]}"
        self._env = {
            **os.environ,
            "AMCAST_BOOTSTRAP": bootstrap,
            "AMCAST_TOPIC": topic,
            "APP_ID": self.app_id,
            "DATADIR": str(folder / "data"),
            "SEEN": str(self.seen),
        }

    @contextmanager
    def running(self, **env):
        """Run the worker; kill -9 at the end of the block, unless it has ended."""
        command = [sys.executable, str(self._program), "worker", "-l", "info", "--without-web"]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command, env={**self._env, **env}, stdout=log, stderr=log, cwd=ROOT
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait(PATIENCE_S)

    def ends(self, process):
        """Ask the worker to end; give its exit code."""
        process.terminate()
        return process.wait(PATIENCE_S)

    def log(self):
        return self._log.read_text()

    def lines(self):
        """Give the words of each line that the agent wrote."""
        text = self.seen.read_text() if self.seen.exists() else ""
        return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]

    def payloads(self):
        return [words[0] for words in self.lines()]

    def wait(self, count):
        """Wait until the agent has got so many different messages."""
        try:
            until(lambda: len(set(self.payloads())) >= count, f"message {count}", pause=0.1)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.log()[-5000:]}") from None


def runs_of(payloads, order, log=""):
    """Split what an agent got into runs that follow the order without a gap; give their bounds.

    Raises `AssertionError` if a run begins after a message that was not given before it.
    """
    places = [order.index(each) for each in payloads]
    runs = []
    for place in places:
        if runs and place == runs[-1][1] + 1:
            runs[-1][1] = place
        else:
            known = max((last for _, last in runs), default=-1)
            assert place <= known + 1, f"{order[known + 1 : place]} were left out\n{log}"
            runs.append([place, place])
    return runs
