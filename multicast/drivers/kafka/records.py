"""Decodes the batches of a fetch response, and the records of a batch (message format 2).

Malformed bytes raise a `ProtocolViolation` that names the Kafka partition. The package's own
decoder stops at a header name that is not UTF-8, and misreads a record whose attributes are above
127; a broker stores both. Ours (`multicast/drivers/appender/record_batch.py`) reads every record
that a broker stores (`messages.header_name` defines a name).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from multicast.drivers.appender.record_batch import MalformedRecords, read_records
from multicast.drivers.client_settings import MESSAGE_BYTES_MAX
from multicast.drivers.kafka.codecs import TooLarge, decompressed, missing_for
from multicast.drivers.kafka.private import MemoryRecords
from multicast.drivers.protocol import Record, TopicPartition
from multicast.errors import AmcastError, ProtocolViolation

LOG_APPEND_TIME = 1  # the timestamp type of a batch that the broker stamped


@dataclass(slots=True)
class FetchedBatch:
    """A batch; if `records` is None, its offsets hold no message."""

    next: int
    size: int
    records: Any
    left: deque[Record] | None = None  # decoded, but not returned by the last poll


def committed(partition: TopicPartition, answer: Any) -> Iterator[FetchedBatch]:
    """Split a response into batches, without the records of aborted transactions (KIP-98).

    Raises `ProtocolViolation` if the bytes are malformed, and no error but an `AmcastError`.
    """
    try:
        yield from _committed(partition, answer)
    except AmcastError:
        raise
    except Exception as error:
        # The package raises errors of its own, of `struct` or of a codec.
        raise ProtocolViolation(
            f"The batches of {partition.topic}/{partition.partition} are malformed: {error!r}."
        ) from error


def _committed(partition: TopicPartition, answer: Any) -> Iterator[FetchedBatch]:
    aborted = deque(sorted(answer.aborted_transactions or (), key=attrgetter("first_offset")))
    aborting: set[int] = set()
    records = MemoryRecords(answer.records)
    while (batch := records.next_batch()) is not None:
        if batch.magic < 2:
            raise ProtocolViolation(
                f"{partition.topic}/{partition.partition} holds records in a format older than "
                f"Kafka 0.11, which cannot be read."
            )
        if not batch.validate_crc():
            raise ProtocolViolation(
                f"The records of {partition.topic}/{partition.partition} at offset "
                f"{batch.base_offset} do not match their checksum."
            )
        while aborted and aborted[0].first_offset <= batch.last_offset:
            aborting.add(aborted.popleft().producer_id)
        empty = batch.is_control_batch or (batch.is_transactional and batch.producer_id in aborting)
        if batch.is_control_batch:
            decompress(partition, batch)
            if next(iter(batch)).abort:
                aborting.discard(batch.producer_id)
        yield FetchedBatch(batch.next_offset, batch.size_in_bytes, None if empty else batch)


def decompress(partition: TopicPartition, batch: Any) -> None:
    """Decompress a batch, if it is not yet; raises `AmcastError` if that fails.

    What would become larger than any message may be is a `ProtocolViolation`: the reader stops, and
    keeps its memory.
    """
    if batch._decompressed:  # noqa: SLF001 - there is no other way to the bytes
        return
    where = f"The records of {partition.topic}/{partition.partition} at offset {batch.base_offset}"
    try:
        if batch.compression_type:
            packed = bytes(memoryview(batch._buffer)[batch._pos :])  # noqa: SLF001
            plain = decompressed(batch.compression_type, packed, MESSAGE_BYTES_MAX)
            batch._buffer = plain  # noqa: SLF001
            batch._pos = 0  # noqa: SLF001
        batch._decompressed = True  # noqa: SLF001
    except TooLarge as error:
        raise ProtocolViolation(
            f"{where} become more than {MESSAGE_BYTES_MAX} bytes when they are decompressed, which "
            f"no correct producer writes (SECURITY.md says what to do)."
        ).about(partition) from error
    except Exception as error:
        # Each codec has errors of its own.
        why = missing_for(batch.compression_type) or error
        raise AmcastError(f"{where} cannot be decompressed: {why}.").about(partition) from error


def decoded(partition: TopicPartition, batch: Any) -> list[Record]:
    """Decode a batch's records.

    Raises `AmcastError` if the batch cannot be decompressed, `ProtocolViolation` if its bytes are
    malformed, and no other error.
    """
    decompress(partition, batch)
    append_time = batch.timestamp_type == LOG_APPEND_TIME
    try:
        return read_records(
            bytes(batch._buffer),  # noqa: SLF001
            batch._pos,  # noqa: SLF001
            batch.records_count,
            base=batch.base_offset,
            first_ms=batch.max_timestamp if append_time else batch.first_timestamp,
            append_time=append_time,
            leader_epoch=batch.leader_epoch,
        )
    except (MalformedRecords, IndexError) as error:
        raise ProtocolViolation(
            f"The records of {partition.topic}/{partition.partition} at offset {batch.base_offset} "
            f"are malformed: {error}."
        ).about(partition) from error
