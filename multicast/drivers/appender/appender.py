"""An appender of records of several Kafka partitions: what does not depend on how they travel.

What blocks: `prepare`, `flush` and `close`, all with a time limit. An append blocks only for the
lock, which nobody holds while waiting; a record is copied two or three times (a single one of 64 kB
or more once). With a linger, requests are encoded and compressed without the lock.

`partition_appends.py` says what is sent again, and when an outcome is unknown.

Invariant: each record has exactly one outcome. `done` is called in the order of the appends to a
partition; only for a record above the limit at once.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Generic

from multicast.drivers.appender.dispatcher import Dispatcher
from multicast.drivers.appender.entries import Done, QueuedEntry, queued, queued_run
from multicast.drivers.appender.link import L
from multicast.drivers.appender.partition_appends import EntryOutcome
from multicast.drivers.appender.record_batch import BATCH_BYTES
from multicast.drivers.client_settings import MESSAGE_BYTES_MAX, UNKNOWN_TOPIC_S
from multicast.drivers.home_process import HomeProcess
from multicast.drivers.protocol import (
    CLOSE_TIMEOUT_S,
    AppendFailed,
    DoneAll,
    Headers,
    Settled,
    TopicPartition,
)
from multicast.errors import AppendRefused, BufferFull, ClusterUnreachable, UsageError

_LOG = logging.getLogger("amcast.appender")
# With what goes beside it, it stays below socket.request.max.bytes, above which a broker closes the
# connection. Its default is this driver's limit of a message.
_RECORD_BYTES_MAX = MESSAGE_BYTES_MAX - 1024 * 1024
# For what goes beside the last records when an appender closes: brokers answer in milliseconds, and
# who needs a ticket that is lost waits less than this.
_BESIDE_S = 0.5


class JointAppender(ABC, Generic[L]):
    """An idempotent producer (acks=all), for any thread; `name` is that of its cluster.

    `settled` and the dispatcher's `beside` are what `Driver.appender` describes. What goes beside
    causes no further call, takes no room in the buffer, and holds up neither `flush` nor `close`. A
    record is counted once, also if it is sent again. Who holds `lock` notifies `changed` once
    nothing is unsettled, or `ready` may have changed.
    """

    def __init__(
        self,
        dispatcher: Dispatcher[L],
        name: str,
        *,
        lock: AbstractContextManager[bool],
        changed: threading.Condition,
        in_flight_max: int,
        in_flight_bytes_max: int,
        settled: Settled | None = None,
    ) -> None:
        self._home = HomeProcess("producer")
        self._dispatcher = dispatcher
        self._name = name
        self._lock = lock
        self._changed = changed
        self._in_flight_max = in_flight_max
        self._in_flight_bytes_max = in_flight_bytes_max
        self._settled = settled
        self._closed = False
        self._ended = False

    @abstractmethod
    def _now(self) -> float:
        """Return the time in seconds of a monotonic clock."""

    @abstractmethod
    def _go_on(self) -> None:
        """Send what may be sent; the caller holds the lock."""

    @abstractmethod
    def _wait_for(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `ready`, called with the lock, gives True; return its last answer."""

    @abstractmethod
    def _end(self) -> None:
        """Settle what is left."""

    def append(
        self,
        partition: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        done: Done,
    ) -> None:
        """Start an append and return without waiting for its outcome.

        Raises, and starts nothing: `BufferFull` if there is no room, `UsageError` if the appender
        is closed or the key or value is no bytes.
        """
        self._start_one(partition, queued(value, key, headers, done))

    def append_all(
        self,
        partition: TopicPartition,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        done: DoneAll,
    ) -> int:
        """Start appends of these values, without an object for each.

        Values of one size without key and headers cost least. Raises `UsageError` as `append` does
        if nothing was started.
        """
        batch_bytes_max = self._dispatcher.limits.batch_bytes_max
        started = 0
        rest = [queued_run(values, keys, headers, done)] if values else []
        while rest:
            run = rest.pop()
            try:
                if run.count == 1 or run.size <= batch_bytes_max - BATCH_BYTES:
                    self._start_one(partition, run)
                    started += run.count
                    continue
            except UsageError:
                if not started:
                    raise
                break
            except BufferFull:
                if run.count == 1:
                    break
            rest += reversed(run.divided())
        return started

    def ready(self, partition: TopicPartition) -> bool:
        """Return whether an append to this Kafka partition would be sent now without any wait."""
        with self._lock:
            return self._dispatcher.is_ready(self._dispatcher.appends(partition))

    def prepare(self, partition: TopicPartition) -> None:
        """Wait until `ready`, for some seconds at most; raises why an append would fail."""
        self._home.check()
        dispatcher = self._dispatcher
        with self._lock:
            appends = dispatcher.appends(partition)
            dispatcher.refusals.pop(partition, None)
            dispatcher.mark(appends)
            self._go_on()
        self._wait_for(
            lambda: dispatcher.is_ready(appends) or partition in dispatcher.refusals or self._ended,
            min(2 * UNKNOWN_TOPIC_S, dispatcher.limits.timeout_s),
        )
        with self._lock:
            if partition in dispatcher.refusals:
                raise dispatcher.refusals[partition]
            if not dispatcher.is_ready(appends):
                why = f" ({dispatcher.trouble})" if dispatcher.trouble else ""
                raise ClusterUnreachable(
                    f"No leader of {appends.name} at {self._name} can be reached{why}."
                )

    def flush(self, timeout_s: float) -> bool:
        """Wait until every append so far has its outcome; return False if time ran out.

        From within `done` it does not wait.
        """
        self._home.check()
        with self._lock:
            self._dispatcher.flushes += 1
            self._go_on()
        try:
            return self._wait_for(lambda: not self._dispatcher.unsettled, timeout_s)
        finally:
            with self._lock:
                self._dispatcher.flushes -= 1

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush for at most `timeout_s`, then settle the remaining appends.

        Those that were sent have an unknown outcome then; the others are certainly not stored. What
        goes beside has at most half a second more.
        """
        if self._home.is_left:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.flush(timeout_s)
        self._wait_for(self._dispatcher.has_no_beside, min(timeout_s, _BESIDE_S))
        self._end()

    def _start_one(self, partition: TopicPartition, entry: QueuedEntry) -> None:
        """Start an entry that goes in a request of its own if it is too large for others."""
        if entry.size <= _RECORD_BYTES_MAX:
            self._home.check()
            with self._lock:
                self._check_room(entry.count, entry.size)
                self._dispatcher.add(partition, entry, self._now())
            return
        with self._lock:
            self._check_room(entry.count, 0)
        entry.done(
            AppendFailed(
                AppendRefused(
                    f"A record of {entry.size} bytes for {partition.topic}/{partition.partition} "
                    f"was not sent: the most is {_RECORD_BYTES_MAX} bytes."
                ),
                sent=False,
            )
        )

    def _check_room(self, count: int, size: int) -> None:
        if self._closed:
            raise UsageError("This appender is closed; open another one.")
        unsettled, taken = self._dispatcher.unsettled, self._dispatcher.unsettled_bytes
        full = unsettled and taken + size > self._in_flight_bytes_max
        if full or unsettled + count > self._in_flight_max:
            raise BufferFull(
                f"{unsettled} appends ({taken} bytes) to {self._name} are in flight; wait for "
                f"some outcomes, then append again."
            )

    def _taken_outcomes(self) -> list[EntryOutcome]:
        outcomes, self._dispatcher.outcomes = self._dispatcher.outcomes, []
        return outcomes

    def _report(self, outcomes: Sequence[EntryOutcome]) -> None:
        """Call each `done`, without the lock."""
        if not outcomes:
            return
        for entry, outcome in outcomes:
            try:
                if self._settled is not None and not entry.beside:
                    self._settled(entry.partition, entry.count, outcome)
                entry.done(outcome)
            except Exception:  # noqa: BLE001
                # The others must know their outcomes, too.
                _LOG.exception("the callback for an append's outcome failed")
        with self._lock:
            self._dispatcher.reported(outcomes)
            if not self._dispatcher.unsettled:
                self._changed.notify_all()
