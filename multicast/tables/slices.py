"""Divides pieces of an order into slices, each of one log, and reads a slice's messages.

A slice is consecutive offsets of one log, with the pieces that give them their positions. A task
reads one slice, or several small ones. Which records are messages for the reader is what
`delivery.py` decides: skips and markers are dropped, and so are covered messages whose exact
set misses the interest, and void messages (docs/conditional.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from multicast.conditional.judges import LogJudges
from multicast.conditional.lookback import Lookback
from multicast.control import log_partition
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver, Record
from multicast.drivers.record_columns import RecordColumns
from multicast.errors import TimedOut
from multicast.messages import Covered, special
from multicast.tables.order_walk import Piece
from topology.tree import Log

_POLL_S = 1.0  # one wait for records that exist; more polls follow
# Spark takes some 0.1 s to start a task and open its clients: as long as reading 50,000 offsets, or
# as opening four to eight slices. So no task is mostly its start, and none is long.
_TASK_OFFSETS = 50_000
_TASK_SLICES = 8
_HEADERS = attrgetter("headers")


class Place(NamedTuple):
    """A piece within a slice: the offsets first … next-1, the first of them at `position`."""

    record: int
    run: int
    first: int
    next: int
    position: int
    proof: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive offsets of one log in one epoch, with their places, in offset order."""

    epoch: int
    source: str
    interest: tuple[str, ...]
    log: Log
    places: tuple[Place, ...]


class Rows(NamedTuple):
    """Messages of one log, in offset order.

    `spans` says how many of them, one after the other, have their positions by which place; `to` is
    the destination set of each, or None if all were sent to the log's own set. `records` are most
    often `RecordColumns`.
    """

    records: Sequence[Record]
    spans: Sequence[tuple[Place, int]]
    to: Sequence[tuple[str, ...]] | None


def slices(pieces: Sequence[Piece], offsets_max: int) -> list[Slice]:
    """Divide pieces into slices of at most `offsets_max` offsets each.

    A log's pieces continue each other in each epoch, so a slice has no gap.
    """
    made: list[Slice] = []
    pending: dict[tuple[int, str], tuple[Piece, list[Place], int]] = {}

    def flush(key: tuple[int, str]) -> None:
        piece, places, _ = pending.pop(key)
        made.append(Slice(piece.epoch, piece.source, piece.interest, piece.log, tuple(places)))

    for piece in pieces:
        key = (piece.epoch, piece.log.name)
        low, position = piece.first, piece.position
        while low < piece.next:
            _, places, count = pending.get(key, (piece, [], 0))
            high = min(piece.next, low + offsets_max - count)
            places.append(Place(piece.record, piece.run, low, high, position, piece.proof))
            pending[key] = (piece, places, count + high - low)
            position += high - low
            low = high
            if pending[key][2] >= offsets_max:
                flush(key)
    for key in list(pending):
        flush(key)
    return made


def tasks(parts: Sequence[Slice], offsets_max: int) -> list[tuple[Slice, ...]]:
    """Divide slices among tasks; small ones share a task, of at most `offsets_max` offsets.

    An order over many logs has many small slices, each of which costs less than to start a task.
    """
    made: list[tuple[Slice, ...]] = []
    pending: list[Slice] = []
    offsets = 0
    for part in parts:
        count = part.places[-1].next - part.places[0].first
        if pending and (
            offsets + count > min(_TASK_OFFSETS, offsets_max) or len(pending) == _TASK_SLICES
        ):
            made.append(tuple(pending))
            pending, offsets = [], 0
        pending.append(part)
        offsets += count
    if pending:
        made.append(tuple(pending))
    return made


