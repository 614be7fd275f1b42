"""Measures what traces cost: the CPU and the rate of a producer and a consumer, with and without.

    python -m bench.micro.tracing [--rounds 7] [--messages 20000] [--share 0.01]

One broker, one collector, one log, messages of 100 bytes. In each round every arm sends the same
number of messages, at most 1,000 of them without an outcome, and reads them message by message. The
order of the arms alternates. Printed are the medians of the rounds.

    off        without `tracing`
    traced     `tracing=` the share, 0.01 by default, at OpenTelemetry's SDK, with a batch processor
               and an exporter that keeps what it gets
    cpu_us     CPU of this process for one message, sent and received, all threads: microseconds
    per_s      messages sent and read in a second
    cpu_ratio  traced / off, of each round; their median, least and greatest
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bench.harness import figures
from bench.harness.rig import Rig, standing
from multicast import Consumer, Producer

_TO = ("P1",)
_BYTES = 100
_IN_FLIGHT = 1000
Figures = dict[str, float]


def _arm(rig: Rig, messages: int, *, tracing: float) -> Figures:
    """Send and read so many messages; give the CPU for each, and the rate."""
    place: dict[str, Any] = {"bootstrap": rig.bootstrap, "topic": rig.topic}
    payload = bytes(_BYTES)
    with (
        Consumer(
            **place, name="C1", committed=False, start="latest", tracing=tracing > 0
        ) as consumer,
        Producer(**place, tracing=tracing) as producer,
    ):
        producer.multicast(b"first", to=_TO).accepted()
        next(iter(consumer))
        cpu, began = time.process_time(), time.perf_counter()
        pending: deque[Any] = deque()
        for _ in range(messages):
            if len(pending) == _IN_FLIGHT:
                pending.popleft().accepted()
            pending.append(producer.multicast(payload, to=_TO))
        while pending:
            pending.popleft().accepted()
        for count, _ in enumerate(consumer, start=1):
            if count == messages:
                break
        took, used = time.perf_counter() - began, time.process_time() - cpu
    return {"cpu_us": used / messages * 1e6, "per_s": messages / took}


def measure(rig: Rig, *, rounds: int, messages: int, share: float) -> Figures:
    """Return the medians of the rounds, and of the ratios within each."""
    made: list[dict[str, Figures]] = []
    for number in range(rounds + 1):
        figures.progress("warm-up" if number == 0 else f"round {number} of {rounds}")
        arms = [("off", 0.0), ("traced", share)]
        one = {
            name: _arm(rig, messages, tracing=tracing)
            for name, tracing in (arms if number % 2 else arms[::-1])
        }
        if number:
            made.append(one)
    summary: Figures = {
        f"{name}_{figure}": round(statistics.median(one[name][figure] for one in made), 2)
        for name in ("off", "traced")
        for figure in ("cpu_us", "per_s")
    }
    for figure in ("cpu_us", "per_s"):
        ratios = [one["traced"][figure] / one["off"][figure] for one in made]
        word = figure.partition("_")[0]
        summary[f"{word}_ratio"] = round(statistics.median(ratios), 3)
        summary[f"{word}_ratio_least"] = round(min(ratios), 3)
        summary[f"{word}_ratio_greatest"] = round(max(ratios), 3)
    return summary


def main(arguments: Sequence[str]) -> None:
    """Measure once, and print the figures."""
    parser = figures.parser("tracing", __doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=20_000, help="of each arm in a round")
    parser.add_argument("--share", type=float, default=0.01, help="of the messages that are traced")
    options = parser.parse_args(arguments)
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with standing(1) as rig, rig.collectors() as processes:
        processes.wait_healthy()
        measured = measure(
            rig, rounds=options.rounds, messages=options.messages, share=options.share
        )
        provider.force_flush()
        measured["spans"] = len(exporter.get_finished_spans())
        document = figures.document("tracing", measured, kafka=rig.kafka, arguments=arguments)
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
