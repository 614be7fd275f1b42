"""Runs `amcast materialize` beside collectors (`amcast collectors run --materialize C1=TOPIC`).

Each copier is a process of its own: its work would hold up the collectors. One of the processes
that share the collectors runs them; if it is killed, the next one's copiers fence what it has left.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from multicast.errors import Conflict, UsageError
from topology import extra

with extra("collectors"):
    from mode import Service

_LOOK_EVERY_S = 1.0  # and so the least time between two starts
# After another one has taken over: two processes may both lead for a moment, and each is told by
# Kafka to end. A copier that somebody runs by hand is ended so rarely that it gets on.
_FENCED_S = 30.0
_ENDS_S = 10.0  # a copier aborts its transaction first; the brokers may be away


def _command(text: str) -> list[str]:
    consumer, _, topic = text.rpartition("=")
    return [sys.executable, "-m", "amcast", "materialize", consumer, "--to", topic]


class Copiers(Service):
    """Runs copiers, each of a text like "C1=TOPIC", while `leads` says that it is up to us.

    `command` gives what runs one, with the settings of this process; it says on stderr what ends
    it. Raises `UsageError` for any other text.
    """

    def __init__(
        self,
        texts: Sequence[str],
        leads: Callable[[], bool],
        command: Callable[[str], list[str]] = _command,
    ) -> None:
        super().__init__()
        self._processes: dict[str, subprocess.Popen[bytes] | None] = dict.fromkeys(texts)
        self._fenced_at: dict[str, float] = {}
        self._leads = leads
        self._command = command
        for text in texts:
            if not all(text.rpartition("=")):
                raise UsageError(f"--materialize {text!r}: give a consumer and a topic: C1=TOPIC")

    @Service.task
    async def _run(self) -> None:
        """Start what does not run, and end all once another process leads."""
        while not self.should_stop:
            if not self._leads():
                await self.on_stop()
            for text, process in self._processes.items():
                # Nothing is awaited here: what has begun is known to `on_stop`.
                if self._leads() and not self.should_stop and self._is_due(text, process):
                    self._start(text)
            await self.sleep(_LOOK_EVERY_S)

    def _start(self, text: str) -> None:
        self._fenced_at.pop(text, None)
        self._processes[text] = subprocess.Popen(self._command(text), stdin=subprocess.DEVNULL)

    def _is_due(self, text: str, process: subprocess.Popen[bytes] | None) -> bool:
        """Whether to start a copier: not one that runs, or that has a wrong setting."""
        code = None if process is None else process.poll()
        if code == Conflict.exit_code:
            now = time.monotonic()
            return now >= self._fenced_at.setdefault(text, now) + _FENCED_S
        return process is None or code not in (None, UsageError.exit_code)

    async def on_stop(self) -> None:
        """End all copiers, at once."""
        ending = [process for process in self._processes.values() if process is not None]
        self._processes = dict.fromkeys(self._processes)
        for process in ending:
            process.terminate()
        await asyncio.gather(*(asyncio.to_thread(_end, process) for process in ending))

    def status(self) -> list[dict[str, Any]]:
        """Give each copier's text, process and exit code; no process: it is not up to us."""
        return [
            {"copier": text, "pid": process and process.pid, "ended": process and process.poll()}
            for text, process in self._processes.items()
        ]


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
