"""What a reader has read last of each Kafka partition, and whether that still stands there.

Kafka may lose the end of a partition after it was acknowledged, and gives its offsets to other
records. It loses nothing but an end, so a reader that finds its last record unchanged knows that
all before it is (docs/protocol.md, "Lost tails"). It looks where a loss may have come in between:
when the next record was taken by another leader, when it cannot read on from its position, and at a
cursor that says which message was there. That is one small read; a message costs no request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver, Reader, Record, TopicPartition
from multicast.drivers.reading import READ_S, end_from
from multicast.errors import ClusterUnreachable, Truncated
from multicast.messages import message_checksum
from multicast.order.runs import order_checksum

_TEXT = re.compile("([0-9]{1,19})/([0-9a-f]{8})")
_MS_DIGITS_MAX = 15  # of a time in this age


def committed_text(last: LastRead | str, now_ms: int) -> str:
    """Give the metadata of a log's committed offset: the last message, and the time."""
    return f"{last}@{now_ms}"


def committed_at(text: str) -> int | None:
    """Read when an offset was committed, in ms since 1970, from its metadata; None: unknown."""
    told = text.partition("@")[2]
    return int(told) if told.isdecimal() and len(told) <= _MS_DIGITS_MAX else None


class LastRead(NamedTuple):
    """A record that was read; `checksum` is 0 where nobody knows it.

    As text, in the metadata of a log's committed offset, it is OFFSET/CHECKSUM.
    """

    offset: int
    checksum: int
    leader_epoch: int = -1

    def __str__(self) -> str:
        """Give the text form, which `parse` reads back."""
        return f"{self.offset}/{self.checksum:08x}"

    @staticmethod
    def parse(text: str) -> LastRead | None:
        """Read the text form, with or without "@" and a time; None for any other text."""
        found = _TEXT.fullmatch(text.partition("@")[0])
        return LastRead(int(found[1]), int(found[2], 16)) if found else None


class LastReads:
    """The last records of a consumer's partitions; `order` is the one of them that holds the order.

    Used from one thread at a time.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver, self._clock = driver, clock_of(driver)
        self._order: TopicPartition | None = None
        self._last: dict[TopicPartition, LastRead] = {}

    def begin(self, order: TopicPartition | None) -> None:
        """Begin another delivery; what was read of the logs is compared there, too."""
        if self._order is not None and self._order != order:
            self._last.pop(self._order, None)
        self._order = order

    def leader_epochs(self) -> dict[TopicPartition, int]:
        """Give, per partition, the epoch of the leader that took the last record."""
        return {partition: last.leader_epoch for partition, last in self._last.items()}

    def forget(self) -> None:
        """Forget all."""
        self._last.clear()

    def note(self, partition: TopicPartition, records: Sequence[Record]) -> bool:
        """Take the next records; if another leader took them, compare the last one before them.

        Blocks for two requests then. Returns whether another leader took some of them, or, of the
        first records of a partition, another one than its first leader. Raises `Truncated`.
        """
        if not records:
            return False
        last, newest = self._last.get(partition), records[-1]
        before = 0 if last is None else last.leader_epoch
        if last is not None and records[0].leader_epoch != before:
            self.refuse_others({partition: last})
        checksum = self._checksum(partition, newest)
        self._last[partition] = LastRead(newest.offset, checksum, newest.leader_epoch)
        return newest.leader_epoch != before and (last is not None or newest.leader_epoch > 0)

    def refuse_lost(self, partition: TopicPartition) -> None:
        """Raise `Truncated` if what was read last is gone. Blocks for two requests."""
        last = self._last.get(partition)
        if last is not None:
            self.refuse_others({partition: last})

    def refuse_others(self, known: Mapping[TopicPartition, LastRead]) -> None:
        """Raise `Truncated` if other records, or none, are where these were read.

        Those that are there are the last ones from now on, where none is known. Nothing can be said
        of one that retention has removed. Blocks for two requests, and until all are read again.
        """
        begins = self._driver.log_start_offsets(list(known)) if known else {}
        left = {
            partition: last
            for partition, last in known.items()
            if last.checksum and begins[partition] <= last.offset
        }
        ends = self._driver.last_stable_offsets(list(left)) if left else {}
        for partition, last in left.items():
            if ends[partition] <= last.offset:
                end = end_from(self._driver, self._clock, partition, last.offset + 1)
                if end <= last.offset:
                    raise _truncated(partition, last, f"the partition ends at {end}")
        if left:
            starts = {partition: last.offset for partition, last in left.items()}
            with closing(self._driver.reader(starts)) as reader:
                self._compare(reader, left)

    def _compare(self, reader: Reader, left: dict[TopicPartition, LastRead]) -> None:
        while left:
            answers = reader.poll(READ_S)
            if not answers:
                silent = next(iter(left))
                raise ClusterUnreachable(
                    f"a record of {silent.topic}/{silent.partition} did not come within "
                    f"{READ_S:g} s"
                )
            for partition, records, position in answers:
                last = left.get(partition)
                if last is None or position <= last.offset:
                    continue
                there = [
                    LastRead(last.offset, self._checksum(partition, record), record.leader_epoch)
                    for record in records
                    if record.offset == last.offset
                ]
                # 0: this client cannot say.
                if not there or there[0].checksum not in (last.checksum, 0):
                    raise _truncated(partition, last, "another record is there")
                self._last.setdefault(partition, there[0])
                del left[partition]

    def _checksum(self, partition: TopicPartition, record: Record) -> int:
        checksum_of = order_checksum if partition == self._order else message_checksum
        return checksum_of(record)


def _truncated(partition: TopicPartition, known: LastRead, present: str) -> Truncated:
    return Truncated(
        f"{partition.topic}/{partition.partition} has lost its end: this consumer had read the "
        f"record at offset {known.offset}, and {present}. What it delivered of this partition, "
        f"from some offset up to there, is gone or stands in another order: compare what you have "
        f"stored with it, and begin anew with committed=False"
    ).about(partition)
