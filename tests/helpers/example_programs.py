"""Runs the programs of a folder of `examples/` as a user does, on a system of its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.system import PATIENCE_S, System
from topology.interests import from_document
from topology.planner.solver import plan as solve

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


class ExampleSystem:
    """A system with the plan of an example, and its programs."""

    def __init__(self, system: System, folder: Path) -> None:
        self.system = system
        self._folder = folder

    def _command(self, script, *arguments, cluster=True):
        where = ["--bootstrap", self.system.bootstrap, "--topic", self.system.topic]
        return [sys.executable, self._folder / script, *(where if cluster else []), *arguments]

    def run(self, script, *arguments, cluster=True):
        """Run a program to its end; give its lines."""
        done = self.outcome(script, *arguments, cluster=cluster)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def outcome(self, script, *arguments, cluster=True):
        """Run a program to its end; give its exit code and its outputs."""
        return subprocess.run(
            self._command(script, *map(str, arguments), cluster=cluster),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def refused(self, script, *arguments):
        """Run a program that ends with an error; give its sentence and its exit code."""
        done = self.outcome(script, *arguments)
        assert done.returncode != 0, done.stdout
        assert "Traceback" not in done.stderr, done.stderr
        return done.stderr.splitlines()[-1], done.returncode

    @contextmanager
    def running(self, script, *arguments):
        """Run a program; give its process, whose lines can be read; kill -9 at the end."""
        command = self._command(script, *map(str, arguments))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def killed_after(self, lines, script, *arguments):
        """Run a program until it has written so many lines, then kill -9; give these lines."""
        with self.running(script, *arguments) as process:
            return [process.stdout.readline().strip() for _ in range(lines)]


@contextmanager
def example_system(bootstrap: str, name: str, folder: Path):
    """Apply the plan of an example to a topic of its own, and run its collectors."""
    text = (EXAMPLES / name / "interests.toml").read_text(encoding="utf-8")
    with System(bootstrap, solve(from_document(tomllib.loads(text))), folder) as system:
        system.order()
        yield ExampleSystem(system, EXAMPLES / name)
