"""The supervision of one collector in a process: its instance runs, and runs again after a failure.

It restarts the instance until the collector's stream is frozen, and says when an instance that left
the process's share may end (`app.py` decides the share).
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any

from collectors.core.entry_counts import EntryCounts
from collectors.engine.engine import Engine
from collectors.engine.instance import CollectorInstance
from collectors.last_error import LastError
from multicast.errors import AmcastError, ProtocolViolation, TopicChanged
from topology import extra

with extra("collectors"):
    from mode import Service

_log = logging.getLogger("amcast.collectors")
# Pauses before an instance is restarted, after its first, second, ... failure: a passing failure
# costs little time, and a lasting one does not fill the process's log.
_RETRY_S = (0.1, 0.5, 2.0, 5.0)
# How long a sentence is not logged again. If no broker answers, each collector of the process fails
# every ten seconds with the same one: a hundred collectors would write 40,000 lines an hour.
_AGAIN_S = 60.0
_SENTENCES_MAX = 1_000  # kept for that; a few for each of some hundred collectors
# An acting instance that is no longer our share runs on until another one acts, or for this time:
# longer than its successor needs to start.
_LINGER_S = 10.0
_STEADY_S = 10.0  # an instance that ran for so long is restarted with the shortest delay


class ErrorLog:
    """Logs the errors of a process and its collectors, each sentence at most once a minute."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[float, int]] = {}  # when logged, and how often held back since

    def write(self, level: int, error: AmcastError, now: float, *, about: str = "") -> None:
        """Log the error, unless one with the same sentence was logged less than 60 s ago.

        `now` is in seconds; `about` begins the line. A line says how many were held back before it.
        """
        sentence = str(error)
        logged, held_back = self._lines.pop(sentence, (now - _AGAIN_S, 0))
        if now - logged < _AGAIN_S:
            self._lines[sentence] = (logged, held_back + 1)
            return
        more = f" ({held_back} times more since this was logged last)" if held_back else ""
        _log.log(level, "%s%s%s", about, sentence, more)
        self._lines[sentence] = (now, 0)
        if len(self._lines) > _SENTENCES_MAX:
            del self._lines[next(iter(self._lines))]


class Supervisor(Service):
    """Runs one collector until its stream is frozen; restarts its instance after a failure."""

    def __init__(
        self, engine: Engine, epoch: int, name: str, *, primary: bool, errors: ErrorLog
    ) -> None:
        super().__init__()
        self.epoch = epoch
        self.collector = name
        self.primary = primary
        self.unwanted_since: float | None = None
        self.over = False
        self.released = asyncio.Event()  # after `release`: its instance has ended
        self.instance: CollectorInstance | None = None
        self.restarts = 0
        self.entries = EntryCounts()  # of all its instances
        self.error = LastError()
        self.topic_changed = False  # since somebody has set this to False
        self._checkpoints = True
        self._leaving = False
        self._engine = engine
        self._errors = errors

    @Service.task
    async def _supervise(self) -> None:
        try:
            await self._run_again_and_again()
        finally:
            self.released.set()

    async def _run_again_and_again(self) -> None:
        failures = 0
        while not self._is_ending:
            try:
                began = time.monotonic()
                await self._run_once()
                if self.over:
                    return  # its stream is frozen
            except AmcastError as error:
                if self.instance is not None and self.instance.is_open:
                    self.error.hear(None, time.monotonic())
                self.error.hear(error, time.monotonic())
                self._checkpoints = not isinstance(error, ProtocolViolation)
                self.topic_changed |= isinstance(error, TopicChanged)
                about = f"collector {self.collector}: "
                self._errors.write(logging.ERROR, error, time.monotonic(), about=about)
            except Exception as error:  # noqa: BLE001
                # A defect in one collector must not end the others in this process.
                says = "it failed with an unexpected error; read what the process logged"
                self.error.hear(says, time.monotonic())
                _log.error("collector %s failed", self.collector, exc_info=error)
            self.instance = None
            if self._is_ending:
                return
            if self.error.sentence is not None:
                self.restarts += 1
            if time.monotonic() - began > _STEADY_S:
                failures = 0
            await self.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
            failures += 1

    async def _run_once(self) -> None:
        """Run one instance until its epoch is over or we are stopped; raise its error."""
        instance = CollectorInstance(
            self._engine,
            self.collector,
            epoch=self.epoch,
            checkpoints=self._checkpoints,
            standby=not self.primary,
            entries=self.entries,
        )
        ended, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed, so nobody waits
                loop.call_soon_threadsafe(ended.set)

        instance.on_end = wake
        self.instance = instance
        self._engine.add(instance)
        if self._is_ending:
            instance.stop()
        _log.info("collector %s runs in epoch %d", self.collector, instance.plan.epoch)
        await ended.wait()
        if instance.error is not None:
            raise instance.error
        self.over = instance.begun and instance.core.frozen

    def set_role(self, *, primary: bool) -> None:
        """Make the instance the primary or a standby."""
        self.primary = primary
        if self.instance is not None:
            self.instance.play(primary=primary)

    def dispensable(self, now: float) -> bool:
        """Whether to end an instance that is no longer our share.

        It is over, or it does not act, or its successor has had `_LINGER_S` seconds to start.
        """
        self.set_role(primary=False)
        if self.unwanted_since is None:
            self.unwanted_since = now
        acting = self.instance is not None and self.instance.role.acting
        return self.over or not acting or now - self.unwanted_since > _LINGER_S

    def release(self) -> None:
        """Hand the collector over to a standby; `released` is set once that has taken over.

        Sets it at once where there is nothing to hand over, and never where there is no standby.
        """
        self._leaving = True
        if self.instance is not None:
            self.instance.release()
        else:
            self.released.set()

    @property
    def _is_ending(self) -> bool:
        return bool(self.should_stop) or self._leaving

    async def on_stop(self) -> None:
        """End the instance; its appends in flight may be accepted or not."""
        if self.instance is not None:
            self.instance.stop()

    def status(self) -> dict[str, Any]:
        """Describe the collector for `/status`."""
        instance = self.instance
        running = instance is not None and instance.is_open and not instance.over
        role = "primary" if self.primary else "standby"
        bare = {"node": self.collector, "epoch": self.epoch, "role": role}
        document: dict[str, Any] = {**bare, "replanning_seconds": None}
        document |= {} if instance is None else instance.status()
        stopped = "failed" if self.error.sentence else "starting"
        document["state"] = "running" if running else stopped
        document["restarts"] = self.restarts
        document["error"] = None if running else self.error.text(time.monotonic())
        return document
