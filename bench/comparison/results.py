"""Computes a result from rounds: figures under OpenMessaging's names, and ratios pair by pair.

No clock and no file is used here.

    aggregated…   over all rounds of an arm: the sum of the histograms, the median of the rates
    a list        one figure a round, where OpenMessaging has one for each ten seconds
    busyCores     the machine's busy cores, including other programs
    ratio         a round of an arm divided by the same pair's round of the first arm; its median,
                  least and greatest
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

RATIOS = (
    "endToEndLatency50pct",
    "endToEndLatency99pct",
    "publishLatency50pct",
    "publishRate",
    "consumeRate",
    "consumeRatePerCpuSecond",
)


def series(rounds: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Turn rounds of figures into a list for each figure; omit figures that some round lacks."""
    names = [
        name for name in rounds[0] if all(name in figures_of_round for figures_of_round in rounds)
    ]
    return {
        name: [round(figures_of_round[name], 4) for figures_of_round in rounds] for name in names
    }


def ratios(
    base: Mapping[str, Sequence[float]], arm: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, Any]]:
    """Divide pair by pair; omit figures that an arm lacks, or that are 0 in the base."""
    by_figure = {}
    for name in RATIOS:
        if name not in base or name not in arm or not all(base[name]):
            continue
        pairs = [
            value / base_value for value, base_value in zip(arm[name], base[name], strict=True)
        ]
        by_figure[name] = {
            "median": round(statistics.median(pairs), 4),
            "least": round(min(pairs), 4),
            "greatest": round(max(pairs), 4),
            "pairs": [round(pair, 4) for pair in pairs],
        }
    return by_figure


def middle(values: Sequence[float]) -> float:
    """Return the median, rounded like all figures."""
    return round(statistics.median(values), 4)
