"""Makes nearly valid inputs: a valid input, mutated in a few places according to its shape.

`mutated` is pure, so a seed repeats an input.

    BINARY    fixed fields and lengths: flips bits, writes boundary numbers, cuts, splices
    TEXT      tokens of JSON, TOML, cursors: replaces, copies or deletes one
    PROTOBUF  the tree of fields of the wire format: deletes, copies or mutates one; the lengths of
              the enclosing fields stay right, so that the decoder reaches the mutation
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random

BYTES_MAX = 1 << 20  # of an input: about Kafka's default for a message (message.max.bytes)
# Boundary values of 1, 2, 4 and 8 bytes, and of a double's integers (2**53).
_EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1)
_EDGES_WIDE = (*_EDGES, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_ODD_TEXTS = (
    b"", b"0", b"-1", b"1e999", b"-1e999", b"NaN", b"Infinity", b"1.0", b"true", b"null", b'""',
    b"9" * 20, b"9" * 5000, b"99999999999", b'"\\ud800"', b'"\\u0000"', b"[]", b"{}", b"[[[[]]]]",
    b"[" * 70 + b"]" * 70, b"[" * 2000, b'{"a":' * 70, b"\xff", b"\xc3\xa9", b"\x00",
    b'"' + b"a" * 300 + b'"', b"0x10", b"1_0", b" 1", b"+1", b"1979-05-27T07:32:00Z",
    b"'", b'"', b"=", b"\n", b"/", b"|", b",", b"P1",
    b"P1+P3", b"K1", b"@P1", b"amcast.epoch", b"amcast.skip", b"\xef\xbf\xbd",
)  # fmt: skip
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[A-Za-z0-9_.+-]+|\s+|.', re.DOTALL)

Step = Callable[[Random, bytes, Sequence[bytes]], bytes]


class Shape(enum.Enum):
    """The structure of an input, which selects the mutations."""

    BINARY = "binary"
    TEXT = "text"
    PROTOBUF = "protobuf"


def mutated(rng: Random, valid: Sequence[bytes], shape: Shape) -> bytes:
    """Mutate one of the valid inputs in one to four steps."""
    raw = valid[rng.randrange(len(valid))]
    for _ in range(1 + (rng.getrandbits(2) & rng.getrandbits(2))):
        steps = _STEPS[shape] if rng.getrandbits(3) else _BINARY
        raw = steps[rng.randrange(len(steps))](rng, raw, valid)
    return raw[:BYTES_MAX]


# -- bytes ----------------------------------------------------------------------------------


def _flip(rng: Random, raw: bytes, _: Sequence[bytes]) -> bytes:
    if not raw:
        return b"\0"
    position = rng.randrange(len(raw))
    return raw[:position] + bytes([raw[position] ^ 1 << rng.getrandbits(3)]) + raw[position + 1 :]


def _byte(rng: Random, raw: bytes, _: Sequence[bytes]) -> bytes:
    position = rng.randrange(len(raw) + 1)
    return raw[:position] + bytes([rng.getrandbits(8)]) + raw[position + 1 :]


def _number(rng: Random, raw: bytes, _: Sequence[bytes]) -> bytes:
    width = (1, 2, 4, 8)[rng.getrandbits(2)]
    number = _EDGES_WIDE[rng.randrange(len(_EDGES_WIDE))] & (1 << 8 * width) - 1
    position = rng.randrange(len(raw) + 1)
    written = number.to_bytes(width, "big")
    return (
        raw[:position]
        + (written if rng.getrandbits(2) else written[::-1])
        + raw[position + width :]
    )


def _cut(rng: Random, raw: bytes, _: Sequence[bytes]) -> bytes:
    return raw[: rng.randrange(len(raw) + 1)]


def _gone(rng: Random, raw: bytes, _: Sequence[bytes]) -> bytes:
    position, length = rng.randrange(len(raw) + 1), 1 + rng.getrandbits(4)
    return raw[:position] + raw[position + length :]


def _twice(rng: Random, raw: bytes, _: Sequence[bytes]) -> bytes:
    position, length = rng.randrange(len(raw) + 1), 1 + rng.getrandbits(6)
    return raw[: position + length] + raw[position:]


def _longer(rng: Random, raw: bytes, _: Sequence[bytes]) -> bytes:
    return raw + rng.randbytes(1 + rng.getrandbits(5))


def _spliced(rng: Random, raw: bytes, valid: Sequence[bytes]) -> bytes:
    other = valid[rng.randrange(len(valid))]
    return raw[: rng.randrange(len(raw) + 1)] + other[rng.randrange(len(other) + 1) :]


# -- texts ----------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _tokens(raw: bytes) -> tuple[bytes, ...]:
    return tuple(_TOKEN.findall(raw))


def _odd_token(rng: Random, raw: bytes, _: Sequence[bytes]) -> bytes:
    tokens = list(_tokens(raw)) or [b""]
    tokens[rng.randrange(len(tokens))] = _ODD_TEXTS[rng.randrange(len(_ODD_TEXTS))]
    return b"".join(tokens)


def _moved_token(rng: Random, raw: bytes, _: Sequence[bytes]) -> bytes:
    tokens = list(_tokens(raw)) or [b""]
    target, source = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    tokens[target] = tokens[source]
    return b"".join(tokens)


def _lost_token(rng: Random, raw: bytes, _: Sequence[bytes]) -> bytes:
    tokens = list(_tokens(raw)) or [b""]
    position = rng.randrange(len(tokens))
    del tokens[position : position + 1 + rng.getrandbits(2)]
    return b"".join(tokens)


# -- protobuf's wire format -----------------------------------------------------------------


def _in_field(rng: Random, raw: bytes, valid: Sequence[bytes]) -> bytes:
    return _field(rng, raw, valid, depth=10)


def _field(rng: Random, raw: bytes, valid: Sequence[bytes], *, depth: int) -> bytes:
    fields = _fields(raw)
    if not fields:
        return _BINARY[rng.randrange(len(_BINARY))](rng, raw, valid)
    start, value, end, wire = fields[rng.randrange(len(fields))]
    choice = rng.getrandbits(4)
    if choice == 0:
        return raw[:start] + raw[end:]
    if choice == 1:
        return raw[:end] + raw[start:]
    if choice == 2:
        _, _, other_end, _ = fields[rng.randrange(len(fields))]
        return raw[:other_end] + raw[start:end] + raw[other_end:]
    if wire == 0:
        return raw[:value] + _varint(_EDGES_WIDE[rng.randrange(len(_EDGES_WIDE))]) + raw[end:]
    if wire != 2:
        return raw[:value] + rng.randbytes(end - value) + raw[end:]
    tag_end = _read_varint(raw, start)[1]
    inner = raw[value:end]
    if depth and inner and choice > 4:
        inner = _field(rng, inner, valid, depth=depth - 1)
    elif choice == 3:
        inner = b""
    else:
        inner = _BINARY[rng.randrange(len(_BINARY))](rng, inner, valid)
    return raw[:tag_end] + _varint(len(inner)) + inner + raw[end:]


def _fields(raw: bytes) -> list[tuple[int, int, int, int]]:
    """Return (start, value's start, end, wire type) of each field; [] if `raw` is no message."""
    fields: list[tuple[int, int, int, int]] = []
    position = 0
    try:
        while position < len(raw):
            start = position
            tag, position = _read_varint(raw, position)
            wire = tag & 7
            if not tag >> 3:
                return []
            value = position
            if wire == 0:
                _, position = _read_varint(raw, position)
            elif wire == 2:
                length, value = _read_varint(raw, position)
                position = value + length
            elif wire in (1, 5):
                position += 8 if wire == 1 else 4
            else:
                return []
            if position > len(raw):
                return []
            fields.append((start, value, position, wire))
    except IndexError:
        return []
    return fields


def _read_varint(raw: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = raw[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


_BINARY: tuple[Step, ...] = (_flip, _byte, _number, _number, _cut, _gone, _twice, _longer, _spliced)
_STEPS: dict[Shape, tuple[Step, ...]] = {
    Shape.BINARY: _BINARY,
    Shape.TEXT: (_odd_token, _odd_token, _odd_token, _moved_token, _lost_token, _spliced),
    Shape.PROTOBUF: (_in_field,),
}
