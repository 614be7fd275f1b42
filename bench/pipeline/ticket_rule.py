"""Which order records count, written independently from `docs/protocol.md`.

It uses nothing of `multicast`. It gives for each record that counts its runs with their places, or
the reason why it does not. The figures of a clause are
those of the page.

    debt     of an own log: offsets that were ordered before a ticket had counted them
    marked   the state that the next checkpoint must name, and the offset at which it was so

Invariant: the runs of a log continue each other, and none is empty.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from bench.pipeline.rule import (
    EPOCH_PLACES,
    FOREIGN,
    FROZEN,
    IMPOSSIBLE,
    MALFORMED,
    OFFSET_LIMIT,
    ORDERED_LIMIT,
    PlacedRun,
    StreamRule,
)

KNOWN, GAP, EARLY, OWED, FALSE = "known", "gap", "early", "owed", "false"
OVERLAP, OTHER = "overlap", "other"
_MESSAGES_LIMIT = 65_536  # of one ticket
_PROMISED_LIMIT = 16_384  # the debt up to which tickets with messages promise more
_HEAD_BYTES = 20  # magic, version, tag, kind
_OWN, _RELAY, _FREEZE, _RESTORED, _CHECKPOINT, _SIGHT = 1, 2, 3, 4, 5, 6
_SEEN_LIMIT = 3  # ends of a log
_Entries = list[tuple[int, ...]]
_Ways = list[tuple[int, int, int]]  # log, from, to
_Seen = tuple[int, int, int]  # leader epoch, end, checksum


class _Malformed(Exception):
    """The bytes are no record."""


class _Bytes:
    """Takes the fields of a record one after the other."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._place = 0

    def numbers(self, form: str) -> tuple[int, ...]:
        """Take fields, big-endian and without padding."""
        size = struct.calcsize(">" + form)
        part = self._raw[self._place : self._place + size]
        if len(part) < size:
            raise _Malformed
        self._place += size
        return struct.unpack(">" + form, part)

    def entries(self, count: int, form: str) -> _Entries:
        """Take so many entries."""
        return [self.numbers(form) for _ in range(count)]

    def end(self) -> None:
        """Require that nothing is left."""
        if self._place != len(self._raw):
            raise _Malformed


