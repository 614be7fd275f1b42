"""Measures what a producer's own order costs: messages/s to three partitions in turns.

    python -m bench.micro.own_order [--seconds 5]

The arms take turns on one local broker; each waits for the last acknowledgement. "after ordered"
waits for each message's order before the next one: that gives no order, and stands for comparison.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from bench.harness import figures
from bench.harness.rig import Rig, standing
from multicast.producing.producer import Producer

_MODULE = "bench.micro.own_order"
_NAMES = ("P1", "P2", "P3")
# The arms: options of the producer, messages to one partition before the next one's turn.
_ARMS: dict[str, tuple[dict[str, Any], int]] = {
    "none": ({}, 1),
    "fifo": ({"fifo": True}, 1),
    "fifo_hundreds": ({"fifo": True}, 100),
    "through": ({"through": _NAMES}, 1),
    "after_ordered": ({}, 1),
}


def measure(rig: Rig, arm: str, seconds: float) -> int:
    """Send for a time; return the messages/s."""
    options, run = _ARMS[arm]
    with Producer(topic=rig.topic, driver=rig.driver, **options) as producer:
        for name in _NAMES:  # opens what the arm needs
            producer.multicast(b"", to={name}).ordered()
        began, sent = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            receipt = producer.multicast(b"x" * 100, to={_NAMES[sent // run % 3]})
            if arm == "after_ordered":
                receipt.ordered()
            sent += 1
        producer.flush()
        return round(sent / (time.monotonic() - began))


def main(arguments: Sequence[str]) -> None:
    """Measure in turns, and print the medians of three."""
    parser = figures.parser(_MODULE, __doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of an arm's turn")
    options = parser.parse_args(arguments)
    with standing(3, wide=True) as rig, rig.collectors() as collectors:
        collectors.wait_healthy()
        turns = [{arm: measure(rig, arm, options.seconds) for arm in _ARMS} for _ in range(3)]
        medians = {f"rate_{arm}": sorted(turn[arm] for turn in turns)[1] for arm in _ARMS}
        document = figures.document(_MODULE, medians, kafka=rig.kafka, arguments=arguments)
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
