"""Programs that the nemesis runs and troubles, and a look at what they deliver meanwhile.

    program     something that is started, killed, frozen, started again under the same name
    start       of a program: the first is 0. Each writes files of its own, so that what a killed
                one left stays as it was
    canary      what the consumers delivered last, by the logs that it came from

Each carries the run's token, and ends with the process that started it, however that ends
(`multicast.local.process`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from multicast.errors import AmcastError, TimedOut
from multicast.local.process import argument_of

_STOP_S = 320.0  # longer than the longest that a program gives itself
_LOOK_S = 0.02
_KEPT = 5000  # acknowledged calls of a log: those of the last minute or more

Made = Callable[[int], Sequence[str]]


class Program:
    """One program; `made` gives what to run for each start, `command` puts it on its host."""

    def __init__(
        self,
        name: str,
        made: Made,
        command: Callable[[Sequence[str]], Sequence[str]],
        *,
        folder: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        self.starts = 0
        self._environment = environment
        self._made = made
        self._command = command
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._expected = False

    @property
    def log(self) -> Path:
        """What the newest start says."""
        return self._folder / f"{self.name}.{self.starts - 1}.log"

    def start(self) -> None:
        """Start it, once more perhaps."""
        assert self._process is None, f"{self.name} runs"
        argv = self._command(self._made(self.starts))
        self.starts += 1
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **self._environment},
                start_new_session=True,  # a terminal's Ctrl-C is for the nemesis alone
            )
        self._expected = False

    def kill(self) -> None:
        """End it as a crash would; one that has ended is as good."""
        process = self._need()
        process.kill()
        process.wait(10)
        self._process = None

    def freeze(self) -> None:
        """Stop it from running; its connections stay."""
        self._need().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._need().send_signal(signal.SIGCONT)

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal that it does not end by."""
        self._need().send_signal(number)

    def ask_to_stop(self) -> None:
        """Tell it to finish; `wait` waits for that."""
        self._expected = True
        self._need().terminate()

    def wait(self) -> None:
        """Wait until it has ended; raises where it fails, or does not end within a bound."""
        process = self._need()
        self._process = None
        try:
            code = process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise TimedOut(
                f"{self.name} did not end within {_STOP_S:g} s; it said: {self.last_words()}"
            ) from None
        if code:
            raise AmcastError(f"{self.name} ended with exit code {code}: {self.last_words()}")

    def stop(self) -> None:
        """Tell it to finish, and wait until it has."""
        self.ask_to_stop()
        self.wait()

    def end(self) -> None:
        """Make sure that it does not run."""
        if self._process is not None:
            self.kill()

    @property
    def runs(self) -> bool:
        """Whether it was started and has not been ended by us."""
        return self._process is not None

    def trouble(self) -> str | None:
        """Say what is wrong: it ended although nobody ended it."""
        if self._process is None or self._expected or self._process.poll() is None:
            return None
        return f"{self.name} ended by itself ({self._process.returncode}): {self.last_words()}"

    def last_words(self) -> str:
        """Return the end of what it said."""
        return self.log.read_text(errors="replace").strip()[-600:]

    def _need(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was not started"
        return self._process


def marked(token: str, module: str, *arguments: str) -> list[str]:
    """Return the command line of one of our own programs, marked as one of this run."""
    # Python takes any -X, and does nothing about one that it does not know.
    return [sys.executable, "-X", argument_of(token), "-m", module, *arguments]


class Canary:
    """Follows the histories while they are written: how new is what was delivered last.

    `folder` holds a file for each start of a client (`produce-*.jsonl`, `consume-*.jsonl`); `due`
    are the logs that each consumer reads. Ask from one thread.
    """

    def __init__(self, folder: Path, due: Mapping[str, Sequence[str]]) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._begun: dict[tuple[Path, int], tuple[str, int]] = {}
        self._accepted: dict[str, deque[tuple[int, int]]] = {}
        self._delivered = {(name, log): -1 for name, logs in due.items() for log in logs}
        self.accepted = 0
        self.deliveries = 0

    def look(self) -> None:
        """Read on."""
        for file in sorted(self._folder.glob("*.jsonl")):
            with file.open("rb") as lines:
                lines.seek(self._read.get(file, 0))
                text = lines.read()
            whole = text.rfind(b"\n") + 1
            self._read[file] = self._read.get(file, 0) + whole
            for line in text[:whole].splitlines():
                self._take(file, json.loads(line))

    def behind(self, since_ns: int) -> list[str]:
        """Name the consumers' logs of which nothing was delivered that was sent after a moment."""
        self.look()
        first: dict[str, int] = {}
        for log, accepted in self._accepted.items():
            new = [offset for begun, offset in accepted if begun > since_ns]
            if new:
                first[log] = min(new)
        return [
            f"{name} of {log}"
            for (name, log), offset in self._delivered.items()
            if log not in first or offset < first[log]
        ]

    def _take(self, file: Path, line: Mapping[str, Any]) -> None:
        if "begun" in line:
            self._begun[file, line["begun"]] = ("+".join(line["to"]), line["ns"])
        elif "call" in line:
            log, begun_ns = self._begun.pop((file, line["call"]))
            if line["outcome"] == "accepted":
                offset = int(line["message_id"].rpartition(":")[2])
                self._accepted.setdefault(log, deque(maxlen=_KEPT)).append((begun_ns, offset))
                self.accepted += 1
        elif "consumer" in line and "message_id" in line:
            self.deliveries += 1
            log, _, offset_text = line["message_id"].rpartition(":")
            key = (line["consumer"], log)
            if key in self._delivered:
                self._delivered[key] = max(self._delivered[key], int(offset_text))


def until(done: Callable[[], bool], *, timeout_s: float, pause_s: float = _LOOK_S) -> bool:
    """Wait until something holds; whether it came to hold in time."""
    deadline = time.monotonic() + timeout_s
    waits = threading.Event()
    while not done():
        if time.monotonic() > deadline:
            return False
        waits.wait(pause_s)
    return True
