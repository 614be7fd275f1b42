"""Where a block ends: by count, by bytes. Time is not its business.

Goes in: the messages of a chain, in their order, each with its size. Comes out: the batches that
this message completes, and whether anything waits for more. No I/O, no clock. Fabric's rules:

    1  a message above `bytes_preferred` ends what is pending and is a batch of its own
    2  a message with which the pending bytes would pass `bytes_preferred` ends what is pending,
       and waits
    3  the `messages_max`-th pending message ends the batch, itself within

Invariants: the batches, put one after the other, are the messages that went in, in their order; no
batch is empty or has more than `messages_max` messages; one of more than `bytes_preferred` has one
message. A message completes two batches at most, and where it completes two, nothing is pending.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is full. Raises `ValueError` where a limit would never let a message in."""

    messages_max: int
    bytes_preferred: int

    def __post_init__(self) -> None:
        if self.messages_max < 1 or self.bytes_preferred < 1:
            raise ValueError(f"a batch needs room for a message: {self}")


Batch = tuple[bytes, ...]


class BlockCutter:
    """The pending messages of a chain. Limits come with each message: a config moves them."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._bytes = 0

    @property
    def pending(self) -> int:
        """How many messages wait for their batch to end."""
        return len(self._pending)

    def ordered(
        self, message: bytes, size: int, limits: BatchLimits
    ) -> tuple[tuple[Batch, ...], bool]:
        """Take the next message. Gives the batches that it ends, and whether anything is pending.

        Where one batch comes back and something is pending, the message is not in the batch.
        """
        batches: list[Batch] = []
        alone = size > limits.bytes_preferred
        if self._pending and self._bytes + size > limits.bytes_preferred:
            batches.append(self.cut())
        self._pending.append(message)
        self._bytes += size
        if alone or len(self._pending) >= limits.messages_max:
            batches.append(self.cut())
        assert len(batches) < 2 or not self._pending
        return tuple(batches), bool(self._pending)

    def cut(self) -> Batch:
        """End the batch here. Gives what was pending: nothing, where nothing was."""
        batch = tuple(self._pending)
        self._pending = []
        self._bytes = 0
        return batch


class FillTimes:
    """How long the blocks took to fill, from their first message to their cut, in seconds."""

    def __init__(self) -> None:
        self._filling: int | None = None
        self._since = 0.0

    def observe(self, cut: Iterable[int], filling: int | None, now: float) -> tuple[float, ...]:
        """Tell what a record came to: the blocks cut, and the one that has messages pending.

        Gives the time of each block cut; 0 for one that never waited. A config's block is not told:
        no cutter cuts it.
        """
        took = tuple(now - self._since if block == self._filling else 0.0 for block in cut)
        if filling != self._filling:
            self._filling, self._since = filling, now
        return took
