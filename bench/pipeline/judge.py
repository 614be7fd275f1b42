"""Check the order independently: compare the places in the raw streams with the deliveries.

    place          a message's position in the stream that a consumer follows (`rule.py`)
    scope          the deliveries among which order is required: all of a consumer that follows an
                   order stream, else those of one log, where the place is the offset
    inversion      a delivery of a consumer's instance whose place is not above those before it
    unplaced       a delivery of a message that is not in the order stream
    disagreement   two streams of one epoch order two messages differently

Invariant: places rise strictly with `sequence` within (run, arm, consumer, instance, scope).

A run is a range of offsets, and Spark can join ranges only by comparing all pairs. Therefore runs
are split at the edges of *buckets* of equally many offsets, and the join is by bucket first. With
buckets about as long as the mean run there are at most three times as many parts as runs, and at
most three times as many pairs to compare as messages, however the lengths vary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from bench.pipeline.rule import EPOCH_PLACES, PlannedOrder, StreamRule
from bench.pipeline.sources import RecordedArm
from bench.pipeline.ticket_rule import scan

READ = """
    kind string, topic string, name string, log string, first bigint, next bigint, place bigint
"""
_INSTANCE = ("run", "arm", "consumer", "instance", "scope")
_PAIR = ("topic", "epoch", "earlier", "later")
_BLOCK_ROWS = 2**16  # sorted as one; blocks are checked in parallel, then their edges
_BUCKET_OFFSETS_MAX = 2**20  # bounds the deliveries that one bucket, so one task, compares
_WITNESSES_MAX = 3  # of each kind, to keep the report readable


def read_streams(records: DataFrame, rules: Sequence[StreamRule]) -> DataFrame:
    """Apply the rule to raw order records: "run" rows with places, "void" rows with reasons.

    One task reads each stream, in offset order; streams are read in parallel.
    """
    in_order = records.repartition("topic", "partition").sortWithinPartitions(
        "topic", "partition", "offset"
    )
    rows = in_order.rdd.mapPartitions(partial(_read, rules))
    return records.sparkSession.createDataFrame(rows, READ, verifySchema=False)


def _read(rules: Sequence[StreamRule], rows: Iterable[Row]) -> Iterator[tuple[object, ...]]:
    """Apply the rule to one partition's rows; runs in Spark's workers."""
    for kind, fields in scan(rules, ((row[0], row[1], row[2], row[3]) for row in rows)):
        yield (kind, *fields, *(None,) * (6 - len(fields)))


def voids(read: DataFrame) -> dict[str, int]:
    """Count the void records by reason."""
    rows = read.where("kind = 'void'").groupBy("name").count().orderBy("name").collect()
    return {row["name"]: int(row["count"]) for row in rows}


def runs(read: DataFrame) -> DataFrame:
    """Return the accepted runs: topic, epoch, collector, log, first, next, place."""
    return read.where("kind = 'run'").select(
        "topic",
        F.expr(f"place div {EPOCH_PLACES}").alias("epoch"),
        F.col("name").alias("collector"),
        *("log", "first", "next", "place"),
    )


def bucket_of(streams: DataFrame) -> int:
    """Return the number of offsets in a bucket: a power of two near the mean length of a run."""
    row = streams.agg(F.avg(F.col("next") - F.col("first"))).collect()[0]
    mean = int(row[0] or 1)
    return min(_BUCKET_OFFSETS_MAX, 1 << max(0, mean.bit_length() - 1))


def split_runs(streams: DataFrame, bucket: int) -> DataFrame:
    """Split runs at bucket edges: topic, epoch, collector, log, bucket, first, next, place.

    A run is never empty (`rule.py`); otherwise the sequence of its buckets would go backwards.
    """
    edges = F.sequence(F.expr(f"first div {bucket}"), F.expr(f"(next - 1) div {bucket}"))
    parts = streams.withColumn("bucket", F.explode(edges))
    low = F.greatest(F.col("first"), F.col("bucket") * bucket)
    high = F.least(F.col("next"), (F.col("bucket") + 1) * bucket)
    return parts.select(
        *("topic", "epoch", "collector", "log", "bucket"),
        low.alias("first"),
        high.alias("next"),
        (F.col("place") + low - F.col("first")).alias("place"),
    )


def placed(
    events: DataFrame,
    streams: DataFrame,
    order: PlannedOrder,
    described: Sequence[RecordedArm],
    bucket: int,
) -> DataFrame:
    """Join deliveries with their places: the columns of `_INSTANCE`, sequence, log, offset, place.

    For a consumer that follows no collector, the places are the offsets, in each log.
    """
    spark = events.sparkSession
    readers = spark.createDataFrame(
        [list(reader) for reader in order.readers],
        "topic string, epoch bigint, collector string, consumer string",
    )
    following = {(reader.topic, reader.consumer) for reader in order.readers}
    following -= set(order.single_log)
    follows = spark.createDataFrame(
        [
            (arm.run, arm.name, consumer, (arm.topic, consumer) in following)
            for arm in described
            for consumer in arm.interests
        ],
        "run string, arm string, consumer string, follows boolean",
    )
    deliveries = (
        events.where("role = 'consumer'")
        .join(F.broadcast(follows), ["run", "arm", "consumer"])
        .withColumn("scope", F.when(F.col("follows"), "").otherwise(F.col("log")))
        .withColumn("bucket", F.expr(f"offset div {bucket}"))
    )
    parts = split_runs(streams, bucket).join(F.broadcast(readers), ["topic", "epoch", "collector"])
    within = (
        deliveries.alias("d")
        .join(
            parts.alias("p"),
            (F.col("d.topic") == F.col("p.topic"))
            & (F.col("d.consumer") == F.col("p.consumer"))
            & (F.col("d.log") == F.col("p.log"))
            & (F.col("d.bucket") == F.col("p.bucket"))
            & (F.col("d.offset") >= F.col("p.first"))
            & (F.col("d.offset") < F.col("p.next")),
            "left",
        )
        .select(
            *(f"d.{name}" for name in (*_INSTANCE, "sequence", "log", "offset", "follows")),
            (F.col("p.place") + F.col("d.offset") - F.col("p.first")).alias("ordered_place"),
        )
    )
    place = F.when(F.col("follows"), F.col("ordered_place")).otherwise(F.col("offset"))
    return within.withColumn("place", place).drop("follows", "ordered_place")


@dataclass(frozen=True, slots=True)
class PipelineVerdict:
    """The violations of the order; all counts are 0 where it holds."""

    deliveries: int
    inversions: int
    unplaced: int
    disagreements: int
    witnesses: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether there is no violation."""
        return not (self.inversions or self.unplaced or self.disagreements)