@dataclass(slots=True)
class StreamReading:
    """The state of reading one collector's stream in one epoch."""

    rule: StreamRule
    positions: dict[int, int] = field(default_factory=dict)
    debts: dict[int, int] = field(default_factory=dict)
    corrected: dict[int, int] = field(default_factory=dict)  # by log: the corrections that counted
    held: set[int] = field(default_factory=set)
    parent_next: int = 0
    parent_last: int = 0
    seen: dict[int, list[_Seen]] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=dict)
    restored: int = 0
    ordered: int = 0
    frozen: bool = False
    mark: int = 0
    marked: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        """Begin where the epoch begins."""
        self.positions = dict(self.rule.starts)
        self.debts = dict.fromkeys(self.rule.own, 0)
        self.corrected = dict.fromkeys(self.rule.own, 0)
        self.parent_next = self.rule.parent_offset or 0
        self._note(self.rule.seen, self.rule.lost)
        self.mark, self.marked = self.rule.offset_first, self._state()

    def take(self, offset: int, raw: bytes) -> str | list[PlacedRun]:
        """Return the runs of the record at `offset`, or the reason why it does not count."""
        if len(raw) < _HEAD_BYTES or raw[:19] != b"TO\3" + self.rule.anchor:
            return FOREIGN
        kinds = {
            _OWN: self._own,
            _RELAY: self._relay,
            _FREEZE: self._freeze,
            _RESTORED: self._restored,
            _CHECKPOINT: self._checkpoint,
            _SIGHT: self._sight,
        }
        kind = kinds.get(raw[19])
        if kind is None:
            return MALFORMED
        try:
            result = kind(_Bytes(raw[_HEAD_BYTES:]), offset)
        except _Malformed:
            return MALFORMED
        return result if isinstance(result, str) else self._placed(result)

    def _barred(self) -> str:
        """Say why only restored records count now, or none at all; else nothing."""
        if self.frozen:
            return FROZEN
        return OWED if self.restored < self.rule.restored else ""

    def _own(self, content: _Bytes, _: int) -> str | _Ways:
        tickets, corrections = content.numbers("HH")
        own, changes = content.entries(tickets, "IIQ"), content.entries(corrections, "IIIB")
        content.end()
        if any(held > 1 for *_, held in changes):
            raise _Malformed
        if why := self._barred():
            return why
        if not {entry[0] for entry in (*own, *changes)} <= self.rule.own:
            return IMPOSSIBLE
        highest = dict(self.positions)
        for log, _, upto in own:
            highest[log] = max(highest[log], upto)
        asked = sum(messages for _, messages, _ in own)
        asked += sum(highest[log] - position for log, position in self.positions.items())
        if asked > ORDERED_LIMIT or any(messages > _MESSAGES_LIMIT for _, messages, _ in own):
            return IMPOSSIBLE
        ways = [self._ticket(*ticket) for ticket in own]
        for log, number, amount, held in changes:
            if number == self.corrected[log] + 1:
                self.corrected[log] = number
                self.debts[log] = max(0, self.debts[log] - amount)
                self.held.discard(log)
                if held:
                    self.held.add(log)
        return ways

    def _ticket(self, log: int, messages: int, upto: int) -> tuple[int, int, int]:
        """Apply clause 2; returns the way of the log's position."""
        first = self.positions[log]
        if log in self.held:
            self.positions[log] = first if messages else max(first, upto)
            return log, first, self.positions[log]
        paid = min(messages, self.debts[log])
        counted = first + messages - paid
        self.debts[log] -= paid
        if messages:
            upto = min(upto, counted + max(0, _PROMISED_LIMIT - self.debts[log]))
        self.positions[log] = max(counted, upto)
        self.debts[log] += self.positions[log] - counted
        return log, first, self.positions[log]

    def _relay(self, content: _Bytes, _: int) -> str | _Ways:
        first, after, before, last, count = content.numbers("QQIIH")
        entries = content.entries(count, "IQ")
        content.end()
        _refuse_large(after, *(upto for _, upto in entries))
        if why := self._barred():
            return why
        if self.rule.parent_offset is None:
            return IMPOSSIBLE
        if after <= self.parent_next:
            return KNOWN
        if first != self.parent_next:
            return OVERLAP if first < self.parent_next else GAP
        if before != self.parent_last:
            return OTHER
        ways = self._moved(entries, self.rule.inherited)
        if not isinstance(ways, str):
            self.parent_next, self.parent_last = after, last
        return ways

    def _restored(self, content: _Bytes, _: int) -> str | _Ways:
        first, after, count = content.numbers("QQH")
        entries = content.entries(count, "IQ")
        content.end()
        _refuse_large(after, *(upto for _, upto in entries))
        if self.frozen:
            return FROZEN
        if after > self.rule.restored or after - first != count:
            return IMPOSSIBLE
        if after <= self.restored:
            return KNOWN
        if first > self.restored:
            return GAP
        ways = self._moved(entries, self.positions)
        if not isinstance(ways, str):
            self.restored = after
        return ways

    def _moved(self, entries: _Entries, logs: Collection[int]) -> str | _Ways:
        """Move the positions of these logs forward, as clause 4 says of entries."""
        positions, ways = dict(self.positions), []
        for log, upto in entries:
            if log not in logs:
                return IMPOSSIBLE
            ways.append((log, positions[log], max(positions[log], upto)))
            positions[log] = ways[-1][2]
        if sum(last - begin for _, begin, last in ways) > ORDERED_LIMIT:
            return IMPOSSIBLE
        self.positions = positions
        return ways

    def _sight(self, content: _Bytes, _: int) -> str | _Ways:
        ends, losses = content.numbers("HH")
        seen, lost = content.entries(ends, "IQII"), content.entries(losses, "IQ")
        content.end()
        _refuse_large(*(offset for _, offset, *_ in (*seen, *lost)))
        if self.frozen:
            return FROZEN
        if not {entry[0] for entry in (*seen, *lost)} <= self.positions.keys():
            return IMPOSSIBLE
        self._note(seen, lost)
        return []

    def _note(self, seen: Iterable[Sequence[int]], lost: Iterable[Sequence[int]]) -> None:
        for log, end, epoch, checksum in seen:
            if end <= self.positions[log] + ORDERED_LIMIT:
                known = self._kept(log, self.seen.get(log, []))
                self.seen[log] = self._kept(log, [*known, (epoch, end, checksum)])
        for log, first in lost:
            self.lost[log] = min(first, self.lost.get(log, first))

    def _kept(self, log: int, ends: list[_Seen]) -> list[_Seen]:
        """Give what clause 9 keeps of the seen ends of a log."""
        first: dict[tuple[int, int], _Seen] = {}
        for one in ends:
            if not first.setdefault(one[:2], one)[2]:
                first[one[:2]] = one
        kept = sorted(one for one in first.values() if not any(_hides(each, one) for each in ends))
        ordered = [one for one in kept if one[1] <= self.positions[log]][-1:]
        above = [one for one in kept if one[1] > self.positions[log]]
        while len(above) > _SEEN_LIMIT:
            above.pop(-2)
        return ordered + above

    def _freeze(self, content: _Bytes, _: int) -> str | _Ways:
        parent_next, count = content.numbers("QH")
        entries = content.entries(count, "IQ")
        content.end()
        _refuse_large(parent_next, *(upto for _, upto in entries))
        if why := self._barred():
            return why
        reached = all(self.positions.get(log, -1) >= upto for log, upto in entries)
        if self.parent_next < parent_next or not reached:
            return EARLY
        self.frozen = True
        return []

    def _checkpoint(self, content: _Bytes, offset: int) -> str | _Ways:
        mark, parent_next, *counts = content.numbers("QQIIHHHH")
        last, restored, owns, inherits, ends, losses = counts
        own = content.entries(owns, "IQQIB")
        inherited = content.entries(inherits, "IQ")
        seen, lost = content.entries(ends, "IQII"), content.entries(losses, "IQ")
        content.end()
        _refuse_large(mark, parent_next, *(each[1] for each in (*inherited, *seen, *lost)))
        rising = [[entry[:1] for entry in logs] for logs in (own, inherited, lost)]
        rising.append([(log, epoch) for log, _, epoch, _ in seen])
        if any(after <= key for keys in rising for key, after in pairwise(keys)):
            raise _Malformed
        if any(held > 1 for *_, held in own):
            raise _Malformed
        if why := self._barred():
            return why
        if mark < self.mark:
            return KNOWN
        named = (parent_next, last, restored, own, inherited, seen, lost)
        if (mark, *named) != (self.mark, *self.marked):
            return FALSE
        self.mark, self.marked = offset + 1, self._state()
        return []

    def _state(self) -> tuple[object, ...]:
        own = [
            (log, self.positions[log], self.debts[log], self.corrected[log], int(log in self.held))
            for log in sorted(self.rule.own)
        ]
        inherited = [(log, self.positions[log]) for log in sorted(self.rule.inherited)]
        seen = [
            (log, end, epoch, checksum)
            for log, ends in sorted(self.seen.items())
            for epoch, end, checksum in self._kept(log, ends)
        ]
        lost = sorted(self.lost.items())
        return self.parent_next, self.parent_last, self.restored, own, inherited, seen, lost

    def _placed(self, ways: Sequence[tuple[int, int, int]]) -> list[PlacedRun]:
        placed = []
        for log, first, after in ways:
            if after > first:
                place = self.rule.epoch * EPOCH_PLACES + self.ordered
                name = self.rule.logs[log]
                placed.append(
                    PlacedRun(self.rule.topic, self.rule.collector, name, first, after, place)
                )
                self.ordered += after - first
        return placed


