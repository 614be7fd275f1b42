"""`Message`: one delivered message, as an application sees it."""

from __future__ import annotations

from multicast.cursor import Cursor
from multicast.delivery import Batch
from multicast.drivers.protocol import Headers, Record
from multicast.messages import MessageID


class Message:
    """One delivered message."""

    __slots__ = ("_batch", "_record")

    def __init__(self, batch: Batch, record: Record) -> None:
        self._batch = batch
        self._record = record

    @property
    def message_id(self) -> MessageID:
        """(log, offset); prints as "P1+P3:17"."""
        return MessageID(self._batch.log.name, self._record.offset)

    @property
    def to(self) -> tuple[str, ...]:
        """The destination set that the producer named, sorted."""
        return self._batch.to

    @property
    def payload(self) -> bytes | None:
        """The producer's payload, unchanged."""
        return self._record.value

    @property
    def key(self) -> bytes | None:
        """The producer's key."""
        return self._record.key

    @property
    def headers(self) -> Headers:
        """The producer's headers, without the reserved ones ("amcast.")."""
        return [pair for pair in self._record.headers if not pair[0].startswith("amcast.")]

    @property
    def timestamp_ms(self) -> int:
        """Kafka's timestamp of the record, milliseconds since 1970."""
        return self._record.timestamp_ms

    @property
    def cursor(self) -> Cursor:
        """The position right after this message: commit it once the message is processed."""
        batch = self._batch
        return Cursor(batch.epoch, batch.source, batch.record, batch.run, self._record.offset + 1)

    def __repr__(self) -> str:
        return f"<Message {self.message_id} to {'+'.join(self.to)}>"
