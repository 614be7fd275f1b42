"""`DeliveryReaders`: reads from Kafka what one delivery needs: its order, and the logs' payloads.

One reader fetches both, as messages and their tickets are stored together.

order     the stream of the collector; a single-log subscription has none
payloads  the logs of the interest, each from the offset at which the order begins in it
paused    not read for now, because the delivery holds enough of it
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from multicast.consuming.delivery import Delivery
from multicast.consuming.last_read import LastRead, LastReads
from multicast.control import ORDER_GONE, ControlReader, log_partition, stream_partition
from multicast.control.topic_identity import TopicWatch
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver, Fetched, Reader, TopicPartition
from multicast.errors import Trimmed

if TYPE_CHECKING:
    from multicast.tracing.delivered import ConsumerSpans

# A collector comes back within some seconds after its brokers. Ten times shorter would miss it, and
# ten times more often would be seen in the brokers' work; ten times longer would not.
_LOOKS_S = 60.0
_LOOK_EVERY_S = 2.0
_LOOK_LATER_S = 30.0  # and then: some bytes for each of its reads, as long as it reads
_ORDER = -1  # in place of a log's number: the order stream


class DeliveryReaders:
    """The reader of a consumer. Used from one thread at a time."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._clock = driver, clock_of(driver)
        # By Kafka partition that is read: its log's number in the plan, or `_ORDER`.
        self._streams: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self.watch = TopicWatch(driver)  # of all topics that are read
        self.last = LastReads(driver)
        self._reader: Reader = driver.reader({})
        self._looks_until = self._look_at = math.inf
        self._unfed: deque[Fetched] = deque()  # read, and not compared yet: it comes again

    def begin(self, delivery: Delivery) -> None:
        """Read for this delivery only: its order at once, payloads by `read_payloads`."""
        self._reader.remove(list(self._streams))
        self._streams.clear()
        self._paused.clear()
        self._unfed.clear()
        topics = {log.topic for log in delivery.logs.values()}
        partition = None
        if delivery.order is not None:
            partition = stream_partition(delivery.plan, delivery.order.collector)
            topics.add(partition.topic)
            self._streams[partition] = _ORDER
            self._reader.add({partition: delivery.order.offset_next})
        self.watch.begin(delivery.plan, topics)
        self.last.begin(partition)

    def refuse_lost_order(self) -> None:
        """Raise `Truncated` if the order record that was read last, perhaps a freeze, is gone.

        Where the freeze is another one the next epoch begins elsewhere. Blocks for two requests.
        """
        for partition in [each for each, number in self._streams.items() if number == _ORDER]:
            self.last.refuse_lost(partition)

    def prove(self, delivery: Delivery) -> None:
        """Compare the message before the cursor; blocks for that once. Raises `Truncated`."""
        if delivery.unproven is not None:
            number, offset, checksum = delivery.unproven
            partition = log_partition(delivery.logs[number])
            if not delivery.tails.drops(number, offset):  # else its loss is accepted
                self.last.refuse_others({partition: LastRead(offset, checksum)})
            delivery.unproven = None

    def read_payloads(self, delivery: Delivery) -> None:
        """Begin to read payloads as soon as the delivery knows their first offsets.

        Blocks for a request then. If it fails nothing has changed: call it again. Raises what
        `prove` raises.
        """
        self.prove(delivery)
        starts = delivery.payload_starts
        if starts is None or len(self._streams) >= len(starts) + (delivery.order is not None):
            return
        numbers = {log_partition(delivery.logs[number]): number for number in starts}
        # An early run may begin above its log's end, where no reader can start.
        ends = self._driver.last_stable_offsets(list(numbers))
        self._streams.update(numbers)
        firsts = {log: min(starts[number], ends[log]) for log, number in numbers.items()}
        self._reader.add(firsts)
        self.last.begins(firsts)

    def read(self, timeout_s: float) -> list[Fetched]:
        """Read order records and payloads; `balance` bounds them."""
        if self._unfed:
            return []
        try:
            return self._reader.poll(timeout_s)
        except Trimmed as error:
            self.watch.look()  # in another topic the position means nothing
            is_order = False
            if error.partition is not None:
                partition = TopicPartition(*error.partition)
                is_order = self._streams.get(partition) == _ORDER
                self.last.refuse_lost(partition)
            gone = Trimmed(
                f"{str(error).rstrip('.')}; what comes next is gone: go on with "
                f'seek("earliest"), the first place from which all is retained, or open the '
                f"consumer with committed=False" + (f" ({ORDER_GONE})" if is_order else "")
            )
            gone.partition = error.partition
            raise gone from error

    def feed(
        self, delivery: Delivery, answers: Sequence[Fetched], spans: ConsumerSpans | None
    ) -> None:
        """Hand to the delivery what `read` gave; raises what `Delivery.order_read` raises."""
        now = self._clock.monotonic()
        self._unfed.extend(answers)
        while self._unfed:
            partition, records, position = self._unfed[0]
            number = self._streams.get(partition)
            if number is not None and self.last.note(partition, records, position):
                self._looks_until = now + _LOOKS_S
                self._look_at = now
            self._unfed.popleft()
            if number is None:
                continue
            if number != _ORDER:
                delivery.payload_read(number, records, position, now=now)
                continue
            if spans is not None:
                spans.order_read(records)
            for record in records:
                delivery.order_read(record)
            delivery.order_passed(position)

    def look_is_due(self) -> bool:
        """Whether to read now what the control topic states of losses.

        Once another leader than the first one has taken records, and then again and again, as
        collectors may come back after the brokers.
        """
        now = self._clock.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + (_LOOK_EVERY_S if now < self._looks_until else _LOOK_LATER_S)
        return True

    def balance(self, delivery: Delivery) -> None:
        """Pause the logs whose buffers are full, and an order far ahead; resume the rest."""
        numbers = set(delivery.paused())
        if delivery.order_paused():
            numbers.add(_ORDER)
        if not numbers and not self._paused:
            return
        paused = {partition for partition, number in self._streams.items() if number in numbers}
        if paused != self._paused:
            self._reader.pause(sorted(paused - self._paused))
            self._reader.resume(sorted(self._paused - paused))
            self._paused = paused

    def wake(self) -> None:
        """End a `read` that waits; from any thread."""
        self._reader.wake()

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


def open_clients(driver: Driver, topic: str) -> tuple[ControlReader, DeliveryReaders, ExitStack]:
    """Open what a consumer reads with, the control topic read to its end; the stack closes both."""
    with ExitStack() as opened:
        control = ControlReader(driver, topic)
        opened.callback(control.close)
        control.refresh()
        readers = DeliveryReaders(driver)
        opened.callback(readers.close)
        return control, readers, opened.pop_all()
