"""One Produce request for several Kafka partitions, over a plain socket to one broker.

`MultiProduce` encodes and decodes it; `SharedConnection` sends requests and hands the offsets of
the answers to a callback on its own thread. Its batches have a producer's ID and sequence numbers,
as those of librdkafka's idempotent producer. For measurements only: no TLS and no retries; any
error ends the connection.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from multicast.drivers.kafka_python.fetch_request import frame_size, written_text
from multicast.drivers.kafka_python.produce_request import PRODUCE_KEY, PRODUCE_VERSION
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError

_HEAD = Struct(">ihhi")
_COUNT = Struct(">i")
_SETTINGS = Struct(">hhi")  # no transaction, acks, timeout_ms
_PARTITION = Struct(">ii")
_BATCH_HEAD = Struct(">qiibI")
_BATCH = Struct(">hiqqqhii")
_ANSWERED = Struct(">ihqq")  # partition, error, offset, time
_UNCOUNTED = 12
_TIMEOUT_MS = 10_000
_CHUNK_BYTES = 1 << 16
_ATTEMPTS_MAX = 100
_RETRY_S = 0.1

_INIT_PRODUCER_ID_KEY = 22
_INIT_PRODUCER_ID = Struct(">hi")  # no transaction, its time-out
_PRODUCER_ID = Struct(">iiihqh")  # size, number, throttle, error, producer, epoch

Appends = Mapping[TopicPartition, Sequence[bytes]]
Stored = Mapping[TopicPartition, int]  # the offset of the first of the values


class ProducerIdentity(NamedTuple):
    """By which a broker knows a batch that it has stored already."""

    producer: int
    epoch: int


NO_IDENTITY = ProducerIdentity(-1, -1)


def written(
    number: int,
    appends: Appends,
    now_ms: int,
    identity: ProducerIdentity = NO_IDENTITY,
    sequences: Mapping[TopicPartition, int] | None = None,
) -> bytes:
    """Encode the request that appends these values to their partitions, with acks=all.

    `sequences` has the number of values that were sent to each partition before.
    """
    topics: dict[str, list[tuple[int, bytes]]] = {}
    for partition, values in appends.items():
        sequence = -1 if sequences is None else sequences.get(partition, 0)
        batch = _batch(values, now_ms, identity, sequence)
        topics.setdefault(partition.topic, []).append((partition.partition, batch))
    parts = [written_text(b"probe"), _SETTINGS.pack(-1, -1, _TIMEOUT_MS), _COUNT.pack(len(topics))]
    for topic, batches in topics.items():
        parts += [written_text(topic.encode()), _COUNT.pack(len(batches))]
        for place, batch in batches:
            parts += [_PARTITION.pack(place, len(batch)), batch]
    body = b"".join(parts)
    size = _HEAD.size - _COUNT.size + len(body)
    return _HEAD.pack(size, PRODUCE_KEY, PRODUCE_VERSION, number) + body


def answered(frame: bytes | bytearray) -> dict[TopicPartition, int]:
    """Decode an answer: the first offset in each partition. Raises `AmcastError` for an error."""
    stored: dict[TopicPartition, int] = {}
    _, _, topics = struct.unpack_from(">iii", frame)
    place = 12
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", frame, place)
        topic = bytes(frame[place + 2 : place + 2 + length]).decode()
        place += 2 + length
        (count,) = _COUNT.unpack_from(frame, place)
        place += _COUNT.size
        for _ in range(count):
            partition, error, offset, _ = _ANSWERED.unpack_from(frame, place)
            place += _ANSWERED.size
            if error:
                raise AmcastError(f"{topic}/{partition} refused an append: error code {error}")
            stored[TopicPartition(topic, partition)] = offset
    return stored


def _batch(
    values: Sequence[bytes], now_ms: int, identity: ProducerIdentity, sequence: int
) -> bytes:
    records = []
    for place, value in enumerate(values):
        body = b"\0\0" + _varint(place) + b"\1" + _varint(len(value)) + value + b"\0"
        records.append(_varint(len(body)) + body)
    count = len(values)
    head = _BATCH.pack(0, count - 1, now_ms, now_ms, *identity, sequence, count)
    content = head + b"".join(records)
    size = _BATCH_HEAD.size - _UNCOUNTED + len(content)
    return _BATCH_HEAD.pack(0, size, -1, 2, crc32c(content)) + content


def _varint(number: int) -> bytes:
    rest = number << 1
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


class _Request(NamedTuple):
    done: Callable[[Stored], None]


class SharedConnection:
    """One socket to a broker; requests may be sent from any thread, answers come on another."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.partition(",")[0].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lock = threading.Lock()
        self._number = 0
        self._identity = self._identified()
        self._sequences: dict[TopicPartition, int] = {}
        self._socket.settimeout(None)
        self._in_flight: deque[_Request] = deque()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._read, name="shared-connection", daemon=True)
        self._thread.start()

    def send(self, appends: Appends, done: Callable[[Stored], None]) -> None:
        """Send a request; `done` gets the offsets on the connection's thread."""
        with self._lock:
            if self.error is not None:
                raise AmcastError(f"the connection has ended: {self.error}")
            self._number += 1
            self._in_flight.append(_Request(done))
            now_ms = time.time_ns() // 1_000_000
            frame = written(self._number, appends, now_ms, self._identity, self._sequences)
            self._socket.sendall(frame)
            for partition, values in appends.items():
                self._sequences[partition] = self._sequences.get(partition, 0) + len(values)

    def close(self) -> None:
        """End the connection and its thread."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5.0)
        self._socket.close()

    def _identified(self) -> ProducerIdentity:
        """Ask for a producer's ID; the coordinator of a new broker may load for a while."""
        for _ in range(_ATTEMPTS_MAX):
            body = written_text(b"probe") + _INIT_PRODUCER_ID.pack(-1, _TIMEOUT_MS)
            size = _HEAD.size - _COUNT.size + len(body)
            self._socket.sendall(_HEAD.pack(size, _INIT_PRODUCER_ID_KEY, 0, 0) + body)
            answer = bytearray()
            while len(answer) < _PRODUCER_ID.size:
                chunk = self._socket.recv(_PRODUCER_ID.size - len(answer))
                if not chunk:
                    raise AmcastError("the broker closed the connection")
                answer += chunk
            *_, error, producer, epoch = _PRODUCER_ID.unpack(answer)
            if not error:
                return ProducerIdentity(producer, epoch)
            threading.Event().wait(_RETRY_S)
        raise AmcastError(f"the broker gives no producer's ID: error code {error}")

    def _read(self) -> None:
        received = bytearray()
        try:
            while chunk := self._socket.recv(_CHUNK_BYTES):
                received += chunk
                while (size := frame_size(received)) is not None and size <= len(received):
                    stored = answered(received)
                    del received[:size]
                    self._in_flight.popleft().done(stored)
        except (OSError, AmcastError) as error:
            self.error = error
