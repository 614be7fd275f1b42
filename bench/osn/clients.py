"""The harness's side of the clients: what they have noted, and a client that is killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from bench.harness.client import FollowedNotes, Role
from bench.harness.hosts import ClientProcess
from bench.osn.client import ReadBlocks, Submit, submit

_READY_S = 120.0  # a client may make and sign all its transactions first


class Journal:
    """What the clients of one arm have noted, read again and again while they write."""

    def __init__(self, file: Path) -> None:
        self.begun = 0
        """How many transfers have begun; transfers begin in the order of their numbers."""
        self.acknowledged: dict[int, str] = {}
        """The bundle ID, or "", by the transfer's number."""
        self.ended = False
        self._notes = FollowedNotes(file)

    def look(self) -> None:
        """Read the new lines."""
        for line in self._notes.new():
            if "begun" in line:
                self.begun = line["begun"] + 1
            elif "call" in line:
                self.acknowledged[line["call"]] = line["id"]
            else:
                self.ended = True


class ClientRun:
    """The clients of one arm, one after the other; a context manager that ends the last one.

    A client that was killed knows nothing of its past: the next one goes on with the transfers that
    have not begun. So what it had begun stays as it was.
    """

    def __init__(self, task: Submit, folder: Path) -> None:
        self._task = task
        self._folder = folder
        self.journal = Journal(Path(task.notes))
        self._process: ClientProcess

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.__exit__()

    def start(self) -> None:
        """Start a client for the transfers that have not begun."""
        self.journal.look()
        task = replace(self._task, first=self.journal.begun)
        name = f"client-{self._task.what}"
        self._process = ClientProcess(name, submit, task, self._folder).__enter__()
        self._process.tell()

    def kill(self) -> None:
        """Kill the client."""
        self._process.kill()

    def check(self) -> None:
        """Raise `AmcastError` where the client has failed."""
        self._process.check()


@contextmanager
def ready(
    role: Role, task: Submit | ReadBlocks, folder: Path, number: int = 0
) -> Iterator[ClientProcess]:
    """Start a client; returns once it is ready. It begins when it is told."""
    with ClientProcess(f"{role.__name__}-{number}", role, task, folder) as client:
        client.answer(_READY_S)
        yield client
