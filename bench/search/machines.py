"""What the exhaustive search moves: streams, instances of collectors, books of producers.

Each is a number. The machines behind equal numbers behave alike for ever, so a step of one of them
is computed once, by the real core, and looked up from then on. No I/O, no clock, no randomness.

    stream      the records that have an effect, in order. Records that change nothing are left out:
                no clause looks at them. Two records with the same effect are one
    instance    a collector's core. Times are kept as ages, up to the age at which they decide
    book        one producer's tickets for one stream
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import astuple, dataclass, field, replace
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any

from collectors.core.balance import Balance
from collectors.core.collector_core import CollectorCore, FillHole, NameCheckpoint, WriteRecord
from collectors.core.relay import Relay
from multicast.order.records import (
    CheckpointRecord,
    FreezeRecord,
    OwnRecord,
    RelayRecord,
    decode,
    encode,
)
from multicast.order.rule import NotCounted, RecordStream, StreamShape, StreamState
from multicast.order.runs import Run
from multicast.producing.ticket_book import TicketBook

Message = tuple[int, int]  # log and offset
NEVER = 2**40  # a time that does not come
RECORDS_MAX = 24  # with an effect: far more than a small world needs


class Wrong(Exception):
    """A step violates a guarantee."""


@dataclass(frozen=True, slots=True)
class StreamNode:
    """A stream after its last record. `readers` began at its checkpoints, `whole` at its start."""

    node: int
    raws: tuple[bytes, ...]
    whole: RecordStream
    order: tuple[Message, ...] = ()
    readers: tuple[RecordStream, ...] = ()


class SearchedStreams:
    """All streams that occur."""

    def __init__(self) -> None:
        self.nodes: list[StreamNode] = []
        self._known: dict[Hashable, int] = {}
        self._landed: dict[tuple[int, bytes], int] = {}

    def begin(self, node: int, shape: StreamShape) -> int:
        """Give an empty stream of collector number `node`."""
        key = (node, repr(shape))
        if key not in self._known:
            self._known[key] = self._add(StreamNode(node, (), RecordStream(shape)))
        return self._known[key]

    def land(self, stream: int, raw: bytes) -> int:
        """Append a record; give the same stream if it has no effect. Raises `Wrong`."""
        key = (stream, raw)
        if key not in self._landed:
            self._landed[key] = self._append(stream, raw)
        return self._landed[key]

    def read_from(self, stream: int, offset: int) -> tuple[bytes, ...]:
        """Give the records from an offset on."""
        node = self.nodes[stream]
        return node.raws[offset - node.whole.shape.first :]

    def doomed(self, stream: int, raw: bytes) -> bool:
        """Whether a record in flight changes nothing, now and later."""
        whole = self.nodes[stream].whole
        state, record = whole.state, decode(whole.shape.tag, raw)
        match record:
            case OwnRecord(tickets, corrections):
                known = all(
                    not messages and upto <= state.positions[log] for log, messages, upto in tickets
                ) and all(number <= state.corrections[log] for log, number, _, _ in corrections)
            case RelayRecord():
                known = record.first < state.parent_next
            case CheckpointRecord():
                known = record.mark < whole.mark
            case FreezeRecord():
                known = False
            case _:
                known = True
        return (known or state.frozen) and self.land(stream, raw) == stream

    def _add(self, node: StreamNode) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _append(self, stream: int, raw: bytes) -> int:
        before = self.nodes[stream]
        whole = fork(before.whole)
        offset = whole.offset_next
        judged = whole.read(offset, raw, offset + 1)  # a checksum: equal effects have equal ones
        if judged is NotCounted.FALSE:
            raise Wrong("a checkpoint names a state that was not there")
        runs: tuple[Run, ...] = ()
        if isinstance(judged, NotCounted):
            if judged is not NotCounted.GAP:
                return stream
        else:
            runs = judged
            same = (before.whole.state, before.whole.counted, before.whole.mark)
            if not runs and (whole.state, whole.counted, whole.mark) == same:
                return stream
        counted = [whole.counted[log] > count for log, count in before.whole.counted.items()]
        effect = (stream, content(whole.state), runs, whole.mark, tuple(counted))
        if effect not in self._known:
            self._known[effect] = self._add(self._after(before, raw, whole, runs))
        return self._known[effect]

    def _after(
        self, before: StreamNode, raw: bytes, whole: RecordStream, runs: Iterable[Run]
    ) -> StreamNode:
        if len(before.raws) == RECORDS_MAX:
            raise Wrong("a stream grows without end")
        order = before.order
        positions = dict(before.whole.state.positions)
        for log, first, end in runs:
            if first != positions[log] or end <= first:
                raise Wrong(f"log {log} is ordered up to {positions[log]}, and then {first}-{end}")
            positions[log] = end
            order += tuple([(log, place) for place in range(first, end)])
        if positions != whole.state.positions or min(whole.state.debts.values(), default=0) < 0:
            raise Wrong(f"a record orders other than its runs: {whole.state}")
        readers = []
        offset = whole.offset_next - 1
        for reader in map(fork, before.readers):
            reader.read(offset, raw)
            readers.append(reader)
        if whole.checkpoint_at == offset:
            record = decode(whole.shape.tag, raw)
            assert isinstance(record, CheckpointRecord)
            reader = RecordStream(whole.shape, record)
            after = StreamNode(before.node, (*before.raws, raw), whole)
            for place in range(record.mark, offset + 1):
                reader.read(place, after.raws[place - whole.shape.first])
            readers.append(reader)
        for reader in readers:
            if (reader.state, reader.mark) != (whole.state, whole.mark):
                raise Wrong(f"a reader from a checkpoint has {reader.state}, others {whole.state}")
        return StreamNode(before.node, (*before.raws, raw), whole, order, tuple(readers))


@dataclass(frozen=True, slots=True)
class Turn:
    """What an instance's step led to: the instance, its new appends, and checkpoints it names."""

    instance: int
    raws: tuple[bytes, ...] = ()
    fills: tuple[tuple[int, int], ...] = ()
    named: tuple[int, ...] = ()


