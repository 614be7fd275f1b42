"""The offsets that a consumer group commits for its logs, so that Kafka's tools show its lag.

A consumer resumes from its cursor only. In addition, each commit stores one offset for each log of
the interest: `kafka-consumer-groups` and lag exporters compare it with the log's end.

    trail    the batches handed out and not yet committed, in the order of delivery
    place    of a cursor: (epoch, record, run, next); places grow in the order of delivery

Invariant: `_offsets` holds at every place from `_place` up to the first entry of the trail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from multicast.control import log_partition
from multicast.cursor import Cursor
from multicast.delivery import Batch
from multicast.drivers.protocol import TopicPartition

# A consumer that never commits must not fill its memory: one entry takes about 300 bytes, all of
# them 3 MB. The commit of an older batch stores no offsets of logs.
_ENTRIES_MAX = 10_000

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


def _place(cursor: Cursor) -> _Place:
    return (cursor.epoch, cursor.record, cursor.run, cursor.next)
