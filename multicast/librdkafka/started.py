"""The appends of one appender that have no outcome yet, in the order in which they were started.

In go appends and outcomes; each outcome is handed to its `done`. No client and no thread lives
here: the appender enters appends under its lock, and settles them one at a time.

    number    given to an append, or to a call with many, when it is started; they ascend
    open      appends of a call with many that have no outcome

Invariant: `done` is called once for each append, whoever settles it first: afterwards the number
means nothing, or its index is not open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from multicast.log import AppendOutcome, TopicPartition

# Raised on, it would end the serving thread, and with it all outcomes to come.
_DONE_FAILED = "what was called with the outcome of an append failed"


class One(NamedTuple):
    """One append."""

    at: TopicPartition
    since_s: float
    done: Callable[[AppendOutcome], None]


class Many:
    """The appends of one call."""

    __slots__ = ("at", "done", "dropped", "left", "open", "since_s")

    def __init__(
        self,
        at: TopicPartition,
        since_s: float,
        done: Callable[[int, AppendOutcome], None],
        size: int,
    ) -> None:
        self.at = at
        self.since_s = since_s
        self.done = done
        self.open = bytearray(b"\x01") * size
        self.left = size  # counted by who settles
        self.dropped = 0  # written by who starts: each counter has one writer


class Started:
    """Appends without an outcome, by their numbers."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._entries: dict[int, One | Many] = {}
        self.last = 0  # the highest number that was given

    def __bool__(self) -> bool:
        return bool(self._entries)

    def enter(self, entry: One | Many) -> int:
        """Give a number to an append, or to the appends of one call."""
        self.last += 1
        self._entries[self.last] = entry
        return self.last

    def drop(self, number: int) -> None:
        """Forget an append that was not started after all."""
        self._entries.pop(number, None)

    def drop_some(self, number: int, indexes: Sequence[int]) -> None:
        """Forget those appends of one call that were not started after all."""
        many = self._entries.get(number)
        if isinstance(many, Many):
            for index in indexes:
                many.open[index] = 0
            many.dropped = len(indexes)
            self._forget_finished(number, many)

    def at(self, number: int) -> TopicPartition | None:
        """Give the Kafka partition of what has this number; None where all of it is settled."""
        entry = self._entries.get(number)
        return None if entry is None else entry.at

    def oldest(self) -> One | Many | None:
        """Give what was started first."""
        number = self._first()
        return None if number is None else self._entries.get(number)

    def waits(self, last: int) -> bool:
        """Say whether anything up to this number has no outcome."""
        number = self._first()
        return number is not None and number <= last

    def settle(self, number: int, outcome: AppendOutcome) -> None:
        """Hand an append its outcome. It is forgotten only when `done` has returned."""
        one = self._entries.get(number)
        if isinstance(one, One):
            try:
                one.done(outcome)
            except Exception:  # noqa: BLE001
                self._log.exception(_DONE_FAILED)
            finally:
                self._entries.pop(number, None)

    def settle_of_many(self, number: int, index: int, outcome: AppendOutcome) -> None:
        """Hand an append of one call with many its outcome."""
        many = self._entries.get(number)
        if isinstance(many, Many) and many.open[index]:
            many.open[index] = 0
            try:
                many.done(index, outcome)
            except Exception:  # noqa: BLE001
                self._log.exception(_DONE_FAILED)
            finally:
                many.left -= 1
                self._forget_finished(number, many)

    def settle_all(self, last: int, outcome: Callable[[TopicPartition], AppendOutcome]) -> None:
        """Hand everything up to this number an outcome that depends on its Kafka partition."""
        for number in [number for number in list(self._entries) if number <= last]:
            entry = self._entries.get(number)
            if isinstance(entry, One):
                self.settle(number, outcome(entry.at))
            elif entry is not None:
                for index in range(len(entry.open)):
                    self.settle_of_many(number, index, outcome(entry.at))

    def _first(self) -> int | None:
        while True:
            try:
                return next(iter(self._entries), None)
            except RuntimeError:
                pass  # another thread entered or settled one in between

    def _forget_finished(self, number: int, many: Many) -> None:
        if many.left <= many.dropped:
            self._entries.pop(number, None)
