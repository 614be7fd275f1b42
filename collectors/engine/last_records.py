"""The newest record that a loop has read of each order stream, and whether it still is there.

Kafka may lose the end of a stream after it was acknowledged, and gives its offsets to other records
(docs/protocol.md, "Lost tails"). The state of who had read them is then false: so is each record
that it would append. Whoever reads the stream ends with `Truncated`, and begins anew with what is
there. A stream loses nothing but its end, so one record is compared: where it is read again, before
what the next leader has taken is handed on, and where the stream cannot be read on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

from multicast.drivers.protocol import Driver, Fetched, Record, TopicPartition
from multicast.drivers.reading import END_LAGS_S, READ_S
from multicast.errors import ClusterUnreachable, Truncated
from multicast.order.runs import order_checksum

_WAIT_S = 0.5  # for how long a broker may leave a question open; no other one waits for it
_ASK_EVERY_S = 0.2  # while an end is too low; one request each


class LastRecords:
    """Of each order stream one record; used from one thread at a time.

    It stays while nobody reads the stream, as after an error: who comes next says what was lost.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._last: dict[TopicPartition, Record] = {}

    def note(self, fetched: Sequence[Fetched]) -> dict[TopicPartition, Truncated]:
        """Take what was read next, perhaps again; give the streams that have lost their ends.

        Blocks for some requests where another leader has taken the records; if it raises then,
        nothing is noted.
        """
        lost: dict[TopicPartition, Truncated] = {}
        newer, others = [], []
        for partition, records, _ in fetched:
            last = self._last.get(partition)
            if not records or (last is not None and records[-1].offset < last.offset):
                continue
            newer.append((partition, records[-1]))
            if last is None:
                continue
            if records[0].offset <= last.offset:
                if not holds(records, last):
                    lost[partition] = truncated(partition, last)
            elif records[0].leader_epoch != last.leader_epoch:
                others.append(partition)
        lost.update(self.lost(others))
        self._last.update(newer)
        for partition in lost:
            self.forget(partition)
        return lost

    def lost(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Truncated]:
        """Give those of which the newest record is gone; nothing is said of what retention took.

        Blocks for some requests. Raises `ClusterUnreachable` if no answer comes.
        """
        known = {each: self._last[each] for each in partitions if each in self._last}
        if not known:
            return {}
        begins = self._driver.log_start_offsets(list(known))
        left = {each: last for each, last in known.items() if begins[each] <= last.offset}
        gone = self._short(left)
        left = {each: last for each, last in left.items() if each not in gone}
        starts = {each: last.offset for each, last in left.items()}
        with closing(self._driver.reader(starts, wait_s=_WAIT_S)) as reader:
            while left:
                answers = reader.poll(READ_S)
                if not answers:
                    raise ClusterUnreachable(f"no order record came within {READ_S:g} s")
                for partition, records, position in answers:
                    if partition not in left or position <= left[partition].offset:
                        continue
                    last = left.pop(partition)
                    if not holds(records, last):
                        gone.append(partition)
        return {partition: truncated(partition, known[partition]) for partition in gone}

    def _short(self, known: Mapping[TopicPartition, Record]) -> list[TopicPartition]:
        """Give those that end at or below these records, and go on to do so for some seconds."""
        short, deadline, pause = list(known), time.monotonic() + END_LAGS_S, threading.Event()
        while True:
            ends = self._driver.last_stable_offsets(short)
            short = [each for each in short if ends[each] <= known[each].offset]
            if not short or time.monotonic() >= deadline:
                return short
            pause.wait(_ASK_EVERY_S)

    def forget(self, partition: TopicPartition) -> None:
        """Forget a partition: all who read it begin anew."""
        self._last.pop(partition, None)


def holds(records: Sequence[Record], last: Record) -> bool:
    """Whether a record is among those that were read again."""
    here = (order_checksum(each) for each in records if each.offset == last.offset)
    return next(here, 0) == order_checksum(last)


def truncated(partition: TopicPartition, last: Record) -> Truncated:
    """Make the error of a stream that lacks a record which was read."""
    return Truncated(
        f"the order stream {partition.topic}/{partition.partition} has lost its end: the record "
        f"that was read at offset {last.offset} is not there any more, so messages that it had "
        f"ordered come in another order; run 'amcast topology recover'"
    ).about(partition)
