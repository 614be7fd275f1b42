"""JSON that anybody may have written, read with one error.

Goes in: bytes, or a part of a document. Comes out: the value in the wanted form, or `NotReadable`,
whatever the bytes are: another encoding, lists nested too deep for Python's stack, `1e999`, numbers
of thousands of digits, halves of surrogate pairs. Whether a document is readable is a function of
its bytes alone, so that everybody who reads a control topic takes the same statements. No I/O.
"""

from __future__ import annotations

import json
import math
from typing import Any, Never

DEPTH_MAX = 64  # of lists and objects in each other; Python's stack allows some hundreds
WHOLE_MAX = 2**63 - 1


class NotReadable(ValueError):
    """The bytes, or the value, do not have the wanted form."""


def json_object(raw: bytes | str) -> dict[str, Any]:
    """Read one JSON object. Its texts are Unicode, its numbers finite, its depth bounded."""
    try:
        document = json.loads(raw, parse_constant=_refuse_constant)
    except RecursionError:
        raise NotReadable("it is nested too deep") from None
    except ValueError as error:
        raise NotReadable(f"it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise NotReadable("it is not a JSON object")
    _check(document)
    return document


def _refuse_constant(name: str) -> Never:
    raise NotReadable(f"{name} is not JSON")


def _check(document: Any) -> None:
    level = [document]
    for _ in range(DEPTH_MAX):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str):
                _check_text(value)
            elif isinstance(value, float) and not math.isfinite(value):
                raise NotReadable("a number is out of range")
        if not below:
            return
        level = below
    raise NotReadable("it is nested too deep")


def _check_text(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotReadable("a text holds half a surrogate pair") from None


def whole(value: object, most: int = WHOLE_MAX) -> int:
    """Give a whole number from 0 to `most`; JSON's 1.0, true and "1" are none."""
    if type(value) is not int or not 0 <= value <= most:
        raise NotReadable("it is not a whole number of the wanted range")
    return value


def whole_text(value: str, most: int = WHOLE_MAX) -> int:
    """Give the whole number that a text of decimal digits says, from 0 to `most`."""
    if not (value.isascii() and value.isdecimal() and len(value) <= len(str(most))):
        raise NotReadable("it is not a whole number")
    return whole(int(value), most)


def text(value: object) -> str:
    """Give a text."""
    if not isinstance(value, str):
        raise NotReadable("it is not a text")
    return value


def octets(value: object, length: int) -> bytes:
    """Give that many bytes, written as hexadecimal digits."""
    try:
        found = bytes.fromhex(text(value))
    except ValueError:
        raise NotReadable("it is not hexadecimal") from None
    if len(found) != length:
        raise NotReadable("it has another length")
    return found


def part(document: object, name: str) -> Any:
    """Give a field of an object."""
    if not isinstance(document, dict) or name not in document:
        raise NotReadable(f"it has no {name}")
    return document[name]
