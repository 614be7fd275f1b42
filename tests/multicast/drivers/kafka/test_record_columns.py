"""Records decoded as columns are the records that are decoded one by one, and the same rows."""

import random

import pytest
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from multicast.drivers.kafka.column_reader import columns_of
from multicast.drivers.kafka.records import decoded, decompress
from multicast.drivers.protocol import TopicPartition
from multicast.tables.arrow import record_batch, schema
from multicast.tables.slices import Place, Rows, Slice
from topology.tree import Log

PARTITION = TopicPartition("A", 0)
MAGIC = 2
GZIP = 1
LARGE = 1 << 30
LENGTHS = (0, 1, 62, 63, 64, 300, 8191, 8192)  # varints of one, two and three bytes
APPEND_TIME = 8  # the bit of a batch's attributes
ATTRIBUTES = 22  # the byte with it


def drawn(rng):
    return rng.choice([None, b"", rng.randbytes(rng.choice(LENGTHS))])


def built(rng, *, base, append_time=False):
    """A batch as a broker stores it, with offsets from `base` on."""
    builder = DefaultRecordBatchBuilder(MAGIC, rng.choice([0, GZIP]), False, -1, -1, -1, LARGE)
    for index in range(rng.randrange(1, 200)):
        at_ms = 1_700_000_000_000 + rng.randrange(-(10**7), 10**7)
        builder.append(index, at_ms, drawn(rng), drawn(rng), [])
    raw = bytearray(builder.build())
    raw[:8] = base.to_bytes(8, "big")
    if append_time:
        raw[ATTRIBUTES] |= APPEND_TIME
    return bytes(raw)


def batches_of(raws):
    batches = [DefaultRecordBatch(raw) for raw in raws]
    for batch in batches:
        decompress(PARTITION, batch)
    return batches


def some_raws(seed):
    rng = random.Random(seed)
    raws, base = [], rng.randrange(10)
    for number in range(rng.randrange(1, 8)):
        raws.append(built(rng, base=base, append_time=number % 3 == 1))
        base = DefaultRecordBatch(raws[-1]).next_offset + rng.randrange(3)
    return raws


@pytest.mark.parametrize("seed", range(8))
def test_columns_are_the_records_that_are_decoded_one_by_one(seed):
    raws = some_raws(seed)
    read = [record for batch in batches_of(raws) for record in decoded(PARTITION, batch)]
    whole = [record._replace(headers=(), leader_epoch=-1) for record in read]
    columns = columns_of(batches_of(raws))
    assert columns is not None
    assert list(columns) == whole

    # Pieces of them, too.
    rng = random.Random(seed)
    for _ in range(20):
        low, high = sorted(rng.randrange(len(whole) + 1) for _ in range(2))
        assert list(columns[low:high]) == whole[low:high]
        assert list(columns[low:][: high - low]) == whole[low:high]
    assert columns[-1] == whole[-1]
    with pytest.raises(IndexError):
        columns[len(whole)]


@pytest.mark.parametrize("seed", range(8))
def test_columns_make_the_same_rows_as_their_records(seed):
    columns = columns_of(batches_of(some_raws(seed)))
    some = columns[len(columns) // 3 :]
    last = int(some.offset[-1])
    middle = (int(some.offset[0]) + last) // 2
    places = (Place(5, 0, 0, middle, 7, 1), Place(9, 2, middle, last + 1, 1000, 255))
    first = sum(record.offset < middle for record in some)
    spans = [(places[0], first), (places[1], len(some) - first)]
    part = Slice(1, "K1", ("P1",), Log("P1+P2", "A", 0), places)
    quick = record_batch(part, Rows(some, spans, None), schema())
    quick.validate(full=True)
    assert quick == record_batch(part, Rows(list(some), spans, None), schema())
    assert quick["to"][0].as_py() == ["P1", "P2"]


def bent(raw, *, old, new):
    """The same batch with other bytes in its records, none longer or shorter."""
    assert raw.count(old) == 1
    assert len(old) == len(new)
    return raw.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\x0avalue", b"\x0cvalue"),  # a value that ends after its record
        (b"\x0avalue", b"\x08value"),  # one that ends before it
        (b"\x06key", b"\x80key"),  # a length that goes on
    ],
)
def test_what_is_unusual_is_left_to_the_decoder_of_records(old, new):
    builder = DefaultRecordBatchBuilder(MAGIC, 0, False, -1, -1, -1, LARGE)
    builder.append(0, 1_700_000_000_000, b"key", b"value", [])
    raw = bytes(builder.build())
    assert columns_of(batches_of([raw])) is not None
    assert columns_of(batches_of([bent(raw, old=old, new=new)])) is None


def test_records_with_headers_are_left_to_the_decoder_of_records():
    builder = DefaultRecordBatchBuilder(MAGIC, 0, False, -1, -1, -1, LARGE)
    builder.append(0, 1_700_000_000_000, b"key", b"value", [("name", b"x")])
    assert columns_of(batches_of([bytes(builder.build())])) is None


def test_batches_without_records_make_no_columns():
    assert columns_of([]) is None
