"""Measures the cost of the Spark pipeline by number of events: `python -m bench.micro.spark_cost`.

It generates events and order records in bulk on a new broker; then a new process runs the whole
pipeline over them. It prints the elapsed seconds, the CPU seconds of all processes of the pipeline
(Java and Python, without the broker), and the memory of the largest one.

A message has two events, its producer's and one consumer's. One collector orders three logs in runs
of 1, 7, 32 and 40 messages, the logs in turns, twelve runs to a record.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from bench.comparison.events import PARTITIONS, describe, events_topic, write_statement
from bench.comparison.layouts import Layout, lay_out
from bench.comparison.workload import Workload, from_document
from bench.harness.cost import Cost, run_measured
from collectors.reconfiguration.apply import apply
from multicast.control import order_topic
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin, TopicSpec
from multicast.drivers.protocol import Appender, Driver, TopicPartition
from multicast.errors import AmcastError, BufferFull
from multicast.local.cluster import LocalCluster
from multicast.order import OrderRecord, ParentNext, RecordKind, Run, anchor, digest_of, encode
from topology.tree import Plan

_LENGTHS = (1, 7, 32, 40)
_LOGS = 3
_PERIOD_RUNS = 12  # after so many runs each log has had each length
_PERIOD = 3 * sum(_LENGTHS)
_INTENDED_EVERY_NS = 10_000  # between two generated messages: 100,000 messages/s
_RETENTION = {"retention.ms": "-1"}


def main(
    sizes: Annotated[list[int] | None, typer.Argument(help="Numbers of events.")] = None,
    *,
    stream: Annotated[bool, typer.Option("--stream", help="As a stream, not a batch.")] = False,
) -> None:
    """Generate events, run the pipeline over them, and print its cost, size by size."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-cost-")))
        broker = stack.enter_context(LocalCluster(brokers=1))
        driver = open_driver("librdkafka", broker.bootstrap)
        stack.callback(driver.close)
        typer.echo(f"{'events':>10} {'s':>8} {'CPU s':>8} {'CPU µs/event':>13} {'MiB':>6}")
        for events in sizes or [10**5, 10**6, 10**7]:
            run = f"cost-{events}"
            topics = _fill(broker.bootstrap, driver, run, events // 2 // _PERIOD * _PERIOD)
            cost = _measure(broker.bootstrap, run, folder, stream=stream)
            typer.echo(
                f"{events:>10} {cost.seconds:>8.1f} {cost.cpu_s:>8.1f} "
                f"{1e6 * cost.cpu_s / events:>13.2f} {cost.resident_mib:>6.0f}"
            )
            with Admin(broker.bootstrap) as admin:
                admin.delete_topics(topics)


def _fill(bootstrap: str, driver: Driver, run: str, messages: int) -> list[str]:
    """Generate a run with a number of messages; return its topics."""
    topic = f"{run}-A"
    workload = from_document(
        {"kind": "one", "size": _LOGS, "message_bytes": 100, "load": 10**5, "messages": messages},
        name=run,
    )
    layout = lay_out(workload, "ordered", topic)
    assert layout.plan is not None
    with Admin(bootstrap) as admin:
        plan = apply(driver, admin, layout.plan).plan
        admin.create_topics({events_topic(run): TopicSpec(PARTITIONS, settings=_RETENTION)})
    write_statement(driver, run, "arm", describe(run, "ordered", workload, layout, topic))
    write_statement(driver, run, "end", {"run": run, "arm": "ordered"})
    _order(driver, plan, messages)
    _events(bootstrap, run, workload, layout, messages)
    return [topic, f"{topic}.topology", order_topic(topic), events_topic(run)]


def _period() -> list[tuple[int, int, int]]:
    """Return the runs of a period: log, first offset in the period, length."""
    firsts = [0] * _LOGS
    runs = []
    for number in range(_PERIOD_RUNS):
        log, length = number % _LOGS, _LENGTHS[number % len(_LENGTHS)]
        runs.append((log, firsts[log], length))
        firsts[log] += length
    return runs


def _order(driver: Driver, plan: Plan, messages: int) -> None:
    appender = driver.appender()
    partition = TopicPartition(order_topic(plan.topic), 0)
    step = sum(_LENGTHS)  # offsets of each log in a period
    previous = anchor(plan, plan.collectors[0].name)
    for period in range(messages // _PERIOD):
        begin = period * step
        runs = tuple(
            Run(log, begin + first, begin + first + length) for log, first, length in _period()
        )
        raw = encode(OrderRecord(RecordKind.OWN, previous, ParentNext(0, 0), runs))
        previous = digest_of(raw)
        _append(appender, partition, raw)
    if not appender.flush(300):
        raise AmcastError("the order records were not stored within 300 s")
    appender.close()


def _append(appender: Appender, partition: TopicPartition, raw: bytes) -> None:
    while True:
        try:
            appender.append(partition, raw, done=lambda _: None)
        except BufferFull:
            appender.flush(1)
        else:
            return


def _events(bootstrap: str, run: str, workload: Workload, layout: Layout, messages: int) -> None:
    """Let Spark generate the events and write them to Kafka."""
    from bench.pipeline.bulk import write_events  # noqa: PLC0415 - pyspark may be missing
    from bench.pipeline.session import spark  # noqa: PLC0415

    places = [
        (layout.partitions[log], first + index)
        for log, first, length in _period()
        for index in range(length)
    ]
    with spark(progress=lambda _: None) as session:
        write_events(
            session,
            bootstrap,
            events_topic(run),
            messages=messages,
            places=places,
            offsets_each=sum(_LENGTHS),
            every_ns=_INTENDED_EVERY_NS,
            constants={"run": run, "topology": "one-3", "r": round(workload.label, 3)},
        )


def _measure(bootstrap: str, run: str, folder: Path, *, stream: bool) -> Cost:
    command = [sys.executable, "-m", "multicast", "bench", "pipeline", run, "-b", bootstrap]
    command += ["--out", str(folder / run), "-o", "json", *(["--stream"] if stream else [])]
    return run_measured(command, folder / f"{run}.log")


if __name__ == "__main__":
    typer.run(main)
