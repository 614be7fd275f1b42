"""A consumer's durable position: everything before it is delivered, nothing after it.

A cursor means the same on every machine and at any later time: for one interest it always gives
the same sequence of messages. A consumer group stores its text form (`Consumer.commit`), a space,
and the digest of the interest (`group_positions.py`).

    EPOCH/SOURCE/RECORD/RUN/NEXT    of an order stream: offset NEXT in run RUN of the order record
                                    at offset RECORD; SOURCE is the collector's name
    EPOCH/@LOG/0/0/NEXT             of a single-log subscription: offset NEXT of that log

Invariant: `Cursor.parse(str(cursor)) == cursor`.
"""

from __future__ import annotations

from dataclasses import dataclass

from multicast.control.topics import SINGLE_LOG
from multicast.errors import UsageError
from topology.tree import Plan

_DIGITS_MAX = 19  # of an offset: Kafka's are below 2^63, which has 19 digits


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in the messages of one source in one epoch.

    `source` is the collector's name, or "@" and the log's name for a single-log subscription.
    `record` is the offset of an order record, `run` the index of a run in it, and `next` the offset
    in that run's log from which delivery continues (below the run: from its start). Without a
    collector `record` and `run` are 0.
    """

    epoch: int
    source: str
    record: int
    run: int
    next: int

    def __str__(self) -> str:
        """Give the text form, which `parse` reads back."""
        return f"{self.epoch}/{self.source}/{self.record}/{self.run}/{self.next}"

    @staticmethod
    def parse(text: str) -> Cursor:
        """Read a cursor's text form; raises `UsageError` if it is malformed.

        What follows a space is ignored: a group stores more there than the cursor.
        """
        if not isinstance(text, str):
            given = type(text).__name__  # not what is in it: a batch holds payloads
            raise UsageError(f"{given} is not a cursor; give a Cursor, or its text form as a str")
        parts = text.partition(" ")[0].split("/")
        numbers = [parts[0], *parts[2:]]
        if len(parts) != 5 or not parts[1] or not all(map(_is_number, numbers)):
            raise UsageError(f"{text!r} is not a cursor (EPOCH/SOURCE/RECORD/RUN/NEXT)")
        return Cursor(int(parts[0]), parts[1], int(parts[2]), int(parts[3]), int(parts[4]))

    @staticmethod
    def of(given: Cursor | str) -> Cursor:
        """Give a cursor itself, or read its text form; raises as `parse`."""
        return given if isinstance(given, Cursor) else Cursor.parse(given)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX


def start_cursor(plan: Plan, collector: str) -> Cursor:
    """Give the cursor at the start of a collector's order stream in the plan's epoch."""
    return Cursor(plan.epoch, collector, plan.collector(collector).stream_first, 0, 0)


def single_log_cursor(plan: Plan, log: str, first: int) -> Cursor:
    """Give the cursor at offset `first` of a log that is read without a collector."""
    return Cursor(plan.epoch, SINGLE_LOG + log, 0, 0, first)
