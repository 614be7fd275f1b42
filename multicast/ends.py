"""Takes the end of the logs as it is now; `multicast.subscription.End` says what an end is."""

from __future__ import annotations

from multicast.control import ControlReader, log_partition
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
