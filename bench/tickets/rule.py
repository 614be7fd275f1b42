"""The ticket rule: which records of an order stream count, and what they order.

An order stream is one Kafka partition. Producers, any number of instances of its collector, zombies
and strangers append to it. Its state is a pure function of its bytes; no record names another one,
so there is no digest chain. No I/O, no clock, no randomness.

    own log        a log that enters the order in this stream; its producers write tickets here
    inherited      a log whose order comes from the parent's stream
    position       of a log: the first offset that is not ordered yet
    run            the offsets from a log's old position to its new one: what a record orders
    ticket         (log, messages, upto): so many more messages of the log are on their way, and the
                   log ends at `upto` or later once they are stored. A collector that saw the end of
                   a log writes a ticket of 0 messages
    debt           of an own log: offsets that were ordered although no ticket had counted them
    correction     (log, number, amount): `amount` of the debt will not be paid; if it is negative,
                   that many tickets were counted for which no message came
    parent_next    the first offset of the parent's stream whose effect is not taken over yet

Clauses:
 1. A record counts only if it carries the stream's tag, which is the digest of epoch, plan and
    collector; and only before the stream is frozen.
 2. A ticket's messages first pay debt; each message beyond the debt moves the position by one.
    Then, if the position is below `upto`, it becomes `upto`, and the debt grows by the difference.
 3. A correction counts iff its number is the next one of its log. It lowers the debt by `amount`,
    not below 0.
 4. A relay (first, next, entries) counts iff first <= parent_next < next. Each entry (log, upto)
    moves an inherited log's position to `upto`, if that is higher; so a relay that overlaps what is
    known adds only the rest. Then parent_next becomes `next`.
 5. A freeze (parent_next, positions) counts iff the state has reached what it names.
 6. No entry moves a position by more than ORDERED_MAX. A record with an impossible entry is void as
    a whole.

Why writers need no agreement: an entry of clause 2 can only bring a position forward, and a wrong
one costs time (a hole is filled by a skip, a debt is corrected). What a relay says is determined by
the parent's bytes between `first` and `next`, so it does not matter which instance wrote it, and
clause 4 admits no gap. A correction computed from an old state has an old number.

Invariants, for each log: positions never go back; the runs of a log continue each other without a
gap; debt >= 0.
"""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from multicast.order import ORDERED_MAX, Run

MAGIC = b"TT"
VERSION = 1
# Messages that one ticket counts: bounds what a producer that miscounts can do with one record.
COUNT_MAX = 2**16
_HEAD = struct.Struct(">2sBQB")  # magic, version, tag, kind
_OWN = struct.Struct(">HH")  # tickets, corrections
_TICKET = struct.Struct(">IIQ")
_CORRECTION = struct.Struct(">IIi")
_RELAY = struct.Struct(">QQH")
_RELAYED = struct.Struct(">IQ")
_FREEZE = struct.Struct(">QH")
_POSITION = struct.Struct(">IQ")
_OWN_KIND, _RELAY_KIND, _FREEZE_KIND = 1, 2, 3


class Ticket(NamedTuple):
    """So many more messages of log number `log`; it ends at `upto` or later with them."""

    log: int
    messages: int
    upto: int


class Correction(NamedTuple):
    """The `number`-th correction of a log's debt, from 1."""

    log: int
    number: int
    amount: int


class RelayEntry(NamedTuple):
    """The parent's stream moved its position of `log` to `upto`."""

    log: int
    upto: int


@dataclass(frozen=True, slots=True)
class OwnRecord:
    """Tickets and corrections, in this order."""

    tickets: tuple[Ticket, ...]
    corrections: tuple[Correction, ...] = ()


@dataclass(frozen=True, slots=True)
class RelayRecord:
    """All that the parent's stream from `first` to below `next` ordered of the bag, in order."""

    first: int
    next: int
    entries: tuple[RelayEntry, ...]


@dataclass(frozen=True, slots=True)
class FreezeRecord:
    """Ends the stream, once it has reached these; `parent_next` is 0 without a parent."""

    parent_next: int
    positions: tuple[tuple[int, int], ...]


StreamRecord = OwnRecord | RelayRecord | FreezeRecord


