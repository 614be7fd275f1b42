"""Measures how many bytes a collector receives, in percent of the payload, by message size.

    python -m bench.micro.payload_bytes [--seconds 10]

A collector needs no payload. A plain producer appends at a steady rate; the figure counts all bytes
that the collector's process receives over TCP: its stream, the control topic, empty answers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.harness import figures
from bench.harness.rig import Rig, append_all, pause, standing, ticks
from bench.harness.sockets import received_bytes

_MODULE = "bench.micro.payload_bytes"
_PARTITIONS = 2  # the fewest that need a collector
_SIZES = {"10kB": (10_000, 500), "100kB": (100_000, 100), "1MB": (1_000_000, 20)}
_WARM_S = 3.0  # before the measurement, so that connections exist
_SETTLE_S = 1.0  # for the collector to order the last messages


def measure(rig: Rig, *, seconds: float) -> dict[str, float]:
    """Send messages of each size for `seconds`; return the percentages."""
    measured: dict[str, float] = {}
    with rig.collectors() as collectors:
        collectors.wait_healthy()
        for name, (size, rate) in _SIZES.items():
            figures.progress(f"{name} at {rate}/s")
            _send(rig, size, rate, _WARM_S)
            before = received_bytes(collectors.pids)
            sent = _send(rig, size, rate, seconds)
            received = received_bytes(collectors.pids) - before
            measured[f"percent_{name}"] = round(100 * received / (sent * size), 3)
    return measured


def _send(rig: Rig, size: int, rate: int, seconds: float) -> int:
    """Append to all logs in turns, and let the collector finish; return the number of messages."""
    payload = bytes(size)
    appender = rig.driver.appender()
    sent = 0
    try:
        for tick in ticks(seconds, 1 / rate):
            append_all(appender, rig.partitions[tick % _PARTITIONS], [payload])
            sent += 1
        appender.flush(10.0)
    finally:
        appender.close()
    pause(_SETTLE_S)
    return sent


def main(arguments: Sequence[str]) -> None:
    """Measure once, and print the figures."""
    parser = figures.parser(_MODULE, __doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args(arguments)
    with standing(_PARTITIONS) as rig:
        measured = measure(rig, seconds=options.seconds)
        document = figures.document(_MODULE, measured, kafka=rig.kafka, arguments=arguments)
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
