"""Starts, identifies and ends processes, and prevents that one outlives its owner by accident.

A process is identified by its number and its start time, so a number that the system has reused
for another process is never signalled. Each process also carries a *token* as an argument of its
command line (`argument_of`): a random word for one run of one cluster.

This file is also a program, the **guard**: `python process.py OWNER TOKEN [DIR]` waits until the
process OWNER ends, in whatever way, then kills every process that carries TOKEN and removes DIR. It
uses the standard library only, so that it starts in milliseconds. (A parent-death signal is no
replacement: it is sent when the *thread* that started the broker ends.)

Linux only: it uses `/proc` and file descriptors for processes (`pidfd_open`).
"""

from __future__ import annotations

import contextlib
import errno
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
# The guard ends after this many sweeps without a carrier of the token: a new process carries it
# only after its exec, which takes milliseconds.
_GUARD_SWEEPS_MAX = 5
_GUARD_SWEEP_S = 0.05


class ProcessId(NamedTuple):
    """A process's identity; `started` is in clock ticks since boot (`/proc/PID/stat`, field 22)."""

    pid: int
    started: int


class _Stat(NamedTuple):
    state: str
    threads: int
    started: int

    @property
    def is_over(self) -> bool:
        """Whether it is a zombie or dead; `Z` with more threads means that the first has ended."""
        return self.state == "X" or (self.state == "Z" and self.threads <= 1)


def _stat(pid: int) -> _Stat | None:
    """Read a process's state from `/proc`; None if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the program's name in brackets, which may contain any character.
    fields = text.rpartition(")")[2].split()
    return _Stat(fields[0], int(fields[17]), int(fields[19]))


def identify(pid: int) -> ProcessId:
    """Return the identity of a process that is known to exist, such as a child not waited for."""
    stat = _stat(pid)
    if stat is None:
        raise ProcessLookupError(pid)
    return ProcessId(pid, stat.started)


def state_of(process: ProcessId, *, token: str) -> str:
    """Return "running", "paused" or "ended"; a zombie or a process of another run has ended."""
    stat = _stat(process.pid)
    if stat is None or stat.started != process.started or stat.is_over:
        return "ended"
    arguments = _arguments(process.pid)
    # Without arguments it is between fork and the end of exec: only its start time identifies it.
    if arguments and argument_of(token).encode() not in arguments:
        return "ended"
    return "paused" if stat.state in "Tt" else "running"


def argument_of(token: str) -> str:
    """Return the argument by which a Java process carries a token."""
    return f"-Damcast.run={token}"


def _arguments(pid: int) -> list[bytes]:
    try:
        text = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return text.split(b"\0") if text else []


def carriers(token: str) -> list[int]:
    """List the numbers of the processes that carry a token, ascending."""
    numbers = sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal())
    return [pid for pid in numbers if argument_of(token).encode() in _arguments(pid)]


def kill_carriers(token: str) -> int:
    """Send SIGKILL to all processes that carry a token; return how many there were."""
    pids = carriers(token)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(pids)


def send(process: ProcessId, number: signal.Signals, *, token: str) -> bool:
    """Send a signal; return False if the process has ended."""
    descriptor = _opened(process.pid)
    if descriptor is None:
        return False
    try:
        # The open descriptor refers to one process, even if its number is reused after the check.
        if state_of(process, token=token) == "ended":
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def _opened(pid: int) -> int | None:
    """Open a file descriptor of a process; None if no process has this number.

    The number of an ended process may belong to a thread of another one. Linux then says EINVAL,
    or ENOENT since 6.15.
    """
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
            return None
        raise


def wait_ended(
    processes: Iterable[ProcessId], *, token: str, timeout_s: float, first: bool = False
) -> list[ProcessId]:
    """Wait up to `timeout_s` until all processes have ended, or with `first` any of them.

    Returns those that have ended. Children of this process must still be reaped (`reap`).
    """
    waiting: dict[int, ProcessId] = {}
    ended: list[ProcessId] = []
    poll = select.poll()
    deadline = time.monotonic() + timeout_s
    try:
        for process in processes:
            descriptor = _opened(process.pid)
            if descriptor is None:
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
    """Reap an ended child; return its exit code (negative: the signal), or None if unknown."""
    stat = _stat(process.pid)
    if stat is None or stat.started != process.started:
        return None  # reaped already, or the number belongs to another child now
    try:
        reaped, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if reaped else None


def spawn(command: Sequence[str], *, log: Path | None = None) -> int:
    """Start a program in a new session, so that a terminal's Ctrl-C does not reach it.

    Its output is appended to `log` (or dropped), its input is empty. Returns the process number.
    Python's subprocess is not used, because it expects to wait for its children; this one may
    outlive the program.
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
    """Run a program to its end and return its exit code and output (both streams).

    Raises `subprocess.TimeoutExpired` after `timeout_s`, and OSError if it cannot be started. After
    an error neither it nor any process that it started in its session runs.
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
    """The guard of one run: kills all processes with the token once this process has ended."""

    def __init__(self, token: str, *, remove: Path | None = None) -> None:
        """Start the guard; it also removes the directory `remove`."""
        command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), token]
        if remove is not None:
            command.append(os.fspath(remove))
        self._pid = spawn(command)

    def dismiss(self) -> None:
        """End the guard but not the processes it guards; a second call does nothing."""
        if self._pid:
            # A child that was not waited for keeps its number.
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0


def guard(owner: int, token: str, remove: str | None) -> None:
    """Wait for the owner's end, then kill all carriers of the token and remove the directory."""
    descriptor = _opened(owner)
    # If the owner has already ended, its number may be reused; but then it is no longer our parent.
    if descriptor is not None and os.getppid() == owner:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
    pause = threading.Event()
    clean = 0
    while clean < _GUARD_SWEEPS_MAX:
        clean = 0 if kill_carriers(token) else clean + 1
        pause.wait(_GUARD_SWEEP_S)
    if remove is not None:
        shutil.rmtree(remove, ignore_errors=True)


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
