"""Applies the rule to raw order streams. No Spark, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from bench.pipeline.rule import FOREIGN, PlacedRun, StreamRule
from bench.pipeline.ticket_rule import StreamReading


def scan(
    known: Sequence[StreamRule], rows: Iterable[tuple[str, int, int, bytes | None]]
) -> Iterator[tuple[str, PlacedRun | tuple[str, str]]]:
    """Read streams, given as (topic, partition, offset, value) sorted by stream and offset.

    Yields ("run", PlacedRun) for each accepted run, and ("void", (topic, reason)) for each record
    that is accepted in no epoch.
    """
    for (topic, partition), of_stream in groupby(rows, key=lambda row: (row[0], row[1])):
        readings = [
            StreamReading(rule) for rule in known if (rule.topic, rule.stream) == (topic, partition)
        ]
        for _, _, offset, value in of_stream:
            raw = bytes(value or b"")
            why = FOREIGN
            for reading in readings:
                result = _taken(reading, offset, raw)
                if not isinstance(result, str):
                    yield from (("run", run) for run in result)
                    break
                if result != FOREIGN:
                    why = result
            else:
                yield "void", (topic, why)


def _taken(reading: StreamReading, offset: int, raw: bytes) -> str | list[PlacedRun]:
    return FOREIGN if offset < reading.rule.offset_first else reading.take(offset, raw)
