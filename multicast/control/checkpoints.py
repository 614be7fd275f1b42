"""Which checkpoint a stream is opened at."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from multicast.order import Checkpoint


def best_checkpoint(
    checkpoints: Sequence[Checkpoint], epoch: int, collector: str, below: int
) -> Checkpoint | None:
    """Pick the checkpoint to start from so as to read every record from offset `below` on."""
    fitting = [
        point
        for point in checkpoints
        if point.epoch == epoch and point.collector == collector and point.offset < below
    ]
    return max(fitting, key=attrgetter("offset"), default=None)
