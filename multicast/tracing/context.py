"""The W3C trace context of a message, in its headers `traceparent` and `tracestate`."""

from __future__ import annotations

from multicast.consuming.batches import Message
from multicast.drivers.protocol import Headers
from topology import extra

with extra("tracing"):
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanContext, Tracer, get_tracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

TRACEPARENT = "traceparent"
_NAMES = (TRACEPARENT, "tracestate")
# By W3C's Trace Context, the flags are the 54th and 55th of the characters, in hexadecimal digits,
# and their lowest bit says that the trace is sampled.
_FLAGS_END = 55
_SAMPLED = frozenset(b"%x" % digit for digit in range(1, 16, 2))
PROPAGATOR = TraceContextTextMapPropagator()


def context_of(message: Message) -> Context:
    """Give the context to start a span in, as a child of the multicast of a delivered message.

    It is empty if the message is not traced: a span that starts in it begins a trace of its own.
    """
    return carried(message.headers)


def carried(headers: Headers) -> Context:
    """Give the context that headers carry; an empty one if they carry none that is valid."""
    carrier = {
        name: value.decode("ascii", "replace")
        for name, value in headers
        if name in _NAMES and value is not None
    }
    return PROPAGATOR.extract(carrier, Context())


def injected(context: SpanContext) -> list[tuple[str, bytes]]:
    """Give the headers that carry a context, as `PROPAGATOR` writes them, which costs more."""
    traceparent = b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)
    if not context.trace_state:
        return [(TRACEPARENT, traceparent)]
    return [(TRACEPARENT, traceparent), ("tracestate", context.trace_state.to_header().encode())]


def first_header(headers: Headers) -> bytes | None:
    """Give the value of `traceparent`; None if there is no such header."""
    for name, value in headers:
        if name == TRACEPARENT:
            return value
    return None


def may_be_sampled(headers: Headers) -> bool:
    """Look at the flag alone: False if a context that headers carry is surely not sampled.

    To decode a context costs ten times as much, and most contexts are not sampled.
    """
    value = first_header(headers)
    return value is not None and value.strip()[_FLAGS_END - 1 : _FLAGS_END] in _SAMPLED


def tracer() -> Tracer:
    """Give the tracer of this package, from the provider that the application has set."""
    return get_tracer("amcast")
