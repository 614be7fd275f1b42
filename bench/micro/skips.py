"""Counts the offsets of logs that hold no message after a run without faults.

    python -m bench.micro.skips [--messages 100000] [--rate 2000]

Two producers multicast to two logs in turns, at intended times. A log's offsets that no message has
are skips: a collector fills holes with them, where the order was ahead of the messages. The logs of
a new topic have no other such offset.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.harness import figures
from bench.harness.rig import Rig, standing, ticks
from multicast.drivers import open_driver
from multicast.producing.producer import Producer

_MODULE = "bench.micro.skips"
_PARTITIONS = 2  # the fewest that need a collector
_PRODUCERS = 2  # the fewest whose tickets meet in one log
_TICK_S = 0.002
_ORDERED_S = 60.0  # for the last message; it takes milliseconds


def measure(rig: Rig, *, messages: int, rate: int) -> dict[str, float]:
    """Send the messages, wait for the order of the last ones; return the number of skips."""
    names = [{log.name} for log in rig.plan.logs]
    burst = [bytes(100)] * max(1, round(rate * _TICK_S))
    with rig.collectors() as collectors:
        collectors.wait_healthy()
        drivers = [open_driver("librdkafka", rig.bootstrap) for _ in range(_PRODUCERS)]
        producers = [Producer(topic=rig.topic, driver=driver) for driver in drivers]
        try:
            before, sent = _stored(rig), 0
            for tick in ticks(messages / rate + _TICK_S, _TICK_S):
                if sent >= messages:
                    break
                values = burst[: messages - sent]
                # Each producer sends to each log.
                to = names[tick // _PRODUCERS % _PARTITIONS]
                producers[tick % _PRODUCERS].multicast_all(values, to=to)
                sent += len(values)
            for producer in producers:
                for name in names:
                    producer.multicast(b"", to=name).ordered(_ORDERED_S)
                    sent += 1
            skips = _stored(rig) - before - sent
        finally:
            for producer, driver in zip(producers, drivers, strict=True):
                producer.close()
                driver.close()
    return {"messages": sent, "skips": skips}


def _stored(rig: Rig) -> int:
    return sum(rig.driver.high_watermarks(rig.partitions).values())


def main(arguments: Sequence[str]) -> None:
    """Count once, and print the figures."""
    parser = figures.parser(_MODULE, __doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=2000, help="messages/s")
    options = parser.parse_args(arguments)
    if options.messages < 1 or options.rate < 1:
        parser.error("--messages and --rate are at least 1")
    with standing(_PARTITIONS) as rig:
        measured = measure(rig, messages=options.messages, rate=options.rate)
        document = figures.document(_MODULE, measured, kafka=rig.kafka, arguments=arguments)
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