class NotCounted(enum.Enum):
    """Why a record does not count."""

    FOREIGN = "it is not a record of this stream, epoch and version"
    MALFORMED = "its bytes are malformed"
    FROZEN = "the stream is frozen"
    IMPOSSIBLE = "one of its entries is impossible"
    GAP = "it relays what comes after a part that is missing here"
    KNOWN = "it relays what is known here"
    EARLY = "the stream has not reached what the freeze names"


@dataclass(frozen=True, slots=True)
class StreamShape:
    """What a plan says of a stream: its tag, and the first offset of each log in the epoch.

    `parent_first` is where the parent's stream begins; None without a parent.
    """

    tag: int
    own: Mapping[int, int]
    inherited: Mapping[int, int]
    parent_first: int | None = None


@dataclass(slots=True)
class TicketState:
    """The effect of all records read so far: four numbers a log, whatever the producers are."""

    positions: dict[int, int]
    debts: dict[int, int]
    corrections: dict[int, int]
    parent_next: int
    frozen: bool = False

    def copy(self) -> TicketState:
        """Give a copy, which is also what a checkpoint holds."""
        return replace(
            self,
            positions=dict(self.positions),
            debts=dict(self.debts),
            corrections=dict(self.corrections),
        )


def encode(tag: int, record: StreamRecord) -> bytes:
    """Encode a record of the stream with this tag."""
    match record:
        case OwnRecord(tickets, corrections):
            parts = [_HEAD.pack(MAGIC, VERSION, tag, _OWN_KIND)]
            parts.append(_OWN.pack(len(tickets), len(corrections)))
            parts += [_TICKET.pack(*ticket) for ticket in tickets]
            parts += [_CORRECTION.pack(*correction) for correction in corrections]
        case RelayRecord(first, end, entries):
            parts = [_HEAD.pack(MAGIC, VERSION, tag, _RELAY_KIND)]
            parts.append(_RELAY.pack(first, end, len(entries)))
            parts += [_RELAYED.pack(*entry) for entry in entries]
        case FreezeRecord(parent_next, positions):
            parts = [_HEAD.pack(MAGIC, VERSION, tag, _FREEZE_KIND)]
            parts.append(_FREEZE.pack(parent_next, len(positions)))
            parts += [_POSITION.pack(*position) for position in positions]
    return b"".join(parts)


# A stream is read by several processes of one simulation; a real reader decodes each record once.
@functools.lru_cache(maxsize=4096)
def decode(tag: int, raw: bytes) -> StreamRecord | NotCounted:
    """Decode a record of the stream with this tag."""
    if len(raw) < _HEAD.size:
        return NotCounted.FOREIGN
    magic, version, its_tag, kind = _HEAD.unpack_from(raw)
    if magic != MAGIC or version != VERSION or its_tag != tag:
        return NotCounted.FOREIGN
    try:
        if kind == _OWN_KIND:
            return _decode_own(raw, _HEAD.size)
        if kind == _RELAY_KIND:
            return _decode_relay(raw, _HEAD.size)
        if kind == _FREEZE_KIND:
            return _decode_freeze(raw, _HEAD.size)
    except (struct.error, ValueError):
        pass
    return NotCounted.MALFORMED


def _decode_own(raw: bytes, place: int) -> OwnRecord:
    tickets, corrections = _OWN.unpack_from(raw, place)
    place += _OWN.size
    split = place + tickets * _TICKET.size
    _end_at(raw, split + corrections * _CORRECTION.size)
    return OwnRecord(
        tuple([Ticket(*fields) for fields in _TICKET.iter_unpack(raw[place:split])]),
        tuple([Correction(*fields) for fields in _CORRECTION.iter_unpack(raw[split:])]),
    )


def _decode_relay(raw: bytes, place: int) -> RelayRecord:
    first, end, count = _RELAY.unpack_from(raw, place)
    place += _RELAY.size
    _end_at(raw, place + count * _RELAYED.size)
    entries = [RelayEntry(log, upto) for log, upto in _RELAYED.iter_unpack(raw[place:])]
    return RelayRecord(first, end, tuple(entries))


