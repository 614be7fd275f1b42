"""What a reader has read last of each Kafka partition, and whether that still stands there.

Kafka may lose the end of a partition after it was acknowledged, and gives its offsets to other
records. It loses nothing but an end, so a reader that finds its last record unchanged knows that
all before it is (docs/protocol.md, "Lost tails"). Behind its last record a reader may have passed
offsets without any, of an aborted transaction: there it must find none. It looks where a loss may
have come in between: when the next record was taken by another leader, when it cannot read on from
its position, and at a cursor that says which message was there. That is one small read; a message
costs no request.
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

_TEXT = re.compile("(-1|[0-9]{1,19})/([0-9a-f]{8})(?:/([0-9]{1,19}))?")
_MS_DIGITS_MAX = 15  # of a time in this age


def committed_text(last: LastRead | str, now_ms: int) -> str:
    """Give the metadata of a log's committed offset: the last message, and the time."""
    return f"{last}@{now_ms}"


def committed_at(text: str) -> int | None:
    """Read when an offset was committed, in ms since 1970, from its metadata; None: unknown."""
    told = text.partition("@")[2]
    return int(told) if told.isdecimal() and len(told) <= _MS_DIGITS_MAX else None


class LastRead(NamedTuple):
    """A record that was read; `checksum` is 0 where nobody knows it, or reading began behind it.

    Between it and offset `passed` there was none. As text, in the metadata of a log's committed
    offset, it is OFFSET/CHECKSUM, and /PASSED if offsets were passed without a record.
    """

    offset: int
    checksum: int
    leader_epoch: int = -1
    passed: int = 0

    @property
    def has_gap(self) -> bool:
        """Whether offsets behind it were passed without a record."""
        return self.passed > self.offset + 1

    def __str__(self) -> str:
        """Give the text form, which `parse` reads back."""
        gap = f"/{self.passed}" if self.has_gap else ""
        return f"{self.offset}/{self.checksum:08x}{gap}"

    @staticmethod
    def parse(text: str) -> LastRead | None:
        """Read the text form, with or without "@" and a time; None for any other text."""
        found = _TEXT.fullmatch(text.partition("@")[0])
        if found is None:
            return None
        return LastRead(int(found[1]), int(found[2], 16), passed=int(found[3] or 0))


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

    def begins(self, starts: Mapping[TopicPartition, int]) -> None:
        """Take it that partitions of which nothing is known are read from these offsets on."""
        for partition, first in starts.items():
            self._last.setdefault(partition, LastRead(first - 1, 0))

    def gaps(self) -> dict[TopicPartition, LastRead]:
        """Give the last records behind which offsets were passed without one."""
        return {partition: last for partition, last in list(self._last.items()) if last.has_gap}

    def leader_epochs(self) -> dict[TopicPartition, int]:
        """Give, per partition, the epoch of the leader that took the last record."""
        return {partition: last.leader_epoch for partition, last in self._last.items()}

    def forget(self) -> None:
        """Forget all."""
        self._last.clear()

    def note(self, partition: TopicPartition, records: Sequence[Record], position: int) -> bool:
        """Take the next records, and the position behind them.

        If another leader took them, compares the last one before them, and blocks for two requests.
        Returns whether another leader took some of them, or, of the first records of a partition,
        another one than its first leader. Raises `Truncated`.
        """
        last = self._last.get(partition)
        if not records:
            if last is not None:
                self._last[partition] = last._replace(passed=position)
            return False
        newest = records[-1]
        before = 0 if last is None else max(0, last.leader_epoch)
        if last is not None and records[0].leader_epoch != last.leader_epoch:
            self.refuse_others({partition: last})
        checksum = self._checksum(partition, newest)
        self._last[partition] = LastRead(newest.offset, checksum, newest.leader_epoch, position)
        was_read = last is not None and last.leader_epoch >= 0
        return newest.leader_epoch != before and (was_read or newest.leader_epoch > 0)

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
        known = {each: last for each, last in known.items() if last.checksum or last.has_gap}
        begins = self._driver.log_start_offsets(list(known)) if known else {}
        left = {each: last for each, last in known.items() if begins[each] <= _first(last)}
        ends = self._driver.last_stable_offsets(list(left)) if left else {}
        for partition, last in list(left.items()):
            if ends[partition] > _first(last):
                continue
            if not last.checksum:
                del left[partition]
            elif (
                end := end_from(self._driver, self._clock, partition, last.offset + 1)
            ) <= last.offset:
                raise _truncated(partition, last, f"the partition ends at {end}")
        if left:
            upto = {each: min(last.passed, ends[each]) for each, last in left.items()}
            starts = {each: _first(last) for each, last in left.items()}
            with closing(self._driver.reader(starts)) as reader:
                there = self._compare(reader, left, upto)
            self._last = there | self._last

    def _compare(
        self,
        reader: Reader,
        known: Mapping[TopicPartition, LastRead],
        upto: dict[TopicPartition, int],
    ) -> dict[TopicPartition, LastRead]:
        """Read these records, and what is behind them up to these offsets; give what is there."""
        there: dict[TopicPartition, LastRead] = {}
        while upto:
            answers = reader.poll(READ_S)
            if not answers:
                silent = next(iter(upto))
                raise ClusterUnreachable(
                    f"a record of {silent.topic}/{silent.partition} did not come within "
                    f"{READ_S:g} s"
                )
            for partition, records, position in answers:
                last = known[partition]
                for record in records:
                    if record.offset == last.offset:
                        checksum = self._checksum(partition, record)
                        there[partition] = last._replace(
                            checksum=checksum, leader_epoch=record.leader_epoch
                        )
                    elif last.offset < record.offset < last.passed:
                        says = f"a record is at offset {record.offset}, where there was none"
                        raise _truncated(partition, last, says)
                if position <= last.offset:
                    continue
                # 0: this client cannot say.
                checksum = there[partition].checksum if partition in there else -1
                if last.checksum and checksum not in (last.checksum, 0):
                    raise _truncated(partition, last, "another record is there")
                if position >= upto.get(partition, 0):
                    upto.pop(partition, None)
        return there

    def _checksum(self, partition: TopicPartition, record: Record) -> int:
        checksum_of = order_checksum if partition == self._order else message_checksum
        return checksum_of(record)


def _first(last: LastRead) -> int:
    return last.offset + (not last.checksum)  # what is to be compared


def _truncated(partition: TopicPartition, known: LastRead, present: str) -> Truncated:
    return Truncated(
        f"{partition.topic}/{partition.partition} has lost its end: this consumer had read the "
        f"record at offset {known.offset}, and {present}. What it delivered of this partition, "
        f"from some offset up to there, is gone or stands in another order: compare what you have "
        f"stored with it, and begin anew with committed=False"
    ).about(partition)
