"""Records as columns: one array for each field instead of one object for each record.

Tables need the fields of millions of records one after the other; making an object of each costs
more than all the rest. A `RecordColumns` is a sequence of `Record` all the same, so who needs the
objects gets them. None of them has headers. Needs numpy, which comes with the extra [spark].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple, overload

from multicast.drivers.protocol import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]


class Parts(NamedTuple):
    """Pieces of some bytes, in their order there: where each begins, its length; -1: null."""

    first: Numbers
    length: Numbers

    def between(self, start: int, stop: int) -> Parts:
        """Give some of these pieces."""
        return Parts(self.first[start:stop], self.length[start:stop])

    def of(self, raw: bytes) -> Iterator[bytes | None]:
        """Give the pieces as bytes."""
        for first, length in zip(self.first.tolist(), self.length.tolist(), strict=True):
            yield None if length < 0 else raw[first : first + length]


@dataclass(frozen=True, slots=True, eq=False)
class RecordColumns(Sequence[Record]):
    """Some records of one Kafka partition, ascending by offset; the `Parts` are pieces of `raw`."""

    raw: bytes
    offset: Numbers
    timestamp_ms: Numbers  # -1: none
    key: Parts
    value: Parts

    def __len__(self) -> int:
        return len(self.offset)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> RecordColumns: ...

    def __getitem__(self, index: int | slice) -> Record | RecordColumns:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            assert step == 1, "columns are cut into consecutive records only"
            return self._between(start, max(start, stop))
        place = range(len(self))[index]
        return next(iter(self._between(place, place + 1)))

    def __iter__(self) -> Iterator[Record]:
        make = tuple.__new__  # faster than the NamedTuple's constructor, which checks its arguments
        for fields in zip(
            self.offset.tolist(),
            self.value.of(self.raw),
            self.key.of(self.raw),
            repeat(()),
            self.timestamp_ms.tolist(),
            repeat(-1),  # tables need no leader epochs
            strict=False,
        ):
            yield make(Record, fields)

    def _between(self, start: int, stop: int) -> RecordColumns:
        return RecordColumns(
            self.raw,
            self.offset[start:stop],
            self.timestamp_ms[start:stop],
            self.key.between(start, stop),
            self.value.between(start, stop),
        )
