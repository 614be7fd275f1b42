"""Chooses the checkpoint from which an order stream is read."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TypeVar

from multicast.control.streams import AnyCheckpoint

_Point = TypeVar("_Point", bound=AnyCheckpoint)


def best_checkpoint(
    checkpoints: Sequence[_Point], epoch: int, collector: str, below: int
) -> _Point | None:
    """Give the stream's last checkpoint below an offset; None if there is none.

    A reader that starts there reads every record from offset `below` on.
    """
    earlier = [
        point
        for point in checkpoints
        if point.epoch == epoch and point.collector == collector and point.offset < below
    ]
    return max(earlier, key=attrgetter("offset"), default=None)
