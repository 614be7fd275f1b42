"""The facts about a deployment, without judgement: `checks.py` judges them.

No I/O: `inspection.py` asks Kafka. Times are milliseconds since 1970 by the clock of this process,
unless a line names another clock.

    stamp    a timestamp of another machine's clock, with bounds of when it was taken by ours
    foreign  a record that none of our programs writes to that topic; all readers skip it
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from collectors.core.mending import Damage
from multicast.drivers.kafka import OpenTransaction
from topology.tree import Plan

FOR_EVER = -1  # Kafka's value of retention.ms and retention.bytes for no limit
# A log may be ordered ahead of its end for less: a ticket may come before its message, and the
# collector waits some two seconds before it fills the rest.
AHEAD_MS = 3_000
# Consumers wait for an open transaction, so one that is open for longer is reported. Kafka Streams
# commits every 100 ms (exactly once); ten times more here would hide a hung producer for 20 s.
OPEN_MS = 2_000
_HOUR_MS = 3_600_000  # of sixty minutes


class Role(enum.StrEnum):
    """What a topic holds."""

    DATA = "data"
    ORDER = "order"
    CONTROL = "control"
    COLLECTORS = "collectors"


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """A registered broker; `away`: it is fenced or does not answer, so `settings` is empty."""

    broker: int
    away: bool
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The replicas of a Kafka partition, by broker IDs; `leader` is -1 if there is none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic that exists, with all its effective settings."""

    name: str
    role: Role
    settings: Mapping[str, str]
    partitions: tuple[PartitionFacts, ...] = ()

    @property
    def replication(self) -> int:
        """The least number of replicas of any of its Kafka partitions."""
        return min((len(partition.replicas) for partition in self.partitions), default=0)

    @property
    def in_sync_min(self) -> int:
        """`min.insync.replicas`."""
        return int(self.settings["min.insync.replicas"])

    @property
    def kept_ms(self) -> int:
        """`retention.ms`; -1: for ever."""
        return int(self.settings["retention.ms"])

    @property
    def kept_bytes(self) -> int:
        """`retention.bytes`; -1: without limit."""
        return int(self.settings["retention.bytes"])


@dataclass(frozen=True, slots=True)
class AheadLog:
    """A log that its top, `collector`, has ordered up to `ordered` though it ends at `end`.

    `by` names the first record that went beyond that end, and `for_ms` is how old it was; empty and
    None if it stands before what was read.
    """

    log: str
    collector: str
    ordered: int
    end: int
    by: str = ""
    for_ms: int | None = None

    def says(self) -> str:
        """Name the log, for what its consumers wait, since when, and by whom it was ordered."""
        since = "that record stands before those that were read"
        if self.for_ms is not None:
            since = f"they were ordered {length(self.for_ms)} ago by {self.by}"
        return (
            f"log {self.log} is ordered ahead of its end, up to offset {self.ordered}: its "
            f"consumers wait for the {self.ordered - self.end} offsets from {self.end} on; {since}"
        )

    def do(self) -> str:
        """Name what happens next."""
        return (
            f"messages that are on their way come there; else collector {self.collector} fills "
            f"them within about 2 s while it runs and the leader of {self.log} answers: if this "
            f"stays, check both; 'amcast collectors run --node {self.collector}' starts an instance"
        )


