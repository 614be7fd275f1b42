"""The interest hypergraph: its vertices are logs, its edges are the interests that need an order.

From an `InterestFile` this module computes the declared logs, and the logs that each interest
meets. No solver and no files.
"""

from __future__ import annotations

from topology.interests import InterestFile
from topology.tree import Log, log_name


def declared_logs(interests: InterestFile) -> tuple[Log, ...]:
    """List the logs: the single partitions in the file's order, then the declared wider sets."""
    single = [
        Log(name=name, topic=interests.topic, partition=number)
        for number, name in enumerate(interests.partitions)
    ]
    wider = [
        Log(name=log_name(to), topic=f"{interests.topic}.groups", partition=number)
        for number, to in enumerate(interests.destinations)
    ]
    return (*single, *wider)


def logs_by_partition(interests: InterestFile) -> dict[str, tuple[str, ...]]:
    """Give for each partition the logs with destination sets that contain it, in plan order."""
    logs_of: dict[str, list[str]] = {name: [] for name in interests.partitions}
    for log in declared_logs(interests):
        for partition in log.to:
            logs_of[partition].append(log.name)
    return {name: tuple(logs) for name, logs in logs_of.items()}


def logs_met(interests: InterestFile) -> dict[str, tuple[str, ...]]:
    """Give for each consumer the logs that its interest meets, sorted by name."""
    logs_of = logs_by_partition(interests)
    return {
        consumer.name: tuple(sorted({log for p in consumer.interest for log in logs_of[p]}))
        for consumer in interests.consumers
    }
