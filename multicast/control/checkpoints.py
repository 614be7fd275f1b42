"""Chooses the checkpoint from which an order stream is read."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from multicast.order import Checkpoint


def best_checkpoint(
    checkpoints: Sequence[Checkpoint], epoch: int, collector: str, below: int
) -> Checkpoint | None:
    """Give the stream's last checkpoint below an offset; None if there is none.

    A reader that starts there reads every record from offset `below` on.
    """
    earlier = [
        point
        for point in checkpoints
        if point.epoch == epoch and point.collector == collector and point.offset < below
    ]
    return max(earlier, key=attrgetter("offset"), default=None)