@dataclass(frozen=True, slots=True)
class CollectorFacts:
    """A collector of the running epoch, as its stream shows it.

    `behind` counts by log the offsets that were filled when the inspection began and are not
    ordered yet; `oldest_ms` is the timestamp of the first of them. `records` counts those that
    count, from offset `read_from` on, and `void` the others by reason. It `is_open` if some
    instance has opened it. `ended_at` is where the process listened that acted last, if it is known
    to have ended. `ahead` lists its own logs that are ordered ahead of their ends.
    """

    name: str
    parent: str | None
    is_open: bool
    records: int
    frozen: bool = False
    void: Mapping[str, int] = field(default_factory=dict)
    foreign: tuple[int, ...] = ()
    read_from: int = 0
    behind: Mapping[str, int] = field(default_factory=dict)
    oldest_ms: int | None = None
    last_ms: int | None = None
    problem: str | None = None
    ended_at: str = ""
    ahead: tuple[AheadLog, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldLog:
    """A log whose last stable offset cannot advance past messages of open transactions.

    `opened` lists those transactions, the oldest first; empty if the brokers do not tell.
    """

    log: str
    topic: str
    partition: int
    end: int
    high: int
    opened: tuple[OpenTransaction, ...] = ()

    def oldest(self, now_ms: int) -> OpenTransaction | None:
        """Give the first transaction that has been open for `OPEN_MS`; None if there is none."""
        late = [opened for opened in self.opened if now_ms - opened.since_ms >= OPEN_MS]
        return late[0] if late else None

    def says(self, now_ms: int) -> str:
        """Name the log, and the transaction that its consumers wait for."""
        oldest = self.oldest(now_ms)
        what = "an open transaction"
        if oldest is not None:
            name = ""
            if oldest.transactional_id:
                name = f", transactional id {oldest.transactional_id}"
            what = (
                f"a transaction of producer {oldest.producer_id} "
                f"(epoch {oldest.producer_epoch}{name}), "
                f"which has been open for {length(now_ms - oldest.since_ms)}"
            )
        return (
            f"log {self.log} is held at offset {self.end}, {self.high - self.end} offsets before "
            f"its end: its consumers wait for {what}"
        )

    def do(self, now_ms: int) -> str:
        """Name what ends the transaction."""
        oldest = self.oldest(now_ms)
        first = self.end if oldest is None else oldest.first_offset
        ends = "Kafka aborts it after its transaction.timeout.ms"
        if oldest is not None and oldest.timeout_ms is not None:
            ends = f"Kafka aborts it {length(oldest.timeout_ms)} after it began"
        return (
            f"let that producer commit or abort ({ends}); 'kafka-transactions.sh abort --topic "
            f"{self.topic} --partition {self.partition} --start-offset {first}' ends it now"
        )


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """The position of a consumer group in one log, and what it has still to read.

    `first` is the offset of the first unread message for it, and `oldest_ms` its timestamp; `first`
    is the position where not all that is unread was looked at, and the end where it is no message,
    but skips and the like. `ordered` is how far its collector has ordered the log. `bytes_left` is
    an estimate, known only if retention is by bytes.
    """

    log: str
    topic: str
    position: int
    begin: int
    end: int
    first: int | None = None
    oldest_ms: int | None = None
    ordered: int | None = None
    bytes_left: int | None = None

    @property
    def lag(self) -> int:
        """How many offsets it has not read, including deleted ones."""
        return max(0, self.end - self.position)

    @property
    def waits(self) -> int:
        """How many offsets it may deliver, from the first message on."""
        first = self.position if self.first is None else self.first
        end = self.end if self.ordered is None else min(self.end, self.ordered)
        return max(0, end - first)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group with a committed cursor; `guessed`: its interest is unknown.

    Without a cursor it is a consumer of the plan that has never committed. `committed_ms` is when
    it committed last, by its own clock.
    """

    group: str
    cursor: str
    interest: tuple[str, ...] = ()
    committed_ms: int | None = None
    epoch: int = 0
    places: tuple[GroupPosition, ...] = ()
    guessed: bool = False
    problem: str | None = None

    @property
    def lag(self) -> int:
        """How many messages wait for it that it may deliver."""
        return sum(place.waits for place in self.places)

    @property
    def oldest_ms(self) -> int | None:
        """When the first of them was made; None: none waits, or it is not known."""
        return min(
            (place.oldest_ms for place in self.places if place.waits and place.oldest_ms),
            default=None,
        )

    @property
    def stands_since_ms(self) -> int | None:
        """Since when messages wait and it has committed nothing; None: it does not stand."""
        oldest = self.oldest_ms
        return None if oldest is None else max(oldest, self.committed_ms or 0)


@dataclass(frozen=True, slots=True)
class Stamp:
    """A timestamp of `source`'s clock, taken not after `before_ms` and not before `after_ms`.

    Both bounds are of our clock; `after_ms` None: unknown.
    """

    source: str
    stamp_ms: int
    before_ms: int
    after_ms: int | None = None

    @property
    def ahead_ms(self) -> int:
        """By how much that clock is ahead of ours at least; negative: it may not be ahead."""
        return self.stamp_ms - self.before_ms

    @property
    def late_ms(self) -> int | None:
        """By how much that clock is behind ours at least; None: the stamp cannot show it."""
        return None if self.after_ms is None else self.after_ms - self.stamp_ms


@dataclass(slots=True)
class Facts:
    """All facts of one inspection. `begun_epoch` is the newest epoch that has begun; 0: none."""

    topic: str
    now_ms: int
    plan: Plan | None = None
    begun_epoch: int = 0
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    members: int | None = None  # 0: no process is in the group of collectors; None: unknown
    brokers: tuple[BrokerFacts, ...] = ()
    topics: tuple[TopicFacts, ...] = ()
    control_foreign: tuple[int, ...] = ()
    collectors_foreign: tuple[int, ...] = ()
    plans_lost: int = 0
    collectors: tuple[CollectorFacts, ...] = ()
    held: tuple[HeldLog, ...] = ()
    damages: tuple[Damage, ...] = ()
    groups: tuple[GroupFacts, ...] = ()
    older: tuple[tuple[str, str, str], ...] = ()  # as `record_times.names_older` says
    stamps: tuple[Stamp, ...] = ()
    unseen: tuple[str, ...] = ()
    unchecked: Mapping[str, str] = field(default_factory=dict)  # by process, what it did not check


def length(milliseconds: int) -> str:
    """Format a length of time for people."""
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    if milliseconds < 2 * _HOUR_MS:
        return f"{milliseconds / 60_000:.0f} min"
    if milliseconds < 72 * _HOUR_MS:
        return f"{milliseconds / _HOUR_MS:.0f} h"
    return f"{milliseconds / (24 * _HOUR_MS):.0f} days"
