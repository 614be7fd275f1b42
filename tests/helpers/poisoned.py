"""Records that no client library writes, written to a broker byte by byte."""

import socket
from struct import Struct

from crc32c import crc32c

from multicast.drivers.kafka.appender.request import answered, settings, written
from multicast.drivers.kafka.fetch_request import frame_size
from tests.helpers.system import until

BATCH = Struct(">hiqqqhii")  # attributes, last delta, two times, producer, epoch, sequence, count
NOW_MS = 1_600_000_000_000
UNKNOWN_TOPIC, NO_LEADER_HERE = 3, 6  # error codes of Kafka's protocol


def varint(number):
    rest = number << 1 ^ number >> 63
    written = bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*written, rest])


def nullable(raw):
    return varint(-1) if raw is None else varint(len(raw)) + raw


def record(delta, value, headers=(), *, attributes=0):
    """One record with its length."""
    body = bytes([attributes]) + varint(0) + varint(delta) + nullable(None) + nullable(value)
    body += varint(len(headers))
    body += b"".join(nullable(name) + nullable(of) for name, of in headers)
    return varint(len(body)) + body


def batch(records):
    content = BATCH.pack(0, len(records) - 1, NOW_MS, NOW_MS, -1, -1, -1, len(records))
    content += b"".join(records)
    head = Struct(">qiibI").pack(0, 9 + len(content), -1, 2, crc32c(content))
    return head + content


def append(bootstrap, partition, records):
    """Append a batch to a Kafka partition of the one broker; give its error code and the offset.

    A broker names itself the leader of a new partition shortly before it serves it: until then it
    refuses, and the batch is sent again.
    """
    answers = []

    def served():
        answers.append(_append(bootstrap, partition, records))
        return answers[-1][0] not in {UNKNOWN_TOPIC, NO_LEADER_HERE}

    until(served, f"a leader of {partition}")
    return answers[-1]


def _append(bootstrap, partition, records):
    common = settings("stranger", timeout_ms=10_000)
    frame = b"".join(written(1, common, [(partition, batch(records))]))
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as opened:
        opened.sendall(frame)
        answer = b""
        while (size := frame_size(answer)) is None or len(answer) < size:
            chunk = opened.recv(65536)
            assert chunk, "the broker closed the connection"
            answer += chunk
    return answered(answer, 1)[partition]
