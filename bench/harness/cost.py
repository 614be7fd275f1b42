"""What a command costs: its time, and the CPU time and memory of all its processes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from multicast.errors import AmcastError

_LOG_SHOWN = 1000  # characters of a log's end: the last error, with its trace


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a command; `resident_mib` is the peak of its largest process."""

    seconds: float
    cpu_s: float
    resident_mib: float


def run_measured(command: Sequence[str], log: Path) -> Cost:
    """Run a command, its output in `log`; raises `AmcastError` if it fails."""
    began = time.monotonic()
    file = os.open(log, os.O_WRONLY | os.O_CREAT)
    actions = [(os.POSIX_SPAWN_DUP2, file, 1), (os.POSIX_SPAWN_DUP2, file, 2)]
    pid = os.posix_spawn(command[0], list(command), os.environ, file_actions=actions)
    _, status, used = os.wait4(pid, 0)
    seconds = time.monotonic() - began
    os.close(file)
    if status != 0:
        text = log.read_text(errors="replace")
        raise AmcastError(f"{command[-1]} failed; its log ends: {text[-_LOG_SHOWN:]}")
    return Cost(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
