"""Cuts the messages of a chain into batches, by count and by bytes; not by time.

`BlockCutter` takes the messages in their order, each with its size, and returns the batches that
each one completes. No I/O, no clock. Fabric's rules:

    1  a message of more than `bytes_preferred` ends the pending batch, and is a batch of its own
    2  a message that would take the pending bytes above `bytes_preferred` ends the pending batch,
       and is the first of the next
    3  the `messages_max`-th pending message ends the batch, as its last message

and one of ours: a message with which the block would have more than `BLOCK_BYTES_MAX` in all ends
the pending batch, too, whatever the config allows.

Invariants: the batches, one after the other, are the messages in their order;
1 <= messages of a batch <= `messages_max`; a batch of more than `bytes_preferred`, or of more than
`BLOCK_BYTES_MAX` in all, has one message; a message completes two batches at most, and nothing is
pending after two.
"""

from __future__ import annotations

from dataclasses import dataclass

# The bytes of a block's messages and of what its metadata say of each. Readers take no answer of
# more than 100 MiB (`api/services.py`); the rest is for header, signatures and heads of sets.
BLOCK_BYTES_MAX = 96 << 20


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is full. Raises `ValueError` for a limit below 1."""

    messages_max: int
    bytes_preferred: int

    def __post_init__(self) -> None:
        if self.messages_max < 1 or self.bytes_preferred < 1:
            raise ValueError(f"a batch must have room for a message: {self}")


Batch = tuple[bytes, ...]


class BlockCutter:
    """The pending messages of a chain. Limits come with each message: a config changes them."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._bytes = self._whole = 0

    @property
    def pending(self) -> int:
        """How many messages wait for the end of their batch."""
        return len(self._pending)

    def ordered(
        self, message: bytes, size: int, limits: BatchLimits, *, whole: int = 0
    ) -> tuple[tuple[Batch, ...], bool]:
        """Take the next message. Gives the batches that it ends, and whether any is pending.

        Where it gives one batch and a message is pending, this message is the pending one.
        `whole`: the bytes of the block that are for it, with those that the metadata say of it.
        """
        batches: list[Batch] = []
        oversized = size > limits.bytes_preferred
        too_many = self._bytes + size > limits.bytes_preferred
        if self._pending and (too_many or self._whole + whole > BLOCK_BYTES_MAX):
            batches.append(self.cut())
        self._pending.append(message)
        self._bytes += size
        self._whole += whole
        if oversized or len(self._pending) >= limits.messages_max:
            batches.append(self.cut())
        assert len(batches) < 2 or not self._pending
        return tuple(batches), bool(self._pending)

    def cut(self) -> Batch:
        """End the batch here. Gives the pending messages, maybe none."""
        batch = tuple(self._pending)
        self._pending = []
        self._bytes = self._whole = 0
        return batch
