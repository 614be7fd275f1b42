"""Programs that the nemesis starts, kills and freezes, and a view of their latest deliveries.

    program     a process that is started, killed, frozen and restarted under one name
    start       of a program: the first is 0. Each start writes its own files, so that the files of
                a killed one stay as they are
    canary      the latest delivery of each consumer, by log

Each process carries the run's token, and ends with the process that started it, however that ends
(`multicast.local.process`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from bench.harness.client import FollowedNotes
from multicast.errors import AmcastError, TimedOut
from multicast.local.process import argument_of

_STOP_S = 320.0  # longer than the greatest time-out of a program, an auditor's 300 s
_LOOK_S = 0.02  # between two looks; a recovery time is measured from the histories, not by looks
_SAMPLE_S = 0.5  # some hundred threads are read each time, in 10 ms
# Acknowledged calls kept for each log: at the default rate of 300/s over seven sets those of two
# minutes, more than the default patience of one.
_KEPT_MAX = 5000

MakeCommand = Callable[[int], Sequence[str]]


class Program:
    """One program.

    `make_command` returns the command line of a start; `command` wraps it for the program's host.
    """

    def __init__(
        self,
        name: str,
        make_command: MakeCommand,
        command: Callable[[Sequence[str]], Sequence[str]],
        *,
        folder: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        self.starts = 0
        self._environment = environment
        self._make_command = make_command
        self._command = command
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._expected = False

    @property
    def log(self) -> Path:
        """The log file of the newest start."""
        return self._folder / f"{self.name}.{self.starts - 1}.log"

    def start(self) -> None:
        """Start or restart it."""
        assert self._process is None, f"{self.name} runs"
        argv = self._command(self._make_command(self.starts))
        self.starts += 1
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **self._environment},
                start_new_session=True,  # so that Ctrl-C in a terminal reaches only the nemesis
            )
        self._expected = False

    def kill(self) -> None:
        """End it as a crash would; it may have ended already."""
        process = self._need()
        process.kill()
        process.wait(10)
        self._process = None

    def freeze(self) -> None:
        """Suspend it (SIGSTOP); its connections stay open."""
        self._need().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume it (SIGCONT)."""
        self._need().send_signal(signal.SIGCONT)

    def ask_to_stop(self) -> None:
        """Send SIGTERM; `wait` waits for the end."""
        self._expected = True
        self._need().terminate()

    def wait(self) -> None:
        """Wait until it has ended; raises if it fails, or does not end within `_STOP_S`."""
        process = self._need()
        self._process = None
        try:
            code = process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise TimedOut(
                f"{self.name} did not end within {_STOP_S:g} s; its log ends: {self.last_words()}"
            ) from None
        if code:
            raise AmcastError(f"{self.name} ended with exit code {code}: {self.last_words()}")

    def stop(self) -> None:
        """Send SIGTERM, and wait for the end."""
        self.ask_to_stop()
        self.wait()

    def end(self) -> None:
        """Kill it if it runs."""
        if self._process is not None:
            self.kill()

    @property
    def runs(self) -> bool:
        """Whether it was started, and not stopped or killed."""
        return self._process is not None

    def trouble(self) -> str | None:
        """Return a sentence if it has ended unexpectedly."""
        if self._process is None or self._expected or self._process.poll() is None:
            return None
        return f"{self.name} ended by itself ({self._process.returncode}): {self.last_words()}"

    def last_words(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace").strip()[-600:]

    def _need(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was not started"
        return self._process


def marked(token: str, module: str, *arguments: str) -> list[str]:
    """Return the command line of a Python module, marked with the token of this run."""
    return [sys.executable, *flags_of(token), "-m", module, *arguments]


def flags_of(token: str) -> tuple[str, ...]:
    """Return the flags of Python that mark a process: it ignores an unknown -X option."""
    return "-X", argument_of(token)


class Starvation:
    """Samples how long this machine let the run's processes wait for a core; a context manager.

    Each sample counts the thread that was ready and waited longest: a message is in one place at a
    time. The processes are this one and those with one of `marks` in their command lines.
    """

    def __init__(self, *marks: str) -> None:
        self.samples: list[tuple[int, int]] = []
        """By time, in nanoseconds: how long until then, in all."""
        self._marks = [mark.encode() for mark in marks]
        self._ours = {os.getpid(): True}
        self._waited: dict[Path, int] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nemesis-starvation", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        self.look()
        while not self._end.wait(_SAMPLE_S):
            self.look()

    def look(self) -> None:
        """Take a sample."""
        waited = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and self._is_ours(entry):
                with suppress(OSError):  # it has just ended
                    for task in (entry / "task").iterdir():
                        waited[task] = int((task / "schedstat").read_bytes().split()[1])
        now, (before, total) = time.monotonic_ns(), (self.samples or [(0, 0)])[-1]
        longest = max(ns - self._waited.get(task, ns) for task, ns in waited.items())
        self.samples.append((now, total + min(longest, now - before)))
        self._waited = waited

    def _is_ours(self, entry: Path) -> bool:
        pid = int(entry.name)
        if pid not in self._ours:
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                self._ours[pid] = any(mark in line for mark in self._marks)
        return self._ours.get(pid, False)


class Canary:
    """Follows the histories while they are written, to know how recent the deliveries are.

    `folder` holds a file for each start of a client (`produce-*.jsonl`, `consume-*.jsonl`); `due`
    are the logs that each consumer reads. Use it from one thread.
    """

    def __init__(self, folder: Path, due: Mapping[str, Sequence[str]]) -> None:
        self._folder = folder
        self._files: dict[Path, FollowedNotes] = {}
        self._begun: dict[tuple[Path, int], tuple[str, int]] = {}
        self._accepted: dict[str, deque[tuple[int, int]]] = {}
        self._delivered = {(name, log): -1 for name, logs in due.items() for log in logs}

    def look(self) -> None:
        """Read the new lines of all files."""
        for file in sorted(self._folder.glob("*.jsonl")):
            for line in self._files.setdefault(file, FollowedNotes(file)).new():
                self._take(file, line)

    def behind(self, since_ns: int) -> list[str]:
        """Name the consumers and logs without a delivery of a message sent after `since_ns`."""
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
                self._accepted.setdefault(log, deque(maxlen=_KEPT_MAX)).append((begun_ns, offset))
        elif "consumer" in line and "message_id" in line:
            log, _, offset_text = line["message_id"].rpartition(":")
            key = (line["consumer"], log)
            if key in self._delivered:
                self._delivered[key] = max(self._delivered[key], int(offset_text))


def until(done: Callable[[], object], *, timeout_s: float, pause_s: float = _LOOK_S) -> bool:
    """Wait until `done()` holds; returns whether it did in time."""
    deadline = time.monotonic() + timeout_s
    waits = threading.Event()
    while not done():
        if time.monotonic() > deadline:
            return False
        waits.wait(pause_s)
    return True
