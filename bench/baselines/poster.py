"""The poster's ordering scheme as it was built: kafka-python, and a record for each message's ID.

One collector reads every message of its partitions and appends its ID, alone, to the order's only
partition; a consumer waits for both. Where several collectors' streams meet, the poster merges them
by its Algorithm 1 (`algorithm1.py`); with one collector there is nothing to merge.

    python -m bench.baselines.poster BOOTSTRAP TOPIC PARTITIONS
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence

from multicast.drivers import open_driver
from multicast.drivers.protocol import AppendOutcome, Driver, Record, TopicPartition
from multicast.errors import BufferFull

_POLL_S = 0.05
_pause = threading.Event()


def order_of(topic: str) -> TopicPartition:
    """Name the Kafka partition that holds the order."""
    return TopicPartition(f"{topic}.Msg-TO", 0)


def collect(driver: Driver, topic: str, partitions: int) -> None:
    """Append each message's ID to the order, in the order in which the messages come. For ever."""
    at = order_of(topic)
    reader = driver.reader({TopicPartition(topic, number): 0 for number in range(partitions)})
    appender = driver.appender()
    while True:
        for fetched in reader.poll(1.0):
            for record in fetched.records:
                message_id = b"%d:%d" % (fetched.partition.partition, record.offset)
                while True:
                    try:
                        appender.append(at, message_id, done=_nothing)
                    except BufferFull:
                        _pause.wait(0.001)
                    else:
                        break


class PosterConsumer:
    """Delivers a message when its ID is at the head of the order and its payload is here."""

    def __init__(self, driver: Driver, topic: str, places: Sequence[TopicPartition]) -> None:
        self._order = order_of(topic)
        self._starts = {**dict.fromkeys(places, 0), self._order: 0}
        self._partitions = {place.partition for place in places}
        self._received: dict[tuple[int, int], Record] = {}
        self._ordered: deque[tuple[int, int]] = deque()
        self._reader = driver.reader(self._starts)
        self.close = self._reader.close

    def poll(self) -> Iterator[Sequence[Record]]:
        """Yield what is ordered and received after one poll."""
        for fetched in self._reader.poll(_POLL_S):
            if fetched.partition == self._order:
                for record in fetched.records:
                    partition, offset = map(int, (record.value or b"").split(b":"))
                    if partition in self._partitions:
                        self._ordered.append((partition, offset))
            else:
                for record in fetched.records:
                    self._received[fetched.partition.partition, record.offset] = record
        delivered = []
        while self._ordered and self._ordered[0] in self._received:
            delivered.append(self._received.pop(self._ordered.popleft()))
        if delivered:
            yield delivered

    def rewind(self) -> None:
        """Read from the start again."""
        self._received.clear()
        self._ordered.clear()
        self._reader.add(self._starts)


def _nothing(_: AppendOutcome) -> None:
    """Forget an outcome: the poster's collector does not look back."""


if __name__ == "__main__":
    collect(open_driver("kafka-python", sys.argv[1]), sys.argv[2], int(sys.argv[3]))
