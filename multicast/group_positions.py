"""What a consumer group stores: its cursor, and offsets for its logs, so that tools show its lag.

A consumer resumes from its cursor only. In addition, each commit stores one offset for each log of
the interest: `kafka-consumer-groups` and lag exporters compare it with the log's end.

    trail    the batches handed out and not yet committed, in the order of delivery
    place    of a cursor: (epoch, record, run, next); places grow in the order of delivery

Invariant: `_offsets` holds at every place from `_place` up to the first entry of the trail.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from multicast.control import control_partition, log_partition
from multicast.cursor import Cursor
from multicast.delivery import Batch, Delivery
from multicast.drivers.clock import ClientClock
from multicast.drivers.protocol import Driver, TopicPartition

# A consumer that never commits must not fill its memory: one entry takes about 300 bytes, all of
# them 3 MB. The commit of an older batch stores no offsets of logs.
_ENTRIES_MAX = 10_000

# How often a commit looks whether another consumer uses the group: one request more a second.
_LOOK_EVERY_S = 1.0
# Own cursors that are recognised: commits of several threads may reach Kafka in any order.
_OWN_MAX = 64

_LOGGER = logging.getLogger("amcast.consumer")
_Place = tuple[int, int, int, int]


class _Entry(NamedTuple):
    place: _Place
    offsets: Mapping[TopicPartition, int]


class GroupPositions:
    """Turns a cursor into offsets of logs, from the batches that were handed out."""

    def __init__(self) -> None:
        self._offsets: dict[TopicPartition, int] = {}
        self._place: _Place = (0, 0, 0, 0)
        self._trail: deque[_Entry] = deque()

    def begins(self, cursor: Cursor, offsets: Mapping[TopicPartition, int]) -> None:
        """Set where delivery begins: at the start, and in each epoch that follows."""
        self._add(_Entry(_place(cursor), offsets))
        if len(self._trail) == 1:
            self._take(self._trail.popleft())

    def moved(self, delivery: Delivery) -> None:
        """Note how far the logs are at the position of a delivery: those that have moved.

        These are all where it begins. An entry of all logs for each delivery would fill the memory
        of a consumer of many that never commits.
        """
        moved = delivery.moved()
        offsets = {log_partition(delivery.logs[log]): offset for log, offset in moved.items()}
        self.begins(delivery.position, offsets)

    def handed_out(self, batch: Batch) -> None:
        """Add the next batch that is handed out."""
        after = batch.records[-1].offset + 1
        place = (batch.epoch, batch.record, batch.run, after)
        self._add(_Entry(place, {log_partition(batch.log): after}))

    def resume_from(self, cursor: Cursor) -> dict[TopicPartition, int]:
        """Give, per log, the next offset to deliver at this cursor; forget the trail before it.

        Gives {} for a cursor before that of the last call, or if the trail is no longer known.
        """
        place = _place(cursor)
        if place < self._place:
            return {}
        while self._trail and self._trail[0].place <= place:
            self._take(self._trail.popleft())
        offsets = dict(self._offsets)
        if self._trail and self._trail[0].place[:3] == place[:3]:  # in the middle of a batch
            offsets.update(dict.fromkeys(self._trail[0].offsets, cursor.next))
        return offsets

    def _add(self, entry: _Entry) -> None:
        self._trail.append(entry)
        if len(self._trail) > _ENTRIES_MAX:
            self._take(self._trail.popleft())

    def _take(self, entry: _Entry) -> None:
        self._offsets.update(entry.offsets)
        self._place = entry.place


class GroupCursor:
    """Stores and reads a group's cursor; tells in the log if another consumer stores one, too."""

    def __init__(self, driver: Driver, clock: ClientClock, topic: str, group: str) -> None:
        self._driver = driver
        self._clock = clock
        self._group = group
        self._control = control_partition(topic)
        self._own: deque[str] = deque(maxlen=_OWN_MAX)
        self._looked_at: float | None = None
        self._warned = False

    def stored(self) -> Cursor | None:
        """Read the group's cursor; None: it has none. Blocks for a request to Kafka."""
        text = self._text()
        return None if text is None else Cursor.parse(text)

    def store(
        self, cursor: Cursor, control_offset: int, offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Store a cursor and the logs' offsets; blocks until Kafka has stored them."""
        if not self._warned:
            self._look()
        self._own.append(str(cursor))
        self._driver.commit(
            self._group,
            {
                **{partition: (offset, "") for partition, offset in offsets.items()},
                self._control: (control_offset, str(cursor)),
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
        stored = self._text()
        if stored is not None and stored not in self._own:
            self._warned = True
            _LOGGER.warning(
                "another consumer commits to group %s, at cursor %s: each of them gets all "
                "messages, and a restart resumes from the last commit of either; give each a group "
                "of its own (docs/groups.md)",
                self._group,
                stored,
            )

    def _text(self) -> str | None:
        commit = self._driver.committed(self._group, [self._control]).get(self._control)
        return commit[1] if commit else None


def _place(cursor: Cursor) -> _Place:
    return (cursor.epoch, cursor.record, cursor.run, cursor.next)
