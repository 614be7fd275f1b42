"""Takes the end of the logs as it is now, and cursors for it; `subscription.End` defines an end."""

from __future__ import annotations

from multicast.control import (
    SINGLE_LOG,
    ControlReader,
    ControlState,
    log_partition,
    stream_partition,
)
from multicast.cursor import Cursor
from multicast.drivers.protocol import Driver
from multicast.subscription import End, SubscriptionRequest, logs_wanted


def end_now(
    driver: Driver, control: ControlReader, request: SubscriptionRequest | None = None
) -> End:
    """Take the end as it is now: of the logs of one subscription, or (None) of all logs.

    Blocks until the control topic is read to its end.
    """
    state = control.refresh()
    partitions = {log.name: log_partition(log) for log in logs_wanted(state, request)}
    ends = driver.last_stable_offsets(list(partitions.values()))
    positions = {name: ends[partition] for name, partition in partitions.items()}
    return End(state.epoch, state.begun_epoch, positions)


def cursor_at(
    driver: Driver, control: ControlState, request: SubscriptionRequest, timestamp_ms: int | None
) -> Cursor:
    """Make a cursor for a time in the newest epoch that has begun; None for the end of it."""
    epoch = control.begun_epoch
    _, source = request.resolve(control.plan(epoch))
    epoch = control.first_epoch(epoch, source)
    plan = control.plan(epoch)
    is_log = source.startswith(SINGLE_LOG)
    if is_log:
        partition = log_partition(plan.log(source.removeprefix(SINGLE_LOG)))
    else:
        partition = stream_partition(plan, source)
    if timestamp_ms is None:
        offset = driver.last_stable_offsets([partition])[partition]
    else:
        offset = driver.offsets_at([partition], timestamp_ms)[partition]
    return Cursor(epoch, source, 0 if is_log else offset, 0, offset if is_log else 0)
