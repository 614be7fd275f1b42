"""Compares the appenders at full speed: messages/s until all are acknowledged, and CPU a message.

    python -m bench.tickets.saturated [--rounds 7] [--messages 40000] [--bytes 100] [--call 1]

One broker, two Kafka partitions in turn, one thread that appends message by message, or so many by
each call, and waits only while the appender's buffer is full. The appenders run one after the other
in each round; ratios are those of the rounds, to librdkafka's. CPU is that of this process.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from bench.comparison.run import own_broker
from bench.harness import figures
from bench.harness.rig import pause
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin, KafkaPythonDriver, TopicSpec
from multicast.drivers.protocol import Appended, AppendOutcome, TopicPartition
from multicast.errors import BufferFull

_FULL_S = 0.001  # while the buffer is full
_FLUSH_S = 120.0  # a slower one hangs
_BASE = "librdkafka"
_TOPIC = "saturated"


def _append_each(
    append: Callable[..., None],
    partitions: Sequence[TopicPartition],
    values: Sequence[bytes],
    done: Callable[[AppendOutcome], None],
) -> None:
    for number, value in enumerate(values):
        while True:
            try:
                append(partitions[number & 1], value, done=done)
            except BufferFull:
                pause(_FULL_S)
            else:
                break


def _append_many(
    append_all: Callable[..., int],
    partitions: Sequence[TopicPartition],
    calls: Sequence[Sequence[bytes]],
    done: Callable[[int, int, AppendOutcome], None],
) -> None:
    for number, values in enumerate(calls):
        rest = values
        while rest:
            taken = append_all(partitions[number & 1], rest, done=done)
            rest = rest[taken:]
            if not taken:
                pause(_FULL_S)


def _round(
    appender: Any, partitions: Sequence[TopicPartition], values: Sequence[bytes], call: int
) -> tuple[float, float]:
    """Append all; return messages/s, and microseconds of CPU a message."""
    failed: list[AppendOutcome] = []

    def done(outcome: AppendOutcome) -> None:
        if not isinstance(outcome, Appended):
            failed.append(outcome)

    messages = len(values)
    calls = [values[start : start + call] for start in range(0, messages, call)]
    begun, cpu = time.perf_counter(), time.process_time()
    if call == 1:
        _append_each(appender.append, partitions, values, done)
    else:
        _append_many(
            appender.append_all, partitions, calls, lambda _first, _count, outcome: done(outcome)
        )
    assert appender.flush(_FLUSH_S), "some appends have no outcome"
    took, used = time.perf_counter() - begun, time.process_time() - cpu
    assert not failed, failed[0]
    return messages / took, 1e6 * used / messages


def measure(bootstrap: str, *, count: int, values: Sequence[bytes], call: int) -> dict[str, Any]:
    """Return the medians of each appender, and the ratios of its rates with their spread."""
    rounds: dict[str, list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        with Admin(bootstrap) as admin:
            admin.create_topics({_TOPIC: TopicSpec(2)})
        partitions = [TopicPartition(_TOPIC, number) for number in (0, 1)]
        package = stack.enter_context(KafkaPythonDriver(bootstrap))
        rdkafka = open_driver(_BASE, bootstrap)
        stack.callback(rdkafka.close)
        appenders: dict[str, Any] = {
            _BASE: rdkafka.appender(),
            "kafka-python": package.appender(),
            "joint": package.joint_appender(),
        }
        for appender in appenders.values():
            stack.callback(appender.close)
            _round(appender, partitions, values[: len(values) // 4], call)
        for number in range(count):
            figures.progress(f"round {number + 1} of {count}")
            for name, appender in appenders.items():
                result = _round(appender, partitions, values, call)
                rounds.setdefault(name, []).append(result)
    measured: dict[str, Any] = {}
    for name, results in rounds.items():
        rates = [rate for rate, _ in results]
        measured[f"{name}_per_s"] = round(statistics.median(rates))
        measured[f"{name}_cpu_us"] = round(statistics.median([cpu for _, cpu in results]), 1)
        ratios = [rate / base for rate, (base, _) in zip(rates, rounds[_BASE], strict=True)]
        spread = (statistics.median(ratios), min(ratios), max(ratios))
        measured[f"{name}_ratio"] = [round(ratio, 2) for ratio in spread]
    return measured


def main(arguments: Sequence[str]) -> None:
    """Measure once, and print the figures."""
    parser = figures.parser("saturated", __doc__, room="tickets")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=40_000, help="of a round")
    parser.add_argument("--bytes", type=int, default=100, help="of a message")
    parser.add_argument("--call", type=int, default=1, help="messages of one call")
    options = parser.parse_args(arguments)
    with own_broker(figures.progress) as brokers:
        measured = measure(
            brokers.bootstrap,
            count=options.rounds,
            values=[bytes(options.bytes)] * options.messages,
            call=options.call,
        )
        made = figures.document(
            "saturated", measured, kafka=brokers.kafka, arguments=arguments, room="tickets"
        )
    figures.show(made, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
