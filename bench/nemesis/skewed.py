"""`amcast` in a process whose wall clock is wrong.

    python -m bench.nemesis.skewed SECONDS ARGUMENTS...     as `amcast ARGUMENTS...`

SECONDS is added to what the wall clock says; "strobe:SECONDS" adds and subtracts it in turns, a
second each. The monotonic clock stays as it is: no machine sets that. Only Python's wall clock is
changed, so what librdkafka and the brokers read by themselves stays right.
"""

from __future__ import annotations

import sys
import time

_RIGHT_NS = time.time_ns
_STROBE = "strobe:"


def skew(said: str) -> None:
    """Make the wall clock of this process wrong from now on; raises `ValueError`."""
    strobes = said.startswith(_STROBE)
    off_ns = round(float(said.removeprefix(_STROBE)) * 1e9)

    def time_ns() -> int:
        behind = strobes and int(time.monotonic()) % 2
        return _RIGHT_NS() + (-off_ns if behind else off_ns)

    def wrong_time() -> float:
        return time_ns() / 1e9

    time.time_ns = time_ns
    time.time = wrong_time


def main() -> None:
    """Skew the clock before anything of ours is imported, then be `amcast`."""
    skew(sys.argv.pop(1))
    from multicast.cli.main import main as amcast  # noqa: PLC0415

    amcast()


if __name__ == "__main__":
    main()
