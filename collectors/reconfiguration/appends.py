"""Appends single records for an operator's command, and waits until they are stored."""

from __future__ import annotations

from contextlib import closing

from multicast.drivers.protocol import AppendFailed, AppendOutcome, Driver, TopicPartition
from multicast.errors import AppendUnknown


def append_one(
    driver: Driver,
    partition: TopicPartition,
    key: bytes | None,
    value: bytes | None,
    timeout_s: float,
) -> int:
    """Append one record, wait until it is stored, and give its offset.

    Raises `AppendUnknown` after `timeout_s` seconds, and the error of an append that failed.
    """
    outcomes: list[AppendOutcome] = []
    with closing(driver.appender()) as appender:
        appender.append(partition, value, key=key, done=outcomes.append)
        appender.flush(timeout_s)
        if not outcomes:
            raise AppendUnknown(
                f"topic {partition.topic} did not acknowledge a record within {timeout_s:g} s; "
                f"it may be stored: run the command again"
            )
    (outcome,) = outcomes
    if isinstance(outcome, AppendFailed):
        raise outcome.error
    return outcome.offset
