"""How much of the payload passes a collector, which needs none of it: percent, by message size.

    python -m bench.micro.payload_bytes [--seconds 10]

A plain producer appends at a steady rate; the bytes are those that the collector's process received
over TCP, everything counted: its own stream, the control topic, answers without payload.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.harness import figures
from bench.harness.rig import Rig, append_all, pause, standing, ticks
from bench.harness.sockets import traffic

_PARTITIONS = 2
_SIZES = {"10kB": (10_000, 500), "100kB": (100_000, 100), "1MB": (1_000_000, 20)}
_WARM_S = 3.0
_SETTLE_S = 1.0


def measure(rig: Rig, *, seconds: float) -> dict[str, float]:
    """Send each size for so long; return the percentages."""
    found: dict[str, float] = {}
    with rig.collectors() as collectors:
        collectors.wait_healthy()
        for name, (size, rate) in _SIZES.items():
            figures.progress(f"{name} at {rate}/s")
            _send(rig, size, rate, _WARM_S)
            before = traffic(collectors.pids).received
            sent = _send(rig, size, rate, seconds)
            received = traffic(collectors.pids).received - before
            found[f"percent_{name}"] = round(100 * received / (sent * size), 3)
    return found


def _send(rig: Rig, size: int, rate: int, seconds: float) -> int:
    """Append in turns to all logs, and let the collector see the last of it."""
    payload = bytes(size)
    appender = rig.driver.appender()
    sent = 0
    try:
        for tick in ticks(seconds, 1 / rate):
            append_all(appender, rig.places[tick % _PARTITIONS], [payload])
            sent += 1
        appender.flush(10.0)
    finally:
        appender.close()
    pause(_SETTLE_S)
    return sent


def main(arguments: Sequence[str]) -> None:
    """Measure once and print it."""
    parser = figures.parser("payload_bytes", __doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    asked = parser.parse_args(arguments)
    with standing(_PARTITIONS) as rig:
        found = measure(rig, seconds=asked.seconds)
        told = figures.document("payload-bytes", found, kafka=rig.kafka, arguments=arguments)
    figures.show(told, asked.output)


if __name__ == "__main__":
    main(sys.argv[1:])
