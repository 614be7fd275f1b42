"""Rows as Arrow record batches: the columns that Spark and `amcast export` give.

epoch, position   int64     the place in the delivery order: ORDER BY epoch, position
message_id        string    "P1+P3:17"
log, offset       string, int64
to                list<string>   the destination set that the producer named, sorted
key, value        binary    the producer's key and payload, unchanged
headers           list<struct<key: string, value: binary>>, without the reserved ones
timestamp         timestamp (µs, UTC); null if Kafka has none, or it is beyond the year 9999
cursor            string    the position right after the message, for `Consumer.seek`
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from multicast.consuming.cursor import interest_digest
from multicast.drivers.protocol import Record
from multicast.drivers.record_columns import Parts, RecordColumns
from multicast.messages import reserved
from multicast.tables.slices import Rows, Slice
from topology import extra

_US_PER_MS = 1000  # Kafka counts milliseconds, the column microseconds
# Of the year 9999: what SQL and Python have no time for. Clients that write micro- or nanoseconds
# are far beyond it.
_TIME_MAX_MS = 253_402_300_799_999
# In Spark's words. Quoted: some names are reserved words of ANSI SQL. LTZ: whatever a session takes
# `timestamp` for.
COLUMNS = (
    "`epoch` bigint, `position` bigint, `message_id` string, `log` string, `offset` bigint, "
    "`to` array<string>, `key` binary, `value` binary, "
    "`headers` array<struct<`key`: string, `value`: binary>>, "
    "`timestamp` timestamp_ltz, `cursor` string"
)


def pyarrow(part: str = "pyarrow") -> Any:
    """Give the package pyarrow, or a part of it; raises `MissingExtra` if it is not installed."""
    with extra("spark"):
        return importlib.import_module(part)


def numpy() -> Any:
    """Give the package numpy; raises `MissingExtra` if it is not installed."""
    with extra("spark"):
        return importlib.import_module("numpy")


def schema() -> Any:
    """Give the Arrow schema of all tables."""
    pa = pyarrow()
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.schema(
        [
            ("epoch", pa.int64()),
            ("position", pa.int64()),
            ("message_id", pa.string()),
            ("log", pa.string()),
            ("offset", pa.int64()),
            ("to", pa.list_(pa.string())),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("cursor", pa.string()),
        ]
    )


def record_batch(part: Slice, rows: Rows, columns: Any) -> Any:
    """Make one record batch of a slice's rows, of which there is at least one.

    `columns` is what `schema` gives. Columns are computed as a whole, not row by row.
    """
    pa, pc = pyarrow(), pyarrow("pyarrow.compute")
    name, label, count = part.log.name, part.log.label, len(rows.records)
    types = {field.name: field.type for field in columns}
    offset, stamp, key, value, headers = _fields(rows.records, types)
    shifts = pa.array([place.position - place.first for place, _ in rows.spans], pa.int64())
    source, made_for = f"{part.epoch}/{part.source}", interest_digest(part.interest)
    cursors = [f"{source}/{place.record}/{place.run}" for place, _ in rows.spans]
    proofs = [f"{made_for}/{place.proof:08x}/{0:08x}" for place, _ in rows.spans]
    spread = _spread([length for _, length in rows.spans])
    is_time = pc.and_(pc.greater_equal(stamp, 0), pc.less_equal(stamp, _TIME_MAX_MS))
    known = pc.if_else(is_time, stamp, pa.scalar(None, pa.int64()))
    arrays = {
        "epoch": pa.repeat(pa.scalar(part.epoch, pa.int64()), count),
        "position": pc.add_checked(offset, shifts.take(spread)),
        "message_id": pc.binary_join_element_wise(label, pc.cast(offset, pa.string()), ":"),
        "log": pa.repeat(name, count),
        "offset": offset,
        "to": _same(part.log.to, count) if rows.to is None else pa.array(rows.to, types["to"]),
        "key": key,
        "value": value,
        "headers": headers,
        "timestamp": pc.cast(pc.multiply_checked(known, _US_PER_MS), types["timestamp"]),
        "cursor": pc.binary_join_element_wise(
            pa.array(cursors, pa.string()).take(spread),
            pc.cast(pc.add(offset, 1), pa.string()),
            pa.array(proofs, pa.string()).take(spread),
            "/",
        ),
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=columns)


def _fields(records: Sequence[Record], types: Mapping[str, Any]) -> tuple[Any, ...]:
    """Give offset, time in ms, key, value and headers of records, as Arrow arrays."""
    pa = pyarrow()
    if isinstance(records, RecordColumns):
        return (
            pa.array(records.offset),
            pa.array(records.timestamp_ms),
            _pieces(records.raw, records.key),
            _pieces(records.raw, records.value),
            _no_headers(len(records), types["headers"]),
        )
    offsets, values, keys, headers, stamps, _ = zip(*records, strict=True)
    own = [[pair for pair in each if not reserved(pair[0])] for each in headers]
    return (
        pa.array(offsets, pa.int64()),
        pa.array(stamps, pa.int64()),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(own, types["headers"]),
    )


def _no_headers(count: int, kind: Any) -> Any:
    pa, np = pyarrow(), numpy()
    return pa.ListArray.from_arrays(
        pa.array(np.zeros(count + 1, np.int32)), pa.array([], kind.value_type)
    )


def _pieces(raw: bytes, parts: Parts) -> Any:
    """Give pieces of `raw`, which follow each other, as an array of bytes; of length -1: null.

    The pieces and what lies between them in turns are an array over `raw` without a copy; the
    pieces are then taken from it, so no object is made of any.
    """
    pa, np = pyarrow(), numpy()
    null = parts.length < 0
    count = len(null)
    if null.all():
        return pa.nulls(count, pa.binary())  # also if there is no piece
    bounds = np.empty((count, 2), np.int32)
    bounds[:, 0] = parts.first
    bounds[:, 1] = parts.first + np.maximum(parts.length, 0)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(raw)]
    whole = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return whole.take(pa.array(np.arange(0, 2 * count, 2), mask=null if null.any() else None))


def _same(texts: Sequence[str], count: int) -> Any:
    """Give one list of texts, `count` times; `pyarrow.repeat` is forty times slower for lists."""
    pa, np = pyarrow(), numpy()
    width = len(texts)
    bounds = width * np.arange(count + 1, dtype=np.int32)
    each = pa.array(np.tile(np.arange(width), count))
    return pa.ListArray.from_arrays(pa.array(bounds), pa.array(texts, pa.string()).take(each))


def _spread(lengths: Sequence[int]) -> Any:
    """Give the indices 0, 1, …, each as often as its length says."""
    np = numpy()
    return pyarrow().array(np.repeat(np.arange(len(lengths)), lengths))
