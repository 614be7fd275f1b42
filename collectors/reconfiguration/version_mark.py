"""The record that names the version of an epoch's order records, and how it is appended."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from multicast.control import stream_partition
from multicast.drivers.protocol import Appended, AppendFailed, AppendOutcome, Driver, TopicPartition
from multicast.errors import AppendUnknown
from multicast.order import anchor
from multicast.tickets.encoding import OwnRecord, encode
from topology.carry_over import retained
from topology.tree import ORDER_VERSION_FIRST, Plan


def mark_version(driver: Driver, plan: Plan, running: Plan | None, timeout_s: float) -> None:
    """Begin each new stream of an epoch of version 2 with a record that names the version.

    A program that knows version 1 only does not know the plan's field. It takes this record for one
    that extends the stream, and stops with `UnknownVersion` before it writes or delivers anything.
    A stream that `plan` retains from the `running` one has its record. Blocks; raises as
    `append_one`.
    """
    if plan.order_version == ORDER_VERSION_FIRST:
        return
    kept = frozenset() if running is None else retained(running, plan).collectors
    marks = {
        stream_partition(plan, node.name): (None, encode(anchor(plan, node.name), OwnRecord()))
        for node in plan.collectors
        if node.name not in kept
    }
    _append(driver, marks, timeout_s)


def append_one(
    driver: Driver, partition: TopicPartition, key: bytes | None, value: bytes, timeout_s: float
) -> int:
    """Append one record, wait until it is stored, and give its offset.

    Raises `AppendUnknown` after `timeout_s` seconds, and the error of an append that failed.
    """
    (offset,) = _append(driver, {partition: (key, value)}, timeout_s)
    return offset


def _append(
    driver: Driver,
    records: Mapping[TopicPartition, tuple[bytes | None, bytes]],
    timeout_s: float,
) -> list[int]:
    """Append a record, key and value, to each Kafka partition; give the offsets, in order.

    By one appender: to open one and to close it takes longer than to append.
    """
    outcomes: dict[TopicPartition, AppendOutcome] = {}
    appender = driver.appender()
    try:
        for partition, (key, value) in records.items():
            done = partial(outcomes.__setitem__, partition)
            appender.append(partition, value, key=key, done=done)
        appender.flush(timeout_s)
        for partition in records:
            if partition not in outcomes:
                raise AppendUnknown(
                    f"topic {partition.topic} did not acknowledge a record within {timeout_s:g} s; "
                    f"it may be stored: run the command again"
                )
    finally:
        appender.close()
    offsets = []
    for partition in records:
        outcome = outcomes[partition]
        if isinstance(outcome, AppendFailed):
            raise outcome.error
        assert isinstance(outcome, Appended)
        offsets.append(outcome.offset)
    return offsets
