"""Rows of any records as tables and files: what no column can hold is null, and counted."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast.consuming.subscription import SubscriptionRequest
from multicast.drivers.protocol import Record
from multicast.drivers.record_columns import Parts, RecordColumns
from multicast.tables import export as exporting
from multicast.tables.arrow import record_batch, schema
from multicast.tables.export import Export, Exported, export, files, locked, rows_of
from multicast.tables.slices import Place, Rows, Slice, read
from multicast.testing import system
from tests.helpers.plans import chain

INT64_MAX = 2**63 - 1
YEAR_9999_MS = 253_402_300_799_999
START = datetime(1970, 1, 1, tzinfo=UTC)
TIMES = st.sampled_from(
    [-INT64_MAX - 1, -1, 0, YEAR_9999_MS, YEAR_9999_MS + 1, 1_700_000_000_000_000, INT64_MAX]
) | st.integers(-(2**63), INT64_MAX)
BYTES = st.none() | st.binary(max_size=40) | st.just(b"x" * 5_000)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
HEADERS = st.lists(st.tuples(NAMES, BYTES), max_size=3).map(tuple)
FIELDS = st.lists(st.tuples(BYTES, BYTES, HEADERS, TIMES), min_size=1, max_size=6)


def batch(records, first):
    """One record batch of records of P1, which lie one after the other."""
    count = len(records)
    log = chain().logs[0]
    place = Place(7, 0, first, first + count, 5 * first, 9)
    part = Slice(1, "K1", ("P1", "P2"), log, (place,))
    return record_batch(part, Rows(records, [(place, count)], None), schema())


def as_columns(records):
    """The same as `column_reader` gives them; without headers."""
    raw, at = b"", {"key": [], "value": []}
    for record in records:
        for part, pieces in at.items():
            piece = getattr(record, part)
            pieces.append((len(raw), -1 if piece is None else len(piece)))
            raw += piece or b""
    key, value = (
        Parts(*(np.array(column, np.int64) for column in zip(*at[part], strict=True)))
        for part in ("key", "value")
    )
    offset = np.array([record.offset for record in records], np.int64)
    stamp = np.array([record.timestamp_ms for record in records], np.int64)
    return RecordColumns(raw, offset, stamp, key, value)


def time_of(stamp):
    return START + timedelta(milliseconds=stamp) if 0 <= stamp <= YEAR_9999_MS else None


@pytest.mark.parametrize("columns", [False, True], ids=["records", "columns"])
@given(fields=FIELDS, first=st.sampled_from([0, 2**40]))
def test_a_table_has_each_record_unchanged_and_no_time_that_is_none(columns, fields, first):
    records = [
        Record(first + number, value, key, () if columns else headers, stamp)
        for number, (value, key, headers, stamp) in enumerate(fields)
    ]
    rows = batch(as_columns(records) if columns else records, first).to_pylist()
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (record.offset, record.key, record.value) for record in records
    ]
    assert [row["timestamp"] for row in rows] == [time_of(each.timestamp_ms) for each in records]
    assert [[tuple(pair.values()) for pair in row["headers"]] for row in rows] == [
        [pair for pair in record.headers if not pair[0].startswith("amcast.")] for record in records
    ]


def test_an_export_counts_the_times_that_it_leaves_out_and_reads_back_what_is_left(
    tmp_path, monkeypatch
):
    stamps = [YEAR_9999_MS, -1, 1_700_000_000_000_000_000, INT64_MAX]

    def stamped(*words, **options):
        for rows in read(*words, **options):
            given = [each._replace(timestamp_ms=stamps[each.offset]) for each in rows.records]
            yield rows._replace(records=given)

    monkeypatch.setattr(exporting, "read", stamped)
    what = Export("A", SubscriptionRequest.of("C1", None), 100, 60)
    with system({"topic": "A", "consumers": {"C1": {"P1", "P2"}}}) as double:
        for _ in stamps:
            double.producer().multicast(b"", to={"P1"})
        with locked(tmp_path, what):
            done = export(double.driver, tmp_path, what, "earliest", follow=False, progress=str)
    assert done == Exported(rows=4, timeless=3)
    rows = [row for path in files(tmp_path) for row in rows_of(path)]
    assert [row["timestamp"] for row in rows] == [time_of(stamp) for stamp in stamps]
