"""Where a group goes on whose order is deleted in part: behind the gap, if it lacks nothing there.

A group that had delivered all that was ordered needs none of the deleted records. Its commit says
of each log below which offset all was delivered or dropped.

Invariant: from the place given on, the group gets what it would have got from its cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from multicast.consuming.cursor import Cursor
from multicast.consuming.last_read import LastRead
from multicast.consuming.subscription import (
    Bounds,
    SubscriptionRequest,
    begin,
    interest_at,
    logs_wanted,
)
from multicast.control import SINGLE_LOG, ControlState, log_partition, stream_partition
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.drivers.reading import read_upto
from multicast.order.runs import order_checksum
from topology.tree import Log


def past_gap(
    driver: Driver,
    control: ControlState,
    request: SubscriptionRequest,
    cursor: Cursor,
    logs_at: Callable[[Iterable[Log]], Mapping[TopicPartition, tuple[int, LastRead]]],
) -> Cursor:
    """Give the place behind deleted order in which the group lacks nothing; else its cursor.

    `logs_at` gives what the group's commit at the cursor says of logs. Blocks for a request, and
    for more where order is deleted. Raises what `begin` raises for the next epoch.
    """
    delivered: dict[TopicPartition, int] | None = None
    while not cursor.source.startswith(SINGLE_LOG):
        epoch, collector = cursor.epoch, cursor.source
        source = stream_partition(control.plan(epoch), collector)
        first = driver.log_start_offsets([source])[source]
        if control.stream(epoch, collector, below=cursor.record).offset_next >= first:
            break
        if delivered is None:
            told = logs_at(logs_wanted(control, request))
            delivered = {partition: offset for partition, (offset, _) in told.items()}
        starts = control.begun(epoch)
        had = {
            log.name: max(starts[log.name], delivered.get(log_partition(log), 0))
            for log in control.plan(epoch).logs_of(interest_at(control, request, cursor))
        }
        last = control.last_epoch(epoch, collector)
        ends = control.ends.get(last or 0)
        if last is None or ends is None or any(had[name] < ends[name] for name in had):
            return _behind_checkpoint(driver, control, cursor, first, had) or cursor
        cursor = begin(control, request, epoch=last + 1, bounds=Bounds()).position
    return cursor


def _behind_checkpoint(
    driver: Driver, control: ControlState, cursor: Cursor, first: int, had: Mapping[str, int]
) -> Cursor | None:
    """Give the place behind the first checkpoint whose readers need nothing below `first`.

    None if there is none, or if more is ordered up to there than `had` says.
    """
    points = control.checkpoints(cursor.epoch, cursor.source)
    point = next((point for point in points if point.read_from >= first), None)
    if point is None:
        return None
    stream = control.opened(cursor.epoch, cursor.source, point)
    source, behind = stream_partition(stream.plan, cursor.source), point.offset + 1
    for fetched in read_upto(driver, source, stream.offset_next, behind):
        for record in fetched.records:
            if record.offset < behind:
                stream.read(record.offset, record.value, order_checksum(record))
        stream.passed(min(fetched.position, behind))
    positions, plan = stream.state.positions, stream.plan
    if any(positions[plan.number(name)] > offset for name, offset in had.items()):
        return None
    return Cursor(cursor.epoch, cursor.source, behind, 0, 0)
