"""The CPU time of a process's threads, from the kernel's /proc/PID/task/*/schedstat.

used      seconds on a CPU
queued    seconds ready to run while all CPUs were busy: a wait that an idle machine does not
          have
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_NS = 10**9


class Account(NamedTuple):
    """A thread's seconds so far; its name in the kernel has at most 15 characters."""

    thread: int
    name: str
    used: float
    queued: float


def accounts(pid: int | str) -> Iterator[Account]:
    """Yield the accounts of the running threads; none if the process has ended."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return
    for task in tasks:
        try:
            used, queued, _ = (task / "schedstat").read_text(encoding="ascii").split()
            name = (task / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:  # the thread has just ended
            continue
        yield Account(int(task.name), name, int(used) / _NS, int(queued) / _NS)
