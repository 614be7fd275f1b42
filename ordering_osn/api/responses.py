"""Encode and decode BroadcastResponse and DeliverResponse around a serialized block.

A block is sent with the bytes of the ledger, not parsed and serialized again. Both messages have
the status in field 1 (a varint); field 2 holds the info (Broadcast) or the block (Deliver).

No I/O, no clock.
"""

from __future__ import annotations

from ordering_osn.api.channels import Status

_STATUS = b"\x08"  # field 1, varint
_SECOND = b"\x12"  # field 2, length-delimited


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _read_varint(raw: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = raw[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position


def status_answer(status: int, info: str = "") -> bytes:
    """Encode Broadcast's answer; without info also the one that ends a Deliver request."""
    text = info.encode()
    answer = _STATUS + _varint(status)
    return answer + _SECOND + _varint(len(text)) + text if text else answer


def block_answer(block: bytes) -> bytes:
    """Encode Deliver's answer that holds a serialized block."""
    return b"".join((_SECOND, _varint(len(block)), block))


def read_status(answer: bytes) -> tuple[int, str]:
    """Return the status and info of a BroadcastResponse; raises `ValueError`."""
    status, position, info = 0, 0, b""
    try:
        if answer[:1] == _STATUS:
            status, position = _read_varint(answer, 1)
        if answer[position : position + 1] == _SECOND:
            length, position = _read_varint(answer, position + 1)
            info = answer[position : position + length]
    except IndexError as error:
        raise ValueError("the answer ends within a varint") from error
    return status, info.decode(errors="replace")


def read_answer(answer: bytes) -> bytes | int:
    """Return the block (bytes) or the status (int) of a DeliverResponse; raises `ValueError`."""
    if answer[:1] != _SECOND:
        return read_status(answer)[0]
    try:
        length, position = _read_varint(answer, 1)
    except IndexError as error:
        raise ValueError("the answer ends within a varint") from error
    if len(answer) - position != length:
        raise ValueError(
            f"the answer declares a block of {length} bytes and holds {len(answer) - position}"
        )
    return answer[position:]


SUCCESS = status_answer(Status.SUCCESS)
