"""What the application has of what a consumer reads. No I/O.

taken        by a poll, out of the delivery; an iterator hands it out bit by bit
handed out   the application has it; the position is right after it
turn         a poll or a seek: an iterator drops the rest of a poll that is not the last turn
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from multicast.consuming.batches import Batch, Message
from multicast.consuming.cursor import Cursor
from multicast.verification.observer import HandedOut

if TYPE_CHECKING:
    from multicast.tracing.delivered import ConsumerSpans


class Reading:
    """The reading of one consumer: begun by each seek, told to whoever watches or traces it."""

    def __init__(self, spans: ConsumerSpans | None) -> None:
        self.hold: Callable[[], None] | None = None  # waits until messages may be handed out
        self.turn = 0
        self.seeks = 0
        self._spans = spans
        self._observed: HandedOut
        self._start: Cursor
        self._taken: Batch | None = None  # the last one since the seek
        self._handed_out: Message | Batch | None = None  # the last one since the seek

    def begin(self, start: Cursor, observed: HandedOut) -> None:
        """Begin at a cursor. Nothing can fail here: a seek takes effect whole or not at all."""
        self.turn += 1
        self.seeks += 1
        self._observed = observed
        self._start, self._handed_out, self._taken = start, None, None

    def take(self, batches: Sequence[Batch]) -> None:
        """Note what a poll has taken."""
        if batches:
            self._taken = batches[-1]

    def hand_out(self, batches: Sequence[Batch]) -> None:
        """Hand batches out; until the last step none of them is."""
        if self.hold is not None and batches:
            self.hold()
        for batch in batches:
            if self._spans is not None:
                self._spans.all_delivered(batch)
            self._observed(batch, batch.records)
        if batches:
            self._handed_out = batches[-1]

    def hand_back(self, cursor: Cursor) -> None:
        """Take back what was handed out behind a cursor: the next poll begins there again."""
        self.turn += 1
        self._start, self._handed_out = cursor, None

    def messages(self, batches: Iterator[Batch]) -> Iterator[Message]:
        """Hand out messages one by one; after another turn the rest of the batch is dropped."""
        for batch in batches:
            turn = self.turn
            for record in batch.records:
                if self.hold is not None:
                    self.hold()
                message = Message(batch, record)
                if record.headers and self._spans is not None:
                    self._spans.delivered(batch, record)
                self._observed(batch, [record])
                self._handed_out = message  # last: whatever fails before, it comes again
                yield message
                if self.turn != turn:
                    break

    @property
    def position(self) -> Cursor:
        """The cursor after the last message handed out; before the first one, the start."""
        if (last := self._handed_out) is None:
            return self._start
        return last.cursor if isinstance(last, Message) else last.cursor()

    @property
    def all_handed_out(self) -> bool:
        """Whether the application has everything that was taken."""
        return self._taken is None or self.position == self._taken.cursor()
