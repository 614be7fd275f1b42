"""Read the pipeline's input from Kafka, with Spark's connector, as read_committed.

    descriptions   one row for each arm of a run: the sides of each figure, and its topics
    events         one typed row for each message event; `at` is its wall-clock time
    statements     the records of control topics; few, so they are collected to the driver
    order records  the raw records of order streams

Offsets of a Kafka partition may have gaps, so offsets are never subtracted to count records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from bench.comparison.events import DESCRIBED, PARTITIONS, events_topic
from bench.pipeline.rule import Statement
from multicast.errors import UsageError

EVENT = """
    run string, arm string, topology string, r double, role string, round int, number int,
    measured boolean, log string, offset bigint, `to` array<string>, size int,
    intended bigint, sent bigint, accepted bigint, delivered bigint,
    consumer string, instance string, sequence bigint
"""


@dataclass(frozen=True, slots=True)
class RecordedArm:
    """The description of one arm of a run. `complete`: all its events were written."""

    run: str
    name: str
    topic: str
    planned: bool
    clock_offset_ns: int
    interests: Mapping[str, tuple[str, ...]]
    complete: bool


@dataclass(frozen=True, slots=True)
class RunSource:
    """A cluster, and the runs on it to examine."""

    bootstrap: str
    runs: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)

    def batch(
        self, spark: SparkSession, partitions: Mapping[str, Sequence[int] | None]
    ) -> DataFrame:
        """Read Kafka topics up to their present end; None means all partitions of a topic."""
        reader = spark.read.format("kafka").options(**self._options(partitions))
        return reader.option("endingOffsets", "latest").load()

    def _options(self, partitions: Mapping[str, Sequence[int] | None]) -> dict[str, str]:
        whole_topics = [topic for topic, numbers in partitions.items() if numbers is None]
        start = "earliest"
        if len(whole_topics) == len(partitions):
            chosen = {"subscribe": ",".join(whole_topics)}
        else:
            assigned = {topic: list(numbers or ()) for topic, numbers in partitions.items()}
            chosen = {"assign": json.dumps(assigned)}
            # Not the earliest: Spark fails where the oldest events are gone (failOnDataLoss).
            start = json.dumps(
                {topic: {str(number): 0 for number in of} for topic, of in assigned.items()}
            )
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "startingOffsets": start,
            "kafka.isolation.level": "read_committed",
            "includeHeaders": "true",
            **chosen,
            **{f"kafka.{key}": value for key, value in self.options.items()},
        }

    @property
    def event_partitions(self) -> dict[str, Sequence[int] | None]:
        """The Kafka partitions with events, without those of the descriptions."""
        return {events_topic(run): range(1, PARTITIONS) for run in self.runs}


def arms(spark: SparkSession, source: RunSource) -> list[RecordedArm]:
    """Read the descriptions; raises `UsageError` where a run has none."""
    frame = source.batch(spark, {events_topic(run): [DESCRIBED] for run in source.runs})
    records = [json.loads(row["value"]) for row in frame.select("value").collect()]
    ended = {(record["run"], record["arm"]) for record in records if record["kind"] == "end"}
    described = [_arm(record, ended) for record in records if record["kind"] == "arm"]
    missing = sorted(set(source.runs) - {arm.run for arm in described})
    if missing:
        raise UsageError(
            f"topic {events_topic(missing[0])} describes no arm of run {missing[0]}; "
            "'amcast bench run … --events' prints the names of its runs"
        )
    return sorted(described, key=lambda arm: (arm.run, arm.name))


def _arm(record: Mapping[str, Any], ended: set[tuple[str, str]]) -> RecordedArm:
    return RecordedArm(
        run=record["run"],
        name=record["arm"],
        topic=record["topic"],
        planned=record["planned"],
        clock_offset_ns=record["clock_offset_ns"],
        interests={
            consumer["name"]: tuple(consumer["interest"]) for consumer in record["consumers"]
        },
        complete=(record["run"], record["arm"]) in ended,
    )


def typed(raw: DataFrame, described: Sequence[RecordedArm]) -> DataFrame:
    """Parse records to event rows; drops all that are not events of a described arm."""
    offsets = F.broadcast(
        raw.sparkSession.createDataFrame(
            [(arm.run, arm.name, arm.topic, arm.clock_offset_ns) for arm in described],
            "run string, arm string, topic string, clock_offset_ns bigint",
        )
    )
    event = F.from_json(F.col("value").cast("string"), EVENT)
    rows = raw.select(event.alias("event")).where("event.role is not null").select("event.*")
    stamp = F.coalesce("delivered", "accepted")
    return (
        rows.join(offsets, ["run", "arm"])
        # Spark's timestamps have microseconds; the stamps keep their nanoseconds.
        .withColumn("at", F.timestamp_micros(F.floor((stamp + F.col("clock_offset_ns")) / 1000)))
        .drop("clock_offset_ns")
        .where("at is not null")
    )


def statements(
    spark: SparkSession, source: RunSource, topics: Iterable[str]
) -> dict[str, list[Statement]]:
    """Read these topics' plans, markers and ends; by topic, in offset order."""
    by_topic: dict[str, list[Statement]] = {topic: [] for topic in topics}
    if not by_topic:
        return by_topic
    frame = source.batch(spark, {f"{topic}.topology": None for topic in by_topic})
    rows = frame.select("topic", "offset", "key", "value").collect()
    for row in sorted(rows, key=lambda row: (row["topic"], row["offset"])):
        topic = row["topic"].removesuffix(".topology")
        by_topic[topic].append(Statement(_bytes(row["key"]), _bytes(row["value"])))
    return by_topic


def order_records(spark: SparkSession, source: RunSource, topics: Iterable[str]) -> DataFrame:
    """Read these topics' raw order streams: topic, partition, offset, value."""
    frame = source.batch(spark, {f"{topic}.Msg-TO": None for topic in topics})
    return frame.select(
        F.regexp_replace("topic", r"\.Msg-TO$", "").alias("topic"), "partition", "offset", "value"
    )


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
