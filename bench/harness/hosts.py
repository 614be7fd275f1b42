"""Client processes of a benchmark, and the CPU and memory of processes.

Each class is a context manager that ends its process within bounded time.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from bench.harness.client import Role, command
from bench.harness.processes import end
from multicast.errors import AmcastError, TimedOut

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: Iterable[int]) -> float:
    """Sum the CPU seconds of processes so far, all threads; an ended process counts as 0."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
            fields = stat.rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S


def busy_seconds() -> float:
    """Return the CPU seconds of the whole machine so far."""
    first = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0].split()
    user, nice, system, _, _, irq, softirq = map(int, first[1:8])
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def resident_bytes(pids: Iterable[int]) -> int:
    """Sum the current resident memory of processes."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class ClientProcess:
    """A process of `bench.harness.client`; a context manager that ends it."""

    def __init__(self, name: str, role: Role, task: Any, folder: Path) -> None:
        self._name = name
        self._command = command(role, task)
        self._log = folder / f"{name}.log"
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        with self._log.open("ab") as err:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True
            )
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.terminate()
        end(self._process)

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self.__exit__()

    def tell(self, **command: Any) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # if the process has ended, `answer` raises
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the next answer; raises `TimedOut`, or `AmcastError` if the process ended."""
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise TimedOut(f"{self._name} did not answer within {timeout_s:g} s") from None
        if line is None:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def check(self) -> None:
        """Raise `AmcastError` if it has failed."""
        if self._process.poll():
            raise self._ended()

    def _ended(self) -> AmcastError:
        log_end = self._log.read_text(errors="replace").strip()
        return AmcastError(f"{self._name} has ended; its log ends: {log_end[-500:]}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._answers.put(line)
        self._answers.put(None)
