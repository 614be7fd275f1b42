"""A thread and a reader for streams that are far behind.

An instance that begins reads its streams from the last checkpoint on: tens of thousands of records,
each of which costs the core some 40 µs. The other instances of its process have messages that wait,
so this loop reads what is far behind. Where the stream ended when a subscription came, the others'
loop (`stream_loop.py`, here `live`) takes it over.
While nothing is behind, there is no reader, and nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collectors.engine.last_records import LastRecords
from collectors.engine.loops import Loop
from collectors.engine.stream_loop import POLL_S, StreamLoop, StreamSink, StreamSubscription
from multicast.drivers.protocol import Driver, Fetched, Reader, TopicPartition

# At most so many records hold up the others: for some 40 ms, less than opening a reader takes.
_FAR = 1000
# Of a turn: for some 20 ms the instance is locked, and the loops with events for it wait. Ten times
# fewer would make the turn's own cost felt.
_RECORDS_MAX = 500


class CatchUpLoop(StreamLoop):
    """Takes instances' subscriptions, once each; keeps what is far behind, gives on the rest."""

    def __init__(self, driver: Driver, live: StreamLoop) -> None:
        super().__init__(driver, failed=self._fail_all_here)
        self._live = live
        self._several.set()
        self.loop = Loop("catch-up", self._turn, wake=self._wake, failed=self._failed)

    def subscribe(
        self,
        sink: StreamSink,
        starts: Mapping[TopicPartition, int],
        *,
        ends: Mapping[TopicPartition, int] | None = None,
        paused: bool = False,
        urgent: bool = True,
    ) -> None:
        """Subscribe as to the live loop; `ends` has the partitions' ends, else none is behind."""
        far = {
            each: end for each, end in (ends or {}).items() if end - starts.get(each, end) > _FAR
        }
        with self._lock:
            for partition, end in far.items():
                at = starts[partition]
                self._add(partition, StreamSubscription(sink, at, paused, urgent, end))
            near = {each: at for each, at in starts.items() if each not in far}
            self._live.subscribe(sink, near, paused=paused, urgent=urgent)
        self._wake()

    def pause(self, sink: StreamSink, partition: TopicPartition, *, paused: bool) -> None:
        """Pause a sink's subscription, or resume it at its position. Safe from any thread."""
        with self._lock:  # so that none is given on meanwhile
            super().pause(sink, partition, paused=paused)
            self._live.pause(sink, partition, paused=paused)

    def urge(self, sink: StreamSink, partition: TopicPartition, *, urgent: bool) -> None:
        """Make a sink's subscription urgent, or no longer so. Safe from any thread."""
        with self._lock:
            super().urge(sink, partition, urgent=urgent)
            self._live.urge(sink, partition, urgent=urgent)

    def unsubscribe(self, sink: StreamSink, partitions: Sequence[TopicPartition]) -> None:
        """Give a sink no more of these; a batch that is on its way may still come."""
        with self._lock:
            super().unsubscribe(sink, partitions)
            self._live.unsubscribe(sink, partitions)

    # -- the loop's thread --------------------------------------------------------------------

    def _turn(self) -> None:
        if self._subscriptions:
            super()._turn()
        else:
            self._drop_reader()
            self._last = LastRecords(self._driver)
            self._woken.wait()
            self._woken.clear()

    def _fail_all_here(self, error: Exception) -> None:
        for partition in list(self._subscriptions):
            self._fail(partition, error)

    def _poll(self, reader: Reader) -> list[Fetched]:
        return reader.poll(POLL_S, _RECORDS_MAX)

    def _is_urgent(self) -> bool:
        return True

    def _dispatch(self, fetched: Sequence[Fetched]) -> None:
        super()._dispatch(fetched)
        with self._lock:
            for partition, *_ in fetched:
                subscriptions = self._subscriptions.get(partition, {})
                for each in [each for each in subscriptions.values() if each.position >= each.end]:
                    del subscriptions[each.sink]
                    self._changed[partition] = None
                    self._live.take_over(partition, each)
