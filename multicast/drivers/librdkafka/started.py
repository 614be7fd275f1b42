"""The appends of one appender that have no outcome yet, in the order in which they started.

The appender enters appends under one lock, and settles them with outcomes under another; an
outcome is handed to the append's `done`. No client, no thread and no clock may live here.

    number      ascending; given to an append, or to a call with many appends, when it starts
    waiting     without an outcome, or its `done` has not returned
    given up    settled as unknown while the client still holds it
    mark        a time, and the last number that had started by then
    open        of a call with many appends: those without an outcome

Invariant: `done` is called once for each append. An append that is given up, or not open, or whose
number is not entered, is settled already.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from multicast.drivers.protocol import AppendOutcome, DoneAll, Headers, TopicPartition

# Such an exception is only logged: otherwise it would end the thread that serves all outcomes.
DONE_FAILED = "the callback for an append's outcome failed"

# The place of an append among those of its partition: its number, its index in a call with many.
Place = tuple[int, int]
# One append: its Kafka partition and its `done`.
Single = tuple[TopicPartition, Callable[[AppendOutcome], None]]


class HeldAppend(NamedTuple):
    """An append that may have to wait for the next producer."""

    partition: TopicPartition
    value: bytes | None
    key: bytes | None
    headers: Headers


class Many:
    """The appends of one call with many."""

    __slots__ = ("done", "dropped", "left", "number", "open", "partition")

    def __init__(self, partition: TopicPartition, done: DoneAll, size: int) -> None:
        self.partition = partition
        self.done = done
        self.number = 0
        self.open = bytearray(b"\x01") * size
        # Each counter has one writer: the thread that settles, and the thread that starts.
        self.left = size  # appends without a callback from the client
        self.dropped = 0  # appends that the client did not accept


class Started:
    """Appends without an outcome, by number. The hot path uses `waiting` and `last` directly."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self.waiting: dict[int, Single | Many] = {}
        self.given_up: dict[int, TopicPartition] = {}
        self.last = 0  # the highest number so far
        self._marks: deque[tuple[float, int]] = deque()

    def enter(self, entry: Single | Many) -> int:
        """Return a new number for an append, or for a call with many."""
        self.last += 1
        self.waiting[self.last] = entry
        if isinstance(entry, Many):
            entry.number = self.last
        return self.last

    def drop_some(self, many: Many, indexes: Sequence[int]) -> None:
        """Remove those appends of a call with many that the client did not accept."""
        for index in indexes:
            many.open[index] = 0
        many.dropped = len(indexes)
        self.finish(many)

    def mark(self, now: float, *, keep_s: float) -> None:
        """Record that everything so far had started by `now`; drop marks older than `keep_s`."""
        self._marks.append((now, self.last))
        # One older mark stays, so that `by` can answer for `now - keep_s`.
        while len(self._marks) > 1 and self._marks[1][0] < now - keep_s:
            self._marks.popleft()

    def by(self, then: float) -> int:
        """Return the last number that had started by that time; 0 if none had."""
        number = 0
        for time, last in self._marks:
            if time > then:
                break
            number = last
        return number

    def oldest(self) -> int | None:
        """Return the number that the client has held for longest; None if it holds nothing."""
        number = _first(self.given_up)
        return _first(self.waiting) if number is None else number

    def partition_of(self, number: int) -> TopicPartition | None:
        """Return the Kafka partition of an append; None if it is settled."""
        entry = self.waiting.get(number)
        if entry is None:
            return self.given_up.get(number)
        return entry.partition if isinstance(entry, Many) else entry[0]

    def waits(self, last: int) -> bool:
        """Return whether an append up to this number has no outcome."""
        number = _first(self.waiting)
        return number is not None and number <= last

    def settle(self, number: int, outcome: AppendOutcome) -> None:
        """Hand an outcome to an append."""
        entry = self.waiting.get(number)
        if isinstance(entry, tuple):
            try:
                entry[1](outcome)
            except Exception:  # noqa: BLE001
                self._log.exception(DONE_FAILED)
        self.waiting.pop(number, None)
        self.given_up.pop(number, None)

    def finish(self, many: Many) -> None:
        """Remove a call with many once the client holds none of its appends."""
        if many.left <= many.dropped:
            self.waiting.pop(many.number, None)
            self.given_up.pop(many.number, None)

    def give_up(self, last: int, outcome: Callable[[TopicPartition], AppendOutcome]) -> None:
        """Settle all waiting appends up to this number by the outcome for their partition."""
        while (number := _first(self.waiting)) is not None and number <= last:
            partition = self.partition_of(number)
            assert partition is not None, "a waiting append is entered"
            entry = self.waiting[number]
            if isinstance(entry, Many):
                for index in range(len(entry.open)):
                    self._settle_of_many(entry, index, outcome(partition))
                self.waiting.pop(number, None)
            else:
                self.settle(number, outcome(partition))
            self.given_up[number] = partition

    def forget(self, last: int, outcome: Callable[[TopicPartition], AppendOutcome]) -> None:
        """Settle and remove everything up to this number."""
        self.give_up(last, outcome)
        for number in [number for number in self.given_up if number <= last]:
            del self.given_up[number]

    def _settle_of_many(self, many: Many, index: int, outcome: AppendOutcome) -> None:
        if many.open[index]:
            many.open[index] = 0
            try:
                many.done(index, 1, outcome)
            except Exception:  # noqa: BLE001
                self._log.exception(DONE_FAILED)


def _first(entries: dict[int, Single | Many] | dict[int, TopicPartition]) -> int | None:
    while True:
        try:
            return next(iter(entries), None)
        except RuntimeError:
            pass  # another thread entered an append meanwhile
