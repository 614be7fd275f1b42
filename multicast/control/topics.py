"""The names of Kafka topics and partitions, and of the sources of an order."""

from __future__ import annotations

from multicast.drivers.protocol import TopicPartition
from topology.tree import Log, Plan

ALONE = "@"  # before a log's name: that log, read alone


def control_partition(topic: str) -> TopicPartition:
    """Name the one Kafka partition of a topic's control topic."""
    return TopicPartition(f"{topic}.topology", 0)


def groups_topic(topic: str) -> str:
    """Name the Kafka topic that holds the logs of wider destination sets."""
    return f"{topic}.groups"


def order_topic(topic: str) -> str:
    """Name the Kafka topic whose partitions hold the collectors' streams."""
    return f"{topic}.Msg-TO"


def sentinel_topic(topic: str) -> str:
    """Name the Kafka topic of the bells: one record on each broker, for watchers."""
    return f"{topic}.bells"


def stream_partition(plan: Plan, collector: str) -> TopicPartition:
    """Name the Kafka partition that a collector appends its order to."""
    return TopicPartition(order_topic(plan.topic), plan.collector(collector).stream)


def log_partition(log: Log) -> TopicPartition:
    """Name the Kafka partition that holds a log."""
    return TopicPartition(log.topic, log.partition)
