"""The data source "amcast", by Spark's Python data source API; no connector in Java is needed.

The driver process plans: it reads the order (`multicast.tables.order_walk`), which is small, and
divides it into slices. Each task reads slices in a Python worker and gives Arrow batches that have
their positions already: no join, no shuffle. Python workers need amcast installed.

A stream's offset is {"cursor": TEXT}, a cursor of `Consumer`. Micro-batch (a, b] is the piece of
the order after cursor a up to cursor b, complete: no later batch has a smaller position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from multicast.cursor import Cursor
from multicast.drivers import open_driver
from multicast.drivers.protocol import Driver
from multicast.errors import UsageError
from multicast.tables.arrow import COLUMNS, record_batch, schema
from multicast.tables.options import TableOptions, table_options
from multicast.tables.order_walk import OrderWalk, Piece, between
from multicast.tables.slices import Slice, read, slices, tasks

FORMAT = "amcast"
_PLANNER = "librdkafka"  # opens readers sooner
_TASK = "kafka-python"  # has the column reader; librdkafka would be one client more
_CURSOR = "cursor"


def register(spark: SparkSession) -> None:
    """Make `format("amcast")` known to a session; call it once for each session."""
    spark.dataSource.register(AmcastSource)


@dataclass
class SlicePartition(InputPartition):
    """What one task reads."""

    parts: tuple[Slice, ...]


class AmcastSource(DataSource):
    """The ordered messages of one subscription, as a table or a stream."""

    @classmethod
    def name(cls) -> str:
        """Give the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Give the columns; see `multicast.tables.arrow`."""
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read the order once, up to its present end or to a cursor."""
        _refuse_other(schema)
        return _TableReader(table_options(self.options, stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Follow the order."""
        _refuse_other(schema)
        return _StreamReader(table_options(self.options, stream=True))


def _refuse_other(given: StructType) -> None:
    if given.fieldNames() != schema().names:
        raise UsageError("format amcast has its own columns; leave out .schema(…)")


def _open(options: TableOptions, name: str) -> Driver:
    return open_driver(name, options.bootstrap, options.client)


def _partitions(options: TableOptions, pieces: Sequence[Piece]) -> list[InputPartition]:
    parts = slices(pieces, options.slice_offsets)
    return [SlicePartition(group) for group in tasks(parts, options.slice_offsets)]


def _read(options: TableOptions, partition: InputPartition | None) -> Iterator[Any]:
    """Read a task's slices; runs in Spark's workers. None: Spark's sign of an empty table."""
    if not isinstance(partition, SlicePartition):
        return
    columns = schema()
    with closing(_open(options, _TASK)) as driver:
        for part in partition.parts:
            for rows in read(driver, part, timeout_s=options.timeout_s):
                yield record_batch(part, rows, columns)


class _TableReader(DataSourceReader):
    def __init__(self, options: TableOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with closing(_open(options, _PLANNER)) as driver:
            pieces = between(
                driver,
                options.topic,
                options.request,
                options.start,
                options.until,
                timeout_s=options.timeout_s,
            )
        return _partitions(options, pieces)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, partition)


@dataclass
class _Ahead:
    """The pieces from cursor `start` up to the walk's position: most often the next batch."""

    start: Cursor
    walk: OrderWalk
    pieces: list[Piece] = field(default_factory=list)


class _StreamReader(DataSourceStreamReader):
    """Lives in the query's driver as long as the query; pickled to workers only to read slices.

    After a restart Spark calls `partitions(c, c)` with the newest offset of its checkpoint c before
    it asks for the latest one, so the stream goes on there. If c ends the first batch, which is not
    committed, it then asks for the initial offset, too, and plans that batch again.
    """

    def __init__(self, options: TableOptions) -> None:
        self._options = options
        self._driver: Driver | None = None
        self._initial: Cursor | None = None  # where a new query begins
        self._ahead: _Ahead | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_driver": None, "_initial": None, "_ahead": None}

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        """Give the cursor at which a new query begins.

        With the trigger `availableNow` Spark asks for the latest offset first; both belong to one
        look at the order. If the query was killed in its first batch and begins at the latest
        offset, that offset is not known any more: the first batch is empty then.
        """
        if self._initial is None and self._ahead is not None and self._options.start == "latest":
            self._initial = self._ahead.start
        if self._initial is None:
            self._from(None)
        assert self._initial is not None
        return _offset(self._initial)

    def latestOffset(self) -> dict[str, str]:  # type: ignore[override]  # noqa: N802 - Spark's name
        """Give the cursor up to which the next batch can go: what is ordered and stored now.

        From 4.2 on, Spark gives the start and a limit to sources that take them; it calls this form
        as before, so that this source works with 4.0, too.
        """
        ahead = self._ahead or self._from(None)
        given = sum(piece.next - piece.first for piece in ahead.pieces)
        room = self._options.offsets_max - given
        if room > 0:
            ahead.pieces += ahead.walk.advance(room)
        return _offset(ahead.walk.position)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Divide the piece of the order between two cursors."""
        options = self._options
        first, last = Cursor.parse(start[_CURSOR]), Cursor.parse(end[_CURSOR])
        ahead = self._ahead
        if ahead is not None and (ahead.start, ahead.walk.position) == (first, last):
            pieces, ahead.pieces, ahead.start = ahead.pieces, [], last
            return _partitions(options, pieces)
        pieces = []
        if first != last:
            pieces = between(
                self._opened(),
                options.topic,
                options.request,
                first,
                last,
                timeout_s=options.timeout_s,
            )
        self._from(last)
        return _partitions(options, pieces)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read a task's slices, in a worker."""
        return _read(self._options, partition)

    def stop(self) -> None:
        """Close what the query has opened."""
        if self._ahead is not None:
            self._ahead.walk.close()
        if self._driver is not None:
            self._driver.close()

    def _opened(self) -> Driver:
        if self._driver is None:
            self._driver = _open(self._options, _PLANNER)
        return self._driver

    def _from(self, cursor: Cursor | None) -> _Ahead:
        """Begin to walk at a cursor; None: where a new query begins."""
        if self._ahead is not None:
            self._ahead.walk.close()
            self._ahead = None
        options = self._options
        start = options.start if cursor is None else cursor
        walk = OrderWalk(self._opened(), options.topic, options.request, start)
        self._ahead = _Ahead(walk.position, walk)
        if cursor is None:
            self._initial = walk.position
        return self._ahead


def _offset(cursor: Cursor) -> dict[str, str]:
    return {_CURSOR: str(cursor)}
