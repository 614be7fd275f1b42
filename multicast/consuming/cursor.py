"""A consumer's durable position: everything before it is delivered, nothing after it.

A cursor means the same on every machine and at any later time: for one interest it always gives
the same sequence of messages. A consumer group stores its text form (`Consumer.commit`).

    EPOCH/SOURCE/RECORD/RUN/NEXT    of an order stream: offset NEXT in run RUN of the order record
                                    at offset RECORD; SOURCE is the collector's name
    EPOCH/@LOG/0/0/NEXT             of a single-log subscription: offset NEXT of that log

A cursor that a consumer has made is longer: `/INTEREST/PROOF/MESSAGE` say for which interest, and
which order record and which message were there. A reader that finds others there refuses it.

Invariant: `Cursor.parse(str(cursor)) == cursor`, with what it says beyond the position.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

from multicast.control.topics import SINGLE_LOG
from multicast.errors import Truncated, UsageError
from multicast.order.runs import Run
from topology.tree import Plan

INTEREST_DIGITS = 16  # hexadecimal: enough to tell a few interests apart
_LENGTHS = [INTEREST_DIGITS, 8, 8]  # of INTEREST, PROOF and MESSAGE
_HEX = re.compile("[0-9a-f]+")
_DIGITS_MAX = 19  # of an offset: Kafka's are below 2^63, which has 19 digits


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in the messages of one source in one epoch.

    `source` is the collector's name, or "@" and the log's name for a single-log subscription.
    `record` is the offset of an order record, `run` the index of a run in it, and `next` the offset
    in that run's log from which delivery continues (below the run: from its start). Without a
    collector `record` and `run` are 0.

    `interest` is the `interest_digest` of the consumer that has made the cursor, `proof` the
    checksum of the order record, `message` that of the last message before the position; empty or 0
    where nobody knows. Two cursors are equal if their positions are.
    """

    epoch: int
    source: str
    record: int
    run: int
    next: int
    interest: str = field(default="", compare=False)
    proof: int = field(default=0, compare=False)
    message: int = field(default=0, compare=False)

    def __str__(self) -> str:
        """Give the text form, which `parse` reads back."""
        if not self.interest:
            return self.place
        return f"{self.place}/{self.interest}/{self.proof:08x}/{self.message:08x}"

    @property
    def place(self) -> str:
        """The position alone, as text."""
        return f"{self.epoch}/{self.source}/{self.record}/{self.run}/{self.next}"

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """What grows in the order of delivery: (epoch, record, run, next)."""
        return self.epoch, self.record, self.run, self.next

    @staticmethod
    def parse(text: str) -> Cursor:
        """Read a cursor's text form, with or without INTEREST, PROOF and MESSAGE.

        Raises `UsageError` if it is malformed.
        """
        if not isinstance(text, str):
            given = type(text).__name__  # not what is in it: a batch holds payloads
            raise UsageError(f"{given} is not a cursor; give a Cursor, or its text form as a str")
        place, rest = text.split("/")[:5], text.split("/")[5:]
        numbers = [place[0], *place[2:]]
        told = [len(part) for part in rest[:3] if _HEX.fullmatch(part)]
        said = not rest or told == _LENGTHS
        if len(place) != 5 or not place[1] or not all(map(_is_number, numbers)) or not said:
            raise UsageError(
                f"{text!r} is not a cursor (EPOCH/SOURCE/RECORD/RUN/NEXT, or with "
                f"/INTEREST/PROOF/MESSAGE)"
            )
        cursor = Cursor(int(place[0]), place[1], int(place[2]), int(place[3]), int(place[4]))
        if not rest:
            return cursor
        interest, proof, message = rest[:3]  # later programs may say more
        return replace(cursor, interest=interest, proof=int(proof, 16), message=int(message, 16))

    @staticmethod
    def of(given: Cursor | str) -> Cursor:
        """Give a cursor itself, or read its text form; raises as `parse`."""
        return given if isinstance(given, Cursor) else Cursor.parse(given)


def interest_digest(interest: Iterable[str]) -> str:
    """Give what tells an interest from others: of the SHA-256 of its sorted partitions, a part."""
    return sha256("+".join(sorted(interest)).encode()).hexdigest()[:INTEREST_DIGITS]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX


def truncated(cursor: Cursor) -> Truncated:
    """Make the error of a cursor in whose place there is another order record, or none."""
    return Truncated(
        f"order record {cursor.record} of collector {cursor.source} in epoch {cursor.epoch} is not "
        f"the one from which cursor {cursor} was made: Kafka has lost the end of this stream, and "
        f"later records took its place. What was delivered up to this cursor may stand in another "
        f"order, or be gone: compare it, and begin anew with committed=False"
    )


class CursorProof:
    """Compares the order record at a cursor with the one from which the cursor was made.

    Each call raises `Truncated` once another one, or none, was there.
    """

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._proof = cursor.proof  # what is still to be found; 0: nothing
        self._lost = False

    def met(self, offset: int, checksum: int) -> None:
        """Compare the next record, before it counts; a checksum of 0 stands for none."""
        if offset >= self._cursor.record:
            expected = self._cursor.record, self._proof
            self._refuse_if(self._proof > 0 and (offset, checksum) != expected)
            self._proof = 0

    def passed(self, position: int) -> None:
        """Take it that there is no further record below `position`."""
        if position > self._cursor.record:
            self.met(position, 0)

    def counted(self, offset: int, runs: Sequence[Run] | enum.Enum, *, frozen: bool) -> None:
        """Compare what the record did, and whether the stream has ended below the cursor."""
        is_below = frozen and self._proof > 0
        self._refuse_if(is_below or (offset == self._cursor.record and self._is_void(runs)))

    def _refuse_if(self, is_lost: bool) -> None:  # noqa: FBT001
        self._lost = self._lost or is_lost
        if self._lost:
            raise truncated(self._cursor)

    def _is_void(self, result: Sequence[Run] | enum.Enum) -> bool:
        """Whether the cursor's record, which counted, orders less now, by another history."""
        number, last = self._cursor.run, self._cursor.next
        run = () if isinstance(result, enum.Enum) else result[number : number + 1]
        return self._cursor.proof > 0 and not (run and run[0].first < last <= run[0].next)


def start_cursor(plan: Plan, collector: str) -> Cursor:
    """Give the cursor at the start of a collector's order stream in the plan's epoch."""
    return Cursor(plan.epoch, collector, plan.collector(collector).stream_first, 0, 0)


def single_log_cursor(plan: Plan, log: str, first: int) -> Cursor:
    """Give the cursor at offset `first` of a log that is read without a collector."""
    return Cursor(plan.epoch, SINGLE_LOG + log, 0, 0, first)
