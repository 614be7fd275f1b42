"""Readers for JSON from untrusted writers; every defect raises the same error, `NotReadable`.

They take bytes or a part of a document, and give the value in the wanted form. They survive any
bytes: another encoding, lists nested too deep for Python's stack, `1e999`, numbers of thousands of
digits, halves of surrogate pairs. Whether a document is readable depends on its bytes alone, so all
readers of a control topic accept the same records. No I/O.
"""

from __future__ import annotations

import json
import math
from typing import Any, Never

# Nested lists and objects. Our deepest document has fewer than ten levels; Python's stack allows
# some hundreds.
DEPTH_MAX = 64
WHOLE_MAX = 2**63 - 1  # the largest offset of Kafka (int64)
_DIGITS_MAX = 300  # of an integer: what other languages read as a double is finite


class NotReadable(ValueError):
    """The bytes, or the value, do not have the wanted form."""


def json_object(raw: bytes | str) -> dict[str, Any]:
    """Read one JSON object whose strings are Unicode, numbers finite, and depth bounded."""
    try:
        text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
        document = json.loads(
            text, parse_constant=_refuse_constant, parse_int=_integer, object_pairs_hook=_object
        )
    except RecursionError:
        raise NotReadable("it is nested too deeply") from None
    except ValueError as error:
        raise NotReadable(f"it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise NotReadable("it is not a JSON object")
    _check(document)
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):  # programs keep the first one, or the last one
        raise NotReadable("a key comes twice in an object")
    return document


def _integer(digits: str) -> int | float:
    if len(digits.lstrip("-")) > _DIGITS_MAX:
        raise NotReadable("a number is out of range")
    return -0.0 if digits == "-0" else int(digits)  # nowhere a whole number


def _refuse_constant(name: str) -> Never:
    raise NotReadable(f"{name} is not JSON")


def _check(document: Any) -> None:
    level: list[dict[str, Any] | list[Any]] = [document]
    for _ in range(DEPTH_MAX):
        below: list[dict[str, Any] | list[Any]] = []
        for container in level:
            for value in (
                (*container, *container.values()) if isinstance(container, dict) else container
            ):
                if isinstance(value, dict | list):
                    below.append(value)
                elif isinstance(value, str):
                    _check_text(value)
                elif isinstance(value, float) and not math.isfinite(value):
                    raise NotReadable("a number is out of range")
        if not below:
            return
        level = below
    raise NotReadable("it is nested too deeply")


def _check_text(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotReadable("a string holds half a surrogate pair") from None


def whole(value: object, most: int = WHOLE_MAX) -> int:
    """Read a whole number from 0 to `most`; JSON's 1.0, true and "1" are not whole numbers."""
    if type(value) is not int or not 0 <= value <= most:
        raise NotReadable(f"it is not a whole number from 0 to {most}")
    return value


def whole_text(value: str, most: int = WHOLE_MAX) -> int:
    """Read a string of decimal digits as a whole number from 0 to `most`."""
    if not (value.isascii() and value.isdecimal() and len(value) <= len(str(most))):
        raise NotReadable("it is not a whole number")
    return whole(int(value), most)


def text(value: object) -> str:
    """Read a string."""
    if not isinstance(value, str):
        raise NotReadable("it is not a string")
    return value


def octets(value: object, length: int) -> bytes:
    """Read `length` bytes, written as hexadecimal digits."""
    try:
        raw = bytes.fromhex(text(value))
    except ValueError:
        raise NotReadable("it is not hexadecimal") from None
    if raw.hex() != text(value).lower():  # blanks
        raise NotReadable("it is not hexadecimal")
    if len(raw) != length:
        raise NotReadable(f"it has {len(raw)} bytes, not {length}")
    return raw


def part(document: object, name: str) -> Any:
    """Read a field of an object."""
    if not isinstance(document, dict) or name not in document:
        raise NotReadable(f"it has no field {name!r}")
    return document[name]
