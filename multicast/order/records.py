"""Order records and their bytes. No I/O. A record has exactly one encoding.

All numbers are big-endian, without padding. docs/protocol.md has the table.
"""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from multicast.order.runs import MAGIC, OFFSET_MAX
from topology.tree import DIGEST_BYTES, ORDER_VERSION

VERSION = ORDER_VERSION  # of the bytes
# Messages that one ticket counts: bounds what a producer that miscounts can do with one record.
COUNT_MAX = 2**16
# Debt up to which tickets with messages promise more: bounds what a producer with a wrong idea of
# its log's end can do, with however many records, as consumers wait for skips in that place.
PROMISE_MAX = 2**14
_HEAD = struct.Struct(f">2sB{DIGEST_BYTES}sB")
_OWN = struct.Struct(">HH")  # tickets, corrections
_TICKET = struct.Struct(">IIQ")
_CORRECTION = struct.Struct(">III?")
_RELAY = struct.Struct(">QQIIH")
_RESTORED = struct.Struct(">QQH")
_POSITION = struct.Struct(">IQ")
_FREEZE = struct.Struct(">QH")
_SIGHT = struct.Struct(">HH")  # ends that were seen, losses
_SEEN = struct.Struct(">IQII")
# mark, parent_next, parent_last, restored; own logs, inherited logs, ends that were seen, losses
_CHECKPOINT = struct.Struct(">QQIIHHHH")
_OWN_LOG = struct.Struct(">IQQI?")
_MARK = MAGIC + bytes([VERSION])
_TICKETS_AT = _HEAD.size + _OWN.size
# Larger records are not kept for the next reader: 4,096 of this size take 11 MB when decoded.
_KNOWN_BYTES_MAX = 256


class Kind(enum.IntEnum):
    """What an order record does."""

    OWN = 1
    RELAY = 2
    FREEZE = 3
    RESTORED = 4
    CHECKPOINT = 5
    SIGHT = 6


_OWN_KIND = int(Kind.OWN)


class Ticket(NamedTuple):
    """So many more messages of log number `log`; it ends at `upto` or later with them.

    Most of a collector's tickets have 0 messages.
    """

    log: int
    messages: int
    upto: int


class Correction(NamedTuple):
    """The `number`-th correction of a log, from 1: `amount` of its debt will not be paid.

    While the last correction says `held`, no producer's ticket of the log counts.
    """

    log: int
    number: int
    amount: int
    held: bool = False


class Position(NamedTuple):
    """Offsets of log number `log` up to `upto` (exclusive)."""

    log: int
    upto: int


class SeenEnd(NamedTuple):
    """Log number `log` ended at `end` or later while the leader of epoch `leader_epoch` led it.

    `checksum` is that of the message at `end` - 1; 0: not known.
    """

    log: int
    end: int
    leader_epoch: int
    checksum: int = 0


class Loss(NamedTuple):
    """Log number `log` lost its messages from offset `first` on."""

    log: int
    first: int


class OwnLog(NamedTuple):
    """What a checkpoint says of a log that enters the order in its stream."""

    log: int
    position: int
    debt: int
    corrections: int
    held: bool


@dataclass(frozen=True, slots=True)
class OwnRecord:
    """Tickets and corrections, in this order. Without both it only marks the stream's version."""

    tickets: tuple[Ticket, ...] = ()
    corrections: tuple[Correction, ...] = ()


