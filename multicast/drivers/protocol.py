"""The driver protocol: the few things that the cores need of Kafka, and nothing more.

Three drivers implement it and pass one set of contract tests
(`tests/multicast/drivers/test_contract.py`): `memory/` (simulation), `kafka_python/` (the default;
also watches and administers for the third) and `librdkafka/` (the fast data path).

    offset_next   the next offset a reader will hand out, or a writer will get
    end           the last stable offset: all below it is committed and decided (read_committed,
                  everywhere; an open transaction holds it back)
    position      of a reader: every offset below it was handed out or holds no message for us
                  (a transaction marker, an aborted record)

Errors are this project's (`errors.py`); no client's exception passes a driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from multicast.errors import AmcastError, BufferFull


class TopicPartition(NamedTuple):
    """One Kafka partition; *partition* without more is an address (see `topology.tree`)."""

    topic: str
    partition: int


# Kafka's header values may be null. A record one of whose header names is not UTF-8 is read without
# headers, and a name ends at its first NUL, by every driver (`messages.header_name`).
Headers = Sequence[tuple[str, bytes | None]]


class Record(NamedTuple):
    """One committed message of a Kafka partition."""

    offset: int
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = -1


class Fetched(NamedTuple):
    """What one poll found in one Kafka partition.

    `records` are in offset order, all at or above the position that the poll before reported.
    `position` is at least one more than the last record's offset; where it is more, the offsets
    between hold no message. `records` may be empty: then only the position moved.
    """

    partition: TopicPartition
    records: Sequence[Record]
    position: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The record stands in the log at `offset`, stored by all in-sync replicas."""

    offset: int


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """The append was refused, or its outcome is unknown (`error.definite` tells which)."""

    error: AmcastError


AppendOutcome = Appended | AppendFailed


class Appender(Protocol):
    """An idempotent writer (acks=all). Appends to one Kafka partition keep their order."""

    def append(
        self,
        partition: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        done: Callable[[AppendOutcome], None],
    ) -> None:
        """Start an append; return at once or raise `BufferFull` (nothing was started).

        `done` is called exactly once, from any thread, within the delivery time-out; it must
        not block. Where an append fails, later ones to the same Kafka partition may succeed.
        """

    def append_all(
        self,
        partition: TopicPartition,
        values: Sequence[bytes | None],
        *,
        done: Callable[[int, AppendOutcome], None],
    ) -> int:
        """Start appends of these values, in order; say how many the buffer took, maybe none.

        `done` is called once for each that was taken, with its index in `values`, as for `append`.
        What was not taken was not started: call again with the rest.
        """

    def flush(self, timeout_s: float) -> bool:
        """Wait until every append so far has its outcome; False where time ran out."""

    def close(self, timeout_s: float = 5.0) -> None:
        """Flush for at most that long, then give up what is left (its outcome: unknown)."""


def append_each(
    appender: Appender,
    partition: TopicPartition,
    values: Sequence[bytes | None],
    *,
    headers: Headers = (),
    done: Callable[[int, AppendOutcome], None],
) -> int:
    """Start one append after the other until the buffer is full, as `Appender.append_all` does."""
    for index, value in enumerate(values):
        try:
            appender.append(partition, value, headers=headers, done=partial(done, index))
        except BufferFull:
            return index
    return len(values)


