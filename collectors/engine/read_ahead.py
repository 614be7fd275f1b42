"""Records of an instance's streams that arrive after it is open and before its epoch begins.

A stream may lie in a partition to which producers write tickets of the epoch before,
until they learn of the next one. All these must be read before the instance may act, and messages
wait meanwhile; so they are read ahead, and of our own stream the records of earlier epochs are left
out at once. Of the parent's all are kept: relays name the last record of its partition, whatever it
is.

Bound: of a stream of which so much is kept, the rest is read once the epoch has begun.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from collectors.engine.stream_loop import StreamBatch
from multicast.drivers.protocol import Record, TopicPartition
from multicast.order.records import tag_of

# Records of one stream that are kept, and the bytes of their values: some 20 MB. That is what
# producers write in 50 s at 2,000 messages a second, each with a ticket of its own; a change of the
# plan takes a few seconds.
_RECORDS_MAX = 100_000
_BYTES_MAX = 10_000_000


class ReadAhead:
    """Keeps, for the core, the records of its streams; of `own` not those with an `earlier` tag.

    full   the streams of which enough is kept
    """

    def __init__(
        self,
        streams: Iterable[TopicPartition],
        own: TopicPartition,
        *,
        earlier: Collection[bytes],
        records_max: int = _RECORDS_MAX,
        bytes_max: int = _BYTES_MAX,
    ) -> None:
        self.full: list[TopicPartition] = []
        self._own = own
        self._earlier = earlier
        self._records_max, self._bytes_max = records_max, bytes_max
        self._records: dict[TopicPartition, list[Record]] = {each: [] for each in streams}
        self._bytes = dict.fromkeys(self._records, 0)
        self._positions: dict[TopicPartition, int] = {}

    def take(self, batches: Sequence[StreamBatch]) -> list[TopicPartition]:
        """Keep the records, and how far each stream is read.

        Returns the streams that have become full: read them no further, until what was kept is
        given on.
        """
        before = len(self.full)
        for partition, records, position in batches:
            kept = [
                record
                for record in records
                if partition != self._own or tag_of(record.value or b"") not in self._earlier
            ]
            self._records[partition] += kept
            self._bytes[partition] += sum([len(record.value or b"") for record in kept])
            self._positions[partition] = position
            is_full = (
                len(self._records[partition]) >= self._records_max
                or self._bytes[partition] >= self._bytes_max
            )
            if is_full and partition not in self.full:
                self.full.append(partition)
        return self.full[before:]

    def batches(self) -> list[StreamBatch]:
        """Give all that was taken, as one batch for each stream."""
        return [
            StreamBatch(partition, self._records[partition], position)
            for partition, position in self._positions.items()
        ]
