"""Checks what `amcast bench pipeline` was asked for, before Spark starts.

Spark needs half a minute to say, in many lines, that a topic does not exist, accepts any setting of
Kafka's client, and reads a log that lost its oldest records as if it were whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.comparison.events import events_topic
from multicast.drivers.client_settings import REFUSED
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import UsageError

# Of the consumer settings of Kafka's client in Java, those that neither the pipeline nor Spark sets
# itself: how to log in (all that begin so), how to reach the brokers, and how much to fetch.
_LOGIN = ("sasl.", "ssl.")
_JAVA_SETTINGS = (
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "connections.max.idle.ms",
    "default.api.timeout.ms",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "max.partition.fetch.bytes",
    "max.poll.records",
    "metadata.max.age.ms",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "security.protocol",
    "security.providers",
    "send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms",
)


def check_settings(kafka: Mapping[str, str]) -> None:
    """Raise `UsageError` for a setting that Kafka's client in Java has not, or that stays ours."""
    for name in sorted(kafka):
        if name in _JAVA_SETTINGS or name.startswith(_LOGIN):
            continue
        if name in REFUSED:
            raise UsageError(f"--kafka {name} is refused: {REFUSED[name]}")
        raise UsageError(
            f"--kafka {name} is unknown; known are sasl.*, ssl.*, {', '.join(_JAVA_SETTINGS)}"
        )


def check_events(topics: Admin, logs: Driver, runs: Sequence[str]) -> None:
    """Raise `UsageError` unless the topic of each run's events exists and has lost no record."""
    by_topic = {events_topic(run): run for run in runs}
    counts = topics.partitions(list(by_topic))
    for topic, run in by_topic.items():
        if topic not in counts:
            raise UsageError(
                f"there is no topic {topic}, so run {run} has no events here; "
                "'amcast bench run … --events' prints the names of its runs"
            )
    starts = logs.log_start_offsets(
        [
            TopicPartition(topic, number)
            for topic, count in counts.items()
            for number in range(count)
        ]
    )
    for (topic, number), start in sorted(starts.items()):
        if start > 0:
            raise trimmed(topic, f"partition {number} begins at offset {start}")


def is_url(out: str) -> bool:
    """Whether figures go to a URL, which only Spark can read."""
    return "://" in out


def claim(out: str) -> None:
    """Make an empty folder on this machine; raises `UsageError` if it holds anything."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        holds = any(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{out} cannot be used for --out: {error.strerror or error}") from error
    if holds:
        raise UsageError(f"{out} is not empty; name another folder")


def trimmed(topic: str, why: str) -> UsageError:
    """Say that a topic no longer holds all of a run's events, so that nothing can be judged."""
    return UsageError(
        f"topic {topic} has lost its oldest events ({why}), by retention or deletion, so losses "
        f"and the order cannot be judged; record the run again"
    )
