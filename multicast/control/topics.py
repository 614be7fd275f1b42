"""The names of Kafka topics and partitions, and the names of sources in cursors."""

from __future__ import annotations

from multicast.drivers.protocol import TopicPartition
from multicast.errors import UsageError
from topology.interests import NAME_LENGTH_MAX, is_topic
from topology.tree import Log, Plan

# Of order records that are deleted: who knows the order may be there all the same.
ORDER_GONE = (
    "collectors that have run since before the order was deleted write checkpoints within a "
    "minute, from which new readers begin: leave them running"
)
SINGLE_LOG = "@"  # before a log's name: the source of a single-log subscription


def refuse_topic(topic: object) -> None:
    """Raise `UsageError` for what is no name of a data topic."""
    if not isinstance(topic, str) or not is_topic(topic):
        raise UsageError(
            f"topic {topic!r} is not a valid name: use 1 to {NAME_LENGTH_MAX} characters of "
            f"A-Z a-z 0-9 . _ -"
        )


def control_partition(topic: str) -> TopicPartition:
    """Give the one Kafka partition of the operators' statements: plans, markers and ends."""
    return TopicPartition(f"{topic}.topology", 0)


def collectors_partition(topic: str) -> TopicPartition:
    """Give the one Kafka partition of the collectors' statements: checkpoints, and who runs."""
    return TopicPartition(f"{topic}.collectors", 0)


def control_topics(topic: str) -> tuple[str, str]:
    """Give the Kafka topics of both kinds of statements."""
    return control_partition(topic).topic, collectors_partition(topic).topic


def groups_topic(topic: str) -> str:
    """Give the Kafka topic of the logs whose destination sets have several partitions."""
    return f"{topic}.groups"


def order_topic(topic: str) -> str:
    """Give the Kafka topic whose partitions are the collectors' order streams."""
    return f"{topic}.Msg-TO"


def sentinel_topic(topic: str) -> str:
    """Give the Kafka topic of the sentinel records: one on each broker, for watchers."""
    return f"{topic}.bells"


def own_topics(topic: str) -> tuple[str, ...]:
    """Give all Kafka topics beside the data topic; without the first one no process begins."""
    made = order_topic(topic), groups_topic(topic), sentinel_topic(topic)
    return (*control_topics(topic), *made)


def stream_partition(plan: Plan, collector: str) -> TopicPartition:
    """Give the Kafka partition of a collector's order stream."""
    return TopicPartition(order_topic(plan.topic), plan.collector(collector).stream)


def log_partition(log: Log) -> TopicPartition:
    """Give the Kafka partition that is a log."""
    return TopicPartition(log.topic, log.partition)
