"""Plain Kafka beside the demo: some of its messages also go to one ordinary partition.

The same driver writes and reads them in the same process and the same seconds, without an order. So
a slow machine slows down both, and the ratio of the latencies says what the order costs.
"""

from __future__ import annotations

import threading
import time
from typing import Self

from bench.demo.screen import Delivered
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.protocol import AppendOutcome, Driver, TopicPartition

EVERY = 4  # each fourth message: 50 a second give a median, and take little from the others
_POLL_S = 0.2  # a record ends the wait at once; an end has to wait for it


class PlainKafka:
    """A topic with one partition, an appender and a reader; a context manager.

    Blocks until the reader has answered once, so that what is sent afterwards finds it open.
    """

    def __init__(self, driver: Driver, admin: Admin, topic: str) -> None:
        admin.create_topics({topic: TopicSpec(1)})
        self._partition = TopicPartition(topic, 0)
        self.delivered: list[Delivered] = []
        self._appender = driver.appender()
        self._reader = driver.reader(driver.last_stable_offsets([self._partition]))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.poll(_POLL_S)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)
        self._reader.close()
        self._appender.close()

    def send(self, payload: bytes, sent_ns: int) -> None:
        """Append without waiting; `sent_ns` is when it was to be sent."""
        headers = [("sent_ns", b"%d" % sent_ns)]
        self._appender.append(self._partition, payload, headers=headers, done=_nothing)

    def _read(self) -> None:
        while not self._stop.is_set():
            for _, records, _ in self._reader.poll(_POLL_S):
                now_ns = time.monotonic_ns()
                for record in records:
                    sent_ns = int(dict(record.headers)["sent_ns"] or b"")
                    self.delivered.append(Delivered(str(record.offset), sent_ns, now_ns))


def _nothing(_: AppendOutcome) -> None:
    """Take an outcome that nobody waits for: what is not stored is not delivered."""
