"""What a consumer delivers: messages, and batches of them.

Both know the cursor behind each message. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from multicast.conditional.judge import EFFECTIVE, Decision
from multicast.consuming.cursor import Cursor
from multicast.drivers.protocol import Headers, Record
from multicast.messages import MessageID, message_checksum
from topology.tree import Log


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive deliveries: messages of one log that have one destination set.

    Fields from `epoch` on are as in a `Cursor`; `decision` says whether they take effect, `fence`
    under which activation of an exclusive consumer they are delivered (0: it is none).
    """

    log: Log
    to: tuple[str, ...]
    records: Sequence[Record]
    epoch: int
    source: str
    record: int
    run: int
    decision: Decision = EFFECTIVE
    interest: str = ""
    proof: int = 0
    fence: int = 0

    def cursor(self, index: int = -1) -> Cursor:
        """Give the position right after `records[index]`; by default after the whole batch."""
        return self.cursor_after(self.records[index])

    def cursor_after(self, record: Record) -> Cursor:
        """Give the position right after one of the records."""
        message = message_checksum(record) if self.interest else 0
        place = self.epoch, self.source, self.record, self.run, record.offset + 1
        return Cursor(*place, self.interest, self.proof, message)

    def alone(self, record: Record) -> Message:
        """Give one of the messages by itself: it keeps no others in memory."""
        place = self.epoch, self.source, self.record, self.run
        rest = self.decision, self.interest, self.proof, self.fence
        return Message(Batch(self.log, self.to, (record,), *place, *rest), record)


class Message:
    """One delivered message."""

    __slots__ = ("_batch", "_record")

    def __init__(self, batch: Batch, record: Record) -> None:
        self._batch = batch
        self._record = record

    @property
    def message_id(self) -> MessageID:
        """Log, offset and life of the log; prints as "P1+P3:17"."""
        return MessageID(self.log.name, self._record.offset, self.log.life)

    @property
    def log(self) -> Log:
        """The log that stores it."""
        return self._batch.log

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
    def decision(self) -> Decision:
        """Whether the message takes effect; only `Consumer(void="mark")` delivers void ones."""
        return self._batch.decision

    @property
    def cursor(self) -> Cursor:
        """The position right after this message: commit it once the message is processed."""
        return self._batch.cursor_after(self._record)

    @property
    def fence(self) -> int:
        """The number of this activation of an exclusive consumer; it grows. 0: it is not one."""
        return self._batch.fence

    def __repr__(self) -> str:
        return f"<Message {self.message_id} to {'+'.join(self.to)}>"
