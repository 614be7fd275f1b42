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
from typing import Any

from multicast.tables.slices import Row, Slice
from topology import extra

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


def record_batch(part: Slice, rows: Sequence[Row], columns: Any) -> Any:
    """Make one record batch of a slice's rows; `columns` is what `schema` gives."""
    pa = pyarrow()
    name, count = part.log.name, len(rows)
    head = f"{part.epoch}/{part.source}/"
    records = [row.record for row in rows]
    values: list[Any] = [
        [part.epoch] * count,
        [row.position for row in rows],
        [f"{name}:{record.offset}" for record in records],
        [name] * count,
        [record.offset for record in records],
        [row.to for row in rows],
        [record.key for record in records],
        [record.value for record in records],
        [
            [pair for pair in record.headers if not pair[0].startswith("amcast.")]
            for record in records
        ],
        [None if record.timestamp_ms < 0 else record.timestamp_ms * 1000 for record in records],
        [f"{head}{row.place.record}/{row.place.run}/{row.record.offset + 1}" for row in rows],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(values, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
