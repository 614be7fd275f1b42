"""Cuts a connection's bytes into Kafka frames, and matches requests against fault rules.

`Frames` takes bytes in pieces of any size and returns complete frames; `read_request` reads a
request's header. No socket and no clock is used here: `proxy.py` reads and writes.

    frame     a size in four bytes, then that many bytes
    request   a frame from a client; its header holds the API key (`Api`), the version, the
              correlation ID and the client ID. The body is not parsed, but a rule may search it
    answer    a frame from a broker; it begins with the correlation ID of its request

Invariant: bytes kept between two pieces < one frame <= `FRAME_BYTES_MAX`. The first four bytes of
other protocols (TLS, HTTP) give a greater size.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, field

from multicast.errors import ProtocolViolation

# Kafka's bound of a request (default of socket.request.max.bytes); answers are smaller, too.
FRAME_BYTES_MAX = 100 * 1024 * 1024
_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">ihhih")  # size, API key, version, correlation ID, length of the client ID
_NUMBER = struct.Struct(">ii")  # size, correlation ID


class Api(enum.IntEnum):
    """The requests that a rule can name, by their API keys in Kafka's protocol."""

    PRODUCE = 0
    FETCH = 1
    METADATA = 3
    OFFSET_COMMIT = 8
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


class Action(enum.Enum):
    """What happens to a request that a rule catches.

    Later requests of the same connection are never processed before it, as with TCP.
    """

    DELAY = "delay"  # the broker gets it later: after `delay_s`, or when it is released
    DOUBLE = "double"  # the broker gets it twice in a row; the second answer is dropped
    CUT = "cut"  # the connection breaks, and the broker never gets it
    LOSE_ANSWER = "lose answer"  # the broker executes it; the connection breaks without an answer
    HOLD_ANSWER = "hold answer"  # the broker executes it; this and later answers come late
    STRAND = "strand"  # the connection breaks at once, and the broker gets it later, as with DELAY


_LATE = (Action.DELAY, Action.HOLD_ANSWER, Action.STRAND)


@dataclass(frozen=True, slots=True)
class RequestFrame:
    """A request: its header fields and the frame as received; `frame` includes the size.

    `api` is an integer, because clients also send requests that `Api` does not name.
    """

    broker: int
    api: int
    version: int
    number: int
    client_id: str
    frame: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFault:
    """A rule: which requests to catch, and what to do with them.

    `nth`         which of the matching requests, from 1 on; None: every one
    `delay_s`     with DELAY, HOLD_ANSWER and STRAND: seconds; None: until it is released
    `broker`      the number of the broker; None: any
    `client_id`   the client ID; None: any
    `contains`    bytes that the request contains, such as the name of a topic
    """

    api: Api
    action: Action
    nth: int | None = 1
    delay_s: float | None = None
    broker: int | None = None
    client_id: str | None = None
    contains: bytes = b""

    def __post_init__(self) -> None:
        assert self.nth is None or self.nth >= 1, "requests are counted from 1 on"
        assert self.delay_s is None or (self.delay_s >= 0 and self.action in _LATE)

    def fits(self, request: RequestFrame) -> bool:
        """Whether the rule matches this request."""
        return (
            request.api == self.api
            and self.broker in (None, request.broker)
            and self.client_id in (None, request.client_id)
            and self.contains in request.frame
        )


class Frames:
    """Cuts one direction of one connection into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes; return the frames that are complete now, including their sizes.

        Raises `ProtocolViolation` for an impossible size; then nothing more can be read.
        """
        self._buffer += piece
        whole = []
        start = 0
        while (end := self._end(start)) is not None and end <= len(self._buffer):
            whole.append(bytes(self._buffer[start:end]))
            start = end
        del self._buffer[:start]
        return whole

    def _end(self, start: int) -> int | None:
        if len(self._buffer) - start < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(self._buffer, start)
        if not _SIZE.size <= size <= FRAME_BYTES_MAX:
            raise ProtocolViolation(
                f"A frame announces {size} bytes; frames have at most {FRAME_BYTES_MAX}."
            )
        return int(start + _SIZE.size + size)


def read_request(frame: bytes, *, broker: int) -> RequestFrame:
    """Read a request's header; raises `ProtocolViolation` if there is none."""
    if len(frame) < _HEAD.size:
        raise ProtocolViolation(f"A request of {len(frame)} bytes has no header.")
    _, api, version, number, length = _HEAD.unpack_from(frame)
    if length > len(frame) - _HEAD.size:
        raise ProtocolViolation(f"A client ID of {length} bytes is longer than its request.")
    name = frame[_HEAD.size : _HEAD.size + max(0, length)]  # -1: none
    return RequestFrame(broker, api, version, number, name.decode(errors="replace"), frame)


def number_of_answer(frame: bytes) -> int:
    """Return the correlation ID of an answer."""
    return int(_NUMBER.unpack_from(frame)[1])