@dataclass(frozen=True, slots=True)
class RelayRecord:
    """All that the parent's stream from `first` to below `next` ordered of the bag, in order.

    `before` is the checksum of the parent's last record below `first`, 0 if there is none in the
    epoch, and `last` that of its last record below `next`.
    """

    first: int
    next: int
    entries: tuple[Position, ...]
    before: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class RestoredRecord:
    """The restored runs number `first` to below `next`: what the last epoch's end left out."""

    first: int
    next: int
    entries: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class FreezeRecord:
    """Ends the stream, once it has reached these; `parent_next` is 0 without a parent."""

    parent_next: int
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class SightRecord:
    """What a collector saw of logs of the bag: how far they reached, and what they have lost."""

    seen: tuple[SeenEnd, ...] = ()
    lost: tuple[Loss, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """The state after all records of the stream below offset `mark`; logs in rising order."""

    mark: int
    parent_next: int
    restored: int
    own: tuple[OwnLog, ...]
    inherited: tuple[Position, ...]
    parent_last: int = 0
    seen: tuple[SeenEnd, ...] = ()
    lost: tuple[Loss, ...] = ()


StreamRecord = (
    OwnRecord | RelayRecord | RestoredRecord | FreezeRecord | CheckpointRecord | SightRecord
)


class Unread(enum.Enum):
    """Why bytes are not a record of a stream."""

    FOREIGN = "it is not a record of this stream, epoch and version"
    MALFORMED = "its bytes are malformed"


def encode(tag: bytes, record: StreamRecord) -> bytes:
    """Encode a record of the stream with this tag; `decode` gives back an equal one."""
    match record:
        case OwnRecord(tickets, corrections):
            kind, parts = Kind.OWN, [_OWN.pack(len(tickets), len(corrections))]
            parts += [_TICKET.pack(*ticket) for ticket in tickets]
            parts += [_CORRECTION.pack(*correction) for correction in corrections]
        case RelayRecord(first, end, entries, before, last):
            kind, parts = Kind.RELAY, [_RELAY.pack(first, end, before, last, len(entries))]
            parts += [_POSITION.pack(*entry) for entry in entries]
        case RestoredRecord(first, end, entries):
            kind, parts = Kind.RESTORED, [_RESTORED.pack(first, end, len(entries))]
            parts += [_POSITION.pack(*entry) for entry in entries]
        case FreezeRecord(parent_next, positions):
            kind, parts = Kind.FREEZE, [_FREEZE.pack(parent_next, len(positions))]
            parts += [_POSITION.pack(*position) for position in positions]
        case SightRecord(seen, lost):
            kind, parts = Kind.SIGHT, [_SIGHT.pack(len(seen), len(lost)), *_sight(seen, lost)]
        case CheckpointRecord(mark, parent_next, restored, own, inherited, last, seen, lost):
            counts = len(own), len(inherited), len(seen), len(lost)
            kind = Kind.CHECKPOINT
            parts = [_CHECKPOINT.pack(mark, parent_next, last, restored, *counts)]
            parts += [_OWN_LOG.pack(*log) for log in own]
            parts += [_POSITION.pack(*position) for position in inherited]
            parts += _sight(seen, lost)
    return _HEAD.pack(MAGIC, VERSION, tag, kind) + b"".join(parts)


def _sight(seen: Sequence[SeenEnd], lost: Sequence[Loss]) -> list[bytes]:
    return [_SEEN.pack(*each) for each in seen] + [_POSITION.pack(*each) for each in lost]


def tag_of(raw: bytes) -> bytes | None:
    """Give the tag of a record, of whichever stream; None for any other bytes."""
    is_record = len(raw) >= _HEAD.size and raw.startswith(_MARK)
    return raw[len(_MARK) : _HEAD.size - 1] if is_record else None


def decode(tag: bytes, raw: bytes) -> StreamRecord | Unread:
    """Decode a record of the stream with this tag."""
    return (_known if len(raw) <= _KNOWN_BYTES_MAX else _decoded)(tag, raw)


def _decoded(tag: bytes, raw: bytes) -> StreamRecord | Unread:
    if len(raw) < _HEAD.size or not raw.startswith(_MARK + tag):
        return Unread.FOREIGN
    if raw[_HEAD.size - 1] == _OWN_KIND and len(raw) >= _TICKETS_AT:
        count, corrections = _OWN.unpack_from(raw, _HEAD.size)
        if not corrections and len(raw) == _TICKETS_AT + count * _TICKET.size:
            # Nearly every record: a producer's tickets, whose fields have one encoding each.
            tickets = _TICKET.iter_unpack(raw[_TICKETS_AT:])
            return OwnRecord(tuple([Ticket(*fields) for fields in tickets]))
    try:
        record = _decode(raw[_HEAD.size - 1], raw, _HEAD.size)
        # One encoding: no spare bytes, no unusual truth values, no other order of a state's logs.
        if encode(tag, record) == raw:
            return record
    except (struct.error, ValueError):
        pass
    return Unread.MALFORMED


# A stream may have several readers in one process, as a collector and its children: decoding takes
# 2 us for a ticket and 10 for a usual relay, a second look 0.1.
_known = functools.lru_cache(maxsize=4096)(_decoded)


def _decode(kind: int, raw: bytes, place: int) -> StreamRecord:
    match Kind(kind):
        case Kind.OWN:
            counts = _OWN.unpack_from(raw, place)
            tickets, rest = _split(_TICKET, counts[0], raw[place + _OWN.size :])
            corrections = _CORRECTION.iter_unpack(rest)
            return OwnRecord(
                tuple([Ticket(*fields) for fields in _TICKET.iter_unpack(tickets)]),
                tuple([Correction(*fields) for fields in corrections]),
            )
        case Kind.FREEZE:
            parent_next, _ = _FREEZE.unpack_from(raw, place)
            return FreezeRecord(_below_2_63(parent_next), _positions(raw[place + _FREEZE.size :]))
        case Kind.CHECKPOINT:
            fields = _CHECKPOINT.unpack_from(raw, place)
            mark, parent_next, last, restored, own, inherited, seen, _ = fields
            logs, rest = _split(_OWN_LOG, own, raw[place + _CHECKPOINT.size :])
            below, rest = _split(_POSITION, inherited, rest)
            record = CheckpointRecord(
                _below_2_63(mark),
                _below_2_63(parent_next),
                restored,
                tuple([OwnLog(*fields) for fields in _OWN_LOG.iter_unpack(logs)]),
                _positions(below),
                last,
                *_sight_of(seen, rest),
            )
            rising: Sequence[Sequence[tuple[int, ...]]] = (
                [log[:1] for log in record.own],
                [log[:1] for log in record.inherited],
                [(each.log, each.leader_epoch) for each in record.seen],
                [log[:1] for log in record.lost],
            )
            if any(list(keys) != sorted(set(keys)) for keys in rising):
                raise ValueError("its entries are not in rising order")
            return record
        case Kind.SIGHT:
            seen, _ = _SIGHT.unpack_from(raw, place)
            return SightRecord(*_sight_of(seen, raw[place + _SIGHT.size :]))
        case Kind.RELAY:
            first, end, before, last, _ = _RELAY.unpack_from(raw, place)
            entries = _positions(raw[place + _RELAY.size :])
            return RelayRecord(first, _below_2_63(end), entries, before, last)
        case Kind.RESTORED:
            first, end, _ = _RESTORED.unpack_from(raw, place)
            entries = _positions(raw[place + _RESTORED.size :])
            return RestoredRecord(first, _below_2_63(end), entries)


def _split(entry: struct.Struct, count: int, raw: bytes) -> tuple[bytes, bytes]:
    return raw[: count * entry.size], raw[count * entry.size :]


def _sight_of(seen: int, raw: bytes) -> tuple[tuple[SeenEnd, ...], tuple[Loss, ...]]:
    ends, losses = _split(_SEEN, seen, raw)
    return (
        tuple(
            [SeenEnd(log, _below_2_63(end), *rest) for log, end, *rest in _SEEN.iter_unpack(ends)]
        ),
        tuple([Loss(log, _below_2_63(first)) for log, first in _POSITION.iter_unpack(losses)]),
    )


def _positions(raw: bytes) -> tuple[Position, ...]:
    return tuple([Position(log, _below_2_63(upto)) for log, upto in _POSITION.iter_unpack(raw)])


def _below_2_63(offset: int) -> int:
    if offset > OFFSET_MAX:
        raise ValueError("an offset is out of range")
    return offset