@dataclass(slots=True)
class SearchedInstances:
    """All instances of collectors that occur. `cores` are never changed in place."""

    cores: list[tuple[CollectorCore, int]] = field(default_factory=list)  # with its clock
    _known: dict[Hashable, int] = field(default_factory=dict)
    _turns: dict[Hashable, Turn] = field(default_factory=dict)

    def intern(self, core: CollectorCore, now: int) -> int:
        """Give the number of this instance."""
        key = collector_key(core, now)
        if key not in self._known:
            self._known[key] = len(self.cores)
            self.cores.append((core, now))
        return self._known[key]

    def turn(
        self,
        instance: int,
        own: tuple[bytes, ...] = (),
        parent: tuple[bytes, ...] = (),
        ends: tuple[tuple[int, int, int], ...] = (),
        markers: tuple[int, ...] = (),
        *,
        ticks: bool = False,
    ) -> Turn:
        """Read these records and ends (log, stable end, high watermark), and carry out a step.

        `markers` are by log number; none before they are written.
        """
        key = (instance, own, parent, ends, markers, ticks)
        if key not in self._turns:
            core, now = self.cores[instance]
            core, now = fork(core), now + ticks
            for raw in own:
                core.own_read(core.own.offset_next, raw, now)
            for raw in parent:
                assert core.relay is not None
                offset = core.relay.parent.offset_next
                core.parent_read(offset, raw, offset + 1)
            if core.relay is not None and core.relay.strayed:
                raise Wrong("a collector takes its stream for one that has strayed")
            for log, end, _ in ends:
                core.log_end(log, end, now)
            if markers:
                core.freeze_after(dict(enumerate(markers)))
            if ticks:
                core.tick(now, {log: high for log, _, high in ends})
            actions = core.step(now)
            tag = core.own.shape.tag
            self._turns[key] = Turn(
                self.intern(core, now),
                tuple([encode(tag, one.record) for one in actions if isinstance(one, WriteRecord)]),
                tuple([(one.log, one.below) for one in actions if isinstance(one, FillHole)]),
                tuple([one.offset for one in actions if isinstance(one, NameCheckpoint)]),
            )
        return self._turns[key]

    def report(self, instance: int, *, filled: int | None = None) -> int:
        """Report that a log is filled, or else that an append has failed."""
        key = (instance, filled)
        if key not in self._turns:
            core, now = self.cores[instance]
            core = fork(core)
            if filled is None:
                core.append_failed()
            else:
                core.filled(filled)
            self._turns[key] = Turn(self.intern(core, now))
        return self._turns[key].instance


