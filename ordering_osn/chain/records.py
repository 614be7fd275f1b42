"""Encodes and decodes the records of a chain's log: Fabric's `KafkaMessage`, of three kinds.

    Regular    a transaction (an envelope), with the sequence of the config that found it valid
    TimeToCut  "cut block number `block` here, if it is the next one and something is pending"
    Connect    no content, and in no block: Fabric's orderer posts it at its start, ours as a probe
    position   a record's number in its chain's order stream, from 1; 0 stands for "none"

No I/O, no clock.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ordering_osn.protos import DecodeError, KafkaMessage


class RegularKind(enum.IntEnum):
    """The class of a regular record; the numbers are Fabric's."""

    UNKNOWN = 0  # by an orderer without classes: the record is judged where it is consumed
    NORMAL = 1
    CONFIG = 2


@dataclass(frozen=True, slots=True)
class Regular:
    """A transaction. `original`: the position of the record that this one reposts, or 0."""

    payload: bytes
    config_seq: int
    kind: RegularKind
    original: int = 0


@dataclass(frozen=True, slots=True)
class TimeToCut:
    """The batch time-out of block number `block` is over at some node."""

    block: int


@dataclass(frozen=True, slots=True)
class Connect:
    """No content."""


Record = Regular | TimeToCut | Connect


class Unparseable(ValueError):
    """The bytes are not a record of a chain; the text says why."""


_KINDS = dict(enumerate(RegularKind))


def encode(record: Record) -> bytes:
    """Serialize a record; `decode` gives an equal one."""
    if isinstance(record, Regular):
        regular = {
            "payload": record.payload,
            "config_seq": record.config_seq,
            "class": int(record.kind),
            "original_offset": record.original,
        }
        message = KafkaMessage(regular=regular)
    elif isinstance(record, TimeToCut):
        message = KafkaMessage(time_to_cut={"block_number": record.block})
    else:
        message = KafkaMessage(connect={})
    raw: bytes = message.SerializeToString()
    return raw


def decode(raw: bytes | None) -> Record:
    """Read a record; raises `Unparseable` for anything else, including an empty value."""
    if raw is None:
        raise Unparseable("a record without a value")
    try:
        message = KafkaMessage.FromString(raw)
    except DecodeError as error:
        raise Unparseable(f"not a KafkaMessage: {error}") from error
    which = message.WhichOneof("Type")
    if which == "regular":
        regular = message.regular
        kind = _KINDS.get(getattr(regular, "class"))
        if kind is None:
            raise Unparseable(f"a regular message of unknown class {getattr(regular, 'class')}")
        return Regular(regular.payload, regular.config_seq, kind, regular.original_offset)
    if which == "time_to_cut":
        return TimeToCut(message.time_to_cut.block_number)
    if which == "connect":
        return Connect()
    raise Unparseable("a KafkaMessage without content")
