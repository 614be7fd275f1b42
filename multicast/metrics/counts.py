"""What a producer and a consumer have counted, at one moment; apart from any client library.

`Producer.counts()` and `Consumer.counts()` give these, and `multicast.metrics.clients` shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from multicast.consuming.buffers import Waiting
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.metrics.families import LatencyCounts


@dataclass(frozen=True, slots=True)
class AppendCounts:
    """The appends of one producer to one log, and their outcomes.

    The messages of one `multicast_all` count as settled when the last of them has its outcome.
    """

    sent: int  # appends that have started
    settled: int  # of these, those whose outcome is known
    refused: int  # of these, those that the log does not contain
    unknown: int  # those that the log may contain
    full: int  # attempts to append that found the buffer full
    seconds: LatencyCounts  # from an append to its acceptance, of one message at a time

    @property
    def accepted(self) -> int:
        """Messages that all in-sync replicas hold."""
        return self.settled - self.refused - self.unknown

    @property
    def in_flight(self) -> int:
        """Messages without an outcome."""
        return max(0, self.sent - self.settled)  # an outcome may come before its append is counted


@dataclass(frozen=True, slots=True)
class ProducerCounts:
    """One producer's appends by log name, of logs that it has appended to."""

    topic: str
    logs: Mapping[str, AppendCounts]
    closed: bool


@dataclass(frozen=True, slots=True)
class ConsumerCounts:
    """What one consumer has read and delivered since it was opened.

    After a seek to an earlier position messages are delivered again, and counted again.
    """

    topic: str
    consumer: str  # its name in the plan, else its interest, like P1+P3
    closed: bool
    epoch: int
    delivered: Mapping[str, int]  # messages, by log name
    payload_bytes: int  # of the records read in the logs, whether delivered or not
    buffered: int  # records read and not delivered yet
    buffered_bytes: int  # an estimate of the memory that they take
    paused_logs: int  # not read for now, as their buffers are full
    void: Mapping[str, int]  # messages judged void, by reason
    entries_read: Mapping[str, int]  # order entries, by log name
    entries_dropped: Mapping[str, int]
    replanning_s: float | None  # how long the last change of epoch stopped it; None: there was none
    waiting: Waiting | None  # for which log the messages at hand wait
    # By log name: its Kafka partition, and the offset below which all is delivered or dropped.
    # Empty until the order says where the consumer begins.
    progress: Mapping[str, tuple[TopicPartition, int]]
    driver: Driver = field(repr=False)

    def lags(self) -> dict[str, int]:
        """Count, by log name, the offsets below the log's end that are not delivered or dropped.

        Asks the cluster for the ends, which blocks for one request. Raises `ClusterUnreachable`.
        """
        ends = self.driver.last_stable_offsets([log for log, _ in self.progress.values()])
        return {name: max(0, ends[log] - offset) for name, (log, offset) in self.progress.items()}


class CountedClient(Protocol):
    """A producer or a consumer, synchronous or not, that is open."""

    def counts(self) -> ProducerCounts | ConsumerCounts:
        """Give what it has counted; from any thread, without blocking."""
