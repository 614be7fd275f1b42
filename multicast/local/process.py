"""Processes that we start: who they are, how they end, and that none outlives us by accident.

A process is known by its number and the moment it started, so a number that the system has given
to another process since is never signalled. Each also carries a *token* as an argument of its
command line (`argument_of`): a random word for one run of one cluster.

The file is also a program of its own, the **guard**: `python process.py OWNER TOKEN [DIR]`
waits until the process OWNER has ended, however it ended, then kills every process that carries
TOKEN and removes DIR. It needs the standard library only, so that it starts in milliseconds. (A
parent-death signal would do the same only while the *thread* that started the broker lives.)

Linux only: `/proc` and file descriptors for processes (`pidfd_open`).
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_GUARD_SWEEPS = 5  # a process seen by none of the last sweeps was not between fork and exec


class ProcessId(NamedTuple):
    """A process for good: `started` is in clock ticks since boot (`/proc/PID/stat`, field 22)."""

    pid: int
    started: int


class _Stat(NamedTuple):
    state: str
    threads: int
    started: int

    @property
    def is_over(self) -> bool:
        """A zombie, or less; a first thread that ended before the others is shown as one, too."""
        return self.state == "X" or (self.state == "Z" and self.threads <= 1)


def _stat(pid: int) -> _Stat | None:
    """Read what `/proc` says of a process; None if there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the program's name in brackets, which may hold anything.
    fields = text.rpartition(")")[2].split()
    return _Stat(fields[0], int(fields[17]), int(fields[19]))


def identify(pid: int) -> ProcessId:
    """Give the identity of a process that is known to exist, such as a child not waited for."""
    found = _stat(pid)
    if found is None:
        raise ProcessLookupError(pid)
    return ProcessId(pid, found.started)


def state_of(process: ProcessId, *, token: str) -> str:
    """Give "running", "paused" or "ended"; a zombie and another run's process have ended."""
    found = _stat(process.pid)
    if found is None or found.started != process.started or found.is_over:
        return "ended"
    arguments = _arguments(process.pid)
    # None at all: it is between fork and the end of exec, and only its start can speak for it.
    if arguments and argument_of(token).encode() not in arguments:
        return "ended"
    return "paused" if found.state in "Tt" else "running"


def argument_of(token: str) -> str:
    """Give the argument by which a Java process carries a token."""
    return f"-Damcast.run={token}"


def _arguments(pid: int) -> list[bytes]:
    try:
        text = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return text.split(b"\0") if text else []


def carriers(token: str) -> list[int]:
    """List the processes that carry a token, by number."""
    numbers = sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal())
    return [pid for pid in numbers if argument_of(token).encode() in _arguments(pid)]


def kill_carriers(token: str) -> int:
    """Send SIGKILL to all processes that carry a token; give how many there were."""
    found = carriers(token)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


def send(process: ProcessId, number: signal.Signals, *, token: str) -> bool:
    """Send a signal; False if the process has ended before."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # The descriptor is held while we look, so the number cannot change its owner after.
        if state_of(process, token=token) == "ended":
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def wait_ended(
    processes: Iterable[ProcessId], *, token: str, timeout_s: float, first: bool = False
) -> list[ProcessId]:
    """Wait until all the processes (or the `first` of them) have ended, or for `timeout_s`.

    Returns those that had ended. Children of ours among them stay to be reaped (`reap`).
    """
    waiting: dict[int, ProcessId] = {}
    ended: list[ProcessId] = []
    poll = select.poll()
    deadline = time.monotonic() + timeout_s
    try:
        for process in processes:
            try:
                descriptor = os.pidfd_open(process.pid)
            except ProcessLookupError:
                ended.append(process)
                continue
            waiting[descriptor] = process
            if state_of(process, token=token) == "ended":
                ended.append(waiting.pop(descriptor))
                os.close(descriptor)
            else:
                poll.register(descriptor, select.POLLIN)
        while waiting and not (first and ended):
            left_ms = (deadline - time.monotonic()) * 1000
            if left_ms <= 0:
                break
            for descriptor, _ in poll.poll(left_ms):
                poll.unregister(descriptor)
                ended.append(waiting.pop(descriptor))
                os.close(descriptor)
    finally:
        for descriptor in waiting:
            os.close(descriptor)
    return ended


def reap(process: ProcessId) -> int | None:
    """Give the exit code of an ended child of ours (negative: the signal); None if unknown."""
    found = _stat(process.pid)
    if found is None or found.started != process.started:
        return None  # gone, or the number is another child's now
    try:
        reaped, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if reaped else None


def spawn(command: Sequence[str], *, log: Path | None = None) -> int:
    """Start a program in a session of its own, so that a terminal's Ctrl-C does not reach it.

    Its output is added to `log` (or dropped), its input is empty. Returns the process number.
    Nothing of Python's subprocess stays behind: what is started may outlive this program.
    """
    output = os.devnull if log is None else os.fspath(log)
    return os.posix_spawn(
        command[0],
        list(command),
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
        setsigmask=[],
    )


def run_bounded(
    command: Sequence[str], *, timeout_s: float, environment: dict[str, str] | None = None
) -> tuple[int, str]:
    """Run a program to its end and give its exit code and output (both streams).

    Raises `subprocess.TimeoutExpired` after `timeout_s` and OSError if it cannot be started. In
    any case nothing of it goes on running, nor of what it started in its own session.
    """
    with subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output


class Guard:
    """The guard of one run: kills whatever carries the token once this process has ended."""

    def __init__(self, token: str, *, remove: Path | None = None) -> None:
        """Start it; `remove` names a directory that goes with the processes."""
        command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), token]
        if remove is not None:
            command.append(os.fspath(remove))
        self._pid = spawn(command)

    def dismiss(self) -> None:
        """End the guard without harm to those it guarded; a second call does nothing."""
        if self._pid:
            # Our own child, not waited for yet: the number is certainly still its own.
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0


def guard(owner: int, token: str, remove: str | None) -> None:
    """Wait for the owner's end, then kill what carries the token and remove the directory."""
    try:
        descriptor = os.pidfd_open(owner)
    except ProcessLookupError:
        descriptor = None
    # If the owner ended before we looked, its number may be another's; but then it is not our
    # parent any more.
    if descriptor is not None and os.getppid() == owner:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
    pause = threading.Event()
    clean = 0
    while clean < _GUARD_SWEEPS:
        clean = 0 if kill_carriers(token) else clean + 1
        pause.wait(0.05)
    if remove is not None:
        shutil.rmtree(remove, ignore_errors=True)


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
