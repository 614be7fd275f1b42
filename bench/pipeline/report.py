"""The whole pipeline over some runs: read, kept as Parquet, figured, judged, one document.

Kafka is read once; all later steps read the Parquet that came of it. In a folder `out`:

    events      one row an event, typed (`sources.py`)
    counts      events by side, round, consumer, measure and value (`figures.py`)
    latencies, rates, losses
    order       raw order records read by the rule: runs with places, void records with reasons
    placed      deliveries with their places (`judge.py`)
    live/       what the streams keep, where it was asked for (`live.py`)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from bench.pipeline import figures, judge
from bench.pipeline.live import follow
from bench.pipeline.rule import PlannedOrder, Statement, read_control
from bench.pipeline.sources import RecordedArm, RunSource, arms, order_records, statements, typed
from multicast.errors import AmcastError, ClusterUnreachable

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class PipelineRequest:
    """What to do: `follow_s` None reads a batch, 0 streams what there is, more follows so long."""

    out: str
    follow_s: float | None = None


def report(
    spark: SparkSession,
    source: RunSource,
    request: PipelineRequest,
    *,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Run the pipeline; give its document. Raises `AmcastError` where something cannot be read."""
    began = time.monotonic()
    try:
        progress("reading what the runs are")
        described = arms(spark, source)
        counts, events, late = _events(spark, source, described, request, progress)
        planned = sorted({arm.topic for arm in described if arm.planned})
        said = statements(spark, source, planned)
        order = read_order(said)
        progress("reading the order streams")
        records = order_records(spark, source, planned) if planned else None
        document = examine(
            events,
            counts,
            records,
            order=order,
            described=described,
            request=request,
            progress=progress,
        )
    except PySparkException as error:
        raise _wrapped(error) from error
    return {
        "schema_version": SCHEMA_VERSION,
        "runs": list(source.runs),
        "mode": "batch" if request.follow_s is None else "stream",
        "late": late,
        "complete": all(arm.complete for arm in described),
        **document,
        "out": request.out,
        "seconds": round(time.monotonic() - began, 1),
    }


def examine(
    events: DataFrame,
    counts: DataFrame,
    records: DataFrame | None,
    *,
    order: PlannedOrder,
    described: Sequence[RecordedArm],
    request: PipelineRequest,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Make figures and judge: events and counts as Parquet has them, raw order records."""
    spark = events.sparkSession
    progress("figures")
    latencies = _kept(figures.latencies(counts), f"{request.out}/latencies")
    rates = _kept(figures.rates(counts), f"{request.out}/rates")
    addressed = figures.interests(spark, described)
    losses = _kept(figures.losses(events, addressed), f"{request.out}/losses")
    progress("judging the order")
    if records is None:
        records = spark.createDataFrame(
            [], "topic string, partition int, offset bigint, value binary"
        )
    read = _kept(judge.read_streams(records, order.rules), f"{request.out}/order")
    void = judge.voids(read)
    found = judge.runs(read)
    bucket = judge.bucket_of(found)
    where = judge.placed(events, found, order, described, bucket)
    verdict = judge.verdict(_kept(where, f"{request.out}/placed"), found, order, bucket)
    lost = [row.asDict() for row in losses.collect()]
    complete = {(arm.run, arm.name) for arm in described if arm.complete}
    return {
        "events": events.count(),
        "latencies": [row.asDict() for row in latencies.collect()],
        "rates": [row.asDict() for row in rates.collect()],
        "losses": lost,
        # Of a run that is not over, a message may still be delivered.
        "lost": sum(row["lost"] for row in lost if (row["run"], row["arm"]) in complete),
        "order": {
            "runs": found.count(),
            "void": void,
            "deliveries": verdict.deliveries,
            "inversions": verdict.inversions,
            "unplaced": verdict.unplaced,
            "disagreements": verdict.disagreements,
            "witnesses": list(verdict.witnesses),
            "holds": verdict.holds,
        },
    }


def read_order(said: Mapping[str, Sequence[Statement]]) -> PlannedOrder:
    """Read control topics; what they say of who orders what, and who follows whom."""
    order = PlannedOrder()
    for topic, of_topic in said.items():
        read_control(topic, of_topic, order)
    return order


def _events(
    spark: SparkSession,
    source: RunSource,
    described: Sequence[RecordedArm],
    request: PipelineRequest,
    progress: Callable[[str], None],
) -> tuple[DataFrame, DataFrame, int]:
    """Give counts, events and how many came too late to be counted."""
    if request.follow_s is None:
        progress("reading the events")
        raw = source.batch(spark, source.event_places)
        events = _kept(typed(raw, described), f"{request.out}/events")
        return _kept(figures.counted(events), f"{request.out}/counts"), events, 0
    progress("following the events")
    found = follow(spark, source, described, f"{request.out}/live", seconds=request.follow_s)
    return _kept(found.counts, f"{request.out}/counts"), found.events, found.late


def _kept(frame: DataFrame, path: str) -> DataFrame:
    """Write Parquet and read it back: what was worked out once is not worked out again."""
    frame.write.mode("overwrite").parquet(path)
    return frame.sparkSession.read.schema(frame.schema).parquet(path)


def _wrapped(error: PySparkException) -> AmcastError:
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if "TimeoutException" in text or "UnknownTopicOrPartition" in text:
        return ClusterUnreachable(f"Spark could not read from Kafka: {first}")
    return AmcastError(f"Spark failed: {first}")
