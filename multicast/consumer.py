"""Consume: the order of one collector and the payloads of the interest's logs, read and delivered.

`Consumer` polls Kafka and carries out what `multicast.delivery` decides; there is no rule of the
protocol in this file. One thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Literal, Self

from multicast.control import (
    ALONE,
    ControlReader,
    control_partition,
    log_partition,
    stream_partition,
)
from multicast.cursor import Cursor
from multicast.delivery import Batch, Delivery
from multicast.drivers import open_driver
from multicast.drivers.protocol import Driver, Headers, Reader, Record, TopicPartition
from multicast.errors import ProtocolViolation, TimedOut
from multicast.group_positions import GroupPositions
from multicast.messages import MessageID
from multicast.subscription import (
    Bounds,
    End,
    SubscriptionRequest,
    earliest,
    follow,
    logs_wanted,
    missing,
    pass_marker,
    resume,
)
from multicast.topic_identity import refuse_changed_topics

Start = Literal["earliest", "latest"]
_ORDERS_MAX = 500
_SHORTEST_S = 0.001  # a driver does not wait for less


class Message:
    """One delivered message."""

    __slots__ = ("_batch", "_record")

    def __init__(self, batch: Batch, record: Record) -> None:
        self._batch = batch
        self._record = record

    @property
    def message_id(self) -> MessageID:
        """(log, offset); prints as "P1+P3:17"."""
        return MessageID(self._batch.log.name, self._record.offset)

    @property
    def to(self) -> tuple[str, ...]:
        """The destination set, sorted: the one the producer named."""
        return self._batch.to

    @property
    def payload(self) -> bytes | None:
        """What the producer sent."""
        return self._record.value

    @property
    def key(self) -> bytes | None:
        """The producer's key."""
        return self._record.key

    @property
    def headers(self) -> Headers:
        """The producer's headers, ours left out."""
        return [pair for pair in self._record.headers if not pair[0].startswith("amcast.")]

    @property
    def timestamp_ms(self) -> int:
        """Kafka's timestamp of the record, milliseconds since 1970."""
        return self._record.timestamp_ms

    @property
    def cursor(self) -> Cursor:
        """The position right after this message."""
        batch = self._batch
        return Cursor(batch.epoch, batch.source, batch.record, batch.run, self._record.offset + 1)

    def __repr__(self) -> str:
        return f"<Message {self.message_id} to {'+'.join(self.to)}>"


