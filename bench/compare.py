"""Compare two results of one workload: what became worse by more than is allowed.

Goes in: two documents of `amcast bench run`. Comes out: a row for each figure that both have. No
files here. Ratios against the first arm are compared where both results have them: they depend
little on the machine and its other work. A result of one arm is compared by its figures.

    change    above 1: worse. A latency's new over its old, a rate's old over its new
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.results import RATIOS

_SAME = ("kind", "size", "message_bytes", "load", "driver", "to", "producers")
_KNOWN_VERSION = 1


class Incomparable(ValueError):
    """The results cannot be compared; the text is one sentence saying why."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one arm, in both results."""

    arm: str
    name: str
    old: float
    new: float
    change: float
    regression: bool


def compare(
    old: Mapping[str, Any], new: Mapping[str, Any], *, max_regression: float
) -> tuple[Row, ...]:
    """Compare; raises `Incomparable` where the results are not of one workload."""
    if not max_regression >= 1:
        raise Incomparable(f"--max-regression is {max_regression:g}; it is 1 or more")
    for document in (old, new):
        if document.get("schema_version") != _KNOWN_VERSION:
            raise Incomparable(
                f"schema_version is not {_KNOWN_VERSION}: not a result of this bench"
            )
    try:
        return _rows(old, new, max_regression)
    except (KeyError, TypeError, AttributeError) as error:
        raise Incomparable(f"not a result of amcast bench run: {error!r} is not there") from error


def _rows(old: Mapping[str, Any], new: Mapping[str, Any], max_regression: float) -> tuple[Row, ...]:
    for key in _SAME:
        one, other = old["workload"][key], new["workload"][key]
        if one != other:
            raise Incomparable(f"the workloads differ: {key} is {one} in one, {other} in the other")
    both = old["base"] == new["base"] and old["ratios"] and new["ratios"]
    before, after = (_ratios(old), _ratios(new)) if both else (_figures(old), _figures(new))
    rows = []
    for (arm, name), was in before.items():
        now = after.get((arm, name))
        if now is None or was <= 0 or now <= 0:
            continue
        change = was / now if "Rate" in name else now / was
        rows.append(Row(arm, name, was, now, round(change, 4), change > max_regression))
    if not rows:
        raise Incomparable("the results have no figure in common")
    return tuple(rows)


def _ratios(document: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    return {
        (arm, name): float(found["median"])
        for arm, figures in document["ratios"].items()
        for name, found in figures.items()
    }


def _figures(document: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    found = {}
    for arm, figures in document["arms"].items():
        for name in RATIOS:
            key = f"aggregated{name[0].upper()}{name[1:]}"
            if key in figures:
                found[arm, name] = float(figures[key])
    return found
