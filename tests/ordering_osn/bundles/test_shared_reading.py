"""The chains of a node read each record of a bundle once, and what they read is the same."""

import pytest

from ordering_osn.chain.bundles import log_records
from ordering_osn.chain.bundles.log_records import (
    BadLogRecord,
    BundleRecord,
    encode_bundle_record,
    read_bundle_record,
)
from ordering_osn.node.bundles.shared_reading import SharedReading
from tests.ordering_osn.helpers.desk import signed_bundle


@pytest.fixture
def read(monkeypatch):
    """The records that were really read."""
    records = []
    whole = log_records.bundle_of

    def counted(message):
        records.append(message)
        return whole(message)

    monkeypatch.setattr(log_records, "bundle_of", counted)
    return records


def record(sequence=0):
    return encode_bundle_record(BundleRecord(signed_bundle(), (sequence, sequence)))


def copied(raw):
    """The same bytes, as another consumer gets them."""
    return bytes(bytearray(raw))


def test_the_second_chain_gets_what_the_first_one_read_and_then_it_is_forgotten(read):
    reading, raw = SharedReading(), record()
    first = reading.read(raw)
    assert reading._bytes == len(raw)
    assert reading.read(copied(raw)) is first
    assert reading._bytes == 0
    assert len(read) == 1
    assert first == read_bundle_record(raw)


def test_a_chain_that_reads_again_reads_the_same(read):
    reading, raw = SharedReading(), record()
    assert [reading.read(raw) for _ in range(5)] == [read_bundle_record(raw)] * 5
    assert len(read) == 3 + 1  # the first, third and fifth; and the one here


def test_records_that_differ_in_a_stamp_only_are_two_records(read):
    reading, made = SharedReading(), signed_bundle()
    records = [encode_bundle_record(BundleRecord(made, (0, stamp))) for stamp in (1, 2)]
    assert [reading.read(raw).stamps for raw in records] == [(0, 1), (0, 2)]
    assert len(read) == 2


def test_what_cannot_be_read_is_not_remembered():
    reading, raw = SharedReading(), record()[:-1]
    for _ in range(2):
        with pytest.raises(BadLogRecord):
            reading.read(raw)
    assert reading._bytes == 0


def test_the_oldest_are_forgotten_where_no_other_chain_asks(read):
    records = [record() for _ in range(4)]
    reading = SharedReading(bytes_max=sum(map(len, records[1:3])) + 100)
    for raw in records:
        reading.read(raw)
    assert reading._bytes == sum(map(len, records[2:]))
    for raw in reversed(records):
        assert reading.read(copied(raw)) == read_bundle_record(raw)
    assert len(read) == 4 + 2 + 4


def test_a_record_larger_than_all_that_may_be_remembered_is_read():
    reading, raw = SharedReading(bytes_max=10), record()
    assert reading.read(raw) == read_bundle_record(raw)
    assert reading._bytes == 0
