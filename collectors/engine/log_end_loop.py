"""One thread and one watcher for the ends of all logs that the collectors of a process follow.

Each collector gets the ends of its own logs.

    end         the last stable offset of a log
    high        its high watermark, kept only while it lies above the end: a transaction is open
    unordered   of a report: how many offsets below the new ends the collector has not ordered yet
    spacing     the least time between two questions to one broker (`Watcher.spacing_s`)

The answers set the spacing. Where many offsets were unordered, the next question waits a little and
finds many again; where tickets had them all ordered before, it waits long, because it finds nothing
to do; neither does a standby. While the plan changes it is short: consumers wait until the markers
are ordered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from collectors.engine.loops import Loop, partition_of
from multicast.drivers.protocol import Driver, TopicPartition, Watcher

_POLL_S = 0.5  # `wake` ends a poll, so this bounds no delay; ten times as long changes nothing
# The spacings below trade CPU against latency: a question costs 0.07 to 0.25 ms of CPU (at
# 8917e48), and an offset without a ticket waits for the next question.
_LOADED_OFFSETS_MIN = 4  # from so many unordered offsets on, a question waits for more of them
_LOADED_SPACING_S = 0.001  # under load; ten times as long would be seen in every message's latency
# All was ordered before, so only an offset without a ticket waits, beside its patience of 60 ms. A
# tenth costs the brokers more than the messages do; ten times more, such producers would see.
_TICKETED_SPACING_S = 0.05
_STANDBY_SPACING_S = 0.05  # a quarter of a standby's patience (`PATIENCE_S`), as in `clock.py`
_QUIET_SPACING_S = 0.004  # none of these logs waits, but logs that did not move yet may
_LOG_SPACING_S = 2e-6  # for each log: about what its part of an answer costs to read


class EndSink(Protocol):
    """Follows logs; called by the loop's thread, and must return soon."""

    def on_ends(self, ends: Mapping[TopicPartition, int]) -> int | None:
        """Take ends that have moved; count the offsets below them that were unordered.

        None where another instance orders them, so that they do not matter here.
        """

    def on_transaction_opened(self) -> None:
        """Take the news that one of its logs has grown by messages of an open transaction."""

    def fail(self, error: Exception) -> None:
        """Take the error of a log that cannot be watched; the loop follows it no longer."""


