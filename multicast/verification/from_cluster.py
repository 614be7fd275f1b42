"""The history of a running system, replayed from its cluster.

What stands in the logs is what was multicast; what consumers deliver is read anew from the order
streams, from the start, by the same consumers that applications use. Reads only; commits nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from multicast.consumer import Consumer, end_now
from multicast.control import ControlReader, ControlState, log_partition
from multicast.drivers.protocol import Driver
from multicast.errors import TimedOut
from multicast.history import History
from multicast.subscription import SubscriptionRequest
from multicast.verification.audit import AuditCollector
from topology.tree import Log


@dataclass(frozen=True, slots=True)
class ReplayedConsumer:
    """Whose deliveries are replayed: a consumer of the plan, or an interest."""

    name: str | None
    interest: tuple[str, ...] | None

    @property
    def label(self) -> str:
        """What the history calls it."""
        return self.name or ",".join(self.interest or ())


def replayed(
    driver: Driver,
    topic: str,
    seats: Sequence[ReplayedConsumer],
    *,
    replays: int = 2,
    timeout_s: float = 30.0,
) -> History:
    """Replay each seat from its earliest position to the logs' ends as they are now.

    Each is replayed `replays` times, so that "replay" is judged, too. The end is taken once, for
    all seats and for what counts as multicast (`multicast/verification/audit.py`), over all epochs.
    Raises `TimedOut` where nothing came for `timeout_s` seconds though something must.
    """
    control = ControlReader(driver, topic)
    try:
        audit = AuditCollector(end_now(driver, control))
        for seat in seats:
            wanted = SubscriptionRequest.of(seat.name, seat.interest)
            for number in range(replays):
                consumer = Consumer(
                    topic=topic,
                    name=seat.name,
                    interest=seat.interest,
                    committed=False,
                    driver=driver,
                )
                with consumer:
                    audit.begins(seat.label, wanted, consumer.position.epoch)
                    for batch in consumer.until_end(timeout=timeout_s, end=audit.end):
                        audit.delivered(seat.label, str(number + 1), batch)
                    audit.ended(seat.label, str(number + 1))
        state = control.refresh()
        for log in state.plan(audit.end.epoch).logs:
            _read(driver, state, log, audit, timeout_s)
    finally:
        control.close()
    return audit.history(state)


def _read(
    driver: Driver, state: ControlState, log: Log, audit: AuditCollector, timeout_s: float
) -> None:
    """Note every message that stands in a log, up to the audit's end."""
    at = log_partition(log)
    position, end = driver.log_start_offsets([at])[at], audit.end.positions[log.name]
    if position >= end:
        return
    reader = driver.reader({at: position})
    try:
        while position < end:
            moved = reader.poll(timeout_s)
            if not moved:
                raise TimedOut(f"log {log.name} could not be read within {timeout_s:g} s")
            for fetched in moved:
                audit.logged(state, log, fetched.records)
                position = fetched.position
    finally:
        reader.close()
