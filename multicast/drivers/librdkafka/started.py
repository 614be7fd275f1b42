"""The appends of one appender that have no outcome yet, in the order in which they were started.

In go appends and outcomes; each outcome is handed to its `done`. No client, no thread and no clock
lives here: the appender enters appends under one lock, and settles them under another.

    number      given to an append, or to a call with many, when it is started; they ascend
    waiting     without an outcome, or its `done` has not returned
    given up    its outcome is unknown, and the client still holds it
    mark        a time by which everything up to a number had been started
    open        those appends of a call with many that have no outcome

Invariant: `done` is called once for each append, whoever settles it first: what is given up, or
not open, or has a number that is not entered, is settled.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from multicast.drivers.protocol import AppendOutcome, TopicPartition

# Raised on, it would end the serving thread, and with it all outcomes to come.
DONE_FAILED = "what was called with the outcome of an append failed"

One = tuple[TopicPartition, Callable[[AppendOutcome], None]]


class Many:
    """The appends of one call."""

    __slots__ = ("done", "dropped", "left", "number", "open", "partition")

    def __init__(
        self, partition: TopicPartition, done: Callable[[int, AppendOutcome], None], size: int
    ) -> None:
        self.partition = partition
        self.done = done
        self.number = 0
        self.open = bytearray(b"\x01") * size
        self.left = size  # that the client holds; counted by who settles
        self.dropped = 0  # written by who starts: each counter has one writer


class Started:
    """Appends without an outcome, by their numbers. What is hot reads `waiting` and `last`."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self.waiting: dict[int, One | Many] = {}
        self.given_up: dict[int, TopicPartition] = {}
        self.last = 0  # the highest number that was given
        self._marks: deque[tuple[float, int]] = deque()

    def enter(self, entry: One | Many) -> int:
        """Give a number to an append, or to the appends of one call."""
        self.last += 1
        self.waiting[self.last] = entry
        if isinstance(entry, Many):
            entry.number = self.last
        return self.last

    def drop_some(self, many: Many, indexes: Sequence[int]) -> None:
        """Forget those appends of one call that were not started after all."""
        for index in indexes:
            many.open[index] = 0
        many.dropped = len(indexes)
        self.finish(many)

    def mark(self, now: float, *, keep_s: float) -> None:
        """Note that everything so far was started by now; forget what was noted long ago."""
        self._marks.append((now, self.last))
        # One that is old enough stays: what is older than it is found by it.
        while len(self._marks) > 1 and self._marks[1][0] < now - keep_s:
            self._marks.popleft()

    def by(self, then: float) -> int:
        """Give the number up to which everything was started by that time; 0: nothing."""
        number = 0
        for time, last in self._marks:
            if time > then:
                break
            number = last
        return number

    def oldest(self) -> int | None:
        """Give the number of what the client has held for longest."""
        number = _first(self.given_up)
        return _first(self.waiting) if number is None else number

    def at(self, number: int) -> TopicPartition | None:
        """Give the Kafka partition of what has this number; None where it is not entered."""
        entry = self.waiting.get(number)
        if entry is None:
            return self.given_up.get(number)
        return entry.partition if isinstance(entry, Many) else entry[0]

    def waits(self, last: int) -> bool:
        """Say whether anything up to this number has no outcome."""
        number = _first(self.waiting)
        return number is not None and number <= last

    def settle(self, number: int, outcome: AppendOutcome) -> None:
        """Hand an append its outcome."""
        one = self.waiting.get(number)
        if isinstance(one, tuple):
            try:
                one[1](outcome)
            except Exception:  # noqa: BLE001
                self._log.exception(DONE_FAILED)
        self.waiting.pop(number, None)
        self.given_up.pop(number, None)

    def finish(self, many: Many) -> None:
        """Forget a call with many, where the client holds none of it any longer."""
        if many.left <= many.dropped:
            self.waiting.pop(many.number, None)
            self.given_up.pop(many.number, None)

    def give_up(self, last: int, outcome: Callable[[TopicPartition], AppendOutcome]) -> None:
        """Hand what waits, up to this number, an outcome by its Kafka partition."""
        while (number := _first(self.waiting)) is not None and number <= last:
            at = self.at(number)
            assert at is not None, "what waits is entered"
            entry = self.waiting[number]
            if isinstance(entry, Many):
                for index in range(len(entry.open)):
                    self._tell(entry, index, outcome(at))
                self.waiting.pop(number, None)
            else:
                self.settle(number, outcome(at))
            self.given_up[number] = at

    def forget(self, last: int, outcome: Callable[[TopicPartition], AppendOutcome]) -> None:
        """Forget everything up to this number; what has no outcome is handed one."""
        self.give_up(last, outcome)
        for number in [number for number in self.given_up if number <= last]:
            del self.given_up[number]

    def _tell(self, many: Many, index: int, outcome: AppendOutcome) -> None:
        if many.open[index]:
            many.open[index] = 0
            try:
                many.done(index, outcome)
            except Exception:  # noqa: BLE001
                self._log.exception(DONE_FAILED)


def _first(entries: dict[int, One | Many] | dict[int, TopicPartition]) -> int | None:
    while True:
        try:
            return next(iter(entries), None)
        except RuntimeError:
            pass  # another thread entered one in between
