"""The other candidate: a collector pushes each order record to consumers once it is stored.

    python -m bench.tickets.pushing PORT KEY collectors run …

runs today's collectors, and sends each order record, when its append is acknowledged, as a datagram
to PORT on the loopback. `PushedDriver` hands it to a consumer as if its fetch had returned it, but
only in offset order and with a right code (keyed BLAKE2b over offset and record). A lost datagram
costs time: the fetch still brings the record.
"""

from __future__ import annotations

import hashlib
import hmac
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from multicast.cli.main import main
from multicast.drivers.kafka_python.direct_appender import KafkaPythonDirectAppender
from multicast.drivers.protocol import (
    POLL_RECORDS_MAX,
    Appended,
    AppendOutcome,
    Driver,
    Fetched,
    Reader,
    Record,
    TopicPartition,
)

ORDER_SUFFIX = ".Msg-TO"
_CODE_BYTES = 16
_OFFSET = struct.Struct(">Q")
_DATAGRAM_MAX = 65536
_WAIT_S = 0.005  # between two looks at the fetch, for what no datagram brought


def _code(key: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(content, key=key, digest_size=_CODE_BYTES).digest()


def push_acknowledged(port: int, key: bytes) -> None:
    """Let each direct append of this process to an order stream push its record once stored."""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    append = KafkaPythonDirectAppender.append

    def pushing(
        self: KafkaPythonDirectAppender,
        partition: TopicPartition,
        value: bytes,
        *,
        done: Callable[[AppendOutcome], None],
    ) -> bool:
        def stored(outcome: AppendOutcome) -> None:
            if isinstance(outcome, Appended) and partition.topic.endswith(ORDER_SUFFIX):
                content = _OFFSET.pack(outcome.offset) + value
                sender.sendto(_code(key, content) + content, ("127.0.0.1", port))
            done(outcome)

        return append(self, partition, value, done=stored)

    KafkaPythonDirectAppender.append = pushing  # type: ignore[method-assign]


class PushedReader:
    """A reader that also takes pushed records of one order stream."""

    def __init__(self, inner: Reader, pushed: socket.socket, key: bytes) -> None:
        self._inner = inner
        self._socket = pushed
        self._key = key
        self._order: TopicPartition | None = None
        self._position = 0
        self._early: dict[int, bytes] = {}
        self.wake = inner.wake
        self.remove = inner.remove
        self.pause = inner.pause
        self.resume = inner.resume

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        """Start to read; an order stream is also taken from datagrams."""
        self._inner.add(starts)
        for partition, start in starts.items():
            if partition.topic.endswith(ORDER_SUFFIX):
                self._order, self._position = partition, start

    def poll(self, timeout_s: float, records_max: int = POLL_RECORDS_MAX) -> list[Fetched]:
        """Wait for records, pushed or fetched."""
        if self._order is None:
            return self._inner.poll(timeout_s, records_max)
        deadline = time.monotonic() + timeout_s
        while True:
            pushed = self._pushed(self._order)
            if pushed is not None:
                return [pushed]
            fetched = [self._new(part) for part in self._inner.poll(0.0, records_max)]
            if any(part.records for part in fetched):
                return [part for part in fetched if part.records]
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return []
            select.select([self._socket], [], [], min(left_s, _WAIT_S))

    def close(self) -> None:
        """Close the reader."""
        self._inner.close()

    def _new(self, part: Fetched) -> Fetched:
        if part.partition != self._order:
            return part
        records = [record for record in part.records if record.offset >= self._position]
        self._position = max(self._position, part.position)
        return Fetched(part.partition, records, self._position)

    def _pushed(self, order: TopicPartition) -> Fetched | None:
        while True:
            try:
                datagram = self._socket.recv(_DATAGRAM_MAX)
            except BlockingIOError:
                break
            code, content = datagram[:_CODE_BYTES], datagram[_CODE_BYTES:]
            if hmac.compare_digest(code, _code(self._key, content)):
                (offset,) = _OFFSET.unpack_from(content)
                self._early[offset] = content[_OFFSET.size :]
        records = []
        while (raw := self._early.pop(self._position, None)) is not None:
            records.append(Record(self._position, raw))
            self._position += 1
        for offset in [offset for offset in self._early if offset < self._position]:
            del self._early[offset]
        return Fetched(order, records, self._position) if records else None


class PushedDriver:
    """A driver whose readers take pushed records."""

    def __init__(self, inner: Driver, port: int, key: bytes) -> None:
        self._inner = inner
        self._key = key
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", port))
        self._socket.setblocking(False)

    def reader(self, starts: Mapping[TopicPartition, int]) -> PushedReader:
        """Open a reader that takes pushed records, too."""
        made = PushedReader(self._inner.reader({}), self._socket, self._key)
        made.add(starts)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def run(arguments: Sequence[str]) -> None:
    """Run `amcast` with these arguments after the port and the key."""
    push_acknowledged(int(arguments[0]), bytes.fromhex(arguments[1]))
    sys.argv = ["amcast", *arguments[2:]]
    main()


if __name__ == "__main__":
    run(sys.argv[1:])
