"""Counts a producer's appends by log, for metrics (`multicast/metrics/`) and for its own order.

The producer calls `sent` right after it has started an append, and `settled` when the outcome is
known. How long an append takes is measured for one message of a log at a time: the next one is
timed once the last one has its outcome. So the measurement costs nothing for most messages of a
busy log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from multicast.drivers.protocol import Appended, AppendOutcome
from multicast.metrics.counts import AppendCounts
from multicast.metrics.families import LatencyCounts


class LogAppends:
    """Counts one producer's appends to one log. Safe from any thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._sent = 0
        self._settled = 0
        self._refused = 0  # of those settled
        self._unknown = 0
        self._full = 0
        self._latencies = LatencyCounts()
        # The append that is timed: with this many outcomes it has its own. 0: none is timed.
        self._timed = 0
        self._timed_at = 0.0
        self.stored = -1  # the last offset that is known
        self.in_doubt = False  # the log may get one of the messages late

    def sent(self, count: int) -> None:
        """Add appends that were started."""
        with self._lock:
            self._sent += count
            if count and not self._timed and self._settled < self._sent:
                self._timed, self._timed_at = self._sent, self._monotonic()

    def settled(self, outcome: AppendOutcome, count: int = 1) -> None:
        """Add appends whose outcome is known, in their order; those stored follow each other."""
        with self._lock:
            self._settled += count
            if isinstance(outcome, Appended):
                self.stored, self.in_doubt = outcome.offset + count - 1, False
            elif outcome.error.definite:
                self._refused += count
            else:
                self._unknown, self.in_doubt = self._unknown + count, True
            if self._timed and self._settled >= self._timed:
                if isinstance(outcome, Appended):
                    self._latencies.observe(self._monotonic() - self._timed_at)
                self._timed = 0

    @property
    def pending(self) -> int:
        """How many appends have no outcome yet, once their number is added."""
        return self._sent - self._settled

    def had_no_room(self) -> None:
        """Count an attempt to append that found the buffer full."""
        with self._lock:
            self._full += 1

    def counts(self) -> AppendCounts:
        """Give all counts of one moment."""
        with self._lock:
            return AppendCounts(
                sent=self._sent,
                settled=self._settled,
                refused=self._refused,
                unknown=self._unknown,
                full=self._full,
                seconds=self._latencies.copy(),
            )


class AppendCounters:
    """One producer's `LogAppends`. Safe from any thread; `monotonic` gives the time."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._logs: dict[str, LogAppends] = {}
        self._lock = threading.Lock()

    def log(self, name: str) -> LogAppends:
        """Give the counter of a log."""
        with self._lock:
            if name not in self._logs:
                self._logs[name] = LogAppends(self._monotonic)
            return self._logs[name]

    def counts(self) -> dict[str, AppendCounts]:
        """Give the counts of each log that the producer has appended to, or tried to."""
        with self._lock:
            logs = list(self._logs.items())
        counts = {name: log.counts() for name, log in logs}
        return {name: count for name, count in counts.items() if count.sent or count.full}