class Consumer:
    """Delivers every message whose destination set meets the interest, in the agreed order.

    `name` is a consumer of the plan, or `interest` the partitions to subscribe to. Positions are
    committed under `group` (default: the name, or the interest). Reading begins at the group's
    committed cursor (unless `committed` is False), else at `start`. `driver` is a driver's name or
    an open driver.
    """

    def __init__(
        self,
        bootstrap: str = "",
        *,
        topic: str,
        name: str | None = None,
        interest: Iterable[str] | None = None,
        group: str | None = None,
        start: Start | Cursor | str | datetime = "earliest",
        committed: bool = True,
        driver: str | Driver = "librdkafka",
        client: Mapping[str, str] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self._wanted = SubscriptionRequest.of(name, interest)
        self._bounds = bounds or Bounds()
        self._topic = topic
        self._group = f"amcast.{topic}." + (group or name or "+".join(self._wanted.interest or ()))
        self._places: dict[TopicPartition, int] = {}  # what is read: -1 the order, else a log
        self._paused: set[TopicPartition] = set()
        self._delivery: Delivery
        self._at_hand: Message | Batch | None = None
        self._sought = False
        self._group_positions: GroupPositions
        self._positions_known = False
        self._driver: Driver
        with ExitStack() as opened:
            if isinstance(driver, str):
                self._driver = open_driver(driver, bootstrap, client)
                opened.callback(self._driver.close)
            else:
                self._driver = driver
            self._control = ControlReader(self._driver, topic)
            opened.callback(self._control.close)
            # A reader each: one fetch would bring either the order or the payload, and the other
            # would wait for the next one.
            self._orders: Reader = self._driver.reader({})
            opened.callback(self._orders.close)
            self._payloads: Reader = self._driver.reader({})
            opened.callback(self._payloads.close)
            self._control.refresh()
            stored = self._committed() if committed else None
            self.seek(stored if stored is not None else start)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- reading ----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message]:
        """Deliver one message after the other, for ever."""
        for batch in self.batches():
            for record in batch.records:
                self._at_hand = message = Message(batch, record)
                yield message
                if self._sought:
                    break

    def batches(self, *, messages_max: int = 5000) -> Iterator[Batch]:
        """Deliver in batches (one log, one destination set each), for ever: the fast way."""
        while True:
            self._sought = False
            for batch in self._poll(1.0, messages_max):
                self._at_hand = batch
                yield batch
                if self._sought:
                    break

    def poll(self, timeout: float = 1.0, *, messages_max: int = 5000) -> list[Batch]:
        """Deliver what there is; wait at most `timeout` seconds for it.

        Raises `Trimmed` where retention went past the position, `UncoveredInterest` where the next
        epoch leaves the interest out, `ClusterUnreachable`, `UnknownVersion`, `ProtocolViolation`.
        """
        batches = self._poll(timeout, messages_max)
        if batches:
            self._at_hand = batches[-1]
        return batches

    def _poll(self, timeout: float, messages_max: int) -> list[Batch]:
        """One loop on one screen: deliver, else read on."""
        deadline = time.monotonic() + timeout
        while True:
            waits_for_control = self._turn_epoch()
            batches = self._deliver(messages_max)
            if batches:
                return batches
            self._balance()
            remaining = deadline - time.monotonic()
            if waits_for_control:  # everything before is delivered
                self._control.follow(max(0.0, remaining))
            else:
                self._read(max(0.0, remaining))
                self._read_payloads()
            if deadline - time.monotonic() < _SHORTEST_S:
                return self._deliver(messages_max)

    def _deliver(self, messages_max: int) -> list[Batch]:
        """Take what can be delivered, and note for commits where each log stands then."""
        if not self._positions_known and self._delivery.payload_starts is not None:
            self._positions_known = True
            self._group_positions.begins(self._delivery.position, self._log_offsets())
        batches = self._delivery.deliver(messages_max)
        for batch in batches:
            self._group_positions.handed_out(batch)
        return batches

    def _log_offsets(self) -> dict[TopicPartition, int]:
        """Give for each log of the interest the offset below which all is delivered or dropped."""
        progress = self._delivery.progress()
        return {log_partition(log): progress[log.name] for log in self._delivery.logs.values()}

    def until_end(self, *, timeout: float = 30.0, end: End | None = None) -> Iterator[Batch]:
        """Deliver everything that stands in the interest's logs by now, then stop.

        By now means: when the first batch is asked for, or when `end` was taken. The logs are
        those of every epoch up to the newest plan's; `multicast.subscription.End` defines the end.
        What came later may be among what is delivered. Raises `TimedOut` where nothing came for
        `timeout` seconds though something must, and what `poll` raises: `UncoveredInterest` where
        all is delivered of the epochs that cover the interest, and a later one does not.
        """
        if end is None:
            end = end_now(self._driver, self._control, self._wanted)
        else:
            self._control.refresh()
        heard = time.monotonic()
        while True:
            for batch in self._poll(0.05, 5000):
                heard = time.monotonic()
                self._at_hand = batch
                yield batch
            waits_for = missing(self._control.state, self._wanted, self._delivery, end)
            if waits_for is None:
                return
            if time.monotonic() - heard > timeout:
                raise TimedOut(f"nothing came for {timeout:g} s, and {waits_for}")

    # -- positions --------------------------------------------------------------------------

    @property
    def position(self) -> Cursor:
        """The cursor right after what was handed out last: a message, a batch, or a poll's all."""
        if self._at_hand is None:
            return self._delivery.position
        return (
            self._at_hand.cursor if isinstance(self._at_hand, Message) else self._at_hand.cursor()
        )

    @property
    def by_collector(self) -> bool:
        """Whether a collector makes the order; else the interest is one log, which is its own."""
        return self._delivery.order is not None

    def progress(self) -> dict[str, int]:
        """For each log of the interest: all that stands below this offset is behind us."""
        return self._delivery.progress()

    @property
    def interest(self) -> tuple[str, ...]:
        """The partitions subscribed to, sorted."""
        return tuple(sorted(self._delivery.interest))

    def seek(self, where: Start | Cursor | str | datetime) -> None:
        """Go to a cursor (or its text), "earliest", "latest", or a time.

        `earliest` is the start of the first epoch that covers the interest, `latest` the end of
        what is ordered, a time the first order record written at or after it.
        """
        control = self._control.refresh()
        if where == "earliest":
            delivery = earliest(control, self._wanted, bounds=self._bounds)
        elif where == "latest":
            delivery = self._open(self._at(None))
        elif isinstance(where, datetime):
            delivery = self._open(self._at(int(where.timestamp() * 1000)))
        else:
            cursor = Cursor.parse(where) if isinstance(where, str) else where
            delivery = self._open(cursor)
        self._at_hand = None
        self._sought = True
        self._group_positions = GroupPositions()
        self._begin(delivery)

    def commit(self, cursor: Cursor | None = None) -> None:
        """Store a cursor (default: `position`) under the group; blocks until Kafka has it.

        Commit the cursor of a message after it was processed: a restart begins right after it.
        The cursor stands as the text of an offset of the control topic; beside it stand offsets
        of the interest's logs, so that Kafka's own tools show the group's lag in messages.
        """
        what = cursor or self.position
        offsets = self._group_positions.resume_from(what)
        if what == self._delivery.position and self._positions_known:
            offsets.update(self._log_offsets())  # skips and markers after the last message, too
        self._driver.commit(
            self._group,
            {
                **{at: (offset, "") for at, offset in offsets.items()},
                control_partition(self._topic): (self._control.position, str(what)),
            },
        )

    def close(self) -> None:
        """Release everything; commits nothing."""
        self._opened.close()

    # -- inside -----------------------------------------------------------------------------

    def _committed(self) -> Cursor | None:
        at = control_partition(self._topic)
        found = self._driver.committed(self._group, [at]).get(at)
        return Cursor.parse(found[1]) if found else None

    def _open(self, cursor: Cursor) -> Delivery:
        return resume(self._control.state, self._wanted, cursor, bounds=self._bounds)

    def _at(self, timestamp_ms: int | None) -> Cursor:
        """Make a cursor for a time in the newest epoch that has begun; None: its end."""
        control = self._control.state
        epoch = control.begun_epoch
        _, source = self._wanted.resolve(control.plan(epoch))
        epoch = control.first_epoch(epoch, source)
        plan = control.plan(epoch)
        alone = source.startswith(ALONE)
        if alone:
            place = log_partition(plan.log(source.removeprefix(ALONE)))
        else:
            place = stream_partition(plan, source)
        if timestamp_ms is None:
            offset = self._driver.last_stable_offsets([place])[place]
        else:
            offset = self._driver.offsets_at([place], timestamp_ms)[place]
        # A lone log's end may lie behind an epoch marker: who reads there must know of that epoch.
        self._control.refresh()
        return Cursor(epoch, source, 0 if alone else offset, 0, offset if alone else 0)

    def _begin(self, delivery: Delivery) -> None:
        """Read for this delivery, and for it alone; where that fails, nothing has changed."""
        topics = {log.topic for log in delivery.logs.values()}
        refuse_changed_topics(self._driver, delivery.plan, topics)
        self._orders.remove([place for place, log in self._places.items() if log < 0])
        self._payloads.remove([place for place, log in self._places.items() if log >= 0])
        self._places.clear()
        self._paused.clear()
        self._delivery = delivery
        self._positions_known = False
        if delivery.order is not None:
            place = stream_partition(delivery.plan, delivery.order.collector)
            self._places[place] = -1
            self._orders.add({place: delivery.order.offset_next})
        self._read_payloads()

    def _read_payloads(self) -> None:
        """Begin with the payloads as soon as it is known where."""
        starts = self._delivery.payload_starts
        if starts is None or len(self._places) > len(starts):
            return
        places = {log_partition(self._delivery.logs[number]): number for number in starts}
        if self._delivery.order is None and self._places:
            return
        # What was ordered early may not be there yet, and beyond a log's end nobody can read.
        ends = self._driver.last_stable_offsets(
            list(places)
        )  # may fail: then the next poll begins with them
        self._places.update(places)
        self._payloads.add(
            {place: min(starts[number], ends[place]) for place, number in places.items()}
        )

    def _read(self, timeout: float) -> None:
        """Read what the head of the order waits for; the rest is fetched ahead meanwhile.

        So the order is read no further while a run is queued, and what is queued stays bounded.
        """
        if self._delivery.waits_for_order:
            found = self._orders.poll(timeout, _ORDERS_MAX)
        else:
            found = self._payloads.poll(timeout)
        for fetched in found:
            self._feed(fetched.partition, fetched.records, fetched.position)

    def _feed(self, partition: TopicPartition, records: Sequence[Record], position: int) -> None:
        log = self._places.get(partition)
        if log is None:
            return
        if log >= 0:
            self._delivery.payload_read(log, records, position)
            return
        try:
            for record in records:
                self._delivery.order_read(record.offset, record.value)
        except ProtocolViolation:
            order = self._delivery.order
            if order is None or order.proven:
                raise
            # The log belies the checkpoint: read from the epoch's start instead.
            where = self._delivery.position
            self._begin(
                resume(
                    self._control.state,
                    self._wanted,
                    where,
                    bounds=self._bounds,
                    checkpoints=False,
                )
            )
            return
        self._delivery.order_passed(position)

    def _balance(self) -> None:
        """Pause what the core has enough of, and resume what it wants again."""
        numbers = set(self._delivery.paused())
        wanted = {place for place, number in self._places.items() if number in numbers}
        if wanted != self._paused:
            self._payloads.pause(sorted(wanted - self._paused))
            self._payloads.resume(sorted(self._paused - wanted))
            self._paused = wanted

    def _turn_epoch(self) -> bool:
        """Go on with the next epoch where this one is over; True while we wait for news of it."""
        delivery = self._delivery
        waits = delivery.ended or (delivery.order is None and delivery.marker is not None)
        if not waits:
            return False
        control = self._control.state
        if not delivery.ended:
            return not pass_marker(control, delivery, self._control.refresh)
        following = follow(control, self._wanted, delivery, bounds=self._bounds)
        if following is None:
            return True
        self._begin(following)
        return False


def end_now(
    driver: Driver, control: ControlReader, wanted: SubscriptionRequest | None = None
) -> End:
    """Take the end as it is now: of a consumer's logs, or (without one) of every log."""
    state = control.refresh()
    places = {log.name: log_partition(log) for log in logs_wanted(state, wanted)}
    ends = driver.last_stable_offsets(list(places.values()))
    positions = {name: ends[at] for name, at in places.items()}
    return End(state.epoch, state.begun_epoch, positions)
