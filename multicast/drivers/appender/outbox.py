"""Decides which entries go in the next request to a broker. No I/O, no clock.

Entries that were given together have one group number. A request takes whole groups, in their
order, as long as they fit; only a group that is larger than a batch is divided.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice

from multicast.drivers.appender.entries import QueuedEntry
from multicast.drivers.appender.partition_appends import PartitionAppends


def first_groups(fresh: Sequence[PartitionAppends], room: int) -> dict[PartitionAppends, int]:
    """Return how many entries of each queue fit in one request with `room` bytes for records.

    The first group is always among them. `fresh` are partitions that may send records now.
    """
    counts = {}
    whole, total = True, 0
    for appends in fresh:
        counts[appends] = appends.fitting()
        whole = whole and counts[appends] == len(appends.queue)
        total += appends.queue_bytes
    if whole and total <= room:
        return counts
    if len(fresh) == 1 and not whole and room >= appends.batch_bytes_max:
        count = counts[appends]
        if appends.queue[count - 1].number != appends.queue[count].number:
            return counts  # whole groups
    # This group does not fit in the batch of its partition, or does not fit whole.
    divided = min(
        (
            appends.queue[count].number
            for appends, count in counts.items()
            if count < len(appends.queue)
        ),
        default=None,
    )
    first = min(appends.queue[0].number for appends in fresh)
    taken = dict.fromkeys(fresh, 0)
    total = 0
    current = None
    queues = [_queue(appends, counts[appends]) for appends in fresh]
    for number, appends, entry in heapq.merge(*queues, key=lambda queued: queued[0]):
        if number != first and divided is not None and number >= divided:
            break
        if number != current:
            if total and total + entry.group_bytes > room:
                break
            current = number
        taken[appends] += 1
        total += entry.size
    return {appends: count for appends, count in taken.items() if count}


def _queue(
    appends: PartitionAppends, count: int
) -> Iterator[tuple[int, PartitionAppends, QueuedEntry]]:
    for entry in islice(appends.queue, count):
        yield entry.number, appends, entry