def verdict(
    where: DataFrame, streams: DataFrame, order: PlannedOrder, bucket: int
) -> PipelineVerdict:
    """Check the result of `placed`, and the streams against each other."""
    total = where.agg(F.count("*"), F.count_if(F.col("place").isNull())).collect()[0]
    known = where.where("place is not null")
    inversions = descents(known, keys=_INSTANCE, by="sequence", low="place", high="place")
    pairs = agreeing(streams, order, bucket)
    disagreements = 0
    if pairs is not None:
        disagreements = descents(pairs, keys=_PAIR, by="place", low="low", high="high")
    witnesses: list[str] = []
    if total[1]:
        witnesses += _unplaced(where)
    if inversions:
        witnesses += _inversions(known)
    if disagreements and pairs is not None:
        witnesses += _disagreements(pairs)
    return PipelineVerdict(total[0], inversions, total[1], disagreements, tuple(witnesses))


def agreeing(streams: DataFrame, order: PlannedOrder, bucket: int) -> DataFrame | None:
    """Join each two streams that share two logs or more; None where there are none.

    A row is a range of messages that both contain: its place in the earlier stream, and the places
    low to high in the later one. Streams that share only one log always agree on it, because its
    offsets rise in both (`rule.py`).
    """
    if not order.pairs:
        return None
    pairs = streams.sparkSession.createDataFrame(
        [list(pair) for pair in order.pairs],
        "topic string, epoch bigint, earlier string, later string",
    )
    parts = split_runs(streams, bucket)
    earlier = parts.withColumnRenamed("collector", "earlier").join(
        F.broadcast(pairs), ["topic", "epoch", "earlier"]
    )
    later = parts.select(
        *("topic", "epoch", "log", "bucket"),
        F.col("collector").alias("later"),
        F.col("first").alias("other_first"),
        F.col("next").alias("other_next"),
        F.col("place").alias("other_place"),
    )
    low = F.greatest("first", "other_first")
    length = F.least("next", "other_next") - low
    return (
        earlier.join(later, ["topic", "epoch", "later", "log", "bucket"])
        .where("first < other_next and other_first < next")
        .select(
            *(*_PAIR, "log", low.alias("offset")),
            (F.col("place") + low - F.col("first")).alias("place"),
            (F.col("other_place") + low - F.col("other_first")).alias("low"),
            (F.col("other_place") + low - F.col("other_first") + length - 1).alias("high"),
        )
    )