def scan(
    known: Sequence[StreamRule], rows: Iterable[tuple[str, int, int, bytes | None]]
) -> Iterator[tuple[str, PlacedRun | tuple[str, str]]]:
    """Read streams, given as (topic, partition, offset, value) sorted by stream and offset.

    Yields ("run", PlacedRun) for each accepted run, and ("void", (topic, reason)) for each record
    that is accepted in no epoch.
    """
    for (topic, partition), of_stream in groupby(rows, key=lambda row: (row[0], row[1])):
        readings = [
            StreamReading(rule) for rule in known if (rule.topic, rule.stream) == (topic, partition)
        ]
        for _, _, offset, value in of_stream:
            raw = bytes(value or b"")
            why = FOREIGN
            for reading in readings:
                result = _taken(reading, offset, raw)
                if not isinstance(result, str):
                    yield from (("run", run) for run in result)
                    break
                if result != FOREIGN:
                    why = result
            else:
                yield "void", (topic, why)


def _taken(reading: StreamReading, offset: int, raw: bytes) -> str | list[PlacedRun]:
    return FOREIGN if offset < reading.rule.offset_first else reading.take(offset, raw)


def _hides(other: _Seen, pair: _Seen) -> bool:
    """Whether what one end that was seen shows makes another one needless."""
    return other[:2] != pair[:2] and other[0] <= pair[0] and other[1] >= pair[1]


def _refuse_large(*offsets: int) -> None:
    if any(offset >= OFFSET_LIMIT for offset in offsets):
        raise _Malformed
