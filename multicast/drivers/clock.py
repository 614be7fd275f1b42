"""The time of a driver's clients, how they wait for what others do, and their random numbers.

On a cluster that is reached by sockets, other threads and processes make progress while a client
waits. The test double (`multicast/testing/`) has one thread and a virtual time: there a wait itself
runs the others. A driver with an attribute `clock` says so; all others have the system's clock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from numbers import Real
from typing import Final, Protocol

from multicast.errors import UsageError

WRITER_BYTES = 8  # two are never equal by chance


class ClientClock(Protocol):
    """Time and waiting, for all clients of one driver."""

    @property
    def threads(self) -> bool:
        """Whether clients start threads; if not, the waiting client itself does their work."""

    @property
    def parties(self) -> list[Callable[[], bool]]:
        """What waiting clients do in place of threads; each says whether it did anything."""

    def monotonic(self) -> float:
        """Return the time in seconds; it never goes back."""

    def writer(self) -> bytes:
        """Return 8 bytes that no other writer of order records has."""

    def wait_for(
        self, changed: threading.Condition, ready: Callable[[], bool], timeout_s: float
    ) -> bool:
        """Wait until `ready` gives True, at most `timeout_s` seconds; return its last answer.

        Whoever makes it ready notifies `changed`, which the caller does not hold.
        """


class SystemClock:
    """The time of the machine."""

    threads = True
    parties: Final[list[Callable[[], bool]]] = []  # threads do their work

    def monotonic(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()

    def writer(self) -> bytes:
        """Return random bytes."""
        return os.urandom(WRITER_BYTES)

    def wait_for(
        self, changed: threading.Condition, ready: Callable[[], bool], timeout_s: float
    ) -> bool:
        """Wait until `ready` gives True, at most `timeout_s` seconds; return its last answer."""
        with changed:
            # Above this many seconds, some centuries, Python's own wait raises.
            return changed.wait_for(ready, min(timeout_s, threading.TIMEOUT_MAX))


SYSTEM_CLOCK = SystemClock()


def seconds(timeout: float) -> float:
    """Return a time-out of a call; raises `UsageError` for what is no number of seconds.

    Below 0 nothing is waited for, as callers reckon what is left of a time of their own.
    """
    if not isinstance(timeout, Real):
        raise UsageError(f"timeout is {timeout!r}; give a number of seconds")
    return timeout


def clock_of(driver: object) -> ClientClock:
    """Return the clock of a driver's clients."""
    clock: ClientClock = getattr(driver, "clock", SYSTEM_CLOCK)
    return clock