def descents(frame: DataFrame, *, keys: Sequence[str], by: str, low: str, high: str) -> int:
    """Count the rows, ordered by `by` within `keys`, whose `low` is not above all `high` before.

    Blocks of rows are sorted and checked in parallel; then each block is compared with those before
    it, so that no task sorts a whole run.
    """
    block = F.expr(f"{by} div {_BLOCK_ROWS}").alias("block")
    blocks = (
        frame.select(*keys, by, low, high, block)
        if low != high
        else frame.select(*keys, by, low, block)
    )
    inside = Window.partitionBy(*keys, "block").orderBy(by)
    edges = (
        blocks.withColumn("before", F.lag(high).over(inside))
        .groupBy(*keys, "block")
        .agg(
            F.count_if(F.col(low) <= F.col("before")).alias("bad"),
            F.min(low).alias("least"),
            F.max(high).alias("most"),
        )
    )
    along = Window.partitionBy(*keys).orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    crossing = F.col("least") <= F.max("most").over(along)
    total = (
        edges.withColumn("crossing", crossing)
        .agg(F.sum("bad"), F.count_if("crossing"))
        .collect()[0]
    )
    return int(total[0] or 0) + int(total[1] or 0)


# -- witnesses: computed only where there is a violation -----------------------------------


def _inversions(known: DataFrame) -> Iterator[str]:
    along = Window.partitionBy(*_INSTANCE).orderBy("sequence")
    before = F.lag(F.struct("log", "offset", "place")).over(along)
    rows = known.withColumn("before", before).where("place <= before.place").limit(_WITNESSES_MAX)
    for row in rows.collect():
        earlier = row["before"]
        yield (
            f"{row['run']}/{row['arm']}: {row['consumer']} delivered "
            f"{earlier['log']}:{earlier['offset']}, then {row['log']}:{row['offset']}; "
            f"in the order the second comes {earlier['place'] - row['place']} before the first"
        )


def _unplaced(where: DataFrame) -> Iterator[str]:
    for row in where.where("place is null").limit(_WITNESSES_MAX).collect():
        yield (
            f"{row['run']}/{row['arm']}: {row['consumer']} delivered {row['log']}:{row['offset']}, "
            "which is not in its order stream"
        )


def _disagreements(pairs: DataFrame) -> Iterator[str]:
    along = Window.partitionBy(*_PAIR).orderBy("place")
    last = F.expr("offset + high - low").alias("offset")
    before = F.lag(F.struct("log", last, "high")).over(along)
    rows = pairs.withColumn("before", before).where("low <= before.high").limit(_WITNESSES_MAX)
    for row in rows.collect():
        earlier = row["before"]
        yield (
            f"{row['topic']}: collector {row['earlier']} orders {earlier['log']}:"
            f"{earlier['offset']} before {row['log']}:{row['offset']}, {row['later']} after it"
        )
