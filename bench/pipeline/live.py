"""The same figures by Structured Streaming: while clients write, or once up to the present end.

Two queries read the topic. One stores the events as Parquet. The other counts them in windows of
event time; its watermark drops windows older than DELAY, so its state does not grow with the run.
Changed counts are written batch by batch; the last version of a window is valid.

An event that arrives more than DELAY behind the newest one is not counted. `late` is the number of
these: the stored events less the counted ones.
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
# Offsets in a micro-batch. A plain choice: a larger batch costs memory and is written later, while
# smaller ones each add the fixed cost of planning and committing.
_OFFSETS_MAX = 500_000
_PASS_S = 3600.0  # ten million events took 524 s (docs/pipeline.md)
_PAUSE_S = 1.0  # between passes: short, because each pass starts two queries
_COUNTS = ("n", "total", "greatest")
_pause = threading.Event()  # never set: used to sleep


@dataclass(frozen=True, slots=True)
class StreamResult:
    """The stored events, the counts, and the number of events that were too late to count."""

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
) -> StreamResult:
    """Follow the events for `seconds`, then read up to the present end, and stop.

    Each pass over the new events ends by itself, so no micro-batch is interrupted. Checkpoints in
    `out` let the next pass, or the next call with the same `out`, continue where the last stopped.
    """
    ends = time.monotonic() + seconds
    last = False
    while not last:
        last = time.monotonic() >= ends
        _pass(spark, source, described, out, offsets_max)
        if not last:
            _pause.wait(_PAUSE_S)
    events = spark.read.parquet(f"{out}/events")
    counts = _last_counts(spark.read.parquet(f"{out}/said"))
    stamps = counts.where("measure in ('delivered_at', 'accepted_at')").agg(F.sum("n"))
    late = events.where("measured").count() - int(stamps.collect()[0][0] or 0)
    return StreamResult(events, counts, late)


def _pass(
    spark: SparkSession,
    source: RunSource,
    described: Sequence[RecordedArm],
    out: str,
    offsets_max: int,
) -> None:
    """Run both queries over the events since the last pass."""
    raw = source.stream(spark, source.event_partitions, offsets_max=offsets_max)
    events = typed(raw, described)
    counts = counted(events.withWatermark("at", DELAY), windows=True)
    kept = events.writeStream.format("parquet").option("path", f"{out}/events")
    changes = counts.writeStream.outputMode("update").foreachBatch(
        partial(_write_batch, f"{out}/said")
    )
    queries: list[StreamingQuery] = []
    try:
        for writer, name in ((kept, "events"), (changes, "said")):
            resumed = writer.option("checkpointLocation", f"{out}/checkpoints/{name}")
            queries.append(resumed.trigger(availableNow=True).start())
        for query in queries:
            if not query.awaitTermination(round(_PASS_S)):
                raise TimedOut(f"the stream did not reach its end within {_PASS_S:g} s")
    finally:
        for query in queries:
            query.stop()


def _write_batch(path: str, changed: DataFrame, batch: int) -> None:
    """Write the counts that a micro-batch changed; idempotent."""
    changed.write.mode("overwrite").parquet(f"{path}/batch={batch}")


def _last_counts(changes: DataFrame) -> DataFrame:
    """Keep the last version of each window's counts, and add the windows up."""
    keys = [*SIDES, "round", "consumer", "measure", "value"]
    last = changes.groupBy(*keys, "window").agg(
        F.max_by(F.struct(*_COUNTS), "batch").alias("last"),
    )
    return last.groupBy(*keys).agg(
        F.sum("last.n").alias("n"),
        F.sum("last.total").alias("total"),
        F.max("last.greatest").alias("greatest"),
    )
