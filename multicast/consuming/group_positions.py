"""What a consumer group stores: its cursor, and offsets for its logs, so that tools show its lag.

A consumer resumes from its cursor only. In addition, each commit stores one offset for each log of
the interest: `kafka-consumer-groups` and lag exporters compare it with the log's end.

    trail    the batches handed out and not yet committed, in the order of delivery
    place    of a cursor: (epoch, record, run, next); places grow in the order of delivery

Invariant: `_offsets` holds at every place from `_place` up to the first entry of the trail.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from multicast.conditional.condition import LogPosition
from multicast.consuming.batches import Batch
from multicast.consuming.cursor import Cursor, interest_digest
from multicast.consuming.delivery import Delivery
from multicast.consuming.last_read import LastRead, committed_text
from multicast.control import control_partition, log_partition
from multicast.drivers.clock import ClientClock
from multicast.drivers.protocol import Driver, Record, TopicPartition
from multicast.errors import Trimmed, Truncated, UsageError
from multicast.messages import message_checksum, name_set, refuse_no_name
from topology.tree import Log, log_name

# A consumer that never commits must not fill its memory: one entry takes about 300 bytes, all of
# them 3 MB. The commit of an older batch stores no offsets of logs.
_ENTRIES_MAX = 10_000

# How often a commit looks whether another consumer uses the group: one request more a second.
_LOOK_EVERY_S = 1.0
# Own cursors that are recognised: commits of several threads may reach Kafka in any order.
_OWN_MAX = 64

OF_COLLECTORS = "collectors"  # the group in which they meet: collectors/membership.py

_LOGGER = logging.getLogger("amcast.consumer")
# What a commit says of a log of which it knows no message. Kafka's tools say nothing.
_NO_MESSAGE = "none"
PLACE = "'amcast seek' places a group"
Commit = Callable[[str, Mapping[TopicPartition, tuple[int, str]]], None]
_Place = tuple[int, int, int, int]


class _Entry(NamedTuple):
    place: _Place
    offsets: Mapping[TopicPartition, int]
    last: LastRead | None = None  # of the one partition of a batch


class GroupPositions:
    """Turns a cursor into offsets of logs, from the batches that were handed out."""

    def __init__(self) -> None:
        self._offsets: dict[TopicPartition, int] = {}
        self._place: _Place = (0, 0, 0, 0)
        self._trail: deque[_Entry] = deque()
        self._last: dict[TopicPartition, LastRead] = {}  # of each log, at `_place`
        self._followed: Delivery | None = None  # the one whose begin is known

    def follow(self, delivery: Delivery) -> None:
        """Note where a delivery begins, once it knows that."""
        if self._followed is not delivery and delivery.payload_starts is not None:
            self._followed = delivery
            self.moved(delivery)

    def begins(self, cursor: Cursor, offsets: Mapping[TopicPartition, int]) -> None:
        """Set where delivery begins: at the start, and in each epoch that follows."""
        self._add(_Entry(cursor.rank, offsets))
        if len(self._trail) == 1:
            self._take(self._trail.popleft())

    def moved(self, delivery: Delivery) -> None:
        """Note how far the logs are at the position of a delivery: those that have moved.

        These are all where it begins. An entry of all logs for each delivery would fill the memory
        of a consumer of many that never commits.
        """
        for log, record in delivery.dropped().items():
            self._read(delivery.position.rank, delivery.logs[log], record)
        moved = delivery.moved()
        offsets = {log_partition(delivery.logs[log]): offset for log, offset in moved.items()}
        self.begins(delivery.position, offsets)

    def handed_out(self, batch: Batch) -> None:
        """Add the next batch that is handed out."""
        record = batch.records[-1]
        place = (batch.epoch, batch.record, batch.run, record.offset + 1)
        self._read(place, batch.log, record)

    def goes_on(self, stored: Mapping[TopicPartition, LastRead]) -> None:
        """Take the last records that the commit names at which delivery goes on."""
        self._last = dict(stored)

    def last_of_logs(
        self, cursor: Cursor, gaps: Mapping[TopicPartition, LastRead]
    ) -> dict[TopicPartition, LastRead]:
        """Give the last record of each log before a cursor, where that is known.

        `gaps` has the last records that were read, if offsets were passed behind them.
        """
        passed = self.resume_from(cursor)
        if cursor.rank < self._place:
            return {}
        last = dict(self._last)
        for partition, read in gaps.items():
            known = last.get(partition)
            if (not read.checksum) if known is None else known.offset == read.offset:
                upto = min(read.passed, passed.get(partition, 0))
                last[partition] = read._replace(passed=upto)
        return last

    def resume_from(self, cursor: Cursor) -> dict[TopicPartition, int]:
        """Give, per log, the next offset to deliver at this cursor; forget the trail before it.

        Gives {} for a cursor before that of the last call, or if the trail is no longer known.
        """
        place = cursor.rank
        if place < self._place:
            return {}
        while self._trail and self._trail[0].place <= place:
            self._take(self._trail.popleft())
        offsets = dict(self._offsets)
        if self._trail and self._trail[0].place[:3] == place[:3]:  # in the middle of a batch
            offsets.update(dict.fromkeys(self._trail[0].offsets, cursor.next))
        return offsets

    def offsets_at(self, cursor: Cursor, delivery: Delivery) -> dict[TopicPartition, int]:
        """Give what `resume_from` gives; at a delivery's own position, what its logs have passed.

        These offsets are past skips and markers after the last message, too.
        """
        offsets = self.resume_from(cursor)
        if self._followed is delivery and cursor == delivery.position:
            progress = delivery.progress()
            logs = delivery.logs.values()
            offsets.update({log_partition(log): progress[log.name] for log in logs})
        return offsets

    def seen(self, delivery: Delivery, log: Iterable[str], cursor: Cursor) -> LogPosition:
        """Give the position in the log of a declared set at a cursor; before all reading it is 0.

        Raises `UsageError` for a log of which nothing is known there.
        """
        known = self.offsets_at(cursor, delivery)
        if isinstance(log, str):
            raise UsageError(f"a log is named by its set of partitions, like {{{log!r}}}")
        partitions = name_set(log, "the name of a log")
        for each in partitions:
            refuse_no_name(each, "a partition")
        name = log_name(partitions)
        logs = {log.name: log_partition(log) for log in delivery.logs.values()}
        partition = logs.get(name)
        if partition is not None and (partition in known or self._followed is not delivery):
            return LogPosition(name, known.get(partition, 0))
        raise UsageError(
            f"this consumer reads no log {name} at that cursor; it reads {', '.join(sorted(logs))}"
        )

    def _read(self, place: _Place, log: Log, record: Record) -> None:
        last = LastRead(record.offset, message_checksum(record))
        self._add(_Entry(place, {log_partition(log): record.offset + 1}, last))

    def _add(self, entry: _Entry) -> None:
        self._trail.append(entry)
        if len(self._trail) > _ENTRIES_MAX:
            self._take(self._trail.popleft())

    def _take(self, entry: _Entry) -> None:
        self._offsets.update(entry.offsets)
        if entry.last is not None:
            self._last.update(dict.fromkeys(entry.offsets, entry.last))
        self._place = entry.place


def kafka_group(topic: str, group: str) -> str:
    """Name a consumer's group in Kafka; raises `UsageError` for one that no consumer may have."""
    refuse_no_name(group, "a group")
    if group == OF_COLLECTORS:
        raise UsageError(
            f"the group amcast.{topic}.{group} is that of the collectors' processes, and Kafka "
            f"refuses a consumer's commits to it; give the consumer another group"
        )
    return f"amcast.{topic}.{group}"


