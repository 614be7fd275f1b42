"""Chooses the checkpoint from which an order stream is read, and those that are kept. No I/O.

All clients read and hold the checkpoints that collectors name, and all that are named go on
costing, so their number is bounded: each one has a *slot*, and replaces what is there.

    level    of a checkpoint, by the times when it and the collector's last one were named: 0 if
             both are in one interval of 2^16 ms, else the highest n such that they are in two
             intervals of 2^(15 + n) ms. So a checkpoint of level n or above is the first of its
             interval of 2^(15 + n) ms
    slot     of a level: the `SLOTS` last ones are kept, one in each interval of 2^(16 + n) ms

Invariant, with I for the longest time between two checkpoints: whoever needs a stream as it was a
time A ago finds a checkpoint that was named at most w + I earlier, for the least w = 2^(15 + n) ms
with (2 SLOTS - 2) w >= A + I. So w < (A + I) / (SLOTS - 1), or it is 2^16 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from multicast.order.stream import StreamCheckpoint

# The order topic keeps a quarter (and a day) more than messages live: the 1 / (SLOTS - 1) above.
SLOTS = 5
LEVELS = 26  # intervals of 2^41 ms, 70 years
_FINEST_BITS = 16  # a minute: what a stream gets in it is read in some seconds at any rate


def slot_of(now_ms: int, last_ms: int) -> tuple[int, int]:
    """Give level and slot of a checkpoint that is named now; `last_ms`: when one was named last.

    0 if that is not known. The clocks of two writers may differ: then a few more are replaced.
    """
    level = min(max(0, (now_ms ^ last_ms).bit_length() - _FINEST_BITS), LEVELS)
    return level, (now_ms >> level + _FINEST_BITS) % SLOTS


def best_checkpoint(
    checkpoints: Sequence[StreamCheckpoint], epoch: int, collector: str, below: int
) -> StreamCheckpoint | None:
    """Give the stream's last checkpoint below an offset; None if there is none.

    A reader that starts there reads every record from offset `below` on.
    """
    earlier = [
        point
        for point in checkpoints
        if point.epoch == epoch and point.collector == collector and point.offset < below
    ]
    return max(earlier, key=attrgetter("offset", "raw"), default=None)
