"""The client program of all harnesses: `python -m bench.harness.client ROLE TASK`.

    role     a function, written "module:name": what the process does
    task     a JSON object with the fields of the role's first parameter, a dataclass
    command  a JSON object that the harness sends meanwhile, a line of standard input
    answer   a JSON object, a line of standard output
    notes    lines of JSON in a file, which each role writes BEFORE it does what they say. A kill
             loses no line, because each has reached the operating system

An error ends the process with a sentence on standard error and the error's exit code. SIGTERM and
the end of the harness ask a role to end; SIGUSR1 prints the stack of every thread.
"""

from __future__ import annotations

import errno
import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from multicast.errors import AmcastError, UsageError

_PROGRAM = "bench.harness.client"
_AGAIN_S = 0.2  # between two attempts while the cluster is away: five a second load no broker
_DISK_FULL_S = 120.0  # how long a process waits for room on a full disk
_LOOK_S = 0.02  # between two attempts to write to it
_pause = threading.Event()  # never set; used to sleep
_Opened = TypeVar("_Opened")


class Talk:
    """What a role has of its harness; for the main thread."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._told_to_stop = False
        signal.signal(signal.SIGTERM, self._tell)

    @property
    def stop(self) -> bool:
        """Whether to end: after SIGTERM, or after the end of the harness."""
        return self._told_to_stop or os.getppid() != self._parent

    def commands(self) -> Iterator[dict[str, Any]]:
        """Yield the commands as they come, until standard input ends."""
        for line in sys.stdin:
            yield json.loads(line)

    def answer(self, document: Mapping[str, Any]) -> None:
        """Send an answer."""
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()

    def opened(self, make: Callable[[], _Opened]) -> _Opened | None:
        """Open a client as soon as the cluster answers; None if told to end before."""
        while not self.stop:
            try:
                return make()
            except AmcastError as error:
                if not error.retriable:
                    raise
                _pause.wait(_AGAIN_S)
        return None

    def _tell(self, *_: object) -> None:
        # No lock here: the handler runs in the main thread, which may hold that lock.
        self._told_to_stop = True


Role = Callable[[Any, Talk], None]


def command(role: Role, task: Any, *flags: str) -> list[str]:
    """Return the command line of a role's process; `flags` are those of Python."""
    module = role.__module__
    if module == "__main__":
        module = sys.modules[module].__spec__.name  # type: ignore[union-attr]
    words = (f"{module}:{role.__name__}", json.dumps(asdict(task)))
    return [sys.executable, *flags, "-m", _PROGRAM, *words]


class Notes:
    """An append-only file of JSON lines, which this process creates, or goes on with.

    A write waits for room on a full disk, at most `_DISK_FULL_S`: the process does nothing that it
    has not noted.
    """

    def __init__(self, path: str, *, goes_on: bool = False) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if goes_on else os.O_EXCL)
        try:
            self._file = os.open(path, flags, 0o644)
        except OSError as error:
            raise UsageError(f"cannot create {path}: {error.strerror}") from error
        self._path = path

    def write(self, *lines: Mapping[str, Any]) -> None:
        """Append lines; afterwards they survive this process. Raises `AmcastError`."""
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        left = memoryview(text.encode())
        deadline = time.monotonic() + _DISK_FULL_S
        while left:
            try:
                left = left[os.write(self._file, left) :]
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                if not full or time.monotonic() > deadline:
                    raise AmcastError(f"cannot write {self._path}: {error.strerror}") from error
                _pause.wait(_LOOK_S)


class FollowedNotes:
    """A file of notes that is read while its process writes it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = 0

    def new(self) -> Iterable[dict[str, Any]]:
        """Return the lines that came since the last call; none while there is no file."""
        if not self._file.exists():
            return []
        with self._file.open("rb") as lines:
            lines.seek(self._read)
            text = lines.read()
        whole = text.rfind(b"\n") + 1
        self._read += whole
        return [json.loads(line) for line in text[:whole].splitlines()]


def main(arguments: Sequence[str]) -> int:
    """Run a role; return the exit code."""
    faulthandler.register(signal.SIGUSR1)
    name = (*arguments, "")[0]
    try:
        try:
            module, _, function = name.partition(":")
            role: Role = getattr(importlib.import_module(module), function)
            (_, made), *_ = get_type_hints(role).items()
            task = made(**json.loads(arguments[1]))
        except (ImportError, AttributeError, IndexError, TypeError, ValueError) as error:
            raise UsageError(f"give a role and its task, a JSON object: {error}") from error
        role(task, Talk())
    except AmcastError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
