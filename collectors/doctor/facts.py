"""What was found out about a deployment, before anybody judges it (`checks.py` does).

No I/O: `inspection.py` asks Kafka. Times are milliseconds since 1970 by our own clock, unless a
line says whose.

    stamp    what somebody's clock said at a moment of which ours knows bounds
    foreign  a record that no program of ours writes there; everybody skips it
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from collectors.mending import Damage
from multicast.drivers.kafka_python import OpenTransaction
from topology.tree import Plan

FOR_EVER = -1
OPEN_MS = 2_000  # a transaction that is open for longer makes people wait
_HOUR_MS = 3_600_000


class Role(enum.StrEnum):
    """What a topic holds."""

    DATA = "data"
    ORDER = "order"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """A registered broker; `away`: it is fenced, or does not answer, and has no `settings`."""

    broker: int
    away: bool
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """Who holds a Kafka partition; `leader` is -1 where nobody leads."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic that exists, with all settings in force."""

    name: str
    role: Role
    settings: Mapping[str, str]
    partitions: tuple[PartitionFacts, ...] = ()

    @property
    def replication(self) -> int:
        """The least number of replicas of any of its Kafka partitions."""
        return min((len(one.replicas) for one in self.partitions), default=0)

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
class CollectorFacts:
    """A collector of the epoch that runs, as its stream tells.

    `behind` counts by log the offsets that stood there `waited_s` seconds ago and have no place in
    the stream yet. `void` counts by reason what did not count from offset `read_from` on.
    """

    name: str
    parent: str | None
    advertised_address: bool
    records: int
    frozen: bool = False
    void: Mapping[str, int] = field(default_factory=dict)
    foreign: tuple[int, ...] = ()
    read_from: int = 0
    behind: Mapping[str, int] = field(default_factory=dict)
    waited_s: float = 0.0
    last_ms: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class HeldLog:
    """A log whose last stable offset stands still before messages of open transactions.

    `opened` are those transactions, the first one first; empty where nobody tells.
    """

    log: str
    topic: str
    partition: int
    end: int
    high: int
    opened: tuple[OpenTransaction, ...] = ()

    def oldest(self, now_ms: int) -> OpenTransaction | None:
        """Give the first of those that have been open for long."""
        late = [one for one in self.opened if now_ms - one.since_ms >= OPEN_MS]
        return late[0] if late else None

    def says(self, now_ms: int) -> str:
        """Say who waits for whom."""
        one = self.oldest(now_ms)
        who = "an open transaction"
        if one is not None:
            name = f", transactional id {one.transactional_id}" if one.transactional_id else ""
            who = (
                f"a transaction of producer {one.producer_id} (epoch {one.producer_epoch}{name}), "
                f"which is open for {length(now_ms - one.since_ms)}"
            )
        return (
            f"log {self.log} stands still at offset {self.end} before {self.high - self.end} "
            f"offsets: its consumers wait for {who}"
        )

    def do(self, now_ms: int) -> str:
        """Say what ends it."""
        one = self.oldest(now_ms)
        first = self.end if one is None else one.first_offset
        ends = "Kafka aborts it after its transaction.timeout.ms"
        if one is not None and one.timeout_ms is not None:
            ends = f"Kafka aborts it {length(one.timeout_ms)} after it began"
        return (
            f"let that producer commit or abort ({ends}); 'kafka-transactions.sh abort --topic "
            f"{self.topic} --partition {self.partition} --start-offset {first}' ends it now"
        )


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """Where a consumer group reads on in one log (or in an order stream), and what is left there.

    `oldest_ms` is the stamp of the first record it has not read; `bytes_left` an estimate, known
    only where retention counts bytes.
    """

    log: str
    topic: str
    position: int
    begin: int
    end: int
    oldest_ms: int | None = None
    bytes_left: int | None = None

    @property
    def lag(self) -> int:
        """The offsets that it has not read, trimmed ones included."""
        return max(0, self.end - self.position)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group with a committed cursor; `guessed`: its interest is not known."""

    group: str
    cursor: str
    epoch: int = 0
    places: tuple[GroupPosition, ...] = ()
    guessed: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a clock said, not after `before_ms` of ours; not before `after_ms`, where known."""

    whose: str
    stamp_ms: int
    before_ms: int
    after_ms: int | None = None

    @property
    def ahead_ms(self) -> int:
        """By how much that clock is ahead of ours at least; negative: not known to be."""
        return self.stamp_ms - self.before_ms

    @property
    def late_ms(self) -> int | None:
        """By how much that clock is behind ours at least; None: cannot be seen."""
        return None if self.after_ms is None else self.after_ms - self.stamp_ms


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was found out. `shown` is the newest epoch that has begun, 0 where none has."""

    topic: str
    now_ms: int
    plan: Plan | None = None
    shown: int = 0
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    brokers: tuple[BrokerFacts, ...] = ()
    topics: tuple[TopicFacts, ...] = ()
    control_foreign: tuple[int, ...] = ()
    plans_lost: int = 0
    collectors: tuple[CollectorFacts, ...] = ()
    held: tuple[HeldLog, ...] = ()
    damages: tuple[Damage, ...] = ()
    groups: tuple[GroupFacts, ...] = ()
    stamps: tuple[Stamp, ...] = ()
    unseen: tuple[str, ...] = ()


def length(milliseconds: int) -> str:
    """Say a length of time for a person."""
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    if milliseconds < 2 * _HOUR_MS:
        return f"{milliseconds / 60_000:.0f} min"
    if milliseconds < 72 * _HOUR_MS:
        return f"{milliseconds / _HOUR_MS:.0f} h"
    return f"{milliseconds / (24 * _HOUR_MS):.0f} days"
