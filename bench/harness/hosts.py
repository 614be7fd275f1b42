"""Client processes of a benchmark, and the CPU and memory of processes.

Each class is a context manager that ends its process within bounded time.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from collectors.testing.processes import CollectorProcesses as CollectorProcesses  # noqa: PLC0414
from collectors.testing.processes import end
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
    """A process of `bench.comparison.client`, or like it; it answers commands in order."""

    def __init__(
        self,
        name: str,
        spec: Mapping[str, Any],
        folder: Path,
        module: str = "bench.comparison.client",
    ) -> None:
        self._module = module
        self._name = name
        self._spec = spec
        self._log = folder / f"{name}.log"
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        with self._log.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        threading.Thread(target=self._read, daemon=True).start()
        self.tell(self._spec)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        end(self._process)

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    def tell(self, command: Mapping[str, Any]) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # if the process has ended, `answer` raises
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the next answer; raises `TimedOut`, or `AmcastError` with the client's error."""
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise TimedOut(f"{self._name} did not answer within {timeout_s:g} s") from None
        if line is None:
            log_end = self._log.read_text(errors="replace").strip()
            raise AmcastError(f"{self._name} has ended; its log ends: {log_end[-500:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise AmcastError(f"{self._name}: {answer['error']}")
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._answers.put(line)
        self._answers.put(None)


class Poster:
    """The poster's collector as a process (`bench.baselines.poster`)."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, folder: Path) -> None:
        self._command = [
            sys.executable,
            "-m",
            "bench.baselines.poster",
            bootstrap,
            topic,
            str(partitions),
        ]
        self._log = folder / "poster.log"
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        with self._log.open("wb") as err:
            self._process = subprocess.Popen(self._command, stderr=err, stdout=err)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        end(self._process)

    @property
    def pids(self) -> list[int]:
        """The process ID."""
        return [self._process.pid]