class Reader(Protocol):
    """Reads given Kafka partitions from given offsets, read_committed. Not thread-safe."""

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        """Read these Kafka partitions, too (or anew), each from that offset."""

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these no longer."""

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Hand out nothing of these until `resume`; their positions stay."""

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Go on with paused ones."""

    def poll(self, timeout_s: float, records_max: int = 5000) -> list[Fetched]:
        """Wait for anything new, at most so long; an empty list where there was nothing.

        Raises `Trimmed` where an offset to be read lies below the log's start (also for an
        offset above its end, which a correct log cannot have), `ClusterUnreachable` where no
        broker has answered for the driver's time-out.
        """

    def wake(self) -> None:
        """Make a poll in another thread return early. Safe from any thread."""

    def close(self) -> None:
        """Release sockets and buffers."""


class Watcher(Protocol):
    """Follows the ends of given Kafka partitions without reading their payload.

    `spacing_s` may be set at any time: the least time between two questions to one broker, so that
    under load many appends are told at once; 0 at first. (The memory driver asks nobody.)
    """

    spacing_s: float

    def add(self, partitions: Sequence[TopicPartition]) -> None:
        """Follow these, too; the next polls report their ends as soon as they are known.

        Like `poll`, it is for the thread that polls.
        """

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Follow these no longer. For the thread that polls."""

    def highs(self) -> Mapping[TopicPartition, int]:
        """Give the high watermarks, as last heard, that lie above the end: open transactions.

        Safe from any thread.
        """

    def poll(self, timeout_s: float) -> Mapping[TopicPartition, int]:
        """Wait until an end has moved, at most so long; give those that moved since last told.

        The first poll tells the ends as they are, as soon as they are known.
        """

    def wake(self) -> None:
        """Make a poll in another thread return early. Safe from any thread."""

    def close(self) -> None:
        """Release sockets and buffers."""


class DirectAppender(Protocol):
    """Appends small records to Kafka partitions, sent by the caller's thread itself (acks=all).

    Not idempotent: where a connection breaks, a record that is appended again may come to stand
    twice, and later ones before earlier ones. For who can live with that, as collectors can. One
    thread keeps the connections (`mend`), one receives; any thread appends, adds and removes.
    """

    def add(self, partitions: Sequence[TopicPartition]) -> None:
        """Keep a connection for these, too; the next `mend` opens it."""

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Append to these no longer; what is in flight still has its outcome."""

    def append(
        self, partition: TopicPartition, value: bytes, *, done: Callable[[AppendOutcome], None]
    ) -> bool:
        """Send a record; False where no connection is open now, or no room: nothing was sent.

        `done` is called once, by whoever calls `receive`, `mend` or `close`.
        """

    def fileno(self) -> int:
        """Give what to wait on until there is something to receive; it never changes."""

    def receive(self) -> None:
        """Take the answers that have come, without waiting."""

    def reconnect(self) -> None:
        """Close connections that do not answer, and open what is missing; ends within seconds."""

    def close(self) -> None:
        """Close the connections; what has no answer yet has an unknown outcome."""


class Driver(Protocol):
    """A way to one Kafka cluster. Its methods may be called from any thread."""

    @property
    def name(self) -> str:
        """One of "memory", "kafka-python", "librdkafka"."""

    def appender(self, *, linger_ms: int = 0) -> Appender:
        """Open a writer of its own; a linger trades latency for larger batches."""

    def reader(self, starts: Mapping[TopicPartition, int]) -> Reader:
        """Open a reader of its own."""

    def watcher(
        self, starts: Mapping[TopicPartition, int], *, sentinel_topic: str | None = None
    ) -> Watcher:
        """Open a watcher; `starts` are offsets believed to be at or below the ends.

        `sentinel_topic` names the topic of the bells (`control.sentinel_topic`): with it no payload
        is read; where it is None or does not exist, at most one batch of messages is read a
        question.
        """

    def direct_appender(self) -> DirectAppender | None:
        """Open what appends without a detour; None where there is none."""

    def log_start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Ask for the oldest retained offsets."""

    def last_stable_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Ask for the last stable offsets."""

    def high_watermarks(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Ask for the offsets that the next appends will get, what is uncommitted counted.

        Where a log is replicated, what its followers have not stored yet is not counted.
        """

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Ask for the first offsets whose record is at or after that time; the end where none."""

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Give the ids of those topics that exist: another id is another topic of that name."""

    def commit(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Store an offset and a short text for each Kafka partition under a consumer group."""

    def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Read back what `commit` stored; Kafka partitions without an entry are left out."""

    def close(self) -> None:
        """Release what the driver itself opened (not its appenders, readers and watchers)."""
