"""One thread and one reader for all streams that the collectors of a process follow.

Subscribers name Kafka partitions (order streams, and the control topics) and get their records,
each from its own position on. A stream that several collectors read, as children read their
parent's, is fetched once.

    position    of a subscription: the next offset that it gets
    fetched     of a Kafka partition: the next offset that the reader hands out
    paused      a subscription that gets nothing, while the others of its partition go on. If its
                position is behind `fetched` when it resumes, the partition is fetched again from
                there, and the others skip what they had
    urgent      a subscription for which records that have come are read at once. While there is
                none, the streams are read every 50 ms, by a reader that does not fetch ahead:
                producers write tickets all the time, and nothing waits for a root that reads them.
                A subscription that is new or resumes ends such a pause

Invariants, of each Kafka partition:
    after `_arrange`, fetched <= position of each subscription that is not paused;
    a subscription gets its records in offset order without a gap, whenever it came or resumed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from collectors.engine.last_records import LastRecords, holds, truncated
from collectors.engine.loops import Loop, partition_of
from multicast.drivers.protocol import Driver, Fetched, Reader, Record, TopicPartition
from multicast.errors import AmcastError, Trimmed, Truncated

# Not every driver's poll can be woken, so a new subscription may wait for so long. Ten times as
# long would delay a takeover or a change of epoch by 0.5 s.
POLL_S = 0.05
# How long the first reading waits for a collector's streams, which come some 10 ms after the
# control topics. A reader that reads these already gets them 0.15 s later: it waits for a long poll
# (0.1 s), once for their leaders and once for their records.
_GATHER_S = 0.1
# For how long brokers leave a question open while nothing is urgent; then another stream may come.
_WAIT_S = 0.5
# Between two readings while nothing is urgent: as between two questions for the ends of logs whose
# messages are ordered without a collector (`log_end_loop.py`).
_SPACING_S = 0.05


class StreamBatch(NamedTuple):
    """New records of one Kafka partition, in offset order, and the position after them."""

    partition: TopicPartition
    records: Sequence[Record]
    position: int

    def since(self, offset: int) -> StreamBatch:
        """Give the batch without its records below an offset."""
        if not self.records or self.records[0].offset >= offset:
            return self
        records = [record for record in self.records if record.offset >= offset]
        return StreamBatch(self.partition, records, self.position)


class StreamSink(Protocol):
    """Subscribes to streams; called by loops' threads, perhaps by two at once; must return soon."""

    def on_batches(self, batches: Sequence[StreamBatch]) -> None:
        """Take the records of one poll."""

    def fail(self, error: Exception) -> None:
        """Take the error of a stream that cannot be read; its subscriptions are gone."""


@dataclass(slots=True, eq=False)
class StreamSubscription:
    """What a sink gets of one partition."""

    sink: StreamSink
    position: int
    paused: bool
    urgent: bool
    end: int = 0  # where the stream ended when it came: `catch_up.py` gives it on there
    last: Record | None = None  # the newest that the sink was given
    compares: bool = False  # `last` is read again first