@dataclass(slots=True)
class SearchedBooks:
    """All books of producers that occur; `entries` are never changed in place."""

    entries: list[TicketBook] = field(default_factory=list)
    _known: dict[Hashable, int] = field(default_factory=dict)
    _steps: dict[Hashable, int] = field(default_factory=dict)

    def intern(self, book: TicketBook) -> int:
        """Give the number of this book."""
        logs = [(log, *astuple(one)) for log, one in book._logs.items()]  # noqa: SLF001
        key = (tuple(logs), book._in_flight)  # noqa: SLF001
        if key not in self._known:
            self._known[key] = len(self.entries)
            self.entries.append(book)
        return self._known[key]

    def start(self, book: int, log: int) -> int:
        """Start a message's append, and that of a ticket if it is due."""
        return self._step(book, "start", log)

    def settle(self, book: int, log: int, offset: int | None, *, refused: bool = False) -> int:
        """Report a message's outcome."""
        return self._step(book, "settle", log, offset, refused)

    def ticket_settled(self, book: int, *, refused: bool = False) -> int:
        """Report the ticket's outcome, and start the next one's append if it is due."""
        return self._step(book, "ticket", refused)

    def ticket(self, book: int) -> OwnRecord | None:
        """Give the ticket in flight."""
        return self.entries[book]._in_flight  # noqa: SLF001

    def in_flight(self, book: int) -> list[int]:
        """Give the logs of messages in flight."""
        return [log for log, one in self.entries[book]._logs.items() if one.unsettled]  # noqa: SLF001

    def _step(self, book: int, what: str, *about: int | None) -> int:
        key = (book, what, about)
        if key not in self._steps:
            after = copy.deepcopy(self.entries[book])
            match what, about:
                case "start", (int(log),):
                    after.started(log)
                    after.record_due()
                case "settle", (int(log), offset, refused):
                    after.settled(log, offset, refused=bool(refused))
                case _, (refused,):
                    after.ticket_settled(refused=bool(refused))
                    after.record_due()
            self._steps[key] = self.intern(after)
        return self._steps[key]


# -- copies and keys ----------------------------------------------------------------------------

_CHANGED_IN_PLACE = (CollectorCore, Relay, RecordStream)


@cache
def _never_changes(kind: type) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    is_frozen = parameters is not None and parameters.frozen
    return is_frozen or issubclass(kind, int | str | bytes | tuple | Enum | NoneType)


def fork(value: Any, known: dict[int, Any] | None = None) -> Any:
    """Copy a core, but share what never changes: much faster than `copy.deepcopy`."""
    known = {} if known is None else known
    kind: Any = type(value)
    if _never_changes(kind):
        return value
    if kind is dict:
        return {key: fork(one, known) for key, one in value.items()}
    if kind in (set, list, deque):
        assert all(fork(one) is one for one in value)
        return copy.copy(value)
    if id(value) in known:
        return known[id(value)]
    if kind is StreamState:
        return value.copy()
    if kind is Balance:
        return replace(value, noted=list(value.noted), usual=value.usual.copy())
    assert kind in _CHANGED_IN_PLACE, kind
    known[id(value)] = other = object.__new__(kind)
    vars(other).update({name: fork(one, known) for name, one in vars(value).items()})
    return other


def collector_key(core: CollectorCore, now: int) -> Hashable:
    """Give all on which a core's future depends: all its fields, times as ages."""
    limits = core.limits
    ages = {
        "_beyond": limits.patience,
        "_ticket_time": limits.lively,
        "_mark_time": limits.checkpoint_time,
    }
    key: list[Hashable] = []
    for name, value in vars(core).items():
        if name in ages:
            times = value if isinstance(value, dict) else {0: value}
            oldest = ages[name] if ages[name] < NEVER else 0
            ages_now = [(k, -1 if t is None else min(now - t, oldest)) for k, t in times.items()]
            key.append(tuple(sorted(ages_now)))
        elif name == "_balances":
            for log, one in sorted(value.items()):
                window = (one.ticks, one.seen > one.began, core._ends[log] > one.end)  # noqa: SLF001
                seen = (min(now - one.seen, 1), one.last, one.is_fresh, tuple(sorted(one.noted)))
                key.append((log, one.number, window, seen, tuple(one.usual)))
        elif name == "_handed_out":
            ahead = [
                (log, end) for log, end in value.items() if end > core.own.state.positions[log]
            ]
            key.append(tuple(sorted(ahead)))
        elif name != "limits":
            key.append(content(value))
    return tuple(key)


def content(value: Any) -> Any:
    """Give a value's content: of a stream's reader without what nothing depends on."""
    kind = type(value)
    if kind in (RecordStream, Relay):
        left_out = ("counted", "last", "checksum", "_own", "_compared", "_checksums")
        return tuple([content(one) for name, one in vars(value).items() if name not in left_out])
    if kind is StreamShape:
        return value.tag
    if kind is StreamState:
        return (
            *[tuple(one.items()) for one in (value.positions, value.debts, value.corrections)],
            tuple(sorted(value.held)),
            (value.parent_next, value.parent_last, value.restored, value.frozen),
        )
    if kind is dict:
        return tuple(sorted(value.items()))
    if kind is set:
        return tuple(sorted(value))
    return tuple(value) if kind in (list, deque) else value