class GroupCursor:
    """Stores and reads a group's cursor; tells in the log if another consumer stores one, too.

    The cursor names its interest: that of a reader of P1, say, may lie behind messages to P2 that
    this reader never got. `interest_at` gives the consumer's interest in a cursor's epoch; it
    raises `UsageError` for a cursor of another interest. `fence` goes into each commit: that of an
    exclusive consumer; another one raises it, so that no consumer takes its commits for its own.
    """

    def __init__(
        self,
        driver: Driver,
        clock: ClientClock,
        topic: str,
        group: str,
        interest_at: Callable[[Cursor], tuple[str, ...]],
    ) -> None:
        self.group = group
        self.fence: int | None = None  # None: what is stored is not known; 0: there was none
        self._commit: Commit = driver.commit
        self._driver = driver
        self._clock = clock
        self._interest_at = interest_at
        self._digests: dict[tuple[int, str], str] = {}  # by epoch and source
        self._control = control_partition(topic)
        self._own: deque[str] = deque(maxlen=_OWN_MAX)
        self._looked_at: float | None = None
        self._warned = False

    def stored(self, control_position: int, *, exclusive: bool = False) -> Cursor | None:
        """Read the group's cursor; None: it has none. Blocks for a request to Kafka.

        Raises `UsageError` for a cursor of another interest, `Truncated` if the group has read the
        control topic further than to this position, its end, and `GroupInUse`.
        """
        commit = self._stored()
        if self.fence is None:
            self.fence = _after("" if commit is None else commit[1])
        if commit is None:
            return None
        offset, text = commit
        if offset > control_position:
            raise Truncated(
                f"the control topic has lost its end: the group has read it to offset {offset}, "
                f"and it ends at {control_position}"
            ).about(self._control)
        if not text:
            raise UsageError(f"it holds none: another tool has set its offsets ({PLACE})")
        cursor = Cursor.parse(text)
        self._interest_at(cursor)
        if self.fence and not exclusive:  # Kafka refuses it if there is an active one
            self._driver.commit(self.group, {self._control: commit})
        return cursor

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Add to an error about the stored cursor what to do."""
        try:
            yield
        except (UsageError, Trimmed, Truncated) as error:
            raise type(error)(
                f"this consumer cannot continue at the cursor that its group {self.group} holds: "
                f"{error}; give it a group of its own (group=...), or open it with "
                f"committed=False, which begins at `start`, and commit"
            ) from error

    def commit_as(self, commit: Commit) -> None:
        """Have the member of an exclusive consumer commit: Kafka refuses all others."""
        self._commit, self._warned = commit, True

    def logs_at(self, logs: Iterable[Log]) -> dict[TopicPartition, tuple[int, LastRead]]:
        """Read what the group's commit says of logs: the offset below which all was delivered.

        And the last message that was; nothing of a log of which it names none.
        """
        stored = self._driver.committed(self.group, [log_partition(log) for log in logs])
        placed = [log for log, (_, text) in stored.items() if not text]
        if placed:
            _LOGGER.warning(
                "another tool has set offsets of group %s, in %s: they place nothing, and the "
                "group goes on at its cursor (%s)",
                self.group,
                ", ".join(f"{topic}/{number}" for topic, number in placed),
                PLACE,
            )
        known = {log: (offset, LastRead.parse(text)) for log, (offset, text) in stored.items()}
        return {log: (offset, last) for log, (offset, last) in known.items() if last is not None}

    def store(
        self,
        cursor: Cursor,
        control_offset: int,
        offsets: Mapping[TopicPartition, int],
        last: Mapping[TopicPartition, LastRead],
        logs: Iterable[TopicPartition] = (),
    ) -> None:
        """Store a cursor, the logs' offsets and last messages; blocks until Kafka has stored them.

        Raises `UsageError` for a cursor of another interest; then nothing is stored.
        """
        text = str(replace(cursor, interest=self._digest(cursor)))
        if not self._warned:
            self._look()
        if self.fence is None:
            self.fence = _after((self._stored() or (0, ""))[1])
        if self.fence:
            text = f"{text}/{self.fence}"
        self._own.append(text)
        # Of these logs it is known how far they are at the cursor, if not by which message.
        passed = {each: LastRead(at - 1, 0) for each, at in offsets.items() if at}
        last = {**passed, **last}
        unknown = [partition for partition in logs if partition not in offsets]
        if unknown:  # what an earlier commit says of them is not about this cursor
            stored = self._driver.committed(self.group, unknown)
            offsets = {**{each: offset for each, (offset, _) in stored.items()}, **offsets}
        now_ms = time.time_ns() // 1_000_000
        self._commit(
            self.group,
            {
                **{
                    partition: (offset, committed_text(last.get(partition, _NO_MESSAGE), now_ms))
                    for partition, offset in offsets.items()
                },
                self._control: (control_offset, text),
            },
        )

    def _look(self) -> None:
        """Warn once if the stored cursor is none that this consumer has stored."""
        now = self._clock.monotonic()
        if self._looked_at is not None and now - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = now
        if not self._own:  # what an earlier run has stored is not known
            return
        commit = self._stored()
        if commit is not None and commit[1] not in self._own:
            self._warned = True
            _LOGGER.warning(
                "another consumer commits to group %s, at cursor %s: each of them gets all "
                "messages, and a restart resumes from the last commit of either; give each a group "
                "of its own (docs/groups.md)",
                self.group,
                commit[1],
            )

    def _digest(self, cursor: Cursor) -> str:
        source = cursor.epoch, cursor.source
        if source not in self._digests or cursor.interest not in ("", self._digests[source]):
            self._digests[source] = interest_digest(self._interest_at(cursor))
        return self._digests[source]

    def stored_fence(self) -> int:
        """Read the fence that the group's commit holds; 0: none. Blocks for a request."""
        return _fence_of((self._stored() or (0, ""))[1])

    def _stored(self) -> tuple[int, str] | None:
        return self._driver.committed(self.group, [self._control]).get(self._control)


def _fence_of(text: str) -> int:
    """Give the fence behind the eight parts of a cursor; 0: none."""
    fence = text.split("/")[8:9]
    return int(fence[0]) if fence and re.fullmatch("[0-9]{1,18}", fence[0]) else 0


def _after(text: str) -> int:
    """Give the fence of a consumer that is not exclusive, after this commit."""
    fence = _fence_of(text)
    return fence + 1 if fence else 0
