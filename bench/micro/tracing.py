"""Measures what traces cost: the CPU of a producer and a consumer, with and without.

    python -m bench.micro.tracing [--rounds 400] [--messages 2000] [--share 0.01] [--rate 0]
                                  [--encode]

One broker, one collector that orders six logs, messages of 100 bytes. Each arm has a log, a
producer and a consumer of its own, all open at the same time; the consumer reads a second log, too,
so that there is an order. In each round every arm sends the same number of messages, at most 1,000
of them without an outcome, and reads them message by message. The order of the arms rotates. Rounds
are short, so that what else the machine does meets all arms alike; what the process has loaded is
left out of garbage collections, of which one would cost as much as a round. `--rate` sends so many
messages in a second, instead of as many as can be.

    off        without `tracing`
    again      the same once more: what it differs from `off` is noise
    unsampled  with `tracing`, and a share so small that no message is traced
    sdk        the same, and beside it OpenTelemetry's SDK alone: three spans without parent, link
               or attribute for the share of the messages. Cheaper than that `traced` cannot be
    traced     `tracing=` the share, 0.01 by default, at OpenTelemetry's SDK with a batch processor,
               which is emptied within the round; its exporter drops the spans, or with `--encode`
               makes OTLP's bytes of them (the package opentelemetry-exporter-otlp-proto-common)
    cpu_us     CPU of this process for one message, sent and received, all threads: microseconds
    ratio      of that to `off` in the same round: the median over the rounds
    low, high  the median lies between them with a probability of 95 %
    spans      that were exported, in all
    call_      the least time of single calls in a loop, microseconds: `call_draw_us` for a message
               that is not sampled, `call_sampler_us` of the SDK's sampler that says no to it,
               `call_span_us` of a span without parent, link or attribute
"""

from __future__ import annotations

import gc
import importlib
import sys
import time
import timeit
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from random import random
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from bench.harness import figures
from bench.harness.arms import in_turns, medians, ratios
from bench.harness.rig import Rig, standing, ticks
from multicast import Consumer, Producer
from multicast.tracing.sent import ProducerSpans

_SPANS = 3  # of a message with one consumer: multicast, order, deliver
_CALLS = 2_000  # in a row: the batch processor's queue has room for 2,048 spans
_BESIDE = "P6"  # the log that all arms read, and nobody writes
_BYTES = 100
_NONE = 1e-12  # a share of the messages, of which no message is
_IN_FLIGHT = 1000
_ENCODER = "opentelemetry.exporter.otlp.proto.common.trace_encoder"
_WARM_UP = 20  # rounds, until buffers and caches have what they need
Figures = dict[str, float]
Flush = Callable[[], object]


class Sink(SpanExporter):
    """Counts spans, and drops them: a list of all would grow, and what the arms cost with it."""

    def __init__(self, *, encode: bool) -> None:
        self.spans = 0
        self._encode: Callable[[Sequence[ReadableSpan]], Any] | None = None
        if encode:
            self._encode = importlib.import_module(_ENCODER).encode_spans

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Take the spans of one batch."""
        self.spans += len(spans)
        if self._encode is not None:
            self._encode(spans).SerializeToString()
        return SpanExportResult.SUCCESS


class ClientPair:
    """A producer and a consumer of one log."""

    def __init__(self, rig: Rig, number: int, *, tracing: float, beside: float) -> None:
        place: dict[str, Any] = {"bootstrap": rig.bootstrap, "topic": rig.topic}
        self._log = f"P{number}"
        self._beside = beside
        self._tracer = trace.get_tracer(__name__)
        self._stack = ExitStack()
        self._consumer = self._stack.enter_context(
            Consumer(
                **place,
                interest={self._log, _BESIDE},
                committed=False,
                start="latest",
                tracing=tracing > 0,
            )
        )
        self._producer = self._stack.enter_context(Producer(**place, tracing=tracing))

    def close(self) -> None:
        """Release the clients."""
        self._stack.close()

    def cpu_us(self, messages: int, rate: float, flush: Flush) -> float:
        """Send and read so many messages; give the CPU for each."""
        payload = bytes(_BYTES)
        began = time.process_time()
        pending: deque[Any] = deque()
        for _ in ticks(messages / rate, 1 / rate) if rate else range(messages):
            if len(pending) == _IN_FLIGHT:
                pending.popleft().accepted()
            pending.append(self._producer.multicast(payload, to=(self._log,)))
            if self._beside and random() < self._beside:  # noqa: S311 - a sample, no secret
                for _ in range(_SPANS):
                    self._tracer.start_span("beside").end()
        while pending:
            pending.popleft().accepted()
        for count, _ in enumerate(self._consumer, start=1):
            if count == messages:
                break
        flush()
        return (time.process_time() - began) / messages * 1e6


def calls(flush: Flush) -> Figures:
    """Return the least time of single calls."""
    draw = ProducerSpans(0.0)
    never = TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.0))).get_tracer(__name__)
    always = trace.get_tracer(__name__)
    timed: dict[str, Callable[[], object]] = {
        "draw": lambda: draw.wants(()),
        "sampler": lambda: never.start_span("none"),
        "span": lambda: always.start_span("one").end(),
    }
    return {
        f"call_{name}_us": round(min(timeit.repeat(call, flush, number=_CALLS)) / _CALLS * 1e6, 2)
        for name, call in timed.items()
    }


def main(arguments: Sequence[str]) -> None:
    """Measure once, and print the figures."""
    parser = figures.parser("tracing", __doc__)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--messages", type=int, default=2_000, help="of each arm in a round")
    parser.add_argument("--rate", type=float, default=0.0, help="messages in a second; 0: all")
    parser.add_argument("--share", type=float, default=0.01, help="of the messages that are traced")
    parser.add_argument("--encode", action="store_true", help="make OTLP's bytes of the spans")
    options = parser.parse_args(arguments)
    sink = Sink(encode=options.encode)
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(sink))
    trace.set_tracer_provider(provider)
    with standing(6) as rig, rig.collectors() as processes, ExitStack() as stack:
        processes.wait_healthy()
        arms: dict[str, ClientPair] = {}
        share = options.share
        shares = {
            "off": (0.0, 0.0),
            "again": (0.0, 0.0),
            "unsampled": (_NONE, 0.0),
            "sdk": (0.0, share),
            "traced": (share, 0.0),
        }
        for number, (name, (tracing, beside)) in enumerate(shares.items(), start=1):
            arms[name] = ClientPair(rig, number, tracing=tracing, beside=beside)
            stack.callback(arms[name].close)
        gc.collect()
        gc.freeze()
        made = in_turns(
            arms,
            options.rounds,
            lambda arm, _: arm.cpu_us(options.messages, options.rate, provider.force_flush),
            warm_up=_WARM_UP,
        )
        measured = medians(made, "cpu_us") | ratios(made, "off")
        measured["spans"] = sink.spans
        measured |= calls(provider.force_flush)
        document = figures.document("tracing", measured, kafka=rig.kafka, arguments=arguments)
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
