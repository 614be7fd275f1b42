"""Write synthetic events to Kafka in bulk, by Spark, to measure the pipeline's own cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from bench.comparison.events import PARTITIONS

_MESSAGES_IN_A_ROW = 500  # in one partition before the next: as a client writes a batch


def write_events(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    *,
    messages: int,
    places: Sequence[tuple[str, int]],
    offsets_each: int,
    every_ns: int,
    constants: Mapping[str, str | float],
) -> None:
    """Write a producer's and a consumer's event for each message of a periodic order.

    `places` gives log and offset for each place of one period, in which each log gets
    `offsets_each` offsets. Latencies are spread over 0.4 to 1.4 ms; 1 in 128 is ten times longer.
    """
    place = F.col("id")
    period = F.expr(f"id div {len(places)}")
    within = (place % len(places) + 1).cast("int")
    logs = F.array(*(F.lit(log) for log, _ in places))
    firsts = F.array(*(F.lit(first) for _, first in places))
    drawn = F.xxhash64("id")
    slow = F.when(F.shiftright(drawn, 20) % 128 == 0, 10).otherwise(1)
    latency = (F.lit(400_000) + F.pmod(drawn, F.lit(1_000_000))) * slow
    intended = F.lit(10**9) + place * every_ns
    shared = [
        *(F.lit(value).alias(name) for name, value in constants.items()),
        F.lit("ordered").alias("arm"),
        F.lit(1).alias("round"),
        place.alias("number"),
        F.lit(True).alias("measured"),
        F.element_at(logs, within).alias("log"),
        (period * offsets_each + F.element_at(firsts, within)).alias("offset"),
        F.array(F.element_at(logs, within)).alias("to"),
        F.lit(100).alias("size"),
        intended.alias("intended"),
        (intended + 5_000).alias("sent"),
    ]
    producer_event: list[Column] = [
        F.lit("producer").alias("role"),
        (intended + latency / 2).cast("bigint").alias("accepted"),
    ]
    consumer_event: list[Column] = [
        F.lit("consumer").alias("role"),
        F.lit("C1").alias("consumer"),
        F.lit("a").alias("instance"),
        place.alias("sequence"),
        (intended + latency * 0.9).cast("bigint").alias("ordered"),
        (intended + latency).cast("bigint").alias("delivered"),
    ]
    both = F.explode(
        F.array(
            F.to_json(F.struct(*shared, *producer_event)),
            F.to_json(F.struct(*shared, *consumer_event)),
        )
    )
    partition = (1 + F.expr(f"id div {_MESSAGES_IN_A_ROW}") % (PARTITIONS - 1)).cast("int")
    rows = spark.range(0, messages, numPartitions=4).select(
        both.alias("value"), partition.alias("partition")
    )
    rows.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option(
        "topic", topic
    ).option("kafka.compression.type", "lz4").save()
