"""The order judged a second time: places from the raw streams, held against what was delivered.

    place          where a message stands in the stream that a consumer follows (`rule.py`)
    scope          what a consumer's deliveries are in order within: all of them where it follows
                   an order, else one log, where the place is the offset
    inversion      two deliveries of one consumer's instance, the later with the lower place, or
                   one twice
    unplaced       a delivery of a message that the order does not have
    disagreement   two streams of one epoch that order two messages differently

Invariant: places rise strictly with `sequence` within (run, arm, consumer, instance, scope).

A run names offsets by their bounds, so deliveries meet runs by a range; a join by ranges alone
would compare everything with everything. Both sides therefore meet in *buckets* of an equal number
of offsets: a run is cut at their edges. With buckets about as long as the mean run there are at
most three times as many pieces as runs, and three times as many pairs to compare as messages,
however the lengths vary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from bench.pipeline.rule import EPOCH_PLACES, UNKNOWN_VERSION, PlannedOrder, StreamRule, scan
from bench.pipeline.sources import RecordedArm
from multicast.errors import UnknownVersion

READ = """
    kind string, topic string, name string, log string, first bigint, next bigint, place bigint
"""
_INSTANCE = ("run", "arm", "consumer", "instance", "scope")
_PAIR = ("topic", "epoch", "earlier", "later")
_BLOCK = 2**16  # rows in one sorted block; blocks are checked at once, then their edges
_BUCKET_MAX = 2**20
_WITNESSES = 3


def read_streams(records: DataFrame, rules: Sequence[StreamRule]) -> DataFrame:
    """Read raw order records by the rule: "run" rows with places, "void" rows with a reason.

    Each stream is read in one go and in offset order; streams are read side by side.
    """
    in_order = records.repartition("topic", "partition").sortWithinPartitions(
        "topic", "partition", "offset"
    )
    rows = in_order.rdd.mapPartitions(partial(_read, rules))
    return records.sparkSession.createDataFrame(rows, READ, verifySchema=False)


def _read(rules: Sequence[StreamRule], rows: Iterable[Row]) -> Iterator[tuple[object, ...]]:
    """Run in Spark's workers."""
    for kind, found in scan(rules, ((row[0], row[1], row[2], row[3]) for row in rows)):
        yield (kind, *found, *(None,) * (6 - len(found)))


def voids(read: DataFrame) -> dict[str, int]:
    """Count the records that do not count, by reason; raises `UnknownVersion`."""
    rows = read.where("kind = 'void'").groupBy("name").count().orderBy("name").collect()
    found = {row["name"]: int(row["count"]) for row in rows}
    if UNKNOWN_VERSION in found:
        raise UnknownVersion("an order record has a version that this program does not know")
    return found


def runs(read: DataFrame) -> DataFrame:
    """Give the runs that count: topic, epoch, collector, log, first, next, place."""
    return read.where("kind = 'run'").select(
        "topic",
        F.expr(f"place div {EPOCH_PLACES}").alias("epoch"),
        F.col("name").alias("collector"),
        *("log", "first", "next", "place"),
    )


def bucket_of(streams: DataFrame) -> int:
    """Choose how many offsets a bucket has: a power of two near the mean length of a run."""
    row = streams.agg(F.avg(F.col("next") - F.col("first"))).collect()[0]
    mean = int(row[0] or 1)
    return min(_BUCKET_MAX, 1 << max(0, mean.bit_length() - 1))


