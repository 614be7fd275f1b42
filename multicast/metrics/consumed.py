"""Counts what one consumer reads and delivers, over all its epochs, for `Consumer.counts`.

Whatever a delivery knows by itself is taken from it when somebody asks. Counted are messages, by
batch, and sums of deliveries that are over.
"""

from __future__ import annotations

import threading

from multicast.consuming.batches import Batch
from multicast.consuming.delivery import Delivery
from multicast.consuming.entries_read import ConsumerEntries
from multicast.control import log_partition
from multicast.drivers.clock import ClientClock
from multicast.drivers.protocol import Driver
from multicast.metrics.counts import ConsumerCounts


class ConsumptionCounter:
    """Counts for one consumer; `counts` and `entries` are safe from any thread.

    `lock` is the consumer's, which guards its delivery. Whoever calls `begin` and `delivered`
    holds it.
    """

    def __init__(
        self, consumer: str, driver: Driver, lock: threading.RLock, clock: ClientClock
    ) -> None:
        self._clock = clock
        self.closed = False
        self._consumer = consumer
        self._driver = driver
        self._lock = lock
        self._entries = ConsumerEntries({}, {})  # of the deliveries before, each of one epoch
        self._delivered: dict[str, int] = {}
        self._payload_bytes = 0  # of the deliveries before
        self._delivery: Delivery | None = None  # until the consumer is open
        self._stopped: tuple[Delivery, int | None, float] | None = None
        self._replanning_s: float | None = None

    def begin(self, delivery: Delivery) -> None:
        """Continue with this delivery; the one before it reads nothing more."""
        if self._delivery is not None:
            self._payload_bytes += _payload_bytes(self._delivery)
            self._entries = self._sums(self._delivery)
        self._delivery = delivery

    def delivered(self, batch: Batch) -> None:
        """Count the messages of a batch."""
        name = batch.log.name
        self._delivered[name] = self._delivered.get(name, 0) + len(batch.records)

    def stopped(self, delivery: Delivery, now: float) -> None:
        """Note that a delivery has stopped at the end of its epoch, or at an apparent marker.

        It may be called again while it stands there; the first call counts. `now` is in seconds.
        """
        known = self._stopped
        if known is None or known[0] is not delivery or known[1] != delivery.marker:
            self._stopped = (delivery, delivery.marker, now)

    def resumed(self, now: float) -> None:
        """Note that the next epoch has begun after `stopped`."""
        if self._stopped is not None:
            self._replanning_s = now - self._stopped[2]
            self._stopped = None

    def entries(self) -> ConsumerEntries:
        """Count by log the order entries read, and those dropped."""
        with self._lock:
            assert self._delivery is not None
            return self._sums(self._delivery)

    def _sums(self, delivery: Delivery) -> ConsumerEntries:
        read, dropped = dict(self._entries.read), dict(self._entries.dropped)
        for number, count in sorted(delivery.entries_read().items()):
            name = delivery.plan.logs[number].name
            read[name] = read.get(name, 0) + count
            if number not in delivery.logs:
                dropped[name] = dropped.get(name, 0) + count
        return ConsumerEntries(read, dropped)

    def counts(self) -> ConsumerCounts:
        """Give all counts of one moment."""
        with self._lock:
            delivery = self._delivery
            assert delivery is not None
            entries = self._sums(delivery)
            buffers = delivery.buffers.values()
            progress = {} if delivery.payload_starts is None else delivery.progress()
            return ConsumerCounts(
                topic=delivery.plan.topic,
                consumer=self._consumer,
                closed=self.closed,
                epoch=delivery.plan.epoch,
                delivered=dict(self._delivered),
                payload_bytes=self._payload_bytes + _payload_bytes(delivery),
                buffered=sum(buffer.records for buffer in buffers),
                buffered_bytes=sum(buffer.bytes for buffer in buffers),
                paused_logs=len(delivery.paused()),
                void={why.value: count for why, count in delivery.judges.void.items()},
                entries_read=entries.read,
                entries_dropped=entries.dropped,
                replanning_s=self._replanning_s,
                waiting=delivery.waiting(self._clock.monotonic()),
                progress={
                    log.name: (log_partition(log), progress[log.name])
                    for log in delivery.logs.values()
                    if log.name in progress
                },
                driver=self._driver,
            )


def _payload_bytes(delivery: Delivery) -> int:
    return sum(buffer.payload_bytes for buffer in delivery.buffers.values())
