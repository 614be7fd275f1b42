"""The consumer's spans of a message: until it was ordered, and from there until it was handed out.

A collector reads no payload and no header, so it knows no trace. What it did is in its order
stream: the record that names the message, with a time stamp. A consumer reads both, so it makes
both spans, in the trace of the multicast:

    order      from the message's time stamp to that of the order record; links to the multicast.
               A single log is its own order: there is no such span
    deliver    from there to the hand-out; links to the multicast and to the order

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
from multicast.tracing.context import carried, first_header, tracer
from multicast.verification.observer import HandedOut
from topology import extra

with extra("tracing"):
    from opentelemetry.trace import Link, SpanKind, get_current_span
    from opentelemetry.util.types import AttributeValue

# Order records whose time is remembered: what a consumer reads ahead of its deliveries is below
# (`Consumer` reads order records only while no run is queued, 500 at once).
_ORDER_RECORDS_MAX = 2_000
_NS = 1_000_000  # in a millisecond


class ConsumerSpans:
    """Makes the spans of one consumer, in the thread that reads."""

    def __init__(self, consumer: str, group: str) -> None:
        self._tracer = tracer()
        self._who: dict[str, AttributeValue] = {
            "amcast.consumer": consumer,
            "messaging.consumer.group.name": group,
        }
        # Offsets in the order stream, and their times in milliseconds since 1970.
        self._times: deque[tuple[int, int]] = deque(maxlen=_ORDER_RECORDS_MAX)

    def order_read(self, records: Sequence[Record]) -> None:
        """Remember when these records of the order stream were written."""
        self._times.extend((record.offset, record.timestamp_ms) for record in records)

    def watching(self, observed: HandedOut) -> HandedOut:
        """Make spans of what is handed out, before `observed` learns of it."""

        def handed_out(batch: Batch, records: Sequence[Record]) -> None:
            for record in records:
                if record.headers and first_header(record.headers) is not None:
                    self._delivered(batch, record)
            observed(batch, records)

        return handed_out

    def _delivered(self, batch: Batch, record: Record) -> None:
        parent = carried(record.headers)
        sent = get_current_span(parent).get_span_context()
        if not sent.trace_flags.sampled:
            return
        attributes: dict[str, AttributeValue] = {
            **self._who,
            "messaging.system": "kafka",
            "messaging.destination.name": batch.log.topic,
            "messaging.destination.partition.id": str(batch.log.partition),
            "messaging.kafka.offset": record.offset,
            "amcast.log": batch.log.name,
            "amcast.to": batch.to,
            "amcast.epoch": batch.epoch,
            "amcast.order.stream": batch.source,
        }
        links = [Link(sent)]
        begun_ns = record.timestamp_ms * _NS
        ordered_ms = next((ms for offset, ms in reversed(self._times) if offset == batch.record), 0)
        if ordered_ms and not batch.source.startswith(SINGLE_LOG):
            span = self._tracer.start_span(
                f"order {batch.log.topic}",
                parent,
                SpanKind.INTERNAL,
                {**attributes, "amcast.order.record": batch.record},
                links,
                begun_ns,
            )
            begun_ns = max(begun_ns, ordered_ms * _NS)
            span.end(begun_ns)
            links = [*links, Link(span.get_span_context())]
        span = self._tracer.start_span(
            f"deliver {batch.log.topic}",
            parent,
            SpanKind.CONSUMER,
            {**attributes, "messaging.operation.type": "receive"},
            links,
            begun_ns,
        )
        span.end(max(begun_ns, time.time_ns()))
