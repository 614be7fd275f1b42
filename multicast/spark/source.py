"""The data source "amcast", by Spark's Python data source API; no connector in Java is needed.

The driver process plans: it reads the order (`multicast.tables.order_walk`), which is small, and
divides it into slices. Each task reads slices in a Python worker and gives Arrow batches that have
their positions already: no join, no shuffle. Python workers need amcast installed.

A stream's offset is {"cursor": TEXT, "interest": DIGEST, "origin": DIGEST}: a cursor of `Consumer`,
and what the checkpoint is of. Micro-batch (a, b] is the piece of the order after cursor a up to
cursor b, complete: no later batch has a smaller position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from multicast.consuming.cursor import Cursor, interest_digest
from multicast.drivers import open_driver
from multicast.drivers.protocol import Driver
from multicast.errors import TopicChanged, Trimmed, UncoveredInterest, UsageError
from multicast.tables.arrow import COLUMNS, record_batch, schema
from multicast.tables.between import between
from multicast.tables.options import TableOptions, table_options
from multicast.tables.order_walk import OrderWalk, Piece, Where
from multicast.tables.slices import Slice, read, slices, tasks

FORMAT = "amcast"
_PLANNER = "librdkafka"  # opens readers sooner
_TASK = "kafka-python"  # has the column reader; librdkafka would be one client more
_CURSOR, _INTEREST, _ORIGIN = "cursor", "interest", "origin"


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
        return _StreamReader(self.options)


def _refuse_other(given: StructType) -> None:
    if given.fieldNames() != schema().names:
        raise UsageError("format amcast has its own columns; leave out .schema(…)")


def _open(options: TableOptions, name: str) -> Driver:
    return open_driver(name, options.bootstrap, options.client)


def _partitions(options: TableOptions, pieces: Sequence[Piece]) -> list[InputPartition]:
    parts = slices(pieces, options.slice_offsets)
    return [SlicePartition(group) for group in tasks(parts, options.slice_offsets)]


def _between(
    options: TableOptions, driver: Driver, start: Where, until: Cursor | datetime | None
) -> list[InputPartition]:
    topic, request, timeout_s = options.topic, options.request, options.timeout_s
    pieces = between(driver, topic, request, start, until, timeout_s=timeout_s)
    return _partitions(options, pieces)


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
            return _between(options, driver, options.start, options.until)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, partition)


@dataclass
class _Ahead:
    """The pieces from offset `start` up to the walk's position: most often the next batch."""

    start: dict[str, str]
    walk: OrderWalk
    pieces: list[Piece] = field(default_factory=list)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in the query's driver as long as the query; pickled to workers only to read slices.

    After a restart Spark calls `partitions(c, c)` with the newest offset of its checkpoint c before
    it asks for the latest one, so the stream goes on there. If c ends the first batch, which is not
    committed, it then asks for the initial offset, too, and plans that batch again.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)
        self._driver: Driver | None = None
        self._initial: dict[str, str] | None = None  # where a new query begins
        self._ahead: _Ahead | None = None
        self._until: Cursor | None = None  # of a query that reads what there is now, and ends

    def __getstate__(self) -> dict[str, Any]:
        """Give what a worker needs."""
        return {"_given": self._given}

    @cached_property
    def _options(self) -> TableOptions:
        """The options; Spark adds an error of its own to one that this object's making raises."""
        return table_options(self._given, stream=True)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note the end of what is ordered now; Spark calls this first.

        If the newest epoch does not cover the interest, `latestOffset` says so once all before it
        is read.
        """
        options = self._options
        with (
            suppress(UncoveredInterest, UsageError),
            OrderWalk(self._opened(), options.topic, options.request, "latest") as walk,
        ):
            self._until = walk.position

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        """Give the cursor at which a new query begins.

        If the query was killed in its first batch and begins at the latest offset, that offset is
        not known any more: the first batch is empty then.
        """
        if self._initial is None and self._ahead is not None and self._options.start == "latest":
            self._initial = self._ahead.start
        if self._initial is None:
            self._from(None)
        assert self._initial is not None
        return self._initial

    def latestOffset(  # noqa: N802 - Spark's name
        self,
        start: dict[str, str] | None = None,
        limit: object = None,  # noqa: ARG002 - always that of the options
    ) -> dict[str, str]:
        """Give the cursor up to which the next batch can go: what is ordered and stored now."""
        ahead = self._ahead
        if ahead is None or (start is not None and start[_CURSOR] != ahead.start[_CURSOR]):
            ahead = self._from(start)
        given = sum(piece.next - piece.first for piece in ahead.pieces)
        room = self._options.offsets_max - given
        if room > 0 and not (self._until is not None and ahead.walk.passed(self._until)):
            ahead.pieces += ahead.walk.advance(room, until=self._until)
        return _offset(ahead.walk)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Divide the piece of the order between two cursors."""
        options = self._options
        first, last = Cursor.parse(start[_CURSOR]), Cursor.parse(end[_CURSOR])
        ahead = self._ahead
        if ahead is not None and (ahead.start, _offset(ahead.walk)) == (start, end):
            pieces, ahead.pieces, ahead.start = ahead.pieces, [], end
            return _partitions(options, pieces)
        self._from(end)
        if first == last:
            return []
        return _between(options, self._opened(), first, last)

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

    def _from(self, offset: dict[str, str] | None) -> _Ahead:
        """Begin to walk at an offset of the checkpoint; None: where a new query begins."""
        if self._ahead is not None:
            self._ahead.walk.close()
            self._ahead = None
        options = self._options
        if offset is None:
            walk = OrderWalk(self._opened(), options.topic, options.request, options.start)
            self._initial = _offset(walk)
        else:
            try:
                walk = self._resumed(offset)
            except (UsageError, Trimmed, TopicChanged) as error:
                raise type(error)(
                    f"this query cannot go on where its checkpoint says: {error}; with a new "
                    f"checkpointLocation it begins at startingOffsets or startingTimestamp"
                ) from error
        self._ahead = _Ahead(_offset(walk), walk)
        return self._ahead

    def _resumed(self, offset: dict[str, str]) -> OrderWalk:
        options = self._options
        cursor, origin = Cursor.parse(offset[_CURSOR]), offset[_ORIGIN]
        walk = OrderWalk(self._opened(), options.topic, options.request, cursor, origin=origin)
        if offset[_INTEREST] != interest_digest(walk.interest):
            walk.close()
            raise UsageError(f"cursor {cursor} is of another interest")
        return walk


def _offset(walk: OrderWalk) -> dict[str, str]:
    return {
        _CURSOR: str(walk.position),
        _INTEREST: interest_digest(walk.interest),
        _ORIGIN: walk.origin,
    }
