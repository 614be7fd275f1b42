"""Compares the times that records carry with the retention, which goes by them.

An imported history keeps its times of years ago: Kafka removes it as soon as a segment is full,
however new the records are to the topic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from collectors.doctor.facts import FOR_EVER, length
from multicast.drivers.protocol import Driver, TopicPartition


def older_logs(
    driver: Driver, places: Mapping[str, TopicPartition], kept_ms: int, now_ms: int
) -> tuple[str, ...]:
    """Name the logs that hold records, and none that is younger than `kept_ms`; -1: for ever."""
    partitions = list(places.values())
    if kept_ms == FOR_EVER or not partitions:
        return ()
    young = driver.offsets_at(partitions, max(0, now_ms - kept_ms))
    starts, ends = driver.log_start_offsets(partitions), driver.last_stable_offsets(partitions)
    return tuple(
        name for name, at in places.items() if starts[at] < ends[at] and young[at] >= ends[at]
    )


def names_older(topic: str, kept_ms: int, logs: Collection[str]) -> tuple[str, str, str]:
    """Say of which topic all records of some logs are older than it keeps them, and what to do."""
    says = f"by its own time every record of {', '.join(logs)} is older than retention.ms of topic "
    says += f"{topic} ({length(kept_ms)}), so retention may remove them all, however lately they "
    says += "were written"
    do = "raise retention.ms, or have message.timestamp.type=LogAppendTime before they are written"
    return f"topic {topic}", says, do
