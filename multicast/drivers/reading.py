"""Reads a Kafka partition up to an offset; whoever waits for it hears when nothing comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

from multicast.drivers.protocol import Driver, Fetched, TopicPartition

READ_S = 10.0  # without a record for so long, a broker is taken to be unreachable


def read_upto(
    driver: Driver,
    partition: TopicPartition,
    position: int,
    end: int,
    quiet: Callable[[int], Exception],
    *,
    wait_s: float = READ_S,
) -> Iterator[Fetched]:
    """Read from an offset until `end` is passed; the last answer may go beyond it.

    Raises what `quiet` makes of the position if nothing comes for `wait_s` seconds.
    """
    if position >= end:
        return
    with closing(driver.reader({partition: position})) as reader:
        while position < end:
            answers = reader.poll(wait_s)
            if not answers:
                raise quiet(position)
            for fetched in answers:
                position = fetched.position
                yield fetched
