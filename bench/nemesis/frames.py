"""Kafka's frames, and which of them a rule means.

In go the bytes of a connection, in any pieces; out come whole frames, and of a request what stands
in its head. No socket and no clock may live here: `proxy.py` reads and writes.

    frame     four bytes that give a size, then so many bytes
    request   a frame from a client; its head names the call (`Api`), its version, its number and
              the client. What follows the head is not read, but a rule may ask for bytes in it
    answer    a frame from a broker; it begins with the number of its request

Invariant: what is kept between two pieces is less than one frame, and so at most `FRAME_BYTES_MAX`.
A peer that speaks something else (TLS, HTTP) gives a size beyond that in its first four bytes.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, field

from multicast.errors import ProtocolViolation, UsageError

# Kafka's own bound of a request (socket.request.max.bytes); its answers stay below it, too.
FRAME_BYTES_MAX = 100 * 1024 * 1024
_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">ihhih")  # size, key, version, number, length of the client's name
_NUMBER = struct.Struct(">ii")  # size, number


class Api(enum.IntEnum):
    """The calls that a rule can name, by their keys in Kafka's protocol."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


class Action(enum.Enum):
    """What is done to a request that a rule catches.

    In all of them the requests behind it on its connection stay behind it, as with TCP.
    """

    DELAY = "delay"  # the broker gets it later: after `delay_s`, or when it is released
    DOUBLE = "double"  # the broker gets it twice in a row; its second answer reaches nobody
    CUT = "cut"  # the connection breaks, and the broker never gets it
    LOSE_ANSWER = (
        "lose answer"  # the broker carries it out; the connection breaks instead of an answer
    )
    HOLD_ANSWER = "hold answer"  # carried out; the answer, and all behind it, comes as with DELAY
    STRAND = "strand"  # the connection breaks at once, and the broker gets it later, as with DELAY


_LATE = (Action.DELAY, Action.HOLD_ANSWER, Action.STRAND)


@dataclass(frozen=True, slots=True)
class RequestFrame:
    """A request: the frame as it came and what its head says; `frame` includes the size.

    `api` is the key as a number: a client may use calls that `Api` does not name.
    """

    broker: int
    api: int
    version: int
    number: int
    client_id: str
    frame: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFault:
    """One fault at one request.

    `nth`         which of the requests that fit, from 1 on; None: every one
    `delay_s`     with DELAY, HOLD_ANSWER and STRAND: seconds; None: until it is released
    `broker`      the number of the broker; None: any
    `client_id`   as the client gives it; None: any
    `contains`    bytes that stand in the request, such as the name of a topic
    """

    api: Api
    action: Action
    nth: int | None = 1
    delay_s: float | None = None
    broker: int | None = None
    client_id: str | None = None
    contains: bytes = b""

    def __post_init__(self) -> None:
        if self.nth is not None and self.nth < 1:
            raise UsageError(f"requests are counted from 1 on, not from {self.nth}")
        if self.delay_s is not None and (self.delay_s < 0 or self.action not in _LATE):
            raise UsageError(f"{self.action.value} with a delay of {self.delay_s} s has no meaning")

    def fits(self, request: RequestFrame) -> bool:
        """Say whether this request counts for the rule."""
        return (
            request.api == self.api
            and self.broker in (None, request.broker)
            and self.client_id in (None, request.client_id)
            and self.contains in request.frame
        )


class Frames:
    """Cuts one direction of one connection into frames."""

    def __init__(self, *, size_max: int = FRAME_BYTES_MAX) -> None:
        self._size_max = size_max
        self._begun = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes; return the frames that are whole now, each with its size in front.

        Raises `ProtocolViolation` for a size that no frame has; then nothing more can be read.
        """
        self._begun += piece
        found = []
        start = 0
        while (end := self._end(start)) is not None and end <= len(self._begun):
            found.append(bytes(self._begun[start:end]))
            start = end
        del self._begun[:start]
        return found

    def kept(self) -> int:
        """Return the number of bytes that wait for the rest of their frame."""
        return len(self._begun)

    def _end(self, start: int) -> int | None:
        if len(self._begun) - start < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(self._begun, start)
        if not _SIZE.size <= size <= self._size_max:
            raise ProtocolViolation(f"A frame of {size} bytes was announced.")
        return int(start + _SIZE.size + size)


def read_request(frame: bytes, *, broker: int) -> RequestFrame:
    """Read a request's head; raises `ProtocolViolation` where there is none."""
    if len(frame) < _HEAD.size:
        raise ProtocolViolation(f"A request of {len(frame)} bytes has no head.")
    _, api, version, number, length = _HEAD.unpack_from(frame)
    if length > len(frame) - _HEAD.size:
        raise ProtocolViolation(f"A client's name of {length} bytes does not fit its request.")
    name = frame[_HEAD.size : _HEAD.size + max(0, length)]  # -1: none
    return RequestFrame(broker, api, version, number, name.decode(errors="replace"), frame)


def number_of_answer(frame: bytes) -> int:
    """Return the number of the request that an answer is for."""
    return int(_NUMBER.unpack_from(frame)[1])
