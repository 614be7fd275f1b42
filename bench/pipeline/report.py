"""Run the whole pipeline over some runs, and return one document.

Kafka is read once; all later steps read the Parquet written from it. The folder `out` holds:

    events      one typed row for each event (`sources.py`)
    counts      events by side, round, consumer, measure and value (`figures.py`)
    latencies, rates, losses
    order       the result of `rule.py` on the order records: runs with places, void records with
                reasons
    placed      deliveries with their places (`judge.py`)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.pipeline import figures, judge
from bench.pipeline.inputs import trimmed
from bench.pipeline.rule import PlannedOrder, Statement, read_control
from bench.pipeline.session import SPARK_ERRORS, SparkFailed, sentence_of
from bench.pipeline.sources import RecordedArm, RunSource, arms, order_records, statements, typed
from multicast.errors import AmcastError, ClusterUnreachable

SCHEMA_VERSION = 1  # of the document that `-o json` prints


def report(
    spark: SparkSession, source: RunSource, out: str, *, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Run the pipeline; returns its document. Raises `AmcastError` where Spark or Kafka fails."""
    began = time.monotonic()
    try:
        progress("reading the runs' descriptions")
        described = arms(spark, source)
        progress("reading the events")
        raw = source.batch(spark, source.event_partitions)
        events = _kept(typed(raw, described), f"{out}/events")
        planned = sorted({arm.topic for arm in described if arm.planned})
        order = read_order(statements(spark, source, planned))
        progress("reading the order streams")
        records = order_records(spark, source, planned) if planned else None
        document = examine(
            events, records, order=order, described=described, out=out, progress=progress
        )
    except SPARK_ERRORS as error:
        raise _wrapped(error, source) from error
    return {
        "schema_version": SCHEMA_VERSION,
        "runs": list(source.runs),
        "complete": all(arm.complete for arm in described),
        **document,
        "out": out,
        "seconds": round(time.monotonic() - began, 1),
    }


def examine(
    events: DataFrame,
    records: DataFrame | None,
    *,
    order: PlannedOrder,
    described: Sequence[RecordedArm],
    out: str,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Compute the figures and check the order, from events and raw order records."""
    spark = events.sparkSession
    progress("computing the figures")
    counts = _kept(figures.counted(events), f"{out}/counts")
    latencies = _kept(figures.latencies(counts), f"{out}/latencies")
    rates = _kept(figures.rates(counts), f"{out}/rates")
    addressed = figures.interests(spark, described)
    losses = _kept(figures.losses(events, addressed), f"{out}/losses")
    progress("checking the order")
    if records is None:
        records = spark.createDataFrame(
            [], "topic string, partition int, offset bigint, value binary"
        )
    read = _kept(judge.read_streams(records, order.rules), f"{out}/order")
    void = judge.voids(read)
    runs = judge.runs(read)
    bucket = judge.bucket_of(runs)
    placed = judge.placed(events, runs, order, described, bucket)
    verdict = judge.verdict(_kept(placed, f"{out}/placed"), runs, order, bucket)
    lost = [row.asDict() for row in losses.collect()]
    complete = {(arm.run, arm.name) for arm in described if arm.complete}
    return {
        "events": events.count(),
        "latencies": [row.asDict() for row in latencies.collect()],
        "rates": [row.asDict() for row in rates.collect()],
        "losses": lost,
        # In a run that is not complete, a message may still be delivered.
        "lost": sum(row["lost"] for row in lost if (row["run"], row["arm"]) in complete),
        "order": {
            "runs": runs.count(),
            "void": void,
            "deliveries": verdict.deliveries,
            "inversions": verdict.inversions,
            "unplaced": verdict.unplaced,
            "disagreements": verdict.disagreements,
            "witnesses": list(verdict.witnesses),
            "holds": verdict.holds,
        },
    }


def read_order(statements_by_topic: Mapping[str, Sequence[Statement]]) -> PlannedOrder:
    """Read control topics: which collector orders which logs, and which consumer follows it."""
    order = PlannedOrder()
    for topic, topic_statements in statements_by_topic.items():
        read_control(topic, topic_statements, order)
    return order


def _kept(frame: DataFrame, path: str) -> DataFrame:
    """Write a frame as Parquet and read it back, so that Spark computes it only once.

    Spark fails where there is something already.
    """
    frame.write.parquet(path)
    return frame.sparkSession.read.schema(frame.schema).parquet(path)


def _wrapped(error: Exception, source: RunSource) -> AmcastError:
    text, sentence = str(error), sentence_of(error)
    if "data may have been lost" in text:
        return trimmed(", ".join(source.event_partitions), "Spark cannot read offset 0")
    if "TimeoutException" in text or "UnknownTopicOrPartition" in text:
        return ClusterUnreachable(f"Spark could not read from Kafka: {sentence}")
    return SparkFailed(f"Spark failed: {sentence}")
