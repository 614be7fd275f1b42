"""The poster's ordering scheme as it was built: kafka-python, and one order record a message.

One collector reads every message of its partitions and appends a record with its ID to a single
order partition; a consumer waits for both. The poster merges the streams of several collectors by
its Algorithm 1; with one collector there is nothing to merge. `collect` is a role of
`bench.harness.client`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.harness.client import Talk
from multicast.drivers import open_driver
from multicast.drivers.protocol import AppendOutcome, Driver, Record, TopicPartition
from multicast.errors import BufferFull

_POLL_S = 0.05  # how long a poll waits, as for the other arms (`bench.comparison.client`)
_FULL_PAUSE_S = 0.001  # while the driver's buffer is full
_pause = threading.Event()  # never set; used to sleep


def order_of(topic: str) -> TopicPartition:
    """Return the Kafka partition that holds the order."""
    return TopicPartition(f"{topic}.Msg-TO", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PosterTask:
    """Order the first partitions of a topic."""

    bootstrap: str
    topic: str
    partitions: int


def collect(task: PosterTask, talk: Talk) -> None:
    """Append each message's ID to the order partition, as messages arrive."""
    driver, topic = open_driver("kafka-python", task.bootstrap), task.topic
    order = order_of(topic)
    reader = driver.reader({TopicPartition(topic, number): 0 for number in range(task.partitions)})
    appender = driver.appender()
    while not talk.stop:
        for fetched in reader.poll(1.0):
            for record in fetched.records:
                message_id = b"%d:%d" % (fetched.partition.partition, record.offset)
                while True:
                    try:
                        appender.append(order, message_id, done=_nothing)
                    except BufferFull:
                        _pause.wait(_FULL_PAUSE_S)
                    else:
                        break


class PosterConsumer:
    """Delivers a message when its ID is next in the order and its payload has been received."""

    def __init__(self, driver: Driver, topic: str, places: Sequence[TopicPartition]) -> None:
        self._order = order_of(topic)
        self._starts = {**dict.fromkeys(places, 0), self._order: 0}
        self._partitions = {place.partition for place in places}
        self._received: dict[tuple[int, int], Record] = {}
        self._ordered: deque[tuple[int, int]] = deque()
        self._reader = driver.reader(self._starts)
        self.close = self._reader.close

    def poll(self) -> Iterator[Sequence[Record]]:
        """Poll once; yield the messages that can be delivered."""
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
    """Ignore the outcome, as the poster's collector does."""
