"""Processes of `amcast collectors run` that share a plan, as an operator runs them."""

import subprocess
import sys
import urllib.request

from collectors.testing.processes import end
from tests.helpers.system import PATIENCE_S, until


class SharedCollectors:
    """A context manager that ends the processes; they are numbered from 0."""

    def __init__(self, bootstrap, topic, folder, *options, processes):
        self._command = [sys.executable, "-m", "multicast", "collectors", "run"]
        self._command += ["-b", bootstrap, "-t", topic, "--web-port", "0", *options]
        self._folder = folder
        self.count = processes
        self._processes = {}

    def __enter__(self):
        try:
            for number in range(self.count):
                self.start(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            end(process)

    def start(self, number):
        """Start a process, and wait until it is healthy."""
        with self._log(number).open("wb") as out:
            self._processes[number] = subprocess.Popen(
                self._command, stdout=out, stderr=subprocess.STDOUT
            )
        until(lambda: _is_healthy(self.page(number)), f"health of process {number}")

    def stop(self, number):
        """Send SIGTERM to a process, and wait until it has ended."""
        self._processes[number].terminate()
        self._processes[number].wait(PATIENCE_S)

    def kill(self, number):
        """End a process as a crash would."""
        self._processes[number].kill()
        self._processes[number].wait(PATIENCE_S)

    def page(self, number):
        """Give "http://host:port" of a process; empty until it has said so."""
        words = self._log(number).read_text(errors="replace").split()
        said = next((word for word in words if word.startswith("http://127.0.0.1:")), "")
        return said.removesuffix("/status")

    def _log(self, number):
        return self._folder / f"shared-{number}.log"


def _is_healthy(page):
    if not page:
        return False
    try:
        with urllib.request.urlopen(f"{page}/healthz", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False
