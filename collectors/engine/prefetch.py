"""What an instance has read of its streams while it stands ready, and its epoch has not begun.

A stream of version 2 may lie in a partition to which producers write tickets of the epoch before,
until they learn of the next one. All these must be read before the instance may act, and messages
wait meanwhile; so they are read ahead. They have other tags, so they change no state.

    free    of a stream: below it, no record with the stream's tag says anything. (One that says
            nothing is there: the version mark, `collectors/reconfiguration/version_mark.py`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collectors.engine.stream_loop import StreamBatch
from multicast.drivers.protocol import TopicPartition
from multicast.tickets.encoding import OwnRecord, encode, tag_of
from multicast.tickets.stream import TicketOrder


class Prefetch:
    """Reads each partition of `tags` from `starts` on; a stream's records have its tag."""

    def __init__(
        self, tags: Mapping[TopicPartition, bytes], starts: Mapping[TopicPartition, int]
    ) -> None:
        self._tags = tags
        self._empty = {encode(tag, OwnRecord(())) for tag in tags.values()}
        self._free = dict(starts)
        self._position = dict(starts)

    def take(self, batches: Sequence[StreamBatch]) -> None:
        """Read on."""
        for partition, records, position in batches:
            if self._free[partition] == self._position[partition]:
                ours = self._tags[partition]
                found = (each.offset for each in records if self._says(each.value or b"", ours))
                self._free[partition] = next(found, position)
            self._position[partition] = position

    def _says(self, raw: bytes, ours: bytes) -> bool:
        return tag_of(raw) == ours and raw not in self._empty

    def give(self, partition: TopicPartition, stream: TicketOrder) -> bool:
        """Let a stream go on behind what is free; whether it has nothing to read again."""
        stream.passed(self._free[partition])
        return stream.offset_next == self._position[partition]
