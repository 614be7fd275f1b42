"""Compares two results of one workload, and finds the figures that became too much worse.

`compare` takes two documents of `amcast bench run` and returns a row for each ratio of both against
the same first arm: ratios depend little on the machine and its load.

    change      new / old of a latency, old / new of a rate: above 1 is worse
    spread      the range of a result's pairs (or rounds). If either median lies within the other
                result's spread, there is no regression
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SAME = ("kind", "size", "message_bytes", "load", "to")
_KNOWN_VERSION = 1


class Incomparable(ValueError):
    """The results cannot be compared; the text says why, in one sentence."""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure of one arm, in both results."""

    arm: str
    name: str
    old: float
    new: float
    change: float
    regression: bool


def compare(old: Any, new: Any, *, max_regression: float) -> tuple[FigureRow, ...]:
    """Compare two documents of JSON; raises `Incomparable` if their workloads differ."""
    if not max_regression >= 1:
        raise Incomparable(f"--max-regression is {max_regression:g}; it must be 1 or more")
    for document in (old, new):
        if not isinstance(document, dict) or document.get("schema_version") != _KNOWN_VERSION:
            raise Incomparable(
                f"schema_version is not {_KNOWN_VERSION}: not a result of this bench"
            )
    try:
        return _rows(old, new, max_regression)
    except (KeyError, TypeError, AttributeError) as error:
        raise Incomparable(f"not a result of amcast bench run: {error!r} is missing") from error


def _rows(
    old: Mapping[str, Any], new: Mapping[str, Any], max_regression: float
) -> tuple[FigureRow, ...]:
    for key in _SAME:
        old_value, new_value = old["workload"][key], new["workload"][key]
        if old_value != new_value:
            raise Incomparable(
                f"the workloads differ: {key} is {old_value} in one, {new_value} in the other"
            )
    if old["base"] != new["base"]:
        raise Incomparable(f"the first arm is {old['base']} in one, {new['base']} in the other")
    before, after = _ratios(old), _ratios(new)
    rows = []
    for (arm, name), (was, all_then) in before.items():
        now, all_now = after.get((arm, name), (0.0, ()))
        if was <= 0 or now <= 0:
            continue
        if "Rate" in name:
            change = was / now
            in_spread = now >= min(all_then, default=was) or was <= max(all_now, default=now)
        else:
            change = now / was
            in_spread = now <= max(all_then, default=was) or was >= min(all_now, default=now)
        regression = change > max_regression and not in_spread
        rows.append(FigureRow(arm, name, was, now, round(change, 4), regression))
    if not rows:
        raise Incomparable("the results have no ratio in common")
    return tuple(rows)


_Figures = dict[tuple[str, str], tuple[float, Sequence[float]]]


def _ratios(document: Mapping[str, Any]) -> _Figures:
    return {
        (arm, name): (float(ratio["median"]), ratio.get("pairs", ()))
        for arm, figures in document["ratios"].items()
        for name, ratio in figures.items()
    }
