"""Reads an object of a plan's JSON as a dataclass: each field by its type, which has a reader here.

A field with a wrong value raises `NotReadable` with its name; one that is missing, and has no
default, is a `KeyError`. Fields that the dataclass does not have are ignored. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from topology.documents import WHOLE_MAX, NotReadable

_Read = TypeVar("_Read")


def read(kind: type[_Read], entry: Any, most: Mapping[str, int], **given: Any) -> _Read:
    """Read an object; `most` has the greatest numbers of fields, `given` the values of others."""
    for field in fields(kind):  # type: ignore[arg-type] # a dataclass
        required = field.default is MISSING and field.default_factory is MISSING
        if field.name in given or not (required or field.name in entry):
            continue
        value, form = entry[field.name], str(field.type)
        if form == "int":
            given[field.name] = count(value, field.name, most.get(field.name, WHOLE_MAX))
        elif value is None and form.endswith("| None"):
            given[field.name] = None
        else:
            given[field.name] = _READERS[form.removesuffix(" | None")](value, field.name)
    return kind(**given)


def entries(document: dict[str, Any], name: str) -> list[Any]:
    """Read a list."""
    if not isinstance(value := document[name], list):
        raise NotReadable(f"{name} is {value!r}, not a list")
    return value


def count(value: Any, name: str, most: int = WHOLE_MAX) -> int:
    """Read a whole number from 0 to `most`; `name` is its field."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise NotReadable(f"{name} is {value!r}, not a whole number from 0 to {most}")
    return value


def _reader(kind: type, otherwise: str) -> Callable[[Any, str], Any]:
    def read_value(value: Any, name: str) -> Any:
        if not isinstance(value, kind):
            raise NotReadable(f"{name} is {value!r}{otherwise}")
        return value

    return read_value


_mapping = _reader(dict, ", not an object")


def _number(value: Any, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise NotReadable(f"{name} is {value!r}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise NotReadable(f"{name} is {value!r}, not a finite number")
    return number


def _numbers(value: Any, name: str) -> dict[str, float]:
    return {key: _number(each, f"{name}.{key}") for key, each in _mapping(value, name).items()}


def _names(value: Any, name: str) -> tuple[str, ...]:
    """Read a list of names that is not empty; gives them sorted, each once."""
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise NotReadable(f"{name} is {value!r}, not a non-empty list of names")
    return tuple(sorted(set(value)))


_READERS: Mapping[str, Callable[[Any, str], Any]] = {
    "str": _reader(str, ", not a string"),
    "float": _number,
    "bool": _reader(bool, "; give true or false"),
    "tuple[str, ...]": _names,
    "Mapping[str, str]": _mapping,
    "Mapping[str, Any]": _mapping,
    "Mapping[str, float]": _numbers,
}
