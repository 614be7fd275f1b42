"""Latency histograms; the only module that imports the package `hdrhistogram`.

Latencies are recorded in nanoseconds and reported in milliseconds, under OpenMessaging's names. The
resolution is three significant digits, from 1 µs to an hour.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from multicast.errors import UsageError

QUANTILES = {"50": 50.0, "75": 75.0, "95": 95.0, "99": 99.0, "999": 99.9, "9999": 99.99}
DIGITS = 3  # an error of at most 0.1 %, less than the spread of the rounds
_HIGHEST_NS = 3600 * 10**9  # longer than any run; greater values are cut to it
_UNIT_NS = 1000  # the resolution: the least latencies are hundreds of microseconds


class Latencies:
    """A histogram that can be encoded as text and added to others."""

    def __init__(self) -> None:
        try:
            package: Any = importlib.import_module("hdrh.histogram")
        except ImportError as error:
            raise UsageError("amcast bench needs the package hdrhistogram; install it") from error
        self._histogram = package.HdrHistogram(1, _HIGHEST_NS // _UNIT_NS, DIGITS)

    def record(self, latencies_ns: Iterable[int]) -> None:
        """Count each latency."""
        count = self._histogram.record_value
        for latency in latencies_ns:
            count(max(1, min(latency, _HIGHEST_NS) // _UNIT_NS))

    def add(self, encoded: str) -> None:
        """Add another histogram, given its `encoded` text."""
        self._histogram.decode_and_add(encoded)

    def encoded(self) -> str:
        """Return the histogram in HdrHistogram's own format."""
        return str(self._histogram.encode().decode("ascii"))

    def percentile(self, percentiles: Iterable[float]) -> list[float]:
        """Return the latencies at these percentiles, in milliseconds."""
        value_at = self._histogram.get_value_at_percentile
        return [value_at(percentile) / 1000 for percentile in percentiles]

    @property
    def count(self) -> int:
        """The number of recorded latencies."""
        return int(self._histogram.get_total_count())

    def figures(self, name: str) -> dict[str, float]:
        """Return average, quantiles and maximum in milliseconds, as `endToEndLatency50pct`."""
        if self.count == 0:
            return {}
        quantiles = {
            f"{name}{short}pct": self._histogram.get_value_at_percentile(q) / 1000
            for short, q in QUANTILES.items()
        }
        average = self._histogram.get_mean_value() / 1000
        return {
            f"{name}Avg": round(average, 4),
            **quantiles,
            f"{name}Max": self._histogram.get_max_value() / 1000,
        }
