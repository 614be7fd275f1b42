"""Reads a Kafka partition up to an offset; whoever waits for it hears when nothing comes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

from multicast.drivers.clock import ClientClock
from multicast.drivers.protocol import Driver, Fetched, TopicPartition
from multicast.errors import AmcastError, ClusterUnreachable

READ_S = 10.0  # without a record for so long, a broker is taken to be unreachable
# A leader that was just elected may report an end that is too low until its followers have fetched
# from it; they do so every 0.5 s at the latest (replica.fetch.wait.max.ms).
END_LAGS_S = 3.0
_LOOK_EVERY_S = 0.2  # one request each; a wrong cursor is rare


def read_upto(
    driver: Driver,
    partition: TopicPartition,
    position: int,
    end: int,
    *,
    wait_s: float = READ_S,
    error: type[AmcastError] = ClusterUnreachable,
) -> Iterator[Fetched]:
    """Read from an offset until `end` is passed; the last answer may go beyond it.

    Raises this error if nothing comes for `wait_s` seconds.
    """
    if position >= end:
        return
    with closing(driver.reader({partition: position})) as reader:
        while position < end:
            answers = reader.poll(wait_s)
            if not answers:
                raise error(
                    f"{partition.topic}/{partition.partition} gave no record from offset "
                    f"{position} on within {wait_s:g} s; see whether its brokers run"
                )
            for fetched in answers:
                position = fetched.position
                yield fetched


def end_from(driver: Driver, clock: ClientClock, partition: TopicPartition, least: int) -> int:
    """Give the last stable offset; ask for some seconds again while it is below `least`."""
    deadline = clock.monotonic() + END_LAGS_S
    while (end := driver.last_stable_offsets([partition])[partition]) < least:
        if clock.monotonic() >= deadline:
            break
        clock.wait_for(threading.Condition(), lambda: False, _LOOK_EVERY_S)
    return end