def read(driver: Driver, part: Slice, *, timeout_s: float) -> Iterator[Rows]:
    """Read a slice's messages, in offset order, in portions as they come.

    Raises `Trimmed` if retention has removed some, `TimedOut` if no record came for `timeout_s`
    seconds, and what `Reader.poll` raises.
    """
    partition = log_partition(part.log)
    position, end = part.places[0].first, part.places[-1].next
    clock = clock_of(driver)
    judges = _SliceJudges(driver, part.log, timeout_s)
    with closing(driver.column_reader({partition: position})) as reader, closing(judges):
        moved = clock.monotonic()
        index = 0
        while position < end:
            answers = reader.poll(_POLL_S)
            if answers:
                moved = clock.monotonic()
            elif clock.monotonic() - moved > timeout_s:
                raise TimedOut(
                    f"log {part.log.name} gave no record at offset {position} within "
                    f"{timeout_s:g} s, but it is stored up to {end}"
                )
            for fetched in answers:
                position = fetched.position
                rows, index = _rows(part, judges.effective(fetched.records), index)
                if rows.records:
                    yield rows


class _SliceJudges:
    """Drops the void messages of one log; reads earlier records where they decide."""

    def __init__(self, driver: Driver, log: Log, timeout_s: float) -> None:
        self._log = log
        self._timeout_s = timeout_s
        self._clock = clock_of(driver)
        self._judges = LogJudges()
        self._lookback = Lookback(driver)

    def effective(self, records: Sequence[Record]) -> Sequence[Record]:
        """Give the records that take effect; each record of the slice must come once, in order.

        Raises `Trimmed` if retention has removed what decides, and `TimedOut`.
        """
        if not self._judges.active(0) and not _have_meaning(records):
            return records  # the common case, without a call for each record
        return [
            record
            for record in records
            if not (record.headers or self._judges.active(0)) or self._takes_effect(record)
        ]

    def _takes_effect(self, record: Record) -> bool:
        until = self._clock.monotonic() + self._timeout_s
        while (decision := self._judges.judge(0, self._log, record)) is None:
            self._judges.check()
            while self._judges.wanted is not None:
                if self._clock.monotonic() > until:
                    raise TimedOut(
                        f"log {self._log.name} gave no record before offset {record.offset} "
                        f"within {self._timeout_s:g} s"
                    )
                self._lookback.read(self._judges, _POLL_S)
        return decision.takes_effect

    def close(self) -> None:
        """Close the reader of earlier records."""
        self._lookback.close()


def _have_meaning(records: Sequence[Record]) -> bool:
    """Whether headers may say something of their records; ordinary ones are the producers'."""
    return not isinstance(records, RecordColumns) and any(map(_HEADERS, records))


def _rows(part: Slice, records: Sequence[Record], index: int) -> tuple[Rows, int]:
    """Give these records' rows, and the index of the place that the next record is in or after."""
    to: list[tuple[str, ...]] | None = None
    if _have_meaning(records):
        pairs = list(_messages(part, records))
        records = [record for record, _ in pairs]
        to = [addressed for _, addressed in pairs]
    offsets = (
        records.offset.tolist()
        if isinstance(records, RecordColumns)
        else [record.offset for record in records]
    )
    spans: list[tuple[Place, int]] = []
    places, count, low = part.places, len(offsets), 0
    while low < count:
        offset = offsets[low]
        while index < len(places) and offset >= places[index].next:
            index += 1
        if index == len(places):  # after the slice
            return Rows(records[:low], spans, None if to is None else to[:low]), index - 1
        place = places[index]
        high = min(count, low + place.next - offset)  # exact if no offset is missing
        if offsets[high - 1] >= place.next:
            high = bisect_left(offsets, place.next, low, high)
        spans.append((place, high - low))
        low = high
    return Rows(records, spans, to), index


def _messages(part: Slice, records: Sequence[Record]) -> Iterator[tuple[Record, tuple[str, ...]]]:
    """Give the records that are messages for the reader, each with its destination set."""
    name, to = part.log.name, part.log.to
    for record in records:
        meaning = special(name, record.headers) if record.headers else None
        if meaning is None:
            yield record, to
        elif isinstance(meaning, Covered) and not set(meaning.to).isdisjoint(part.interest):
            yield record, meaning.to
