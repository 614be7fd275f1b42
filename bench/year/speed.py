"""How much faster the clock-driven work of the year runs, and a process of collectors that does.

    python -m bench.year.speed collectors run …      `amcast collectors run …`, sped up

All that waits for a clock for minutes and more is divided by `SPEED`: the time between checkpoints,
the times by which the control topic keeps some of them, and the topics' segments, retention and
compaction. What waits for seconds (ticks, patience, requests) is as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from collectors.collector import LIMITS
from collectors.engine import instance
from multicast.cli.main import main
from multicast.control import checkpoints

YEAR_S = 365.25 * 24 * 3600
SPEED = 20_000  # a year in 26 minutes, so that what comes late by seconds still comes often enough
_FOR_EVER_MS = 10**15  # and more: Kafka's numbers for "never"
_OF_TIME = ("retention.ms", "segment.ms", "max.compaction.lag.ms", "delete.retention.ms")
_RETENTION_MS = 120_000  # at least, else who stands still on a busy machine loses its place


def sped_up(settings: Mapping[str, str]) -> dict[str, str]:
    """Divide the settings of a topic that are times, but for those that mean "never"."""
    times = {name: int(settings[name]) for name in _OF_TIME}
    least = {"retention.ms": _RETENTION_MS}
    return {
        name: str(max(least.get(name, 1), time_ms // SPEED))
        for name, time_ms in times.items()
        if 0 < time_ms < _FOR_EVER_MS
    }


def _speed_up() -> None:
    faster = replace(LIMITS, checkpoint_time=LIMITS.checkpoint_time // SPEED)
    setattr(instance, "LIMITS", faster)  # noqa: B010 - it is imported there
    bits = getattr(checkpoints, "_FINEST_BITS", 0)
    setattr(checkpoints, "_FINEST_BITS", max(0, bits - SPEED.bit_length() + 1))  # noqa: B010


if __name__ == "__main__":
    _speed_up()
    main()
