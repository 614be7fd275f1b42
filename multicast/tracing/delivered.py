"""The consumer's spans of a message: until it was ordered, and from there until it was handed out.

A collector reads no payload and no header, so it knows no trace. What it did is in its order
stream: the record that names the message, with a time stamp. A consumer reads both, so it makes
both spans, in the trace of the multicast:

    order      from the message's time stamp to that of the order record; links to the multicast.
               A single log is its own order: there is no such span
    deliver    from there to the hand-out; links to the order, of a single log to the multicast

Nothing is made of a message whose headers carry no sampled context. Attributes stand at the span
that they tell about, once: a span's attributes cost as much as the span.

Time stamps are in whole milliseconds, by the clocks of the producer's and the collector's hosts (by
the broker's if the topics say so). A span never ends before it begins.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from multicast.control import SINGLE_LOG
from multicast.delivery import Batch
from multicast.drivers.protocol import Record
from multicast.tracing.context import carried, may_be_sampled, tracer
from topology import extra

with extra("tracing"):
    from opentelemetry.trace import Link, SpanKind, get_current_span

# Order records whose time is remembered: what a consumer reads ahead of its deliveries is below
# (`Consumer` reads order records only while no run is queued, 500 at once).
_ORDER_RECORDS_MAX = 2_000
_NS = 1_000_000  # in a millisecond


class ConsumerSpans:
    """Makes the spans of one consumer, in the thread that reads."""

    def __init__(self, consumer: str, group: str) -> None:
        self._tracer = tracer()
        self._consumer = consumer
        self._group = group
        # Offsets in the order stream, and their times in milliseconds since 1970.
        self._times: deque[tuple[int, int]] = deque(maxlen=_ORDER_RECORDS_MAX)

    def order_read(self, records: Sequence[Record]) -> None:
        """Remember when these records of the order stream were written."""
        self._times.extend((record.offset, record.timestamp_ms) for record in records)

    def all_delivered(self, batch: Batch) -> None:
        """Make the spans of a batch that is handed out now."""
        for record in batch.records:
            if record.headers:
                self.delivered(batch, record)

    def delivered(self, batch: Batch, record: Record) -> None:
        """Make the spans of a message that is handed out now."""
        if not may_be_sampled(record.headers):
            return
        parent = carried(record.headers)
        before = get_current_span(parent).get_span_context()
        if not before.trace_flags.sampled:
            return
        begun_ns = record.timestamp_ms * _NS
        ordered_ms = next((ms for offset, ms in reversed(self._times) if offset == batch.record), 0)
        if ordered_ms and not batch.source.startswith(SINGLE_LOG):
            order = self._tracer.start_span(
                "order " + batch.log.topic,
                parent,
                SpanKind.INTERNAL,
                {
                    "amcast.consumer": self._consumer,
                    "amcast.epoch": batch.epoch,
                    "amcast.order.stream": batch.source,
                    "amcast.order.record": batch.record,
                },
                [Link(before)],
                begun_ns,
            )
            begun_ns = max(begun_ns, ordered_ms * _NS)
            order.end(begun_ns)
            before = order.get_span_context()
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
            [Link(before)],
            begun_ns,
        )
        deliver.end(max(begun_ns, time.time_ns()))
