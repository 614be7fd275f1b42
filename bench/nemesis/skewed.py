"""Runs `amcast` in a process with a wrong wall clock.

    python -m bench.nemesis.skewed SECONDS ARGUMENTS...     as `amcast ARGUMENTS...`

SECONDS is added to the wall clock; "strobe:SECONDS" adds and subtracts it in turns, a second each.
The monotonic clock stays right, because no machine sets it. Only Python's clock is changed;
librdkafka and the brokers read the right time.
"""

from __future__ import annotations

import sys
import time

_RIGHT_NS = time.time_ns
_STROBE = "strobe:"


def skew(offset: str) -> None:
    """Skew the wall clock of this process from now on; raises `ValueError` for a wrong offset."""
    strobes = offset.startswith(_STROBE)
    off_ns = round(float(offset.removeprefix(_STROBE)) * 1e9)

    def time_ns() -> int:
        behind = strobes and int(time.monotonic()) % 2
        return _RIGHT_NS() + (-off_ns if behind else off_ns)

    def wrong_time() -> float:
        return time_ns() / 1e9

    time.time_ns = time_ns
    time.time = wrong_time


def main() -> None:
    """Skew the clock before any module of the product is imported, then run `amcast`."""
    skew(sys.argv.pop(1))
    from multicast.cli.main import main as amcast  # noqa: PLC0415

    amcast()


if __name__ == "__main__":
    main()
