"""Encode and decode BroadcastResponse and DeliverResponse around a serialized block.

A block is sent with the bytes of the ledger, not parsed and serialized again. Both messages have
the status in field 1 (a number); field 2 holds the info (Broadcast) or the block (Deliver).

No I/O, no clock.
"""

from __future__ import annotations

from typing import Any

from ordering_osn.api.channels import Status
from ordering_osn.chain.bundles.wire_format import (
    NUMBER,
    OCTETS,
    bytes_field,
    known_once,
    message_field,
    number_field,
)

_STATUS, _SECOND = 1, 2
_FIELDS = {_STATUS: NUMBER, _SECOND: OCTETS}


def status_answer(status: int, info: str = "") -> bytes:
    """Encode Broadcast's answer; without info also the one that ends a Deliver request."""
    return number_field(_STATUS, status) + bytes_field(_SECOND, info.encode())


def block_answer(block: bytes) -> bytes:
    """Encode Deliver's answer that holds a serialized block."""
    return message_field(_SECOND, block)


def read_status(answer: bytes) -> tuple[int, str]:
    """Return the status and info of a BroadcastResponse; raises `ValueError`."""
    read: dict[int, Any] = known_once(answer, _FIELDS, "the answer")
    return read.get(_STATUS, 0), str(read.get(_SECOND, b""), "utf-8", "replace")


def read_answer(answer: bytes) -> bytes | int:
    """Return the block (bytes) or the status (int) of a DeliverResponse; raises `ValueError`."""
    read: dict[int, Any] = known_once(answer, _FIELDS, "the answer")
    if _SECOND in read and _STATUS not in read:
        return bytes(read[_SECOND])
    status: int = read.get(_STATUS, 0)
    return status


SUCCESS = status_answer(Status.SUCCESS)
