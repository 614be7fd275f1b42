"""The same figures by Structured Streaming: while clients write, or once over all there is.

Two queries read the topic. One keeps the events as Parquet. The other counts them in windows of
their own time; its watermark lets go of windows that are older than DELAY, so its state does not
grow with the run. What changed is written batch by batch; the last that was said of a window holds.

An event that comes more than DELAY behind the newest is too late to be counted; `late` says how
many were, by holding the counts against the events that were kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.streaming.query import StreamingQuery

from bench.pipeline.figures import SIDES, counted
from bench.pipeline.sources import RecordedArm, RunSource, typed
from multicast.errors import TimedOut

DELAY = "10 minutes"  # longer than a round and the writing of its events
_OFFSETS_MAX = 500_000
_PASS_S = 3600.0
_EVERY_S = 1.0
_COUNTS = ("n", "total", "greatest")
_pause = threading.Event()  # never set: what is waited for is a time


@dataclass(frozen=True, slots=True)
class Followed:
    """Where the streams left what they found."""

    events: DataFrame
    counts: DataFrame
    late: int


def follow(
    spark: SparkSession,
    source: RunSource,
    described: Sequence[RecordedArm],
    out: str,
    *,
    seconds: float,
    offsets_max: int = _OFFSETS_MAX,
) -> Followed:
    """Follow the events for so many seconds, then take in what there is, and end.

    Each pass over what is new ends by itself, so that no micro-batch is broken off; where a pass or
    a run before it stopped on the same `out`, the next goes on.
    """
    ends = time.monotonic() + seconds
    last = False
    while not last:
        last = time.monotonic() >= ends
        _pass(spark, source, described, out, offsets_max)
        if not last:
            _pause.wait(_EVERY_S)
    events = spark.read.parquet(f"{out}/events")
    counts = _last_said(spark.read.parquet(f"{out}/said"))
    stamps = counts.where("measure in ('delivered_at', 'accepted_at')").agg(F.sum("n"))
    late = events.where("measured").count() - int(stamps.collect()[0][0] or 0)
    return Followed(events, counts, late)


def _pass(
    spark: SparkSession,
    source: RunSource,
    described: Sequence[RecordedArm],
    out: str,
    offsets_max: int,
) -> None:
    """Run both queries over what has come since the last pass."""
    raw = source.stream(spark, source.event_places, offsets_max=offsets_max)
    events = typed(raw, described)
    counts = counted(events.withWatermark("at", DELAY), windows=True)
    kept = events.writeStream.format("parquet").option("path", f"{out}/events")
    said = counts.writeStream.outputMode("update").foreachBatch(partial(_say, f"{out}/said"))
    queries: list[StreamingQuery] = []
    try:
        for writer, name in ((kept, "events"), (said, "said")):
            at = writer.option("checkpointLocation", f"{out}/checkpoints/{name}")
            queries.append(at.trigger(availableNow=True).start())
        for query in queries:
            if not query.awaitTermination(round(_PASS_S)):
                raise TimedOut(f"the stream did not come to its end within {_PASS_S:g} s")
    finally:
        for query in queries:
            query.stop()


def _say(path: str, changed: DataFrame, batch: int) -> None:
    """Write what a micro-batch changed; done twice it is done once."""
    changed.write.mode("overwrite").parquet(f"{path}/batch={batch}")


def _last_said(said: DataFrame) -> DataFrame:
    """Keep the last that was said of each count, and add the windows up."""
    keys = [*SIDES, "round", "consumer", "measure", "value"]
    last = said.groupBy(*keys, "window").agg(
        F.max_by(F.struct(*_COUNTS), "batch").alias("last"),
    )
    return last.groupBy(*keys).agg(
        F.sum("last.n").alias("n"),
        F.sum("last.total").alias("total"),
        F.max("last.greatest").alias("greatest"),
    )
