"""The appends of one appender that have no outcome yet, in the order in which they were started.

In go appends and outcomes; each outcome is handed to its `done`. No client and no thread lives
here: the appender enters appends under one lock, and settles them under another.

    number      given to an append, or to a call with many, when it is started; they ascend
    waiting     without an outcome
    given up    its outcome is unknown, and the client still holds it
    open        those appends of a call with many that have no outcome

Invariant: `done` is called once for each append, whoever settles it first: what is given up, or
not open, or has a number that is not entered, is settled.
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
        self.left = size  # that the client holds; counted by who settles
        self.dropped = 0  # written by who starts: each counter has one writer


class Started:
    """Appends without an outcome, by their numbers."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._waiting: dict[int, One | Many] = {}
        self._given_up: dict[int, One | Many] = {}
        self.last = 0  # the highest number that was given

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def enter(self, entry: One | Many) -> int:
        """Give a number to an append, or to the appends of one call."""
        self.last += 1
        self._waiting[self.last] = entry
        return self.last

    def drop(self, number: int) -> None:
        """Forget an append that was not started after all."""
        self._waiting.pop(number, None)

    def drop_some(self, number: int, indexes: Sequence[int]) -> None:
        """Forget those appends of one call that were not started after all."""
        many = self._waiting.get(number)
        if isinstance(many, Many):
            for index in indexes:
                many.open[index] = 0
            many.dropped = len(indexes)
            self._forget_finished(number, many)

    def at(self, number: int) -> TopicPartition | None:
        """Give the Kafka partition of what has this number; None where it is not entered."""
        entry = self._waiting.get(number) or self._given_up.get(number)
        return None if entry is None else entry.at

    def oldest(self) -> One | Many | None:
        """Give what the client has held for longest."""
        for entries in (self._given_up, self._waiting):
            number = _first(entries)
            if number is not None:
                return entries.get(number)
        return None

    def waits(self, last: int) -> bool:
        """Say whether anything up to this number has no outcome."""
        number = _first(self._waiting)
        return number is not None and number <= last

    def settle(self, number: int, outcome: AppendOutcome) -> None:
        """Hand an append what the client says. It is forgotten only when `done` has returned."""
        one = self._waiting.get(number)
        if isinstance(one, One):
            self._tell_one(one, outcome)
        self._waiting.pop(number, None)
        self._given_up.pop(number, None)

    def settle_of_many(self, number: int, index: int, outcome: AppendOutcome) -> None:
        """Hand an append of one call with many what the client says."""
        many = self._waiting.get(number) or self._given_up.get(number)
        if isinstance(many, Many):
            self._tell_one_of(many, index, outcome)
            many.left -= 1
            self._forget_finished(number, many)

    def give_up(self, since_s: float, outcome: Callable[[TopicPartition], AppendOutcome]) -> None:
        """Give what has waited since then or longer an outcome by its Kafka partition."""
        while (number := _first(self._waiting)) is not None:
            entry = self._waiting[number]
            if entry.since_s > since_s:
                break
            self._tell(entry, outcome(entry.at))
            self._given_up[number] = entry
            self._waiting.pop(number, None)

    def forget(self, last: int, outcome: Callable[[TopicPartition], AppendOutcome]) -> None:
        """Forget everything up to this number; what has no outcome is handed one."""
        for number in [number for number in list(self._waiting) if number <= last]:
            entry = self._waiting[number]
            self._tell(entry, outcome(entry.at))
            self._waiting.pop(number, None)
        for number in [number for number in self._given_up if number <= last]:
            del self._given_up[number]

    def _tell(self, entry: One | Many, outcome: AppendOutcome) -> None:
        if isinstance(entry, One):
            self._tell_one(entry, outcome)
        else:
            for index in range(len(entry.open)):
                self._tell_one_of(entry, index, outcome)

    def _tell_one(self, one: One, outcome: AppendOutcome) -> None:
        try:
            one.done(outcome)
        except Exception:  # noqa: BLE001
            self._log.exception(_DONE_FAILED)

    def _tell_one_of(self, many: Many, index: int, outcome: AppendOutcome) -> None:
        if many.open[index]:
            many.open[index] = 0
            try:
                many.done(index, outcome)
            except Exception:  # noqa: BLE001
                self._log.exception(_DONE_FAILED)

    def _forget_finished(self, number: int, many: Many) -> None:
        if many.left <= many.dropped:
            self._waiting.pop(number, None)
            self._given_up.pop(number, None)


def _first(entries: dict[int, One | Many]) -> int | None:
    while True:
        try:
            return next(iter(entries), None)
        except RuntimeError:
            pass  # another thread entered one in between