class StreamLoop:
    """Reads for all; `failed` gets an error that does not concern one partition alone.

    Who reads a stream that has lost its end gets `Truncated`. Partitions that are `compacted` lose
    records at any rate, so these are not compared.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        failed: Callable[[Exception], None],
        compacted: Collection[TopicPartition] = (),
    ) -> None:
        self._driver = driver
        self._compacted = compacted
        self._failed_all = failed
        self._lock = threading.RLock()  # of the two below; re-entered by `catch_up.py`
        self._subscriptions: dict[TopicPartition, dict[StreamSink, StreamSubscription]] = {}
        self._changed: dict[TopicPartition, None] = {}  # partitions that `_arrange` has to look at
        self._several = threading.Event()  # more than one sink: not only that of the control topics
        self._woken = threading.Event()
        self._reader: Reader | None = None  # and all below: set by the loop's thread only
        self._ahead = True  # of the reader
        self._fetched: dict[TopicPartition, int] = {}
        self._reader_paused: set[TopicPartition] = set()
        self._last = LastRecords(driver)
        self.loop = Loop("streams", self._turn, wake=self._wake, failed=self._failed)

    def subscribe(
        self,
        sink: StreamSink,
        starts: Mapping[TopicPartition, int],
        *,
        paused: bool = False,
        urgent: bool = True,
    ) -> None:
        """Give a sink the records of partitions, each from an offset on.

        Replaces the sink's subscriptions to the same partitions. Safe from any thread.
        """
        with self._lock:
            for partition, offset in starts.items():
                self._add(partition, StreamSubscription(sink, offset, paused, urgent))
        self._wake()

    def take_over(self, partition: TopicPartition, subscription: StreamSubscription) -> None:
        """Go on with another loop's subscription; what it read last must still be there."""
        with self._lock:
            if subscription.last is not None:
                subscription.position, subscription.compares = subscription.last.offset, True
            self._add(partition, subscription)
        self._wake()

    def _add(self, partition: TopicPartition, subscription: StreamSubscription) -> None:
        self._subscriptions.setdefault(partition, {})[subscription.sink] = subscription
        self._changed[partition] = None
        if not self._several.is_set() and len(set().union(*self._subscriptions.values())) > 1:
            self._several.set()

    def pause(self, sink: StreamSink, partition: TopicPartition, *, paused: bool) -> None:
        """Pause a sink's subscription, or resume it at its position. Safe from any thread."""
        with self._lock:
            subscription = self._subscriptions.get(partition, {}).get(sink)
            if subscription is None or subscription.paused is paused:
                return
            subscription.paused = paused
            self._changed[partition] = None
        self._wake()

    def urge(self, sink: StreamSink, partition: TopicPartition, *, urgent: bool) -> None:
        """Make a sink's subscription urgent, or no longer so. Safe from any thread."""
        with self._lock:
            subscription = self._subscriptions.get(partition, {}).get(sink)
            if subscription is None or subscription.urgent is urgent:
                return
            subscription.urgent = urgent
            self._changed[partition] = None
        if urgent:
            self._wake()

    def unsubscribe(self, sink: StreamSink, partitions: Sequence[TopicPartition]) -> None:
        """Give a sink no more of these; a batch that is on its way may still come.

        Safe from any thread.
        """
        with self._lock:
            for partition in partitions:
                if self._subscriptions.get(partition, {}).pop(sink, None) is not None:
                    self._changed[partition] = None
        self._wake()

    def close(self) -> None:
        """Release the reader; the loop has ended."""
        if self._reader is not None:
            self._reader.close()

    # -- the loop's thread --------------------------------------------------------------------

    def _wake(self) -> None:
        self._woken.set()
        reader = self._reader
        if reader is not None:
            reader.wake()

    def _turn(self) -> None:
        if self._reader is None:
            self._several.wait(_GATHER_S)
        elif self._changed and self._is_urgent() is not self._ahead:
            self._drop_reader()
        if self._reader is None:
            self._ahead = self._is_urgent()
            self._reader = self._driver.reader({}, wait_s=None if self._ahead else _WAIT_S)
            with self._lock:
                self._changed.update(dict.fromkeys(self._subscriptions))
        self._arrange(self._reader)
        fetched = self._poll(self._reader)
        if fetched:
            self._dispatch(self._kept(fetched))
            if not self._ahead:
                self._woken.wait(_SPACING_S)
        self._woken.clear()

    def _poll(self, reader: Reader) -> list[Fetched]:
        return reader.poll(POLL_S)

    def _kept(self, fetched: Sequence[Fetched]) -> list[Fetched]:
        """Give what continues what was read of a stream; fail who reads another one."""
        streams = [each for each in fetched if each.partition not in self._compacted]
        try:
            lost = self._last.note(streams)
        except Exception:
            self._drop_reader()  # so all is read again
            raise
        for partition, error in lost.items():
            self._fetched.pop(partition, None)
            self._fail(partition, error)
        return [each for each in fetched if each.partition not in lost]

    def _is_urgent(self) -> bool:
        with self._lock:
            return any(
                each.urgent for sinks in self._subscriptions.values() for each in sinks.values()
            )

    def _drop_reader(self) -> None:
        """Read on with another reader: each subscription goes on at its position."""
        reader, self._reader = self._reader, None
        self._fetched.clear()
        self._reader_paused.clear()
        if reader is not None:
            reader.close()

    def _arrange(self, reader: Reader) -> None:
        """Have the reader read what subscribers need now, from where they need it."""
        if not self._changed:
            return
        starts: dict[TopicPartition, int] = {}
        gone: list[TopicPartition] = []
        pause: list[TopicPartition] = []
        resume: list[TopicPartition] = []
        with self._lock:
            changed, self._changed = list(self._changed), {}
            for partition in changed:
                subscriptions = list(self._subscriptions.get(partition, {}).values())
                reading = [each.position for each in subscriptions if not each.paused]
                fetched = self._fetched.get(partition)
                if not subscriptions:
                    self._subscriptions.pop(partition, None)
                    gone.append(partition)
                    continue
                needed = min(reading or [each.position for each in subscriptions])
                if fetched is None or (reading and needed < fetched):
                    starts[partition] = needed
                (resume if reading else pause).append(partition)
        try:
            self._apply(reader, gone=gone, starts=starts, pause=pause, resume=resume)
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
        pause: Sequence[TopicPartition],
        resume: Sequence[TopicPartition],
    ) -> None:
        if gone:
            reader.remove(gone)
            for partition in gone:
                self._fetched.pop(partition, None)
                self._reader_paused.discard(partition)
        if starts:
            reader.add(starts)
            self._fetched.update(starts)
            self._reader_paused.difference_update(starts)
        pause = [partition for partition in pause if partition not in self._reader_paused]
        resume = [partition for partition in resume if partition in self._reader_paused]
        if pause:
            reader.pause(pause)
            self._reader_paused.update(pause)
        if resume:
            reader.resume(resume)
            self._reader_paused.difference_update(resume)

    def _dispatch(self, fetched: Sequence[Fetched]) -> None:
        batches: dict[StreamSink, list[StreamBatch]] = {}
        lost: list[tuple[StreamSink, Truncated]] = []
        with self._lock:
            for partition, records, position in fetched:
                start, self._fetched[partition] = self._fetched[partition], position
                for subscription in list(self._subscriptions.get(partition, {}).values()):
                    # One that came or resumed since `_arrange` may need records before this batch:
                    # it gets nothing until the partition is fetched from its position.
                    if subscription.paused or not start <= subscription.position < position:
                        continue
                    batch = StreamBatch(partition, records, position).since(subscription.position)
                    sink, last = subscription.sink, subscription.last
                    if subscription.compares and last is not None:
                        if not holds(batch.records, last):
                            del self._subscriptions[partition][sink]
                            self._changed[partition] = None
                            lost.append((sink, truncated(partition, last)))
                            continue
                        batch, subscription.compares = batch.since(last.offset + 1), False
                    subscription.position = position
                    subscription.last = batch.records[-1] if batch.records else last
                    batches.setdefault(sink, []).append(batch)
        for sink, error in lost:
            sink.fail(error)
        for sink, batches_of_sink in batches.items():
            sink.on_batches(batches_of_sink)

    def _failed(self, error: Exception) -> None:
        """Fail the subscribers of the partition that an error names; all, where it names none."""
        partition = partition_of(error)
        if partition is not None and isinstance(error, Trimmed):
            with suppress(AmcastError):
                error = self._last.lost([partition]).get(partition, error)
        if partition is not None and self._fail(partition, error):
            return
        self._drop_reader()
        if partition is None:  # otherwise nobody reads it any more
            self._failed_all(error)

    def _fail(self, partition: TopicPartition, error: Exception) -> bool:
        """Fail the subscribers of a partition; False if it has none."""
        with self._lock:
            sinks = self._subscriptions.pop(partition, None)
            self._changed[partition] = None
        self._last.forget(partition)
        for sink in list(sinks or ()):
            sink.fail(error)
        return sinks is not None