class LogEndLoop:
    """Watches for all; `failed` gets an error that does not concern one log alone."""

    def __init__(
        self, driver: Driver, sentinel_topic: str | None, *, failed: Callable[[Exception], None]
    ) -> None:
        self._driver = driver
        self._sentinel_topic = sentinel_topic
        self._failed_all = failed
        self._lock = threading.Lock()  # of the three below
        self._sinks: dict[TopicPartition, dict[EndSink, None]] = {}
        self._known: dict[TopicPartition, int] = {}  # the ends reported last
        self._changed: dict[TopicPartition, None] = {}  # logs that the watcher may have to learn of
        self.hurries = False  # whether the plan changes; set by any thread
        self._highs: Mapping[TopicPartition, int] = {}  # replaced, never changed
        self._watcher: Watcher | None = None  # and all below: the loop's thread only
        self._watched: set[TopicPartition] = set()
        self._acting: set[EndSink] = set()  # as of their last reports
        self.loop = Loop("log-ends", self._turn, wake=self._wake, failed=self._failed)

    def follow(self, sink: EndSink, logs: Sequence[TopicPartition]) -> None:
        """Report the ends of these logs to a sink from now on."""
        with self._lock:
            for log in logs:
                self._sinks.setdefault(log, {})[sink] = None
                self._changed[log] = None
        self._wake()

    def known(self, logs: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Give the ends of these logs that were reported last; those without a report are left out.

        Safe from any thread.
        """
        with self._lock:
            return {log: self._known[log] for log in logs if log in self._known}

    def highs(self, logs: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Give the high watermarks of those of these logs in which a transaction is open.

        Safe from any thread.
        """
        highs = self._highs
        return {log: highs[log] for log in logs if log in highs} if highs else {}

    def leave(self, sink: EndSink, logs: Sequence[TopicPartition]) -> None:
        """Report nothing of these logs to a sink any more."""
        with self._lock:
            for log in logs:
                if sink in self._sinks.get(log, {}):
                    del self._sinks[log][sink]
                    self._changed[log] = None
        self._wake()

    def close(self) -> None:
        """Release the watcher; the loop has ended."""
        if self._watcher is not None:
            self._watcher.close()

    # -- the loop's thread --------------------------------------------------------------------

    def _wake(self) -> None:
        watcher = self._watcher
        if watcher is not None:
            watcher.wake()

    def _turn(self) -> None:
        if self._watcher is None:
            self._watcher = self._driver.watcher({}, sentinel_topic=self._sentinel_topic)
            with self._lock:
                self._changed.update(dict.fromkeys(self._sinks))
        self._arrange(self._watcher)
        ends = self._watcher.poll(_POLL_S)
        if ends:
            self._watcher.spacing_s = self._dispatch(ends)
        self._report_opened(self._watcher.highs())

    def _arrange(self, watcher: Watcher) -> None:
        """Have the watcher follow exactly the logs that have a sink."""
        if not self._changed:
            return
        with self._lock:
            changed, self._changed = list(self._changed), {}
            new = [log for log in changed if self._sinks.get(log) and log not in self._watched]
            gone = [log for log in changed if not self._sinks.get(log)]
            for log in gone:
                self._sinks.pop(log, None)
                self._known.pop(log, None)
            self._acting &= {sink for sinks in self._sinks.values() for sink in sinks}
        try:
            if gone:
                watcher.remove(gone)
                self._watched.difference_update(gone)
            if new:
                watcher.add(new)
                self._watched.update(new)
        except Exception:
            with self._lock:
                self._changed.update(dict.fromkeys(changed))
            raise

    def _dispatch(self, ends: Mapping[TopicPartition, int]) -> float:
        """Report ends to the sinks of their logs; give the watcher's next spacing."""
        reports: dict[EndSink, dict[TopicPartition, int]] = {}
        with self._lock:
            for log, end in ends.items():
                if log in self._sinks:
                    self._known[log] = end
                for sink in self._sinks.get(log, {}):
                    reports.setdefault(sink, {})[log] = end
        unordered = {sink: sink.on_ends(moved) for sink, moved in reports.items()}
        return max(self._spacing_s(unordered), _LOG_SPACING_S * len(self._watched))

    def _report_opened(self, highs: Mapping[TopicPartition, int]) -> None:
        """Tell the sinks of logs in which a transaction has been opened since the last turn."""
        opened = highs.keys() - self._highs.keys()
        self._highs = highs
        if not opened:
            return
        with self._lock:
            sinks = {sink: None for log in sorted(opened) for sink in self._sinks.get(log, {})}
        for sink in sinks:
            sink.on_transaction_opened()

    def _spacing_s(self, unordered: Mapping[EndSink, int | None]) -> float:
        for sink, count in unordered.items():
            (self._acting.discard if count is None else self._acting.add)(sink)
        total = sum([count for count in unordered.values() if count is not None])
        if total:
            return _LOADED_SPACING_S if total >= _LOADED_OFFSETS_MIN else 0.0
        if self.hurries or self._acting - unordered.keys():
            return _QUIET_SPACING_S
        if self._acting.isdisjoint(unordered):
            return _STANDBY_SPACING_S
        return _TICKETED_SPACING_S

    def _failed(self, error: Exception) -> None:
        """Fail the sinks of the log that an error concerns; all, where it names none."""
        log = partition_of(error)
        sinks = None
        with self._lock:
            if log is not None and log in self._sinks:
                sinks = self._sinks.pop(log)
                self._changed[log] = None
        if sinks is not None:
            for sink in list(sinks):
                sink.fail(error)
            return
        watcher, self._watcher = self._watcher, None
        self._watched.clear()
        if watcher is not None:
            watcher.close()
        self._failed_all(error)
