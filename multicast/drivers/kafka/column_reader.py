"""A reader for tables, which decodes many records at once into columns.

Finding where each record begins takes a step a record, because records differ in length; all their
fields are then decoded together, by arrays of numpy. This costs a fraction of an object a record.
It accepts only what it understands wholly: if some batches hold a byte that is not as it should be,
or a record has headers, `records.py` decodes them instead, record by record, and raises its errors.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from multicast.drivers.kafka.connection import Connection
from multicast.drivers.kafka.reader import BufferedLog, KafkaPythonReader
from multicast.drivers.kafka.records import LOG_APPEND_TIME, decoded
from multicast.drivers.protocol import Record, TopicPartition
from multicast.drivers.record_columns import Parts, RecordColumns
from multicast.errors import AmcastError
from topology import extra

with extra("spark"):
    import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from multicast.drivers.record_columns import Numbers

_RAW_BYTES_MAX = 2**31 - 1  # what Arrow's columns of bytes can refer to
_MORE = 0x80  # of a varint's byte: another one follows
_VARINT_BITS_MAX = 63  # the largest shift of a 64-bit number's last 7 bits


class KafkaPythonColumnReader(KafkaPythonReader):
    """A reader whose polls give `RecordColumns`.

    A poll ends with a whole batch, so it may give more records than it should.
    """

    # A reader of tables reads one log at full speed: larger responses are fewer waits for a broker.
    partition_bytes_max = 4 * 1024 * 1024

    def __init__(
        self, open_connection: Callable[[], Connection], starts: Mapping[TopicPartition, int]
    ) -> None:
        super().__init__(open_connection, {})
        try:
            # By itself the package asks for leaders 0.1 s after it has connected; a task is short.
            self._connection.run(self._connection.leaders, starts)
            self.add(starts)
        except BaseException:
            self.close()
            raise

    def _take(
        self, partition: TopicPartition, log: BufferedLog, count: int
    ) -> tuple[Sequence[Record], int]:
        taken: list[Any] = []
        position, number, found = log.position, 0, 0
        try:
            for batch in log.buffer:
                if found >= count or (found and self._is_enough):
                    break
                if batch.records is not None:
                    self._decompress(partition, batch.records)
                    taken.append(batch.records)
                    found += batch.records.records_count
                position = max(position, batch.next)
                number += 1
            records = _records_from(partition, taken, log.position)
        except AmcastError:
            return super()._take(partition, log, count)  # what comes before the error, then that
        for _ in range(number):
            log.buffered_bytes -= log.buffer.popleft().size
        return records, position


def _records_from(
    partition: TopicPartition, batches: Sequence[Any], offset: int
) -> Sequence[Record]:
    """Decode decompressed batches, without what is below an offset: fetches are of whole ones."""
    columns = columns_of(batches)
    if columns is not None:
        return columns[int(np.searchsorted(columns.offset, offset)) :]
    records = chain.from_iterable(decoded(partition, batch) for batch in batches)
    return [record for record in records if record.offset >= offset]


def columns_of(batches: Sequence[Any]) -> RecordColumns | None:
    """Decode batches that are decompressed; None if something in them is unusual."""
    if not batches:
        return None
    counts = [batch.records_count for batch in batches]
    raws = [memoryview(batch._buffer)[batch._pos :] for batch in batches]  # noqa: SLF001
    raw = b"".join(raws)
    if len(raw) > _RAW_BYTES_MAX:
        return None
    try:
        starts = _starts(raw, [len(part) for part in raws], counts)
        return None if starts is None else _decode(raw, starts, batches, counts)
    except (IndexError, OverflowError):  # a field seems to go on after the last byte
        return None


def _starts(raw: bytes, sizes: Sequence[int], counts: Sequence[int]) -> array[int] | None:
    """Give where each record begins, with its length.

    `sizes` are the bytes of each batch, `counts` its records; None if they do not fit. The lengths
    are taken as if none was negative.
    """
    starts = array("q")
    append = starts.append
    position = end = 0
    for size, count in zip(sizes, counts, strict=True):
        end += size
        for _ in range(count):
            append(position)
            byte = raw[position]
            position += 1
            length = byte & 0x7F
            shift = 7
            while byte >= _MORE:
                byte = raw[position]
                position += 1
                length |= (byte & 0x7F) << shift
                shift += 7
            position += length >> 1
        if position != end or count < 0:
            return None
    return starts


def _decode(
    raw: bytes, starts: array[int], batches: Sequence[Any], counts: Sequence[int]
) -> RecordColumns | None:
    data = np.frombuffer(raw, np.uint8)
    length, begins = _varints(data, np.frombuffer(starts, np.int64))
    delta_ms, position = _varints(data, begins + 1)  # skips the attributes, which nothing uses
    delta, position = _varints(data, position)
    key_length, key_first = _varints(data, position)
    value_length, value_first = _varints(data, key_first + np.maximum(key_length, 0))
    counted, position = _varints(data, value_first + np.maximum(value_length, 0))
    if counted.any():
        return None
    offset = delta + _repeated([batch.base_offset for batch in batches], counts)
    of_log = [batch.timestamp_type == LOG_APPEND_TIME for batch in batches]
    first_ms = [
        batch.max_timestamp if fixed else batch.first_timestamp
        for batch, fixed in zip(batches, of_log, strict=True)
    ]
    if any(of_log):
        delta_ms = np.where(_repeated(of_log, counts), 0, delta_ms)
    understood = (
        np.array_equal(position, begins + length)
        and bool((delta >= 0).all())
        and bool((np.diff(offset) > 0).all())
    )
    if not understood:
        return None
    time_ms = delta_ms + _repeated(first_ms, counts)
    return RecordColumns(
        raw, offset, time_ms, Parts(key_first, key_length), Parts(value_first, value_length)
    )


def _repeated(values: Sequence[int], counts: Sequence[int]) -> Numbers:
    return np.repeat(np.array(values, np.int64), counts)


def _varints(data: NDArray[np.uint8], position: Numbers) -> tuple[Numbers, Numbers]:
    """Decode the zigzag varint at each position; give the numbers, and where each ends.

    Raises `IndexError` for one that is too long, or goes on after the last byte.
    """
    byte = data[position]
    position = position + 1
    number = (byte & 0x7F).astype(np.uint64)
    more = byte >= _MORE
    shift = 7
    while more.any():
        if shift > _VARINT_BITS_MAX:
            raise IndexError
        byte = np.where(more, data[np.where(more, position, 0)], 0)
        number |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        position += more
        more = byte >= _MORE
        shift += 7
    half = (number >> np.uint64(1)).astype(np.int64)
    return half ^ -(number & np.uint64(1)).astype(np.int64), position
