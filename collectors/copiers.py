"""Runs `amcast materialize` beside collectors (`amcast collectors run --materialize C1=TOPIC`).

Each copier is a process of its own: its work would hold up the collectors. Of the processes that
share the collectors, one runs the copiers, and the next one takes over once the group knows that it
has ended. Two at a time do no harm: the later one fences the other (docs/materialize.md).
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from multicast.errors import Conflict, UsageError
from topology import extra

with extra("collectors"):
    from mode import Service

_log = logging.getLogger("amcast.collectors")
_LOOK_EVERY_S = 1.0  # and so a restart's least distance
_ENDS_S = 10.0  # a copier ends its transaction at SIGTERM; the brokers may be away
# A wrong setting, or another copier has taken over: a restart corrects neither, and the two would
# end each other for ever.
_FOR_GOOD = (UsageError.exit_code, Conflict.exit_code)


def copiers_of(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Read the pairs of a consumer and a topic; raises `UsageError`."""
    pairs = tuple(text.rpartition("=")[::2] for text in texts)
    for text, (consumer, topic) in zip(texts, pairs, strict=True):
        if not consumer or not topic:
            raise UsageError(
                f"--materialize {text!r}: give a consumer and a topic, like C1=ordered"
            )
    return pairs


class Copiers(Service):
    """Runs copiers while `leads` says that this process is the one to run them."""

    def __init__(self, texts: Sequence[str], leads: Callable[[], bool]) -> None:
        super().__init__()
        self._processes: dict[tuple[str, str], subprocess.Popen[bytes] | None]
        self._processes = dict.fromkeys(copiers_of(texts))
        self._leads = leads

    @Service.task
    async def _run(self) -> None:
        """Start what does not run, and end all once another process leads."""
        while not self.should_stop:
            if self._leads():
                for pair, process in self._processes.items():
                    ended = None if process is None else process.poll()
                    if process is None or (ended is not None and ended not in _FOR_GOOD):
                        self._processes[pair] = await asyncio.to_thread(_start, *pair)
            else:
                await self._end()
            await self.sleep(_LOOK_EVERY_S)

    async def on_stop(self) -> None:
        """End all copiers."""
        await self._end()

    async def _end(self) -> None:
        for pair, process in self._processes.items():
            if process is not None:
                process.terminate()
                try:
                    await asyncio.to_thread(process.wait, _ENDS_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                self._processes[pair] = None

    def status(self) -> list[dict[str, Any]]:
        """Give each copier's consumer, topic, process and state."""
        return [
            {
                "consumer": consumer,
                "topic": topic,
                "pid": None if process is None else process.pid,
                "state": _state(process),
            }
            for (consumer, topic), process in self._processes.items()
        ]


def _state(process: subprocess.Popen[bytes] | None) -> str:
    """Say whether a copier runs, has ended for good, or is another process's to run."""
    if process is None:
        return "elsewhere"
    return f"ended with {process.returncode}" if process.returncode in _FOR_GOOD else "running"


def _start(consumer: str, topic: str) -> subprocess.Popen[bytes]:
    """Start a copier with the settings of this process; it says on stderr what ends it."""
    _log.info("copies what %s delivers to %s", consumer, topic)
    command = [sys.executable, "-m", "amcast", "materialize", consumer, "--to", topic]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)
