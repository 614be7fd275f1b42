"""The driver protocol: the part of Kafka that the rest of the project uses.

Three drivers implement it and pass one set of contract tests
(`tests/multicast/drivers/test_contract.py`): `librdkafka_reader/` (the default), `kafka/` (whose
appender, watcher and single requests the librdkafka driver uses, too) and `memory/` (simulation).

    end           the last stable offset: every record below it is committed or aborted. All
                  drivers read with isolation level read_committed, so an open transaction
                  holds the end back
    position      of a reader: every offset below it was returned by a poll or holds no message
                  (a transaction's marker, an aborted record)

Offsets count records from 0 within one Kafka partition; a range is [first, next). Every call that
waits has a time limit. Drivers raise the errors of `errors.py` only, never a client's exception.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from multicast.errors import AmcastError

# Bounds of the appends in flight, by default: librdkafka's default of queue.buffering.max.messages,
# and twice Kafka's default of buffer.memory. A tenth would refuse bursts; ten times more bytes
# would let a producer hold 640 MB while brokers are down.
IN_FLIGHT_MAX = 100_000
IN_FLIGHT_BYTES_MAX = 64 * 1024 * 1024
# Records of one poll, by default. A plain choice: they share the poll's fixed cost, which ten times
# fewer would make felt; ten times more would delay the caller's other work.
POLL_RECORDS_MAX = 5000
# For the flush in `close`, by default. A plain choice: a program that exits may take this long.
CLOSE_TIMEOUT_S = 5.0


class TopicPartition(NamedTuple):
    """One Kafka partition. The word *partition* alone means an address (see `topology.tree`)."""

    topic: str
    partition: int


# A header value may be null in Kafka. Every driver drops all headers of a record if one header name
# is not UTF-8, and cuts a name at its first NUL (`messages.header_name`).
Headers = Sequence[tuple[str, bytes | None]]


class Record(NamedTuple):
    """One committed record of a Kafka partition; a timestamp of -1 means that it has none.

    `leader_epoch` is that of the leader which took the record; -1 if that is unknown.
    """

    offset: int
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = -1
    leader_epoch: int = -1


class LeaderEnd(NamedTuple):
    """The last stable offset, and the epoch of the leader that gave it; -1: it did not say."""

    end: int
    leader_epoch: int


class Fetched(NamedTuple):
    """The result of one poll for one Kafka partition.

    `records` ascend by offset, all at or above the position that the previous poll reported.
    `position` >= the last record's offset + 1; if it is greater, the offsets between hold no
    message. If `records` is empty, only the position moved.
    """

    partition: TopicPartition
    records: Sequence[Record]
    position: int


class Appended(NamedTuple):
    """All in-sync replicas store the record, at `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """The append was refused (`error.definite` is true), or its outcome is unknown (false).

    `sent` is False of a record that an appender refuses before it was in any request, so that
    `Driver.appender`'s `beside` was never told of it.
    """

    error: AmcastError
    sent: bool = True


AppendOutcome = Appended | AppendFailed

# Takes the index of a record in one call, a number of records from it on, and the first one's
# outcome. If it is stored, the others are at the offsets that follow, else they failed alike.
DoneAll = Callable[[int, int, AppendOutcome], None]


class JointRecord(NamedTuple):
    """A record for one Kafka partition, and the callback for its outcome."""

    partition: TopicPartition
    value: bytes | None
    done: Callable[[AppendOutcome], None]
    key: bytes | None = None
    headers: Headers = ()


# Gives what a request carries beside its records: `Driver.appender`.
Beside = Callable[[Mapping[TopicPartition, int]], Sequence[JointRecord]]
# Takes a partition, a number of records that follow each other, and the first one's outcome.
Settled = Callable[[TopicPartition, int, AppendOutcome], None]


class Appender(Protocol):
    """An idempotent producer (acks=all), for any thread.

    Records of one Kafka partition are stored in the order in which their appends started.
    """

    def append(
        self,
        partition: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        done: Callable[[AppendOutcome], None],
    ) -> None:
        """Start an append and return without waiting for its outcome.

        The appender calls `done` exactly once with the outcome, about within the delivery time-out,
        on any thread, even inside this call; `done` must not block. After a failed append, later
        ones to the same Kafka partition may succeed.

        Raises `BufferFull` if the buffer has no room and `UsageError` if the appender is closed;
        nothing was started then, and `done` is not called.
        """

    def ready(self, partition: TopicPartition) -> bool:
        """Return whether an append to this Kafka partition would be sent now without any wait.

        While this is False an event loop calls `prepare` in a thread. The question alone has the
        appender look for the leader and connect to it, so that the first append finds it ready.
        """

    def prepare(self, partition: TopicPartition) -> None:
        """Wait until `ready`, for some seconds at most; raises why an append would fail."""

    def append_all(
        self,
        partition: TopicPartition,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        done: DoneAll,
    ) -> int:
        """Start appends of these values, in order; return how many the buffer accepted (from 0).

        `keys` and `headers` hold one entry for each value. Headers may cost as much as single
        appends. The appender calls `done` as for `append`, so that each accepted value is in one
        call. The others were not started: call again without the first ones of everything.
        """

    def flush(self, timeout_s: float) -> bool:
        """Wait until every append so far has its outcome; return False if time ran out."""

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush for at most `timeout_s`, then settle the remaining appends as unknown.

        As of all clients: it does nothing in a forked process, where all other calls that reach
        Kafka raise `UsageError` (`drivers/home_process.py`).
        """


class Reader(Protocol):
    """Reads chosen Kafka partitions from chosen offsets, read_committed.

    Not thread-safe, except for `wake`.
    """

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        """Start to read these Kafka partitions, or start again, each from the given offset."""

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading these Kafka partitions; unknown ones are ignored."""

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return no records of these Kafka partitions until `resume`; their positions stay."""

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Continue paused Kafka partitions at their positions."""

    def poll(self, timeout_s: float, records_max: int = POLL_RECORDS_MAX) -> list[Fetched]:
        """Wait up to `timeout_s` for records; return an empty list if none came.

        The results hold at most `records_max` records together. Raises `Trimmed` if the position is
        below the log's start, or above its end (a correct log has no such position);
        `TopicMissing` if a Kafka partition does not exist; `AccessDenied` if the brokers refuse;
        `ClusterUnreachable` if no broker answered within the driver's request time-out. The reader
        stays usable after an error.
        """

    def wake(self) -> None:
        """Make a poll in another thread, or the next poll, return early. Safe from any thread."""

    def close(self) -> None:
        """Release sockets and buffers."""


class Watcher(Protocol):
    """Follows the ends of chosen Kafka partitions; reads little or no payload (`Driver.watcher`).

    `spacing_s` is the least time between two requests to one broker; a longer one lets an answer
    cover more appends under load. It is 0 at first and may be set at any time. (The memory driver
    sends no requests.) Only `highs` and `wake` are thread-safe.
    """

    spacing_s: float

    def add(self, partitions: Sequence[TopicPartition]) -> None:
        """Start to follow these; a later poll reports their ends as soon as they are known."""

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop following these; later polls do not report them."""

    def highs(self) -> Mapping[TopicPartition, int]:
        """Return the high watermarks above the end, as last reported: a transaction is open there.

        Safe from any thread.
        """

    def poll(self, timeout_s: float) -> Mapping[TopicPartition, int]:
        """Wait up to `timeout_s` for an end to move; return the ends that moved since last time.

        The first end of each Kafka partition counts as moved. Raises `TopicMissing`,
        `AccessDenied` and `ClusterUnreachable` as `Reader.poll` does.
        """

    def wake(self) -> None:
        """Make a poll in another thread, or the next poll, return early. Safe from any thread."""

    def close(self) -> None:
        """Release sockets and buffers."""


class MemberIdentity(NamedTuple):
    """What a join gave: by what the coordinator knows the member, and whether it is chosen."""

    generation: int
    member: str
    instance: str | None = None
    chosen: bool = False


ChooseMember = Callable[[Mapping[str, bytes]], str]  # from what each member claims


class GroupMembership(Protocol):
    """A member of a consumer group, for one thread."""

    @property
    def session_s(self) -> float:
        """After so many seconds without a heartbeat the group drops the member."""

    def take_part(self, claim: bytes, *, rejoin: bool = False) -> MemberIdentity | None:
        """Send a heartbeat, or join if that is due; give what the last join gave.

        None: it was not answered, or the others have not joined; try again. Blocks for their
        time-out at most. Raises `AmcastError` if the group is denied or unusable.
        """

    def close(self) -> None:
        """Leave the group, so that another member is chosen at once, and release everything."""


class Driver(Protocol):
    """Access to one Kafka cluster, for any thread.

    A call that sends a request blocks for the request time-out at most. It raises
    `ClusterUnreachable` if no broker answers, `TopicMissing` if a Kafka partition does not exist
    and `AccessDenied` if the brokers refuse.
    """

    @property
    def name(self) -> str:
        """Return "memory", "kafka-python" or "librdkafka"."""

    def appender(
        self,
        *,
        beside: Beside | None = None,
        settled: Settled | None = None,
        linger_ms: int = 0,
        compression: str = "none",
        batch_bytes: int | None = None,
    ) -> Appender:
        """Open an appender whose requests hold records of several partitions.

        `linger_ms` trades latency for batch size. `compression` is a codec's name
        (`client_settings.CODECS`), `batch_bytes` the most that one batch holds; None: the driver's
        choice. Raises `UsageError` for a codec that is not installed.

        `beside` is called for each request, with the numbers of records that the request starts in
        each partition; what it returns goes with them, or by a request to its own leader. Nothing
        waits for that: neither `flush` nor the buffer's room, and `close` for half a second at
        most; what a partition cannot be given for long is refused. `beside` is called under a lock,
        on any thread: it must not block, nor call the appender, nor wait for a lock whose holder
        calls the appender. `settled` is told each outcome just before `done`, but none of what goes
        beside, nor of a record that is refused at once.
        """

    def reader(
        self, starts: Mapping[TopicPartition, int], *, wait_s: float | None = None
    ) -> Reader:
        """Open a reader with its own connections; `starts` as for `Reader.add`.

        With `wait_s` it asks for records only while a poll waits, and a broker that has none leaves
        the question open for so many seconds: who waits for what comes seldom then costs itself and
        the brokers less. A poll takes longer, and so does an `add` while others are read.
        """

    def column_reader(self, starts: Mapping[TopicPartition, int]) -> Reader:
        """Open a reader for tables, whose records are `RecordColumns` as a rule.

        That is much faster for who needs their fields only. A poll may give some more records than
        it should. Blocks until the leaders are known, for the request time-out at most. Without
        numpy it raises `MissingExtra`; the memory driver gives a plain reader.
        """

    def watcher(
        self, starts: Mapping[TopicPartition, int], *, sentinel_topic: str | None = None
    ) -> Watcher:
        """Open a watcher; the offsets in `starts` should be at or below the ends.

        `sentinel_topic` names the topic of the sentinel records (docs/protocol.md). With it the
        watcher reads no payload. If it is None or does not exist, each answer of a broker holds at
        most one batch of messages, which the watcher ignores.
        """

    def log_start_offsets(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the oldest retained offsets. Waits as `topic_ids`."""

    def last_stable_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the last stable offsets."""

    def high_watermarks(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offsets below which all in-sync replicas store the log.

        Records of open transactions are included; a record that only the leader stores is not.
        Waits as `topic_ids`.
        """

    def leader_ends(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, LeaderEnd]:
        """Return the last stable offsets with their leaders' epochs, each from one answer.

        Waits as `topic_ids`, and leaves out those whose leaders have not answered by then.
        """

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return where the records of leader epochs up to this one end, as the leaders have them.

        That is the log's end for a leader's own epoch, and -1 for one that a leader does not know:
        it was asked for once more then, after a look at who leads. Waits as `leader_ends`.
        """

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offsets with a timestamp at or after `timestamp_ms`, else the ends."""

    def topic_ids(self, topics: Sequence[str], *, timeout_s: float | None = None) -> dict[str, str]:
        """Return the IDs of the topics that exist; a topic that is recreated has another ID.

        Waits for `timeout_s` at the most; by default, for the driver's own time-out.
        """

    def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """Return how many Kafka partitions each topic has; topics that do not exist are left out.

        As one broker knows it now: no cache answers.
        """

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        member: MemberIdentity | None = None,
    ) -> None:
        """Store an offset and a short text for each Kafka partition under a consumer group.

        Raises `GroupInUse` if the group has members and `member` is none of its generation. A
        member's commit is sent once: after `ClusterUnreachable` it may be stored later, as long as
        the generation is the group's.
        """

    def member(
        self, group: str, partitions: Sequence[TopicPartition], choose: ChooseMember
    ) -> GroupMembership:
        """Make a member of a group that gives all partitions to one."""

    def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Return what `commit` stored; Kafka partitions without an entry are left out."""

    def close(self) -> None:
        """Close the driver's own connections, but not its appenders, readers and watchers."""
