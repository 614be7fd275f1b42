"""What is handed out besides a batch that cannot be read is not lost."""

import gzip
import tracemalloc
from types import SimpleNamespace

import pytest
from kafka.codec import snappy
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.util import calc_crc32c

from multicast.drivers.home_process import HomeProcess
from multicast.drivers.kafka import codecs
from multicast.drivers.kafka import reader as reader_module
from multicast.drivers.kafka import records as records_module
from multicast.drivers.kafka.column_reader import KafkaPythonColumnReader
from multicast.drivers.kafka.reader import KafkaPythonReader
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError, ProtocolViolation, Trimmed

FIRST, SECOND = TopicPartition("A", 0), TopicPartition("B", 0)
MAGIC, LARGE = 2, 1 << 30
CRC = slice(17, 21)  # in a batch; it covers all that follows


class NoFetching:
    """Fetches nothing: the test hands the answers to the reader."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, _):
        return lambda *_: None


def batch(base, *values, malformed=False, codec=0):
    builder = DefaultRecordBatchBuilder(MAGIC, codec, False, -1, -1, -1, LARGE)
    for place, value in enumerate(values):
        builder.append(place, 0, None, value, [])
    raw = bytearray(builder.build())
    raw[:8] = base.to_bytes(8, "big")
    if malformed:
        raw[DefaultRecordBatch.HEADER_STRUCT.size] ^= 2  # the length of its first record
        raw[CRC] = calc_crc32c(raw[CRC.stop :]).to_bytes(4, "big")
    return bytes(raw)


@pytest.fixture(params=[KafkaPythonReader, KafkaPythonColumnReader])
def reader(request, monkeypatch):
    monkeypatch.setattr(reader_module, "Fetching", NoFetching)
    connection = SimpleNamespace(
        close=lambda: None,
        run=lambda _, wanted: dict.fromkeys(wanted, 6),
        leaders=None,
        list_offsets=None,
        home=HomeProcess("client"),
    )
    made = request.param(lambda: connection, {FIRST: 0, SECOND: 0})
    yield made
    made.close()


def answer(reader, partition, *batches):
    fetched = SimpleNamespace(records=b"".join(batches), aborted_transactions=[])
    reader.fetched(partition, fetched)


def polled(reader):
    return [
        (partition, [record.value for record in records], position)
        for partition, records, position in reader.poll(0)
    ]


def test_records_of_another_partition_are_handed_out_before_the_error(reader):
    answer(reader, FIRST, batch(0, b"a", b"b"))
    answer(reader, SECOND, batch(0, b"c", malformed=True))
    assert polled(reader) == [(FIRST, [b"a", b"b"], 2)]
    for _ in range(2):
        with pytest.raises(ProtocolViolation, match=r"B/0 at offset 0 are malformed"):
            reader.poll(0)
    reader.remove([SECOND])
    answer(reader, FIRST, batch(2, b"d"))
    assert polled(reader) == [(FIRST, [b"d"], 3)]


def test_records_before_the_batch_are_handed_out_before_the_error(reader):
    answer(reader, FIRST, batch(0, b"a", b"b"), batch(2, b"c", malformed=True))
    assert polled(reader) == [(FIRST, [b"a", b"b"], 2)]
    with pytest.raises(ProtocolViolation, match=r"A/0 at offset 2 are malformed"):
        reader.poll(0)


@pytest.mark.parametrize("passes", [True, False])
def test_bytes_that_are_no_batch_are_fetched_again_before_they_are_an_error(reader, passes):
    torn = batch(1, b"b")[:8] + bytes(60)
    answer(reader, FIRST, batch(0, b"a"), torn)
    for _ in range(1, reader_module._MALFORMED_MAX):
        answer(reader, FIRST, torn)
    assert polled(reader) == [(FIRST, [b"a"], 1)]
    if passes:
        answer(reader, FIRST, batch(1, b"b"))
        answer(reader, FIRST, torn)
        assert polled(reader) == [(FIRST, [b"b"], 2)]
    else:
        with pytest.raises(ProtocolViolation, match="batches of A/0 are malformed"):
            answer(reader, FIRST, torn)


def test_a_trimmed_log_is_said_by_a_poll_that_does_not_wait_while_another_log_has_records(reader):
    answer(reader, FIRST, batch(0, b"a"))
    reader.out_of_range(FIRST)
    answer(reader, SECOND, batch(0, b"b"))
    polls = polled(reader)  # what came before is handed out first
    assert polls == [(FIRST, [b"a"], 1), (SECOND, [b"b"], 1)]
    answer(reader, SECOND, batch(1, b"c"))
    with pytest.raises(Trimmed, match=r"A/0 cannot be read from offset 1: the log holds 6 to 6"):
        reader.poll(0)
    reader.remove([FIRST])
    assert polled(reader) == [(SECOND, [b"c"], 2)]


@pytest.mark.parametrize(
    ("number", "package"), [(2, "python-snappy"), (3, "lz4"), (4, "zstandard")]
)
def test_a_batch_whose_codec_is_not_installed_names_the_package(
    reader, number, package, monkeypatch
):
    gone = tuple(one._replace(is_installed=lambda: False) for one in codecs._CODECS)
    monkeypatch.setattr(codecs, "_CODECS", gone)
    raw = bytearray(batch(0, b"a"))
    raw[CRC.stop + 1] |= number  # the attributes are the two bytes after the checksum
    raw[CRC] = calc_crc32c(raw[CRC.stop :]).to_bytes(4, "big")
    answer(reader, FIRST, bytes(raw))
    with pytest.raises(AmcastError, match=f"needs the package {package} with driver kafka-python"):
        reader.poll(0)


PACKED = {
    **{one.name: (one.number, one.encode) for one in codecs._CODECS},
    "gzip, of several members": (1, lambda raw: gzip.compress(raw[:9]) + gzip.compress(raw[9:])),
    "snappy, one block": (2, snappy.compress),
    "snappy, several blocks": (2, codecs.codec.snappy_encode),
}
BOUND = 1_000_000


@pytest.mark.parametrize("kind", PACKED)
def test_a_batch_is_decompressed_up_to_the_bound_and_no_further(kind):
    number, encode = PACKED[kind]
    for size in (0, 1, 70_000, BOUND):
        raw = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        assert codecs.decompressed(number, encode(raw), BOUND) == raw
    packed = encode(bytes(40 * BOUND))
    # zstd reserves what the head of a frame asks for, up to 128 MiB, and uses what it has filled.
    window = 40 * BOUND if kind == "zstd" else 0
    tracemalloc.start()
    with pytest.raises(codecs.TooLarge):
        codecs.decompressed(number, packed, BOUND)
    assert tracemalloc.get_traced_memory()[1] < len(packed) + 8 * BOUND + window
    tracemalloc.stop()


@pytest.mark.parametrize("claim", [b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x04x"])
def test_a_block_that_claims_to_be_large_takes_no_memory(claim):
    with pytest.raises(codecs.TooLarge):
        codecs.decompressed(2, claim, BOUND)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_becomes_too_large_is_a_named_error(reader, monkeypatch, codec):
    monkeypatch.setattr(records_module, "MESSAGE_BYTES_MAX", 5000)
    answer(reader, FIRST, batch(0, b"a", codec=codec), batch(1, bytes(6000), codec=codec))
    assert polled(reader) == [(FIRST, [b"a"], 1)]
    for _ in range(2):
        with pytest.raises(ProtocolViolation, match=r"A/0 at offset 1 become more than 5000"):
            reader.poll(0)


def test_a_poll_decompresses_no_more_than_its_bound_and_one_batch(reader, monkeypatch):
    monkeypatch.setattr(reader_module, "PLAIN_BYTES_MAX", 5000)
    large = bytes(6000)
    answer(reader, FIRST, *(batch(base, large, codec=1) for base in range(2)))
    answer(reader, SECOND, batch(0, large, codec=1))
    polls = [(partition, position) for _ in range(3) for partition, _, position in polled(reader)]
    assert polls == [(FIRST, 1), (SECOND, 1), (FIRST, 2)]
