"""The order stream of a collector's parent: its records go to the core, which relays them.

Backpressure: the core says when it keeps too many of them, or can compare no more before our own
stream is read. Then the subscription pauses, and records that have come are held, until half of
what it keeps is relayed (`Collector.parent_paused`).
"""

from __future__ import annotations

from collections import deque

from collectors.core.collector import Collector
from collectors.engine.stream_loop import StreamBatch, StreamLoop, StreamSink
from multicast.drivers.protocol import Record, TopicPartition
from multicast.order.runs import order_checksum


class ParentStream:
    """One subscription. Its methods are called with the core's lock held."""

    def __init__(self, streams: StreamLoop, partition: TopicPartition, sink: StreamSink) -> None:
        self._streams = streams
        self._partition = partition
        self._sink = sink
        self._paused = False
        self._held: deque[Record] = deque()
        self._position = 0  # behind what is held

    def take_records(self, core: Collector, batch: StreamBatch) -> None:
        """Give fetched records to the core, and hold those for which it has no room."""
        self._held.extend(batch.records)
        self._position = batch.position
        self._give(core)

    def read_while_room(self, core: Collector) -> None:
        """Give what is held, and pause the subscription while the core has no room for more."""
        if self._held:
            self._give(core)
        paused = core.parent_paused
        if paused is not self._paused:
            self._paused = paused
            self._streams.pause(self._sink, self._partition, paused=paused)

    def _give(self, core: Collector) -> None:
        while self._held and not core.parent_paused:
            record = self._held.popleft()
            core.parent_read(record.offset, record.value, order_checksum(record))
        if not self._held:
            core.parent_passed(self._position)
