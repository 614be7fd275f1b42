"""Records of an instance's streams that arrive after it is open and before its epoch begins.

A stream of version 2 may lie in a partition to which producers write tickets of the epoch before,
until they learn of the next one. All these must be read before the instance may act, and messages
wait meanwhile; so they are read ahead, and the records of other epochs are left out at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collectors.engine.stream_loop import StreamBatch
from multicast.drivers.protocol import Record, TopicPartition
from multicast.tickets.encoding import tag_of


class ReadAhead:
    """Keeps, for the core, the records that carry their stream's tag."""

    def __init__(self, tags: Mapping[TopicPartition, bytes]) -> None:
        self._tags = tags
        self._records: dict[TopicPartition, list[Record]] = {each: [] for each in tags}
        self._positions: dict[TopicPartition, int] = {}

    def take(self, batches: Sequence[StreamBatch]) -> None:
        """Keep the records of the epoch, and how far each stream is read."""
        for partition, records, position in batches:
            ours = self._tags[partition]
            self._records[partition] += [
                record for record in records if tag_of(record.value or b"") == ours
            ]
            self._positions[partition] = position

    def batches(self) -> list[StreamBatch]:
        """Give all that was taken, as one batch for each stream."""
        return [
            StreamBatch(partition, self._records[partition], position)
            for partition, position in self._positions.items()
        ]
