"""From rounds to a result: figures by OpenMessaging's names, and ratios pair by pair.

Goes in: what each round of each arm gave. Comes out: one JSON document. No clock, no files here.

    aggregated…   over all rounds of an arm: the histograms added up, the rates' median
    a list        one figure a round, where OpenMessaging has one for each ten seconds
    busyCores     how many of the machine's cores were busy, whoever kept them so
    ratio         a round of an arm over the same pair's round of the first arm; its median, least
                  and greatest
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
    """Turn rounds of figures into one list a figure; what a round lacks is left out for all."""
    names = [name for name in rounds[0] if all(name in one for one in rounds)]
    return {name: [round(one[name], 4) for one in rounds] for name in names}


def ratios(
    base: Mapping[str, Sequence[float]], arm: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, Any]]:
    """Divide pair by pair; a figure that a pair lacks, or that is 0 in the base, is left out."""
    found = {}
    for name in RATIOS:
        if name not in base or name not in arm or not all(base[name]):
            continue
        pairs = [one / other for one, other in zip(arm[name], base[name], strict=True)]
        found[name] = {
            "median": round(statistics.median(pairs), 4),
            "least": round(min(pairs), 4),
            "greatest": round(max(pairs), 4),
            "pairs": [round(pair, 4) for pair in pairs],
        }
    return found


def middle(values: Sequence[float]) -> float:
    """Return the median, rounded as all figures are."""
    return round(statistics.median(values), 4)
