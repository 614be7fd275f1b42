"""The order stream of a collector's parent: its records go to the core, which relays them.

Backpressure: the core says when it keeps too many of them, and the subscription pauses until half
of these are relayed (`Collector.parent_paused`).
"""

from __future__ import annotations

from collectors.core.collector import Collector
from collectors.engine.stream_loop import StreamBatch, StreamLoop, StreamSink
from multicast.drivers.protocol import TopicPartition
from multicast.order.runs import order_checksum


class ParentStream:
    """One subscription. Its methods are called with the core's lock held."""

    def __init__(self, streams: StreamLoop, partition: TopicPartition, sink: StreamSink) -> None:
        self._streams = streams
        self._partition = partition
        self._sink = sink
        self._paused = False

    def take_records(self, core: Collector, batch: StreamBatch) -> None:
        """Give fetched records to the core."""
        for record in batch.records:
            core.parent_read(record.offset, record.value, order_checksum(record))
        core.parent_passed(batch.position)

    def read_while_room(self, core: Collector) -> None:
        """Pause the subscription while the core has no room for more."""
        paused = core.parent_paused
        if paused is not self._paused:
            self._paused = paused
            self._streams.pause(self._sink, self._partition, paused=paused)
