"""Takes the end of the logs as it is now, and cursors for it; `subscription.End` defines an end.

`opened_at` opens a delivery wherever `Consumer.seek` goes.
"""

from __future__ import annotations

from datetime import datetime

from multicast.consuming.cursor import Cursor
from multicast.consuming.delivery import Delivery
from multicast.consuming.first_place import FirstPlace, first_place
from multicast.consuming.subscription import (
    Bounds,
    End,
    SubscriptionRequest,
    chain_back,
    logs_wanted,
    resume,
)
from multicast.control import ControlReader, ControlState, log_partition, stream_partition
from multicast.drivers.clock import ClientClock
from multicast.drivers.protocol import Driver
from multicast.drivers.reading import end_from
from multicast.errors import Trimmed, Truncated, UsageError


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


def place_of(
    driver: Driver, control: ControlState, request: SubscriptionRequest, where: str | datetime
) -> FirstPlace:
    """Find "earliest", a time's place, or "latest", the end of the newest epoch that has begun.

    A time means a place in the epoch that ran then; if that did not cover the interest, in the
    first one after it from which on all do. A cursor for "latest" may lie after an epoch marker:
    read the control topic before `resume`.
    """
    if where == "latest":
        link = chain_back(control, request, control.begun_epoch, least=control.begun_epoch)[0][0]
        source = link.source
        return FirstPlace(link.cursor_at(driver.last_stable_offsets([source])[source]), "")
    since_ms = _milliseconds(where) if isinstance(where, datetime) else None
    return first_place(driver, control, request, since_ms)


def opened_at(
    where: Cursor | str | datetime,
    driver: Driver,
    clock: ClientClock,
    control: ControlReader,
    request: SubscriptionRequest,
    *,
    bounds: Bounds,
) -> tuple[Delivery, str]:
    """Open the delivery at a cursor (or its text form), "earliest", "latest", or a time.

    Also give what `FirstPlace.omitted` says. Blocks until the control topic is read to its end, and
    for requests. Raises `UsageError` for anything else and for a cursor of another interest,
    `Trimmed` for one beyond the end.
    """
    if not isinstance(where, Cursor | str | datetime):
        raise UsageError(
            'a place to read from is "earliest", "latest", a cursor or a time, not '
            f"{type(where).__name__}"
        )
    state = control.refresh()
    if isinstance(where, datetime) or where in ("earliest", "latest"):
        place = place_of(driver, state, request, where)
        return resume(control.refresh(), request, place.cursor, bounds=bounds), place.omitted
    delivery = resume(state, request, Cursor.of(where), bounds=bounds)
    refuse_beyond_end(driver, clock, delivery)
    return delivery, ""


def _milliseconds(moment: datetime) -> int:
    try:
        since_ms = int(moment.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{moment} is no time of a message; give one since 1970") from None
    return max(0, since_ms)  # Kafka gives negative times meanings of their own


def refuse_beyond_end(driver: Driver, clock: ClientClock, delivery: Delivery) -> None:
    """Raise if the cursor of a delivery lies beyond the end of what it reads.

    `Truncated` for one that a consumer has made from what was there: if that is gone, new records
    take its place, and to skip those would be a silent gap. `Trimmed` for any other.
    """
    cursor, order = delivery.position, delivery.order
    if order is None:
        (log,) = delivery.logs.values()
        partition, needed = log_partition(log), cursor.next
    else:
        partition = stream_partition(delivery.plan, order.collector)
        # At the end itself a cursor may stand before the next record, not inside it.
        needed = cursor.record + (1 if cursor.run or cursor.next else 0)
    end = end_from(driver, clock, partition, needed)
    if end < needed:
        kind = Truncated if cursor.interest else Trimmed
        raise kind(
            f"cursor {cursor} is beyond the end of {partition.topic}/{partition.partition}, "
            f"which is {end}: the cluster has lost records, or the cursor is none of this "
            f"topic; begin at another place (seek, start=, startingOffsets)"
        ).about(partition)
