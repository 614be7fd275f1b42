"""Latencies, rates and losses of runs, from their events.

There are two steps: `counted` counts events by value and by everything that figures are grouped by;
`latencies` and `rates` compute the figures.

    end_to_end   delivered - intended, of each delivery
    accepted     accepted - intended, of each message
    publish      accepted - sent, of each message
    delivered_at, accepted_at    the stamps themselves, for rates; counted by the millisecond

A latency counts as the middle of a range whose width is at most 2**-13 of its value, ten times
finer than the clients' histograms. A quantile is the value of rank floor(q n + 1/2), as in
HdrHistogram. A rate covers the time after the last stamp of the first millisecond, as in the
clients, because their first poll returns many messages at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from bench.pipeline.sources import RecordedArm

SIDES = ("run", "arm", "topology", "r", "size")
QUANTILES = {"p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "p999": 0.999, "p9999": 0.9999}
_LATENCIES = ("end_to_end", "accepted", "publish")
_STAMPS = ("delivered_at", "accepted_at")
_PRECISION_BITS = 13  # of a latency's value; see above


def counted(events: DataFrame) -> DataFrame:
    """Count measured events by side, round, consumer, measure and value."""

    def measure(name: str, value: str) -> Column:
        return F.struct(F.lit(name).alias("measure"), F.expr(value).alias("exact"))

    all_measures = F.array(
        measure("end_to_end", "delivered - intended"),
        measure("accepted", "accepted - intended"),
        measure("publish", "accepted - sent"),
        measure("delivered_at", "delivered"),
        measure("accepted_at", "accepted"),
    )
    rows = (
        events.where("measured")
        .select(*SIDES, "round", "consumer", F.explode(all_measures).alias("each"))
        .select("*", "each.measure", "each.exact")
        .where("exact is not null")
        .withColumn(
            "value", F.when(_is(_STAMPS), F.expr("exact div 1000000")).otherwise(_rounded())
        )
    )
    return rows.groupBy(*SIDES, "round", "consumer", "measure", "value").agg(
        F.count("*").alias("n"),
        F.sum(F.when(_is(_LATENCIES), F.col("exact"))).alias("total"),
        F.max("exact").alias("greatest"),
    )


def latencies(counts: DataFrame) -> DataFrame:
    """Return one row per side and measure: count, and mean, quantiles and maximum in ms."""
    keys = [*SIDES, "measure"]
    sums = (
        counts.where(_is(_LATENCIES))
        .groupBy(*keys, "value")
        .agg(F.sum("n").alias("n"), F.sum("total").alias("total"), F.max("greatest").alias("most"))
    )
    group = Window.partitionBy(*keys)
    ranked = sums.withColumn(
        "rank", F.sum("n").over(group.orderBy("value").rowsBetween(Window.unboundedPreceding, 0))
    ).withColumn("all", F.sum("n").over(group))

    def quantile(q: float) -> Column:
        rank = F.greatest(F.lit(1), F.floor(F.lit(q) * F.col("all") + 0.5))
        return F.min(F.when(F.col("rank") >= rank, F.col("value"))) / 1e6

    return (
        ranked.groupBy(*keys)
        .agg(
            F.sum("n").alias("count"),
            (F.sum("total") / F.sum("n") / 1e6).alias("mean_ms"),
            *(quantile(q).alias(f"{name}_ms") for name, q in QUANTILES.items()),
            (F.max("most") / 1e6).alias("max_ms"),
        )
        .orderBy(*keys)
    )


def rates(counts: DataFrame) -> DataFrame:
    """Return per side the messages/s of all consumers and of all producers: the rounds' median."""
    by_round = (
        counts.where(_is(_STAMPS))
        .groupBy(*SIDES, "round", "consumer", "measure")
        .agg(
            F.sum("n").alias("n"),
            F.min_by("n", "value").alias("first"),
            (F.max("greatest") - F.min_by("greatest", "value")).alias("ns"),
        )
        .withColumn("after", F.col("n") - F.col("first"))
        .withColumn("rate", F.when(F.col("ns") > 0, F.col("after") * 1e9 / F.col("ns")))
        .groupBy(*SIDES, "round", "measure")
        .agg(F.sum("rate").alias("rate"), F.sum("n").alias("n"))
    )
    median = F.percentile("rate", F.lit(0.5))
    return (
        by_round.groupBy(*SIDES, "measure")
        .agg(
            F.sum("n").alias("count"),
            F.count("*").alias("rounds"),
            median.alias("messages_per_s"),
            (median * F.col("size") / 1e6).alias("megabytes_per_s"),
        )
        .withColumn(
            "measure", F.when(F.col("measure") == "delivered_at", "delivered").otherwise("accepted")
        )
        .orderBy(*SIDES, "measure")
    )


def interests(spark: SparkSession, described: Sequence[RecordedArm]) -> DataFrame:
    """List each consumer's interest: run, arm, consumer, interest."""
    rows = [
        (arm.run, arm.name, consumer, list(interest))
        for arm in described
        for consumer, interest in arm.interests.items()
    ]
    return spark.createDataFrame(
        rows, "run string, arm string, consumer string, interest array<string>"
    )


def losses(events: DataFrame, addressed: DataFrame) -> DataFrame:
    """Count by run, arm and consumer the messages due, and those of them never delivered."""
    message = ["run", "arm", "consumer", "log", "offset"]
    due = (
        events.where("role = 'producer' and accepted is not null")
        .select("run", "arm", "log", "offset", "to")
        .join(F.broadcast(addressed), ["run", "arm"])
        .where(F.arrays_overlap("to", "interest"))
        .select(*message)
    )
    delivered = events.where("role = 'consumer'").select(*message).distinct()
    joined = due.join(delivered.withColumn("got", F.lit(1)), message, "left")
    return (
        joined.groupBy("run", "arm", "consumer")
        .agg(F.count("*").alias("due"), F.count_if(F.col("got").isNull()).alias("lost"))
        .orderBy("run", "arm", "consumer")
    )


def _is(measures: Sequence[str]) -> Column:
    return F.col("measure").isin(*measures)


def _rounded() -> Column:
    """Return the middle of the range that contains a latency."""
    exact = "greatest(exact, 1)"
    shift = f"greatest(cast(floor(log2({exact})) as int) - {_PRECISION_BITS}, 0)"
    low = f"shiftleft(shiftright({exact}, {shift}), {shift})"
    return F.expr(f"{low} + shiftright(shiftleft(1L, {shift}), 1)")
