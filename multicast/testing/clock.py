"""A virtual time in which a client's wait runs everything else, in one thread.

    party     does the work of a process that runs beside the test; called once a turn, it says
              whether it did anything
    event     something that happens at a later time, such as an append that arrives late
    at rest   no party has anything to do now. Then time goes on to the next event

Nothing here waits for the machine's time, so the same calls give the same run.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from multicast.drivers.clock import WRITER_BYTES
from multicast.errors import TimedOut, UsageError

# A turn in which something happened takes so long, so timestamps of what happens in order differ.
_TURN_US = 1_000
# Waits in a row without any event before a test is taken to wait for ever. `for message in
# consumer` waits once a second. A drain that cannot end waits 1,200 times before it says so.
_IDLE_WAITS_MAX = 5_000
# Turns of one wait: more would be two parties that keep each other busy for ever. A settled system
# of a hundred messages took fewer than 200.
_TURNS_MAX = 1_000_000


class VirtualClock:
    """Time that only waiting moves. One thread: a wait in another one runs while it has the lock.

    `parties` run in their order, in every turn. The time begins at 0.
    """

    threads = False

    def __init__(self) -> None:
        self.parties: list[Callable[[], bool]] = []
        self.now_us = 0
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._count = 0  # of all events so far: those of one moment keep their order
        self._lock = threading.RLock()
        self._in_turn = False
        self._paused = False
        self._idle_waits = 0
        self._writers = 0

    def monotonic(self) -> float:
        """Return the virtual time in seconds."""
        return self.now_us / 1_000_000

    def writer(self) -> bytes:
        """Return the next number: those of two runs are the same."""
        self._writers += 1
        return self._writers.to_bytes(WRITER_BYTES, "big")

    def later(self, seconds: float, what: Callable[[], object]) -> None:
        """Call `what` after so many seconds of virtual time."""
        with self._lock:
            self._count += 1
            due = self.now_us + round(seconds * 1_000_000)
            heapq.heappush(self._events, (due, self._count, what))

    def wait_for(
        self,
        changed: threading.Condition,  # noqa: ARG002 - nobody else could notify it
        ready: Callable[[], bool],
        timeout_s: float,
    ) -> bool:
        """Run the others until `ready` gives True, at most `timeout_s` seconds of virtual time.

        A wait of 0 seconds runs one turn, and takes its time, so that a loop of such waits gets on.
        Raises `TimedOut` if nothing at all happens in many waits one after the other, because the
        caller would wait for ever; `UsageError` inside a turn, where a callback may not wait.
        """
        with self._lock:
            if ready():
                return True
            if self._in_turn:
                raise UsageError(
                    "a callback (such as `done` of a multicast) waits inside the test double; "
                    "it must not block"
                )
            deadline = self.now_us + max(_TURN_US, round(timeout_s * 1_000_000))
            idle = True
            for _ in range(_TURNS_MAX):
                if self._turn():
                    self.now_us += _TURN_US
                    idle = False
                elif self.now_us < deadline:
                    self._go_on(deadline)
                if ready():
                    return True
                if self.now_us >= deadline:
                    self._waited_in_vain(idle=idle)
                    return False
        raise TimedOut(f"the test double did not come to rest in {_TURNS_MAX:,} turns")

    def run_for(self, seconds: float) -> None:
        """Let so much virtual time pass."""
        self.wait_for(threading.Condition(), lambda: False, seconds)

    def settle(self, timeout_s: float) -> None:
        """Run until nothing is left to do, now or later; raises `TimedOut` after `timeout_s`."""
        deadline = self.now_us + round(timeout_s * 1_000_000)
        with self._lock:
            for _ in range(_TURNS_MAX):
                if self._turn():
                    self.now_us += _TURN_US
                elif self._events:
                    self._go_on(max(self._events[0][0], self.now_us))
                else:
                    return
                if self.now_us > deadline:
                    break
        raise TimedOut(f"the test double did not come to rest within {timeout_s:g} s of its time")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let nothing happen inside; the time is set back at the end."""
        with self._lock:
            before, was_paused, self._paused = self.now_us, self._paused, True
            try:
                yield
            finally:
                self.now_us, self._paused = before, was_paused
                self._idle_waits = 0

    def _turn(self) -> bool:
        """Let due events happen, and each party work; return whether anything happened."""
        if self._paused:
            return False
        self._in_turn = True
        try:
            moved = False
            while self._events and self._events[0][0] <= self.now_us:
                heapq.heappop(self._events)[2]()
                moved = True
            for party in list(self.parties):
                moved |= party()
        finally:
            self._in_turn = False
        return moved

    def _go_on(self, deadline: int) -> None:
        """Move time to the next event, or to the deadline if none comes before it."""
        if self._events and not self._paused:
            deadline = min(deadline, self._events[0][0])
        self.now_us = max(self.now_us, deadline)

    def _waited_in_vain(self, *, idle: bool) -> None:
        """Count waits without any event; raise `TimedOut` after too many in a row."""
        self._idle_waits = self._idle_waits + 1 if idle and not self._events else 0
        if self._idle_waits > _IDLE_WAITS_MAX and not self._paused:
            self._idle_waits = 0
            raise TimedOut(
                f"nothing happened in {_IDLE_WAITS_MAX:,} waits one after the other: the test "
                f"waits for ever; read with until_end() or poll(), which end"
            )
