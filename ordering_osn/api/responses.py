"""The bytes of answers: BroadcastResponse and DeliverResponse, written and read without a copy.

A block is sent as the bytes that stand in the ledger: nothing is parsed and serialized again. Both
messages have the status in field 1 (a varint); in field 2 stand the info, or the block.

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
    """Broadcast's answer; without info also Deliver's last one to a request."""
    text = info.encode()
    answer = _STATUS + _varint(status)
    return answer + _SECOND + _varint(len(text)) + text if text else answer


def block_answer(block: bytes) -> bytes:
    """Deliver's answer that holds a serialized block."""
    return b"".join((_SECOND, _varint(len(block)), block))


def read_status(answer: bytes) -> tuple[int, str]:
    """Give the status and info of a BroadcastResponse; raises `ValueError`."""
    status, position, info = 0, 0, b""
    try:
        if answer[:1] == _STATUS:
            status, position = _read_varint(answer, 1)
        if answer[position : position + 1] == _SECOND:
            length, position = _read_varint(answer, position + 1)
            info = answer[position : position + length]
    except IndexError as error:
        raise ValueError("the answer ends in the middle of a number") from error
    return status, info.decode(errors="replace")


def read_answer(answer: bytes) -> bytes | int:
    """Give the block (as bytes) or the status of a DeliverResponse; raises `ValueError`."""
    if answer[:1] != _SECOND:
        return read_status(answer)[0]
    try:
        length, position = _read_varint(answer, 1)
    except IndexError as error:
        raise ValueError("the answer ends in the middle of a number") from error
    if len(answer) - position != length:
        raise ValueError(
            f"the answer says {length} bytes of block and has {len(answer) - position}"
        )
    return answer[position:]


SUCCESS = status_answer(Status.SUCCESS)
