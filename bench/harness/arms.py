"""Arms that take turns within each round, and their ratios to one of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from bench.harness import figures

_TOLD_EVERY = 50  # rounds: a line every few seconds
_NORMAL_95 = 1.96  # standard deviations around the mean that hold 95 % of a normal distribution
_Arm = TypeVar("_Arm")
Round = dict[str, float]


def in_turns(
    arms: Mapping[str, _Arm],
    rounds: int,
    once: Callable[[_Arm, int], float],
    *,
    warm_up: int,
    slices: int = 1,
) -> list[Round]:
    """Measure each arm in each round, in an order that rotates; leave out the first rounds.

    A round has slices, in each of which every arm has one turn: `once` gets its number. An arm's
    figure of a round is the mean of its slices.
    """
    made: list[Round] = []
    names = list(arms)
    for number in range(-warm_up, rounds):
        if not number % _TOLD_EVERY:
            figures.progress(f"round {number} of {rounds}")
        one = dict.fromkeys(arms, 0.0)
        for part in range(slices):
            names = [*names[1:], names[0]]
            for name in names:
                one[name] += once(arms[name], part) / slices
        if number >= 0:
            made.append(one)
    return made


def medians(made: Sequence[Round], unit: str) -> Round:
    """Return the median of each arm over the rounds."""
    return {
        f"{name}_{unit}": round(statistics.median(one[name] for one in made), 2) for name in made[0]
    }


def ratios(made: Sequence[Round], to: str) -> Round:
    """Return of each other arm the median of its ratio to `to` in the same round.

    That median lies between `low` and `high` with a probability of 95 %.
    """
    rounds = len(made)
    # Ranks in a sorted sample between which its median lies, by the normal approximation.
    aside = math.ceil(_NORMAL_95 * math.sqrt(rounds) / 2)
    summary: Round = {}
    for name in made[0]:
        if name != to:
            sample = sorted(one[name] / one[to] for one in made)
            summary[f"{name}_ratio"] = round(statistics.median(sample), 3)
            summary[f"{name}_ratio_low"] = round(sample[max(0, rounds // 2 - aside)], 3)
            summary[f"{name}_ratio_high"] = round(sample[min(rounds - 1, rounds // 2 + aside)], 3)
    return summary
