"""What a consumer says of itself: what it reads, and how far it is. Changes nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from multicast.conditional.condition import LogPosition
from multicast.conditional.judge import WhyVoid
from multicast.consuming.buffers import Waiting
from multicast.consuming.cursor import Cursor
from multicast.consuming.delivery import Delivery
from multicast.consuming.entries_read import ConsumerEntries
from multicast.consuming.exclusive import Exclusive
from multicast.consuming.group_positions import GroupPositions
from multicast.consuming.readers import DeliveryReaders
from multicast.consuming.reading import Reading
from multicast.drivers.clock import ClientClock
from multicast.drivers.closing import ClosedAtEnd
from multicast.drivers.protocol import TopicPartition
from multicast.metrics.consumed import ConsumptionCounter
from multicast.metrics.counts import ConsumerCounts


class ConsumerFacts(ClosedAtEnd):
    """The part of `Consumer` that only reads what the rest has noted."""

    _clock: ClientClock
    _counter: ConsumptionCounter
    _delivery: Delivery
    _exclusive: Exclusive | None
    _group_positions: GroupPositions
    _lock: threading.RLock
    _omitted: str
    _readers: DeliveryReaders
    _reading: Reading
    _void: Counter[WhyVoid]

    @property
    def position(self) -> Cursor:
        """The cursor after the last message handed out; before the first one, the start.

        While the application iterates over messages this is the current message's cursor, over
        batches the current batch's, and after `poll` the cursor of the last batch that it returned.
        """
        return self._reading.position

    @property
    def fence(self) -> int:
        """That of the messages that this exclusive consumer delivers; 0: it stands by."""
        return 0 if self._exclusive is None else self._exclusive.fence

    @property
    def stands_by(self) -> bool:
        """Whether it is exclusive, and not active: another one of its group may be."""
        return self._exclusive is not None and not self.fence

    @property
    def omitted(self) -> str:
        """Why the last `seek`, or the opening, begins later than it was asked to; "": it does not.

        Old epochs may not cover the interest, and messages or order may no longer be retained.
        """
        return self._omitted

    @property
    def by_collector(self) -> bool:
        """Whether a collector orders the interest; a single log is its own order."""
        return self._delivery.order is not None

    def progress(self) -> dict[str, int]:
        """Give, per log of the interest, the offset below which all is delivered or dropped."""
        with self._lock:
            return self._delivery.progress()

    def leader_epochs(self) -> dict[TopicPartition, int]:
        """Give, per Kafka partition, the epoch of the leader that took the last record read."""
        return self._readers.last.leader_epochs()

    @property
    def waiting(self) -> Waiting | None:
        """For what the messages at hand wait, and how long, as of the last poll; None: nothing."""
        with self._lock:
            return self._delivery.waiting(self._clock.monotonic())

    def seen(self, log: Iterable[str], cursor: Cursor | None = None) -> LogPosition:
        """Give the position in the log of a declared set at a cursor (default: `position`).

        All messages of the log below it were handed out, or are none for this consumer. Before
        anything is read it is offset 0. `nothing_after` takes it. Raises `UsageError` for a log
        that the interest does not meet, or a cursor before the last one given here or to `commit`.
        """
        with self._lock:
            return self._group_positions.seen(self._delivery, log, cursor or self.position)

    @property
    def void(self) -> dict[str, int]:
        """Count by reason the messages judged void so far in the logs of the interest."""
        return {reason.value: count for reason, count in self._void.items()}

    def entries(self) -> ConsumerEntries:
        """Count by log the order entries read since the consumer was opened, and those dropped."""
        return self._counter.entries()

    def counts(self) -> ConsumerCounts:
        """Count what was read and delivered (read ahead, if messages are handed out one by one).

        From any thread, and after `close`. Blocks for a request only while an epoch begins.
        """
        return self._counter.counts()

    @property
    def interest(self) -> tuple[str, ...]:
        """The partitions subscribed to, sorted."""
        return tuple(sorted(self._delivery.interest))
