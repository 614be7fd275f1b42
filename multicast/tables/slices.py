"""Divides pieces of an order into slices, each of one log, and reads a slice's messages.

A slice is what one task reads: consecutive offsets of one log, with the pieces that give them
their positions. Which records are messages for the reader is what `multicast.delivery` decides:
skips and markers are dropped, and so are covered messages whose exact set misses the interest, and
void messages (docs/conditional.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from multicast.conditional.judges import LogJudges
from multicast.conditional.lookback import Lookback
from multicast.control import log_partition
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver, Record
from multicast.errors import TimedOut
from multicast.messages import Covered, special
from multicast.tables.order_walk import Piece
from topology.tree import Log

_POLL_S = 1.0  # one wait for records that exist; more polls follow


class Place(NamedTuple):
    """A piece within a slice: the offsets first … next-1, the first of them at `position`."""

    record: int
    run: int
    first: int
    next: int
    position: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive offsets of one log in one epoch, with their places, in offset order."""

    epoch: int
    source: str
    interest: tuple[str, ...]
    log: Log
    places: tuple[Place, ...]


class Row(NamedTuple):
    """One message: its record in the log, its destination set and its place in the order."""

    record: Record
    to: tuple[str, ...]
    position: int
    place: Place


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
            places.append(Place(piece.record, piece.run, low, high, position))
            pending[key] = (piece, places, count + high - low)
            position += high - low
            low = high
            if pending[key][2] >= offsets_max:
                flush(key)
    for key in list(pending):
        flush(key)
    return made


def read(driver: Driver, part: Slice, *, timeout_s: float) -> Iterator[list[Row]]:
    """Read a slice's messages, in offset order, in lists as they come.

    Raises `Trimmed` if retention has removed some, `TimedOut` if no record came for `timeout_s`
    seconds, and what `Reader.poll` raises.
    """
    partition = log_partition(part.log)
    position, end = part.places[0].first, part.places[-1].next
    reader = driver.reader({partition: position})
    clock = clock_of(driver)
    judges = _SliceJudges(driver, part.log, timeout_s)
    try:
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
                if rows:
                    yield rows
    finally:
        judges.close()
        reader.close()


class _SliceJudges:
    """Drops the void messages of one log; reads earlier records where they decide."""

    def __init__(self, driver: Driver, log: Log, timeout_s: float) -> None:
        self._log = log
        self._timeout_s = timeout_s
        self._clock = clock_of(driver)
        self._judges = LogJudges()
        self._lookback = Lookback(driver)

    def effective(self, records: Sequence[Record]) -> list[Record]:
        """Give the records that take effect; each record of the slice must come once, in order.

        Raises `Trimmed` if retention has removed what decides, and `TimedOut`.
        """
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


def _rows(part: Slice, records: Sequence[Record], index: int) -> tuple[list[Row], int]:
    """Give these records' rows, and the index of the place that the next record is in or after."""
    rows: list[Row] = []
    places, log, to = part.places, part.log, part.log.to
    place = places[index]
    for record in records:
        while record.offset >= place.next:
            index += 1
            if index == len(places):
                return rows, index - 1
            place = places[index]
        addressed = to
        if record.headers:
            meaning = special(log.name, record.headers)
            if isinstance(meaning, Covered):
                if set(meaning.to).isdisjoint(part.interest):
                    continue
                addressed = meaning.to
            elif meaning is not None:
                continue
        rows.append(Row(record, addressed, place.position + record.offset - place.first, place))
    return rows, index
