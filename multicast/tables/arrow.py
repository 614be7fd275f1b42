"""Rows as Arrow record batches: the columns that Spark and `amcast export` give.

epoch, position   int64     the place in the delivery order: ORDER BY epoch, position
message_id        string    "P1+P3:17"
log, offset       string, int64
to                list<string>   the destination set that the producer named, sorted
key, value        binary    the producer's key and payload, unchanged
headers           list<struct<key: string, value: binary>>, without the reserved ones
timestamp         timestamp (µs, UTC); null if Kafka has none
cursor            string    the position right after the message, for `Consumer.seek`
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

from multicast.drivers.protocol import Headers
from multicast.tables.slices import Rows, Slice
from topology import extra

_US_PER_MS = 1000  # Kafka counts milliseconds, the column microseconds
COLUMNS = (
    "epoch bigint, position bigint, message_id string, log string, offset bigint, "
    "to array<string>, key binary, value binary, headers array<struct<key: string, value: binary>>,"
    " timestamp timestamp, cursor string"
)


def pyarrow(part: str = "pyarrow") -> Any:
    """Give the package pyarrow, or a part of it; raises `MissingExtra` if it is not installed."""
    with extra("spark"):
        return importlib.import_module(part)


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
    name, count = part.log.name, len(rows.records)
    offsets, values, keys, headers, stamps = zip(*rows.records, strict=True)
    offset = pa.array(offsets, pa.int64())
    shifts = [place.position - place.first for place, _ in rows.spans]
    cursors = [f"{part.epoch}/{part.source}/{place.record}/{place.run}" for place, _ in rows.spans]
    lengths = [length for _, length in rows.spans]
    moment = pa.array(stamps, pa.int64())
    known = pc.if_else(pc.less(moment, 0), pa.scalar(None, pa.int64()), moment)
    types = {field.name: field.type for field in columns}
    arrays = {
        "epoch": pa.repeat(pa.scalar(part.epoch, pa.int64()), count),
        "position": pc.add(offset, _spread(shifts, lengths, pa.int64())),
        "message_id": pc.binary_join_element_wise(name, pc.cast(offset, pa.string()), ":"),
        "log": pa.repeat(name, count),
        "offset": offset,
        "to": pa.array([part.log.to] * count if rows.to is None else rows.to, types["to"]),
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "headers": _headers(headers, types["headers"]),
        "timestamp": pc.cast(pc.multiply(known, _US_PER_MS), types["timestamp"]),
        "cursor": pc.binary_join_element_wise(
            _spread(cursors, lengths, pa.string()), pc.cast(pc.add(offset, 1), pa.string()), "/"
        ),
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=columns)


def _spread(values: Sequence[Any], lengths: Sequence[int], kind: Any) -> Any:
    """Repeat each value so many times, as one array."""
    return pyarrow().array(chain.from_iterable(map(repeat, values, lengths)), kind)


def _headers(headers: Sequence[Headers], kind: Any) -> Any:
    pa = pyarrow()
    if not any(headers):
        nothing = pa.array([], kind.value_type)
        return pa.ListArray.from_arrays(
            pa.repeat(pa.scalar(0, pa.int32()), len(headers) + 1), nothing
        )
    return pa.array(
        [[pair for pair in each if not pair[0].startswith("amcast.")] for each in headers], kind
    )
