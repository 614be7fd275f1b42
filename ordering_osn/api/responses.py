"""Encode and decode BroadcastResponse and DeliverResponse around a serialized block.

A block is sent with the bytes of the ledger, not parsed and serialized again. Both messages have
the status in field 1 (a number); field 2 holds the info (Broadcast) or the block (Deliver).

No I/O, no clock.
"""

from __future__ import annotations

from ordering_osn.api.channels import Status
from ordering_osn.chain.bundles.wire_format import (
    bytes_field,
    fields,
    message_field,
    number_field,
    octets,
    whole,
)

_STATUS, _SECOND = 1, 2


def status_answer(status: int, info: str = "") -> bytes:
    """Encode Broadcast's answer; without info also the one that ends a Deliver request."""
    return number_field(_STATUS, status) + bytes_field(_SECOND, info.encode())


def block_answer(block: bytes) -> bytes:
    """Encode Deliver's answer that holds a serialized block."""
    return message_field(_SECOND, block)


def read_status(answer: bytes) -> tuple[int, str]:
    """Return the status and info of a BroadcastResponse; raises `ValueError`."""
    read = dict(fields(answer, "the answer"))
    status = whole(read.get(_STATUS, 0), "the status")
    return status, str(octets(read.get(_SECOND, memoryview(b"")), "the info"), "utf-8", "replace")


def read_answer(answer: bytes) -> bytes | int:
    """Return the block (bytes) or the status (int) of a DeliverResponse; raises `ValueError`."""
    read = dict(fields(answer, "the answer"))
    if _SECOND in read and _STATUS not in read:
        return bytes(octets(read[_SECOND], "the block"))
    return whole(read.get(_STATUS, 0), "the status")


SUCCESS = status_answer(Status.SUCCESS)
