"""Protobuf's wire format, as far as the rule of a set's log depends on it.

Whether a bundle counts must be the same at every node. Libraries, and versions of one library,
differ in what they accept at the edges (unknown fields, text that is not UTF-8, long varints).

    a message of ours      has exactly one encoding, which this module writes. A library reads it
                           (`parsed`); the caller encodes what was read, and refuses other bytes
    a message of others    `known_once` gives its known fields, each at most once; others are
                           skipped. It accepts less than libraries do, and what it accepts, they
                           read alike

No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ordering_osn.protos import DecodeError

NUMBER, OCTETS = 0, 2  # protobuf's wire types: a varint; a length and bytes
_FIXED64, _FIXED32 = 1, 5  # in messages of others only; 3 and 4 are groups, which are refused
_FIELD_NUMBER_MAX = (1 << 29) - 1  # protobuf's
_VARINT_BYTES_MAX = 10  # 64 bits in groups of 7
NUMBER_LIMIT = 1 << 64  # all numbers are below
_ONE_BYTE = [bytes((number,)) for number in range(0x80)]

Value = int | memoryview


class BadWireFormat(ValueError):
    """The bytes are not the message they should be; the text is one sentence."""


# -- writing ---------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    """Encode a number from 0 to 2^64 - 1 in as few bytes as possible."""
    if 0 <= number < 0x80:
        return _ONE_BYTE[number]
    assert 0 <= number < NUMBER_LIMIT
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def number_field(field: int, number: int) -> bytes:
    """Encode a field that holds a number. 0, the default, is left out."""
    return varint(field << 3 | NUMBER) + varint(number) if number else b""


def bytes_field(field: int, value: bytes) -> bytes:
    """Encode a field that holds bytes. Empty bytes, the default, are left out."""
    return message_field(field, value) if value else b""


def text_field(field: int, value: str) -> bytes:
    """Encode a field that holds a text. An empty one, the default, is left out."""
    return bytes_field(field, value.encode())


def message_field(field: int, value: bytes) -> bytes:
    """Encode a message, or one of several values, inside another message; written if empty, too."""
    return b"".join((varint(field << 3 | OCTETS), varint(len(value)), value))


def numbers_field(field: int, numbers: tuple[int, ...]) -> bytes:
    """Encode a field that holds several numbers, packed."""
    return bytes_field(field, b"".join(map(varint, numbers)))


# -- reading ---------------------------------------------------------------------------------------


def parsed(kind: Any, raw: bytes | memoryview, what: str) -> Any:
    """Read a message of ours with the library; raises `BadWireFormat`, which names `what`.

    Other encodings of it are read, too: the caller encodes what it has read, and compares.
    """
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise BadWireFormat(f"{what} cannot be decoded: {error}") from error


def text(value: memoryview, what: str) -> str:
    """Give the text of a field; raises `BadWireFormat` unless it is UTF-8."""
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise BadWireFormat(f"{what} is not UTF-8") from error


def known_once(raw: bytes | memoryview, known: Mapping[int, int], what: str) -> dict[int, Value]:
    """Give the known fields that the message has, by number; raises `BadWireFormat`.

    `known`: the wire type of each, `NUMBER` or `OCTETS`. A known field that occurs twice or has
    another wire type is refused, and so is any group. Unknown fields are skipped.
    """
    view = memoryview(raw)
    position, end = 0, len(view)
    read: dict[int, Value] = {}
    while position < end:
        field, kind, value, position = _field(view, position, what)
        if field not in known:
            continue
        if kind != known[field]:
            raise BadWireFormat(f"field {field} of {what} has wire type {kind}")
        if field in read:
            raise BadWireFormat(f"{what} has field {field} twice")
        read[field] = value
    return read


def fields(raw: bytes | memoryview, what: str) -> Iterator[tuple[int, Value]]:
    """Give the fields of a message as they are read, by number; raises `BadWireFormat`."""
    view, position = memoryview(raw), 0
    while position < len(view):
        field, _, value, position = _field(view, position, what)
        yield field, value


def _field(view: memoryview, position: int, what: str) -> tuple[int, int, Value, int]:
    """Read the field that begins at `position`: its number, wire type and value, and its end.

    The value is 0 for the wire types of fixed length.
    """
    tag = view[position]
    if tag < 0x80:  # without a call: each bundle has some 40 fields
        position += 1
    else:
        tag, position = _varint(view, position, what)
    field, kind = tag >> 3, tag & 7
    if not 1 <= field <= _FIELD_NUMBER_MAX:
        raise BadWireFormat(f"{what} has a field number {field}")
    if kind == OCTETS:
        length, position = _varint(view, position, what)
        end = position + length
        if end > len(view):
            raise BadWireFormat(f"{what} ends within a field")
        return field, kind, view[position:end], end
    if kind == NUMBER:
        number, position = _varint(view, position, what)
        return field, kind, number, position
    if kind not in (_FIXED32, _FIXED64):
        raise BadWireFormat(f"{what} has a field of wire type {kind}")
    end = position + (4 if kind == _FIXED32 else 8)
    if end > len(view):
        raise BadWireFormat(f"{what} ends within a field")
    return field, kind, 0, end


def _varint(view: memoryview, position: int, what: str) -> tuple[int, int]:
    if position < len(view) and (first := view[position]) < 0x80:  # as almost always
        return first, position + 1
    if position + 1 < len(view) and (second := view[position + 1]) < 0x80:  # as most lengths
        return first & 0x7F | second << 7, position + 2
    number = 0
    for index in range(_VARINT_BYTES_MAX):
        if position >= len(view):
            raise BadWireFormat(f"{what} ends within a number")
        byte = view[position]
        position += 1
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if number >= NUMBER_LIMIT:
                break
            return number, position
    raise BadWireFormat(f"{what} has a number of more than 64 bits")
