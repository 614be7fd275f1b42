"""The history of a running system, replayed from its cluster.

The messages in the logs are taken as multicast. The deliveries are computed again from the order
streams, from their starts, by the same `Consumer` that applications use. Reads only, commits
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from multicast.consuming.consumer import Consumer
from multicast.consuming.ends import end_now
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import ControlReader, ControlState, log_partition
from multicast.drivers.protocol import Driver
from multicast.drivers.reading import read_upto
from multicast.errors import TimedOut
from multicast.history import History
from multicast.verification.audit import AuditCollector
from topology.tree import Log

REPLAYS = 2  # the guarantee "replay" compares two readings of one consumer; more cost time only
QUIET_S = 30.0  # as `Consumer.until_end`: it outlives the failover of a broker


def replayed(
    driver: Driver, topic: str, seats: Sequence[SubscriptionRequest], *, timeout_s: float = QUIET_S
) -> History:
    """Replay each consumer from its earliest position up to the present ends of the logs.

    Each is replayed `REPLAYS` times. The end is taken once, over all epochs, for all consumers and
    for the messages taken as multicast (`multicast/verification/audit.py`). Raises `TimedOut` if no
    message came for `timeout_s` seconds before the end.
    """
    with closing(ControlReader(driver, topic)) as control:
        audit = AuditCollector(end_now(driver, control))
        for seat in seats:
            label = seat.name or ",".join(seat.interest or ())
            for number in range(REPLAYS):
                with Consumer(
                    topic=topic,
                    name=seat.name,
                    interest=seat.interest,
                    committed=False,
                    driver=driver,
                ) as consumer:
                    audit.begins(label, seat, consumer.position.epoch)
                    for batch in consumer.until_end(timeout=timeout_s, end=audit.end):
                        audit.delivered(label, str(number + 1), batch)
                    audit.ended(label, str(number + 1), late=bool(consumer.omitted))
        state = control.refresh()
        for log in state.plan(audit.end.epoch).logs:
            read_messages(driver, state, log, audit, timeout_s)
    return audit.history(state)


def read_messages(
    driver: Driver, state: ControlState, log: Log, audit: AuditCollector, timeout_s: float
) -> None:
    """Add every message of a log to an audit, up to its end.

    Raises `TimedOut` if no record came for `timeout_s` seconds.
    """
    partition = log_partition(log)
    first = driver.log_start_offsets([partition])[partition]
    end = audit.end.positions[log.name]
    for fetched in read_upto(driver, partition, first, end, wait_s=timeout_s, error=TimedOut):
        audit.logged(state, log, fetched.records)
