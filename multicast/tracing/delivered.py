"""The consumer's spans of a message: until it was ordered, and from there until it was handed out.

A collector reads no payload and no header, so it knows no trace. What it did is in its order
stream: the record that names the message, with a time stamp. A consumer reads both, so it makes
both spans, in the trace of the multicast:

    order      from the message's time stamp to that of the order record; links to the multicast.
               There is none of a single log, which is its own order, nor where the record was not
               among the last reads
    deliver    from the end of `order`, or else from the message's time stamp, to the hand-out;
               links to `order`, or else to the multicast

A message whose headers carry no sampled context gets no spans. Each attribute stands at one span
only: a span's attributes cost as much as the span. The spans of one poll's messages are made
together, before the next poll: that costs half as much as to make each between other work, which
drives their code out of the processor's caches.

Time stamps are in whole milliseconds, by the clocks of the producer's and the collector's hosts (by
the broker's if the topics say so). A span never ends before it begins.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from operator import attrgetter

from multicast.consuming.batches import Batch
from multicast.control import SINGLE_LOG
from multicast.drivers.protocol import Record
from multicast.tracing.context import carried, may_be_sampled, tracer
from topology import extra

with extra("tracing"):
    from opentelemetry.trace import Link, SpanKind, get_current_span

# Reads of the order whose records are kept for their times. `Consumer` reads the order only while
# no run is queued, so what it hands out is of the last read with records; some without may follow.
_READS_MAX = 4
_offset_of = attrgetter("offset")
_NS = 1_000_000  # in a millisecond


class ConsumerSpans:
    """Makes the spans of one consumer, in the thread that reads."""

    def __init__(self, consumer: str, group: str) -> None:
        self._tracer = tracer()
        self._consumer = consumer
        self._group = group
        self._handed_out: list[tuple[Batch, Record, int]] = []  # with the time in nanoseconds
        self._reads: deque[Sequence[Record]] = deque(maxlen=_READS_MAX)

    def order_read(self, records: Sequence[Record]) -> None:
        """Keep these records of the order stream, by increasing offset, for their time stamps."""
        self._reads.append(records)

    def all_delivered(self, batch: Batch) -> None:
        """Note that a batch is handed out now."""
        for record in batch.records:
            if record.headers:
                self.delivered(batch, record)

    def delivered(self, batch: Batch, record: Record) -> None:
        """Note that a message is handed out now; `make` makes its spans."""
        if may_be_sampled(record.headers):
            self._handed_out.append((batch, record, time.time_ns()))

    def make(self) -> None:
        """Make the spans of all messages that were handed out since the last call."""
        if self._handed_out:
            handed_out, self._handed_out = self._handed_out, []
            for batch, record, handed_out_ns in handed_out:
                self._make(batch, record, handed_out_ns)

    def _make(self, batch: Batch, record: Record, handed_out_ns: int) -> None:
        parent = carried(record.headers)
        linked = get_current_span(parent).get_span_context()
        if not linked.trace_flags.sampled:
            return
        ordered_ms = self._ordered_ms(batch.record)
        # A record of a stranger may have no time stamp: Kafka then gives -1.
        begun_ms = record.timestamp_ms if record.timestamp_ms > 0 else ordered_ms
        begun_ns = begun_ms * _NS if begun_ms > 0 else handed_out_ns
        if ordered_ms and not batch.source.startswith(SINGLE_LOG):
            order = self._tracer.start_span(
                "order " + batch.log.topic,
                parent,
                SpanKind.INTERNAL,
                {
                    "amcast.epoch": batch.epoch,
                    "amcast.order.stream": batch.source,
                    "amcast.order.record": batch.record,
                },
                [Link(linked)],
                begun_ns,
            )
            begun_ns = max(begun_ns, ordered_ms * _NS)
            order.end(begun_ns)
            linked = order.get_span_context()
        deliver = self._tracer.start_span(
            "deliver " + batch.log.topic,
            parent,
            SpanKind.CONSUMER,
            {
                "messaging.system": "kafka",
                "messaging.operation.type": "receive",
                "messaging.consumer.group.name": self._group,
                "messaging.destination.name": batch.log.topic,
                "messaging.destination.partition.id": str(batch.log.partition),
                "messaging.kafka.offset": record.offset,
                "amcast.consumer": self._consumer,
            },
            [Link(linked)],
            begun_ns,
        )
        deliver.end(max(begun_ns, handed_out_ns))

    def _ordered_ms(self, offset: int) -> int:
        """Give the time of a record of the order stream; 0 if it was not read here of late."""
        for records in reversed(self._reads):
            index = bisect_left(records, offset, key=_offset_of)
            if index < len(records) and records[index].offset == offset:
                return records[index].timestamp_ms
        return 0
