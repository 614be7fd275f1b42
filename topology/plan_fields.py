"""Readers for the fields of a plan's JSON; each raises `NotReadable` with the field's name.

A missing field is a `KeyError`. No I/O.
"""

from __future__ import annotations

import math
from typing import Any

from topology.documents import WHOLE_MAX, NotReadable


def entries(document: dict[str, Any], name: str) -> list[Any]:
    """Read a list."""
    if not isinstance(value := document[name], list):
        raise NotReadable(f"{name} is {value!r}, not a list")
    return value


def mapping(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Read an object; without the field it is empty."""
    if not isinstance(value := document.get(name, {}), dict):
        raise NotReadable(f"{name} is {value!r}, not an object")
    return dict(value)


def truth(document: dict[str, Any], name: str) -> bool:
    """Read true or false; without the field it is true."""
    if not isinstance(value := document.get(name, True), bool):
        raise NotReadable(f"{name} is {value!r}; give true or false")
    return value


def text(entry: dict[str, Any], name: str) -> str:
    """Read a string."""
    if not isinstance(value := entry[name], str):
        raise NotReadable(f"{name} is {value!r}, not a string")
    return value


def count(
    entry: dict[str, Any], name: str, default: int | None = None, *, most: int = WHOLE_MAX
) -> int:
    """Read a whole number from 0 to `most`; `default` where the field may be missing."""
    value = entry[name] if default is None else entry.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise NotReadable(f"{name} is {value!r}, not a whole number from 0 to {most}")
    return value


def number(value: Any, name: str) -> float:
    """Read a finite number; `name` is its field."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise NotReadable(f"{name} is {value!r}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise NotReadable(f"{name} is {value!r}, not a finite number")
    return number


def numbers(document: dict[str, Any], name: str) -> dict[str, float]:
    """Read an object of finite numbers; without the field it is empty."""
    return {key: number(value, f"{name}.{key}") for key, value in document.get(name, {}).items()}


def names(entry: dict[str, Any], name: str) -> tuple[str, ...]:
    """Read a list of names that is not empty; gives them sorted, each once."""
    value = entry[name]
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise NotReadable(f"{name} is {value!r}, not a non-empty list of names")
    return tuple(sorted(set(value)))
