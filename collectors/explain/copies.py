"""Finds the copies of a message that `amcast materialize` has made. Writes nothing.

Copies stand in the order of their cursors in each partition of a target, so they are found by
halves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from collectors.explain.facts import Copy, Hop
from multicast.consuming.cursor import Cursor
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import SINGLE_LOG, ControlState, control_partition
from multicast.drivers.protocol import Driver, Record, TopicPartition
from multicast.drivers.reading import read_upto
from multicast.errors import AmcastError, TimedOut, UncoveredInterest, UsageError
from multicast.messages import MessageID

_OURS = 3  # a copy's last headers: ID, destination set, cursor
_Rank = tuple[int, ...]


def copies_of(
    driver: Driver,
    state: ControlState,
    message: MessageID,
    *,
    epoch: int,
    to: Sequence[str],
    hops: Sequence[Hop],
    groups: Sequence[str],
) -> tuple[Copy, ...]:
    """Say of each of these groups that is a copier's, and copies the message, where its copy is.

    Raises `TimedOut` if a target does not answer.
    """
    places = {hop.collector: hop.place.record for hop in hops if hop.place is not None}
    control, copies = control_partition(state.topic), []
    for group in groups:
        consumer, at, target = group.removeprefix(f"amcast.{state.topic}.").rpartition("@")
        named = any(plan.subscription(consumer) is not None for plan in state.plans)
        interest = None if named else tuple(sorted(consumer.split("+")))
        request = SubscriptionRequest(consumer if named else None, interest)
        try:
            read, source = request.resolve_at(state, epoch)
        except (UncoveredInterest, UsageError):  # it is no copier, or of another epoch
            continue
        if not at or set(read).isdisjoint(to):
            continue
        begun = state.first_epoch(epoch, source)
        offset, is_past = None, False
        if source in places or source.startswith(SINGLE_LOG):
            if source in places:  # somewhere in an order record
                first, last = (begun, places[source], 0, 0), (begun, places[source] + 1, 0, 0)
            else:
                first = last = (begun, 0, 0, message.offset + 1)
            offset = _found(driver, target, message, first, last)
            _, text = driver.committed(group, [control]).get(control, (0, ""))
            is_past = offset is None and bool(text) and Cursor.parse(text).rank >= last
        copies.append(Copy(consumer, target, offset, is_past=is_past))
    return tuple(copies)


def _found(driver: Driver, topic: str, message: MessageID, first: _Rank, last: _Rank) -> int | None:
    """Find the offset of a message's copy, whose cursor lies between these ranks."""
    for number in range(driver.partition_counts([topic]).get(topic, 0)):
        partition = TopicPartition(topic, number)
        start = driver.log_start_offsets([partition])[partition]
        end = driver.last_stable_offsets([partition])[partition]
        low, high = start, end
        while low < high:
            middle = (low + high) // 2
            record = next(_records(driver, partition, middle, high), None)
            if record is None or _rank(record) >= first:
                high = middle
            else:
                low = record.offset + 1
        for record in _records(driver, partition, low, end):
            if _rank(record) > last:
                break
            if record.headers[-_OURS][1] == str(message).encode():
                return record.offset
    return None


def _records(driver: Driver, partition: TopicPartition, start: int, end: int) -> Iterator[Record]:
    for fetched in read_upto(driver, partition, start, end, error=TimedOut):
        yield from (record for record in fetched.records if start <= record.offset < end)


def _rank(record: Record) -> _Rank:
    """Give what grows with a copy's place; of what is no copy the least."""
    with suppress(AmcastError):
        if len(record.headers) >= _OURS:
            return Cursor.parse((record.headers[-1][1] or b"").decode(errors="replace")).rank
    return ()