def _decode_freeze(raw: bytes, place: int) -> FreezeRecord:
    parent_next, count = _FREEZE.unpack_from(raw, place)
    place += _FREEZE.size
    _end_at(raw, place + count * _POSITION.size)
    positions = [(log, position) for log, position in _POSITION.iter_unpack(raw[place:])]
    return FreezeRecord(parent_next, tuple(positions))


def _end_at(raw: bytes, place: int) -> None:
    if len(raw) != place:
        raise ValueError("the length does not match the number of entries")


@dataclass(slots=True)
class TicketStream:
    """One stream in one epoch, read record by record.

    `checkpoint` is a copy of the state after all records below `offset_next`.
    """

    shape: StreamShape
    offset_next: int = 0
    checkpoint: TicketState | None = None
    state: TicketState = field(init=False)
    # Behind the last record that was read before the stream was frozen, and behind its freeze.
    # Producers may go on to write tickets, so a child must not wait for the end of the stream.
    relevant_next: int = field(init=False)
    # Of each own log: how many messages tickets have counted since reading began.
    counted: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Begin at the checkpoint, or at the epoch's start."""
        shape = self.shape
        self.counted = dict.fromkeys(shape.own, 0)
        self.relevant_next = self.offset_next
        if self.checkpoint is not None:
            self.state = self.checkpoint.copy()
            return
        self.state = TicketState(
            positions={**shape.own, **shape.inherited},
            debts=dict.fromkeys(shape.own, 0),
            corrections=dict.fromkeys(shape.own, 0),
            parent_next=shape.parent_first or 0,
        )

    def read(self, offset: int, raw: bytes) -> tuple[Run, ...] | NotCounted:
        """Read the record at `offset`; give the runs that it orders, or why it does not count."""
        assert offset >= self.offset_next, "records are read in offset order, each once"
        self.offset_next = offset + 1
        if not self.state.frozen:
            self.relevant_next = offset + 1
        record = decode(self.shape.tag, raw)
        if isinstance(record, NotCounted):
            return record
        if self.state.frozen:
            return NotCounted.FROZEN
        match record:
            case OwnRecord():
                return self._own(record)
            case RelayRecord():
                return self._relay(record)
            case FreezeRecord():
                return self._freeze(record)

    def _own(self, record: OwnRecord) -> tuple[Run, ...] | NotCounted:
        state, own = self.state, self.shape.own
        for log, messages, upto in record.tickets:
            if log not in own or messages > COUNT_MAX:
                return NotCounted.IMPOSSIBLE
            if upto - state.positions[log] > ORDERED_MAX:
                return NotCounted.IMPOSSIBLE
        if any(correction.log not in own for correction in record.corrections):
            return NotCounted.IMPOSSIBLE
        runs = []
        for log, messages, upto in record.tickets:
            first = state.positions[log]
            paid = min(messages, state.debts[log])
            end = first + messages - paid
            state.debts[log] += max(0, upto - end) - paid
            self.counted[log] += messages
            end = max(end, upto)
            if end > first:
                state.positions[log] = end
                runs.append(Run(log, first, end))
        for log, number, amount in record.corrections:
            if number == state.corrections[log] + 1:
                state.corrections[log] = number
                state.debts[log] = max(0, state.debts[log] - amount)
        return tuple(runs)

    def _relay(self, record: RelayRecord) -> tuple[Run, ...] | NotCounted:
        state, inherited = self.state, self.shape.inherited
        known = state.parent_next
        if self.shape.parent_first is None:
            return NotCounted.IMPOSSIBLE
        if record.next <= known:
            return NotCounted.KNOWN
        if record.first > known:
            return NotCounted.GAP
        for log, upto in record.entries:
            if log not in inherited or upto - state.positions[log] > ORDERED_MAX:
                return NotCounted.IMPOSSIBLE
        runs = []
        for log, upto in record.entries:
            first = state.positions[log]
            if upto > first:
                state.positions[log] = upto
                runs.append(Run(log, first, upto))
        state.parent_next = record.next
        return tuple(runs)

    def _freeze(self, record: FreezeRecord) -> tuple[Run, ...] | NotCounted:
        state = self.state
        if state.parent_next < record.parent_next:
            return NotCounted.EARLY
        if any(state.positions.get(log, -1) < end for log, end in record.positions):
            return NotCounted.EARLY
        state.frozen = True
        return ()
