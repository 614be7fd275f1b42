"""Runs `amcast materialize` beside collectors (`amcast collectors run --materialize C1=TOPIC`).

Each copier is a process of its own: its work would hold up the collectors. One of the processes
that share the collectors runs them; if it is killed, the next one's copiers fence what it has left.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from multicast.errors import Conflict, UsageError
from topology import extra

with extra("collectors"):
    from mode import Service

_LOOK_EVERY_S = 1.0  # and so the least time between two starts
_ENDS_S = 10.0  # a copier aborts its transaction first; the brokers may be away
# A wrong setting, or another copier has taken over: the two would end each other for ever.
_FOR_GOOD = (UsageError.exit_code, Conflict.exit_code)


class Copiers(Service):
    """Runs copiers, each of a text like "C1=TOPIC", while `leads` says that it is up to us.

    Raises `UsageError` for any other text.
    """

    def __init__(self, texts: Sequence[str], leads: Callable[[], bool]) -> None:
        super().__init__()
        self._processes: dict[str, subprocess.Popen[bytes] | None] = dict.fromkeys(texts)
        self._leads = leads
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
                is_due = process is None or process.poll() not in (None, *_FOR_GOOD)
                if is_due and self._leads():
                    self._processes[text] = await asyncio.to_thread(_start, text)
            await self.sleep(_LOOK_EVERY_S)

    async def on_stop(self) -> None:
        """End all copiers."""
        for text, process in self._processes.items():
            if process is not None:
                process.terminate()
                try:
                    await asyncio.to_thread(process.wait, _ENDS_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                self._processes[text] = None

    def status(self) -> list[dict[str, Any]]:
        """Give each copier's text, process and exit code; no process: it is not up to us."""
        return [
            {"copier": text, "pid": process and process.pid, "ended": process and process.poll()}
            for text, process in self._processes.items()
        ]


def _start(text: str) -> subprocess.Popen[bytes]:
    """Start a copier with the settings of this process; it says on stderr what ends it."""
    consumer, _, topic = text.rpartition("=")
    command = [sys.executable, "-m", "amcast", "materialize", consumer, "--to", topic]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)