def pieces(streams: DataFrame, bucket: int) -> DataFrame:
    """Cut runs at the edges of buckets: topic, epoch, collector, log, bucket, first, next, place.

    A run is never empty (`rule.py`); else the sequence of its buckets would go backwards.
    """
    edges = F.sequence(F.expr(f"first div {bucket}"), F.expr(f"(next - 1) div {bucket}"))
    cut = streams.withColumn("bucket", F.explode(edges))
    low = F.greatest(F.col("first"), F.col("bucket") * bucket)
    high = F.least(F.col("next"), (F.col("bucket") + 1) * bucket)
    return cut.select(
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

    Who follows no collector is given offsets as places, log by log.
    """
    spark = events.sparkSession
    following = spark.createDataFrame(
        [list(reader) for reader in order.readers],
        "topic string, epoch bigint, collector string, consumer string",
    )
    led = {(reader.topic, reader.consumer) for reader in order.readers}
    led -= set(order.alone)
    follows = spark.createDataFrame(
        [
            (arm.run, arm.name, consumer, (arm.topic, consumer) in led)
            for arm in described
            for consumer in arm.interests
        ],
        "run string, arm string, consumer string, led boolean",
    )
    deliveries = (
        events.where("role = 'consumer'")
        .join(F.broadcast(follows), ["run", "arm", "consumer"])
        .withColumn("scope", F.when(F.col("led"), "").otherwise(F.col("log")))
        .withColumn("bucket", F.expr(f"offset div {bucket}"))
    )
    ours = pieces(streams, bucket).join(F.broadcast(following), ["topic", "epoch", "collector"])
    within = (
        deliveries.alias("d")
        .join(
            ours.alias("p"),
            (F.col("d.topic") == F.col("p.topic"))
            & (F.col("d.consumer") == F.col("p.consumer"))
            & (F.col("d.log") == F.col("p.log"))
            & (F.col("d.bucket") == F.col("p.bucket"))
            & (F.col("d.offset") >= F.col("p.first"))
            & (F.col("d.offset") < F.col("p.next")),
            "left",
        )
        .select(
            *(f"d.{name}" for name in (*_INSTANCE, "sequence", "log", "offset", "led")),
            (F.col("p.place") + F.col("d.offset") - F.col("p.first")).alias("ordered_place"),
        )
    )
    place = F.when(F.col("led"), F.col("ordered_place")).otherwise(F.col("offset"))
    return within.withColumn("place", place).drop("led", "ordered_place")


@dataclass(frozen=True, slots=True)
class PipelineVerdict:
    """What was found against the order; all of it is nought where the order holds."""

    deliveries: int
    inversions: int
    unplaced: int
    disagreements: int
    witnesses: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not (self.inversions or self.unplaced or self.disagreements)


def verdict(
    where: DataFrame, streams: DataFrame, order: PlannedOrder, bucket: int
) -> PipelineVerdict:
    """Judge what `placed` gave, and the streams against each other."""
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
    """Lay two streams over each other, for each two that share two logs; None: there are none.

    A row is a stretch of messages that both have: its place in the one, low to high in the other.
    Streams that share one log agree on it already, for in each its offsets rise (`rule.py`).
    """
    if not order.pairs:
        return None
    pairs = streams.sparkSession.createDataFrame(
        [list(pair) for pair in order.pairs],
        "topic string, epoch bigint, earlier string, later string",
    )
    cut = pieces(streams, bucket)
    one = cut.withColumnRenamed("collector", "earlier").join(
        F.broadcast(pairs), ["topic", "epoch", "earlier"]
    )
    other = cut.select(
        *("topic", "epoch", "log", "bucket"),
        F.col("collector").alias("later"),
        F.col("first").alias("other_first"),
        F.col("next").alias("other_next"),
        F.col("place").alias("other_place"),
    )
    low = F.greatest("first", "other_first")
    length = F.least("next", "other_next") - low
    return (
        one.join(other, ["topic", "epoch", "later", "log", "bucket"])
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

    Blocks of rows are sorted and checked side by side; then each block is held against those before
    it, so that no sort takes in a whole run.
    """
    block = F.expr(f"{by} div {_BLOCK}").alias("block")
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


# -- witnesses, in words; asked for only where there is something to tell ------------------------


def _inversions(known: DataFrame) -> Iterator[str]:
    along = Window.partitionBy(*_INSTANCE).orderBy("sequence")
    before = F.lag(F.struct("log", "offset", "place")).over(along)
    rows = known.withColumn("before", before).where("place <= before.place").limit(_WITNESSES)
    for row in rows.collect():
        earlier = row["before"]
        yield (
            f"{row['run']}/{row['arm']}: {row['consumer']} delivered "
            f"{earlier['log']}:{earlier['offset']}, then {row['log']}:{row['offset']}; "
            f"the order has the second {earlier['place'] - row['place']} before the first"
        )


def _unplaced(where: DataFrame) -> Iterator[str]:
    for row in where.where("place is null").limit(_WITNESSES).collect():
        yield (
            f"{row['run']}/{row['arm']}: {row['consumer']} delivered {row['log']}:{row['offset']}, "
            "which its order stream does not have"
        )


def _disagreements(pairs: DataFrame) -> Iterator[str]:
    along = Window.partitionBy(*_PAIR).orderBy("place")
    last = F.expr("offset + high - low").alias("offset")
    before = F.lag(F.struct("log", last, "high")).over(along)
    rows = pairs.withColumn("before", before).where("low <= before.high").limit(_WITNESSES)
    for row in rows.collect():
        earlier = row["before"]
        yield (
            f"{row['topic']}: collector {row['earlier']} orders {earlier['log']}:"
            f"{earlier['offset']} before {row['log']}:{row['offset']}, {row['later']} after it"
        )
