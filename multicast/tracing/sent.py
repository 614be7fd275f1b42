"""The producer's spans: from the call to Kafka's acknowledgement, with their context in a header.

`share` of the messages get a span, beside those that are sent inside a sampled span or carry the
context of one. `wants` decides that before anything is made or asked: without a `traceparent` and
without a context around, a message that loses the draw costs that draw and one look at the thread's
context. What the SDK's sampler then says of a winner counts, too.

A message whose span is sampled carries the W3C header `traceparent` (and `tracestate`). It is an
ordinary header, so every reader passes it on or ignores it. A message that is not sampled carries
none, and costs its consumers nothing. A `traceparent` that the application gave itself stays, and
the span becomes its child.

A span that is not ended is never exported: that of an append for which there was no room.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import random
from typing import Any

from multicast.drivers.protocol import Appended, AppendOutcome, DoneAll, Headers
from multicast.producing.keyed.calls import Batched
from multicast.producing.receipts import Route
from multicast.tracing.context import carried, first_header, injected, tracer
from topology import extra

with extra("tracing"):
    from opentelemetry.context import get_current
    from opentelemetry.trace import (
        INVALID_SPAN,
        Span,
        SpanKind,
        Status,
        StatusCode,
        Tracer,
        get_current_span,
    )


class ProducerSpans:
    """Makes the spans of one producer; from any thread."""

    def __init__(self, share: float) -> None:
        self._tracer = tracer()
        self._share = share

    def wants(self, headers: Headers) -> bool:
        """Say whether a message with these headers gets a span, if the SDK's sampler agrees.

        Every message of a producer that traces comes here: most get no further.
        """
        if random() < self._share:  # noqa: S311 - a sample, no secret
            return True
        if headers and first_header(headers) is not None:
            carrying = get_current_span(carried(headers))
            if carrying is not INVALID_SPAN:
                return carrying.get_span_context().trace_flags.sampled
        around = get_current()
        if not around:  # an empty context
            return False
        return get_current_span(around).get_span_context().trace_flags.sampled

    def message(
        self, route: Route, headers: Headers, done: Callable[[AppendOutcome], None]
    ) -> tuple[Headers, Callable[[AppendOutcome], None]]:
        """Begin the span of one wanted message; give its headers, and what takes its outcome."""
        span = _begin(self._tracer, route, headers)
        if not span.is_recording():
            return headers, done

        def settled(outcome: AppendOutcome) -> None:
            if isinstance(outcome, Appended):
                span.set_attribute("messaging.kafka.offset", outcome.offset)
            _end(span, outcome)
            done(outcome)

        return [*headers, *_injected(span, headers)], settled

    def batch(
        self, route: Route, messages: Batched, done: DoneAll
    ) -> tuple[Batched, DoneAll, Callable[[int], None]]:
        """Begin one span for messages that are appended together.

        Gives the messages with the header, what takes an outcome, and what takes the number of
        messages whose append has started.
        """
        if not self.wants(()):
            return messages, done, _ignore
        span = _begin(self._tracer, route, ())
        if not span.is_recording():
            return messages, done, _ignore
        traced = _BatchSpan(span, done)
        pairs = _injected(span, ())
        own = messages.headers or [()] * len(messages.payloads)
        headed: list[Any] = [
            each if first_header(each) is not None else [*each, *pairs] for each in own
        ]
        return messages._replace(headers=headed), traced.settled, traced.started


class _BatchSpan:
    """Ends a span once as many outcomes have come as appends have started."""

    def __init__(self, span: Span, done: DoneAll) -> None:
        self._span = span
        self._done = done
        self._lock = threading.Lock()
        self._missing = 0  # below 0: outcomes came before `started` was called
        self._failed: AppendOutcome | None = None

    def settled(self, first: int, count: int, outcome: AppendOutcome) -> None:
        if not isinstance(outcome, Appended):
            self._failed = outcome
        self._count(-count)
        self._done(first, count, outcome)

    def started(self, count: int) -> None:
        if count:
            self._span.set_attribute("messaging.batch.message_count", count)
            self._count(count)

    def _count(self, change: int) -> None:
        with self._lock:
            self._missing += change
            over = self._missing == 0
        if over:
            _end(self._span, self._failed)


def _ignore(_: int) -> None:
    """Ignore how many appends have started."""


def _begin(tracer: Tracer, route: Route, headers: Headers) -> Span:
    parent = carried(headers) if first_header(headers) is not None else None
    return tracer.start_span(
        "multicast " + route.log.topic,
        parent,
        SpanKind.PRODUCER,
        {
            "messaging.system": "kafka",
            "messaging.operation.type": "send",
            "messaging.destination.name": route.partition.topic,
            "messaging.destination.partition.id": str(route.partition.partition),
            "amcast.log": route.log.name,
            "amcast.to": route.exact,
        },
    )


def _injected(span: Span, headers: Headers) -> list[tuple[str, bytes]]:
    """Give the headers of a span's context; none if the application gave its own."""
    if first_header(headers) is not None:
        return []
    return injected(span.get_span_context())


def _end(span: Span, outcome: AppendOutcome | None) -> None:
    if outcome is not None and not isinstance(outcome, Appended):
        span.set_attribute("error.type", type(outcome.error).__name__)
        span.set_status(Status(StatusCode.ERROR, str(outcome.error)))
    span.end()
