"""What the pipeline reads of Kafka, by Spark's connector, read_committed.

    descriptions   one row an arm of a run: the sides of every figure, and where its topics are
    events         one typed row a message event; `at` is its wall-clock time
    statements     the records of control topics; small, so they come to the driver
    order records  the raw records of order streams

Offsets of a Kafka partition may have gaps; nothing is counted by their difference.
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
    intended bigint, sent bigint, accepted bigint, ordered bigint, delivered bigint,
    consumer string, instance string, sequence bigint
"""


@dataclass(frozen=True, slots=True)
class RecordedArm:
    """One arm of a run, as it was described. `complete`: all its events are there."""

    run: str
    name: str
    topic: str
    planned: bool
    clock_offset_ns: int
    interests: Mapping[str, tuple[str, ...]]
    complete: bool


@dataclass(frozen=True, slots=True)
class RunSource:
    """A cluster and the runs on it that are looked at."""

    bootstrap: str
    runs: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)

    def batch(self, spark: SparkSession, places: Mapping[str, Sequence[int] | None]) -> DataFrame:
        """Read Kafka topics as they are now, whole or some partitions of each."""
        reader = spark.read.format("kafka").options(**self._options(places))
        return reader.option("endingOffsets", "latest").load()

    def stream(
        self,
        spark: SparkSession,
        places: Mapping[str, Sequence[int] | None],
        *,
        offsets_max: int,
    ) -> DataFrame:
        """Read Kafka topics from their start on, so many offsets in one micro-batch."""
        reader = spark.readStream.format("kafka").options(**self._options(places))
        return reader.option("maxOffsetsPerTrigger", str(offsets_max)).load()

    def _options(self, places: Mapping[str, Sequence[int] | None]) -> dict[str, str]:
        wholes = [topic for topic, partitions in places.items() if partitions is None]
        if len(wholes) == len(places):
            chosen = {"subscribe": ",".join(wholes)}
        else:
            chosen = {"assign": json.dumps({topic: list(at or ()) for topic, at in places.items()})}
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
            "includeHeaders": "true",
            **chosen,
            **{f"kafka.{key}": value for key, value in self.options.items()},
        }

    @property
    def event_places(self) -> dict[str, Sequence[int] | None]:
        """The Kafka partitions that hold events, without the descriptions."""
        return {events_topic(run): range(1, PARTITIONS) for run in self.runs}


def arms(spark: SparkSession, source: RunSource) -> list[RecordedArm]:
    """Read the descriptions; raises `UsageError` for a run that nobody described."""
    frame = source.batch(spark, {events_topic(run): [DESCRIBED] for run in source.runs})
    said = [json.loads(row["value"]) for row in frame.select("value").collect()]
    over = {(one["run"], one["arm"]) for one in said if one["kind"] == "end"}
    found = [_arm(one, over) for one in said if one["kind"] == "arm"]
    missing = sorted(set(source.runs) - {arm.run for arm in found})
    if missing:
        raise UsageError(
            f"topic {events_topic(missing[0])} describes no arm of run {missing[0]}; "
            "'amcast bench run … --events' tells the runs it makes"
        )
    return sorted(found, key=lambda arm: (arm.run, arm.name))


def _arm(said: Mapping[str, Any], over: set[tuple[str, str]]) -> RecordedArm:
    return RecordedArm(
        run=said["run"],
        name=said["arm"],
        topic=said["topic"],
        planned=said["planned"],
        clock_offset_ns=said["clock_offset_ns"],
        interests={one["name"]: tuple(one["interest"]) for one in said["consumers"]},
        complete=(said["run"], said["arm"]) in over,
    )


def typed(raw: DataFrame, described: Sequence[RecordedArm]) -> DataFrame:
    """Turn records of events into rows; what is no event of a described arm is left out."""
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
        # A timestamp has microseconds; the stamps stay as they are.
        .withColumn("at", F.timestamp_micros(F.floor((stamp + F.col("clock_offset_ns")) / 1000)))
        .drop("clock_offset_ns")
        .where("at is not null")
    )


def statements(
    spark: SparkSession, source: RunSource, topics: Iterable[str]
) -> dict[str, list[Statement]]:
    """Read the control topics of these topics, checkpoints left out; by topic, in order."""
    found: dict[str, list[Statement]] = {topic: [] for topic in topics}
    if not found:
        return found
    frame = source.batch(spark, {f"{topic}.topology": None for topic in found})
    kept = frame.select("topic", "offset", "key", "value").where(
        "cast(key as string) not like 'checkpoint/%'"
    )
    rows = kept.collect()
    for row in sorted(rows, key=lambda row: (row["topic"], row["offset"])):
        topic = row["topic"].removesuffix(".topology")
        found[topic].append(Statement(_bytes(row["key"]), _bytes(row["value"])))
    return found


def order_records(spark: SparkSession, source: RunSource, topics: Iterable[str]) -> DataFrame:
    """Read the raw order streams of these topics: topic, partition, offset, value."""
    frame = source.batch(spark, {f"{topic}.Msg-TO": None for topic in topics})
    return frame.select(
        F.regexp_replace("topic", r"\.Msg-TO$", "").alias("topic"), "partition", "offset", "value"
    )


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
