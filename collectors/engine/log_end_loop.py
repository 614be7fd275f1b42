"""One thread and one watcher for all logs whose growth the collectors of a process follow.

In go the logs that each collector follows; out come their ends, to each collector those of its own.

    known       the end of a log that was reported last

How long the watcher waits at least between two questions depends on what the ends say: where much
comes, a look finds many messages, and all together they wait hardly longer; where all was ordered
early, nobody waits for the look. Nor for that of a standby.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from collectors.engine.loops import Loop, partition_of
from multicast.drivers.protocol import Driver, TopicPartition, Watcher

_POLL_S = 0.5
_MANY = 4
_BUSY_S = 0.001
_ANNOUNCED_S = 0.02
_STANDBY_S = 0.05
_EACH_LOG_S = 2e-6  # about what an answer costs for each log that was asked for
_OTHERS_S = 0.004  # where nothing waits, but something may in others' logs


class EndSink(Protocol):
    """Who follows logs; called by the loop's thread, and must return soon."""

    def ends_came(self, ends: Mapping[TopicPartition, int]) -> int | None:
        """Take ends that moved; say how many offsets below them were not ordered yet.

        None: that does not matter, because another instance orders them.
        """

    def transaction_opened(self) -> None:
        """Hear that one of its logs has grown by messages of an open transaction."""

    def fail(self, error: Exception) -> None:
        """Hear that one of its logs cannot be watched; it is followed no longer."""


class LogEndLoop:
    """Watches for all; `failed` hears of an error that is not of one log's alone."""

    def __init__(
        self, driver: Driver, sentinel_topic: str | None, *, failed: Callable[[Exception], None]
    ) -> None:
        self._driver = driver
        self._sentinel_topic = sentinel_topic
        self._failed_all = failed
        self._lock = threading.Lock()  # of the three below
        self._sinks: dict[TopicPartition, dict[EndSink, None]] = {}
        self._known: dict[TopicPartition, int] = {}
        self._changed: dict[TopicPartition, None] = {}
        self._highs: Mapping[TopicPartition, int] = {}  # replaced, never changed
        self._watcher: Watcher | None = None  # and all below: the loop's thread only
        self._watched: set[TopicPartition] = set()
        self._acting: set[EndSink] = set()  # as far as they said so
        self.loop = Loop("log-ends", self._turn, wake=self._wake, failed=self._failed)

    def follow(self, sink: EndSink, logs: Sequence[TopicPartition]) -> None:
        """Report the ends of these to a sink from now on."""
        with self._lock:
            for at in logs:
                self._sinks.setdefault(at, {})[sink] = None
                self._changed[at] = None
        self._wake()

    def known(self, logs: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Give the ends of these as far as they were reported."""
        with self._lock:
            return {at: self._known[at] for at in logs if at in self._known}

    def highs(self, logs: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Give the high watermarks of those of these logs that have open transactions."""
        highs = self._highs
        return {at: highs[at] for at in logs if at in highs} if highs else {}

    def leave(self, sink: EndSink, logs: Sequence[TopicPartition]) -> None:
        """Report nothing of these to a sink any longer."""
        with self._lock:
            for at in logs:
                if sink in self._sinks.get(at, {}):
                    del self._sinks[at][sink]
                    self._changed[at] = None
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
        """Have the watcher follow what somebody follows."""
        if not self._changed:
            return
        with self._lock:
            changed, self._changed = list(self._changed), {}
            new = [at for at in changed if self._sinks.get(at) and at not in self._watched]
            gone = [at for at in changed if not self._sinks.get(at)]
            for at in gone:
                self._sinks.pop(at, None)
                self._known.pop(at, None)
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
        """Report ends to all whom they concern; give the watcher's next spacing."""
        found: dict[EndSink, dict[TopicPartition, int]] = {}
        with self._lock:
            for at, end in ends.items():
                if at in self._sinks:
                    self._known[at] = end
                for sink in self._sinks.get(at, {}):
                    found.setdefault(sink, {})[at] = end
        unordered = {sink: sink.ends_came(moved) for sink, moved in found.items()}
        return max(self._spacing_s(unordered), _EACH_LOG_S * len(self._watched))

    def _report_opened(self, highs: Mapping[TopicPartition, int]) -> None:
        """Tell whom it concerns of logs in which a transaction is open since this look."""
        opened = highs.keys() - self._highs.keys()
        self._highs = highs
        if not opened:
            return
        with self._lock:
            sinks = {sink: None for at in sorted(opened) for sink in self._sinks.get(at, {})}
        for sink in sinks:
            sink.transaction_opened()

    def _spacing_s(self, unordered: Mapping[EndSink, int | None]) -> float:
        for sink, count in unordered.items():
            (self._acting.discard if count is None else self._acting.add)(sink)
        total = sum([count for count in unordered.values() if count is not None])
        if total:
            return _BUSY_S if total >= _MANY else 0.0
        if self._acting - unordered.keys():
            return _OTHERS_S
        return _STANDBY_S if self._acting.isdisjoint(unordered) else _ANNOUNCED_S

    def _failed(self, error: Exception) -> None:
        """Fail those whose log cannot be watched; all, where it is not known which that is."""
        at = partition_of(error)
        sinks = None
        with self._lock:
            if at is not None and at in self._sinks:
                sinks = self._sinks.pop(at)
                self._changed[at] = None
        if sinks is not None:
            for sink in list(sinks):
                sink.fail(error)
            return
        watcher, self._watcher = self._watcher, None
        self._watched.clear()
        if watcher is not None:
            watcher.close()
        self._failed_all(error)
