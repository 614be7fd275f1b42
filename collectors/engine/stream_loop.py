"""One thread and one reader for all streams that the collectors of a process read.

In go subscriptions of Kafka partitions (order streams, and the control topic); out come their
records, to each subscriber those from its own position on. A stream that several collectors read,
as children do their parent's, is fetched once.

    position    of a subscription: the next offset that it is given
    fetched     of a Kafka partition: the next offset that the reader hands out
    paused      a subscription that is given nothing; the others of its partition go on. Where its
                position is behind `fetched` when it goes on, the partition is fetched anew from
                there, and the others pass over what they had

Invariants, of each Kafka partition: after `_arrange`, `fetched` is at or below the position of each
subscription that is not paused; a subscription is given its records one after the other, without a
gap, whenever it came.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from collectors.engine.loops import Loop, partition_of
from multicast.drivers.protocol import Driver, Fetched, Reader, Record, TopicPartition

# A driver's poll cannot always be woken, so what is subscribed may wait for so long.
_POLL_S = 0.05


class Came(NamedTuple):
    """New records of one Kafka partition, and the position after them."""

    partition: TopicPartition
    records: Sequence[Record]
    position: int


class StreamSink(Protocol):
    """Who subscribes; called by the loop's thread, and must return soon."""

    def streams_came(self, batches: Sequence[Came]) -> None:
        """Take what one poll has found."""

    def fail(self, error: Exception) -> None:
        """Hear that one of its streams cannot be read; its subscriptions are gone."""


@dataclass(slots=True, eq=False)
class _Subscription:
    sink: StreamSink
    position: int
    paused: bool


class StreamLoop:
    """Reads for all; `failed` hears of an error that is not of one partition's alone."""

    def __init__(self, driver: Driver, *, failed: Callable[[Exception], None]) -> None:
        self._driver = driver
        self._failed_all = failed
        self._lock = threading.Lock()  # of the subscriptions and of what is to be arranged
        self._subscriptions: dict[TopicPartition, dict[StreamSink, _Subscription]] = {}
        self._changed: dict[TopicPartition, None] = {}
        self._reader: Reader | None = None  # and all below: the loop's thread only
        self._fetched: dict[TopicPartition, int] = {}
        self._stopped_at: set[TopicPartition] = set()  # the reader's own pauses
        self.loop = Loop("streams", self._turn, wake=self._wake, failed=self._failed)

    def subscribe(
        self, sink: StreamSink, starts: Mapping[TopicPartition, int], *, paused: bool = False
    ) -> None:
        """Give a sink what comes in these from an offset on; replaces what it had there."""
        with self._lock:
            for at, offset in starts.items():
                made = _Subscription(sink, offset, paused)
                self._subscriptions.setdefault(at, {})[sink] = made
                self._changed[at] = None
        self._wake()

    def pause(self, sink: StreamSink, partition: TopicPartition, *, paused: bool) -> None:
        """Give a sink nothing of a partition until it is to go on."""
        with self._lock:
            found = self._subscriptions.get(partition, {}).get(sink)
            if found is None or found.paused is paused:
                return
            found.paused = paused
            self._changed[partition] = None
        self._wake()

    def unsubscribe(self, sink: StreamSink, places: Sequence[TopicPartition]) -> None:
        """Give a sink nothing of these any longer; what is on its way may still come."""
        with self._lock:
            for at in places:
                if self._subscriptions.get(at, {}).pop(sink, None) is not None:
                    self._changed[at] = None
        self._wake()

    def close(self) -> None:
        """Release the reader; the loop has ended."""
        if self._reader is not None:
            self._reader.close()

    # -- the loop's thread --------------------------------------------------------------------

    def _wake(self) -> None:
        reader = self._reader
        if reader is not None:
            reader.wake()

    def _turn(self) -> None:
        if self._reader is None:
            self._reader = self._driver.reader({})
            with self._lock:
                self._changed.update(dict.fromkeys(self._subscriptions))
        self._arrange(self._reader)
        fetched = self._reader.poll(_POLL_S)
        if fetched:
            self._dispatch(fetched)

    def _arrange(self, reader: Reader) -> None:
        """Have the reader read what subscribers need now, from where they need it."""
        if not self._changed:
            return
        starts: dict[TopicPartition, int] = {}
        gone: list[TopicPartition] = []
        stop: list[TopicPartition] = []
        go_on: list[TopicPartition] = []
        with self._lock:
            changed, self._changed = list(self._changed), {}
            for at in changed:
                here = list(self._subscriptions.get(at, {}).values())
                reading = [one.position for one in here if not one.paused]
                fetched = self._fetched.get(at)
                if not here:
                    self._subscriptions.pop(at, None)
                    gone.append(at)
                    continue
                wanted = min(reading or [one.position for one in here])
                if fetched is None or (reading and wanted < fetched):
                    starts[at] = wanted
                (go_on if reading else stop).append(at)
        try:
            self._apply(reader, gone=gone, starts=starts, stop=stop, go_on=go_on)
        except Exception:
            with self._lock:
                self._changed.update(dict.fromkeys(changed))
            raise

    def _apply(
        self,
        reader: Reader,
        *,
        gone: Sequence[TopicPartition],
        starts: Mapping[TopicPartition, int],
        stop: Sequence[TopicPartition],
        go_on: Sequence[TopicPartition],
    ) -> None:
        if gone:
            reader.remove(gone)
            for at in gone:
                self._fetched.pop(at, None)
                self._stopped_at.discard(at)
        if starts:
            reader.add(starts)
            self._fetched.update(starts)
            self._stopped_at.difference_update(starts)
        stop = [at for at in stop if at not in self._stopped_at]
        go_on = [at for at in go_on if at in self._stopped_at]
        if stop:
            reader.pause(stop)
            self._stopped_at.update(stop)
        if go_on:
            reader.resume(go_on)
            self._stopped_at.difference_update(go_on)

    def _dispatch(self, fetched: Sequence[Fetched]) -> None:
        found: dict[StreamSink, list[Came]] = {}
        with self._lock:
            for at, records, position in fetched:
                start, self._fetched[at] = self._fetched[at], position
                for one in self._subscriptions.get(at, {}).values():
                    # Who came, or goes on, since `_arrange` may need what stands before this batch:
                    # it is given nothing until the partition is fetched from its position.
                    if one.paused or not start <= one.position < position:
                        continue
                    new = records
                    if records and records[0].offset < one.position:
                        new = [record for record in records if record.offset >= one.position]
                    one.position = position
                    found.setdefault(one.sink, []).append(Came(at, new, position))
        for sink, came in found.items():
            sink.streams_came(came)

    def _failed(self, error: Exception) -> None:
        """Fail those whose partition cannot be read; all, where it is not known which that is."""
        at = partition_of(error)
        sinks = None
        with self._lock:
            if at is not None and at in self._subscriptions:
                sinks = self._subscriptions.pop(at)
                self._changed[at] = None
        if sinks is not None:
            for sink in list(sinks):
                sink.fail(error)
            return
        reader, self._reader = self._reader, None
        self._fetched.clear()
        self._stopped_at.clear()
        if reader is not None:
            reader.close()
        self._failed_all(error)
