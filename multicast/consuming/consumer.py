"""Consumer: reads the order of one collector and the payloads of an interest's logs, and delivers.

`Consumer` polls Kafka and carries out what `multicast.consuming.delivery` decides.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import partial
from typing import Literal, Unpack

from multicast.conditional.judge import WhyVoid
from multicast.conditional.lookback import Lookback
from multicast.consuming.batches import Batch, Message
from multicast.consuming.consumer_facts import ConsumerFacts
from multicast.consuming.cursor import Cursor
from multicast.consuming.delivery import Delivery
from multicast.consuming.ends import end_now, opened_at
from multicast.consuming.exclusive import Exclusive
from multicast.consuming.gaps import past_gap
from multicast.consuming.group_positions import GroupCursor, GroupPositions, kafka_group
from multicast.consuming.readers import open_clients
from multicast.consuming.reading import Reading
from multicast.consuming.stated_ends import read_stated, refuse_lost_stream, refuse_other_end, tell
from multicast.consuming.subscription import (
    Bounds,
    End,
    SubscriptionRequest,
    follow,
    interest_at,
    missing,
    pass_marker,
    resume,
)
from multicast.consuming.wrong_calls import OneUser, refuse_no_messages
from multicast.control import ControlState, control_partition, log_partition
from multicast.control.topic_identity import refuse_changed_topics
from multicast.drivers import open_driver
from multicast.drivers.clock import clock_of, seconds
from multicast.drivers.protocol import Driver
from multicast.errors import ClusterUnreachable, ProtocolViolation, TimedOut, UsageError
from multicast.metrics.consumed import ConsumptionCounter
from multicast.tracing import spans_of_consumer
from multicast.verification.observer import observer_of
from multicast.workers.runners import Handler
from multicast.workers.workers import KeysOf, Workers, WorkOptions, own_key

Start = Literal["earliest", "latest"]
Where = Start | Cursor | str | datetime
VoidMessages = Literal["drop", "mark"]
# Messages that one call delivers at most: what a driver's poll returns at most (`Reader.poll`).
_MESSAGES_MAX = 5000
_SHORTEST_S = 0.001  # the clients count time-outs in milliseconds: no driver waits for less
_POLL_S = 1.0  # one wait of the endless loops; it ends early when a record comes
_END_EVERY_S = 0.05  # how often `until_end` tests for the end; a human notices 0.2 s
# `until_end` gives up after so long without a message. A broker's failure must not fail it: Kafka
# elects other leaders once the broker's session has expired, after 9 s by default
# (broker.session.timeout.ms).
_QUIET_S = 30.0


class Consumer(ConsumerFacts):
    """Delivers every message whose destination set meets the interest, in the agreed order.

    Subscribe with `name`, a consumer of the plan, or with `interest`, a set of partitions. Commits
    go to Kafka's group amcast.TOPIC.GROUP (`group`; default: the name, or the interest). A group
    holds a position; it does not share messages out: each of its consumers gets all. Delivery
    begins at the committed cursor; at `start`, or what that function returns, if there is none, or
    if `committed` is False. With `exclusive` one of the group's consumers is active; the others
    stand by, and begin there when that one ends (docs/how-to/fail-over.md).
    One thread at a time may use it (another one gets a `UsageError`); `commit`, `progress`,
    `entries`, `counts`, `waiting` and `close` may be called from any thread meanwhile.
    Void messages (docs/conditional.md) are dropped; with `void="mark"` their `decision` tells them.
    `driver` is a driver's name, or an open driver, which stays open. `tracing` makes spans
    (docs/tracing.md). Raises `UncoveredInterest` if no collector orders all logs of the interest,
    `UsageError` for an unknown partition.
    """

    def __init__(
        self,
        bootstrap: str = "",
        *,
        topic: str,
        name: str | None = None,
        interest: Iterable[str] | None = None,
        group: str | None = None,
        start: Where | Callable[[], Where] = "earliest",
        committed: bool = True,
        exclusive: bool = False,
        void: VoidMessages = "drop",
        driver: str | Driver = "librdkafka",
        client: Mapping[str, str] | None = None,
        bounds: Bounds | None = None,
        tracing: bool = False,
    ) -> None:
        self._request = SubscriptionRequest.of(name, interest)
        self._bounds = bounds or Bounds()
        if exclusive and not committed and not callable(start):
            raise UsageError("each activation begins at `start`: without `committed` a function")
        if void not in ("drop", "mark"):
            raise UsageError(f'void is {void!r}; give "drop" or "mark"')
        self._topic, self._void_too = topic, void == "mark"
        self._void: Counter[WhyVoid] = Counter()
        label = name or "+".join(self._request.interest or ())
        group = kafka_group(topic, label if group is None else group)
        self._spans = spans_of_consumer(name or "", group, wanted=tracing)
        self._delivery: Delivery
        self._reading = Reading(self._spans)
        self._exclusive: Exclusive | None = None
        self._omitted = ""
        self._user = OneUser("consumer", self._read_anew)
        # Held to change, and to read for a commit, what was delivered; never while a poll waits.
        self._lock = threading.RLock()
        self._clients = ExitStack()  # the readers: of the control topic, of the order and logs
        self._group_positions: GroupPositions
        self._driver: Driver
        with ExitStack() as opened:
            if isinstance(driver, str | None):
                self._driver = open_driver(driver, bootstrap, client)
                opened.callback(self._driver.close)
            else:
                self._driver = driver
            self._clock, self._observe = clock_of(self._driver), observer_of(self._driver)
            self._counter = ConsumptionCounter(label, self._driver, self._lock, self._clock)
            opened.callback(lambda: self._clients.close())  # noqa: PLW0108 - later ones, too
            self._open_clients()
            self._group_cursor = GroupCursor(
                self._driver,
                self._clock,
                topic,
                group,
                lambda cursor: interest_at(self._control.state, self._request, cursor),
                exclusive=exclusive,
            )
            self._lookback = Lookback(self._driver)
            opened.callback(self._lookback.close)
            self._begin_anew = partial(self._begin_at, start, committed=committed)
            self._begin_anew()
            if exclusive:
                places = [
                    control_partition(topic),
                    *map(log_partition, self._delivery.logs.values()),
                ]
                joining = self._driver, self._clock, self._group_cursor
                self._exclusive = Exclusive(*joining, places)
                opened.callback(self._exclusive.close)
                self._reading.hold = self._exclusive.hold
            self._opened = opened.pop_all()

    # -- reading ----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message]:
        """Deliver messages one by one, without end; raises what `poll` raises."""
        return self._reading.messages(self._each(_MESSAGES_MAX))

    def batches(self, *, messages_max: int = _MESSAGES_MAX) -> Iterator[Batch]:
        """Deliver in batches, without end: faster than message by message.

        The messages of one batch are of one log and one destination set. Raises what `poll` raises.
        """
        for batch in self._each(messages_max):
            self._reading.hand_out([batch])
            yield batch

    def _each(self, messages_max: int) -> Iterator[Batch]:
        while True:
            yield from self._polled(_POLL_S, messages_max)

    def _polled(self, timeout: float, messages_max: int) -> Iterator[Batch]:
        """Give the batches of one poll, until another poll or a seek takes its place."""
        batches = self._poll(timeout, messages_max)
        turn = self._reading.turn
        for batch in batches:
            yield batch
            if self._reading.turn != turn:
                break

    def poll(self, timeout: float = _POLL_S, *, messages_max: int = _MESSAGES_MAX) -> list[Batch]:
        """Deliver the next messages, at most `messages_max`; [] if none came within `timeout` s.

        Raises `Trimmed` if retention has removed messages after the position, `UncoveredInterest`
        if the next epoch does not cover the interest, `TopicChanged` within seconds if a topic was
        deleted or recreated, and `ClusterUnreachable`, `UnknownVersion` and `ProtocolViolation`.
        """
        batches = self._poll(timeout, messages_max)
        self._reading.hand_out(batches)
        return batches

    def _poll(self, timeout: float, messages_max: int) -> list[Batch]:
        """Take the next messages; those that a call before took and did not hand out come again."""
        refuse_no_messages(messages_max)
        with self._user.call():
            if not self._reading.all_handed_out:
                self._seek(self.position)
            self._reading.turn += 1
            exclusive = self._exclusive
            if exclusive and not exclusive.may_deliver(seconds(timeout), self._become_active):
                return []
            batches = self._next_batches(timeout, messages_max)
            self._reading.take(batches)
            return batches

    def _next_batches(self, timeout: float, messages_max: int) -> list[Batch]:
        """Deliver; read more until something can be delivered or the time is over."""
        deadline = self._clock.monotonic() + seconds(timeout)
        if self._spans is not None:
            self._spans.make()
        while True:
            self._user.refuse_ended()
            self._readers.watch.refuse()
            if self._readers.look_is_due():
                with suppress(ClusterUnreachable):  # it looks again
                    tell(self._control.refresh(), self._delivery)
            waits_for_control = self._turn_epoch()
            batches = self._deliver(messages_max)
            if batches:
                return batches
            if self._delivery.stopped_in is not None:
                read_stated(self._driver, self._control, self._delivery, self._lock)
                continue
            self._readers.balance(self._delivery)
            self._readers.read_payloads(self._delivery)
            remaining = deadline - self._clock.monotonic()
            if self._delivery.judges.wanted is not None:
                self._lookback.read(self._delivery.judges, max(0.0, remaining))
                if self._delivery.judges.wanted is None:
                    # What was read again may be of another topic than what is at hand.
                    self._readers.watch.look()
            elif waits_for_control:  # the logs and the order can add nothing until then
                self._control.follow(max(0.0, remaining))
            else:
                self._read(max(0.0, remaining))
            if deadline - self._clock.monotonic() < _SHORTEST_S:
                return self._deliver(messages_max)

    def _deliver(self, messages_max: int) -> list[Batch]:
        """Take the messages that can be delivered; record the logs' offsets for commits."""
        with self._lock:
            self._group_positions.follow(self._delivery)
            self._delivery.fence = self.fence
            batches = self._delivery.deliver(messages_max)
            for batch in batches:
                self._group_positions.handed_out(batch)
                self._counter.delivered(batch)
            if batches:  # also past what was dropped
                self._group_positions.moved(self._delivery)
        return batches

    def until_end(self, *, timeout: float = _QUIET_S, end: End | None = None) -> Iterator[Batch]:
        """Deliver everything that the interest's logs contain now, then stop.

        "Now" is the moment at which the first batch is requested, or at which `end` was taken.
        `subscription.End` defines the end, over the logs of all epochs up to the newest
        plan's. Messages that come later may be delivered too. Raises `TimedOut` if no message came
        for `timeout` seconds before the end, while it did not stand by, and what `poll` raises;
        `UncoveredInterest` comes only after all messages of the epochs that cover the interest.
        """
        if end is None:
            end = self.end()
        else:
            with self._user.call():
                self._control.refresh()
        silence_ends = self._clock.monotonic() + seconds(timeout)
        while True:
            for batch in self._polled(_END_EVERY_S, _MESSAGES_MAX):
                self._reading.hand_out([batch])
                yield batch
                silence_ends = self._clock.monotonic() + timeout  # without the application's time
            cause = self.lacks(end)
            if cause is None:
                return
            if self.stands_by:
                silence_ends = self._clock.monotonic() + timeout
            if self._clock.monotonic() > silence_ends:
                raise TimedOut(f"no message came for {timeout:g} s: {cause}")

    def end(self) -> End:
        """Take the end of the interest's logs as it is now; blocks for requests to Kafka."""
        with self._user.call():
            return end_now(self._driver, self._control, self._request)

    def lacks(self, end: End) -> str | None:
        """Say what is not delivered or dropped yet up to an end; None: nothing."""
        return missing(self._control.state, self._request, self._delivery, end)

    def reached(self, end: End) -> bool:
        """Whether everything up to an end is delivered or dropped."""
        return self.lacks(end) is None

    # -- positions ----------------------------------------------------------------------------

    def seek(self, where: Where) -> None:
        """Continue at a cursor (or its text form), "earliest", "latest", or a time.

        "earliest" is the first place from which on every epoch covers the interest, and the order
        and all logs of the interest are retained: `omitted` says what lies before it. "latest" is
        the end of the order as it is now. A time means the first order record (for a single log:
        the first message) written at or after it in the epoch that ran then, or "earliest" if that
        is later. Blocks while the control topic is read, and for requests; takes effect whole, or,
        if it raises, not at all. Raises `UsageError` for a cursor of a source that does not serve
        the interest, `Trimmed` for one beyond the end, `UncoveredInterest`, `ClusterUnreachable`. A
        cursor that a consumer has made names its interest; one of five parts, which does not, may
        skip messages of another interest.
        """
        with self._user.call():
            if self.stands_by:
                raise UsageError("this consumer stands by: it begins where the active one ends")
            self._seek(where, anew=True)

    def _seek(self, where: Where, *, anew: bool = False) -> None:
        delivery, omitted = opened_at(
            where, self._driver, self._clock, self._control, self._request, bounds=self._bounds
        )
        with self._lock:
            last = (
                {}
                if anew
                else self._group_positions.last_of_logs(self.position, self._readers.last.gaps())
            )
            if anew:
                self._readers.last.forget()
            self._begin(delivery)
            self._omitted = omitted if anew else self._omitted
            observed = self._observe(
                self._request,
                delivery.position,
                earliest=where == "earliest",
                at_end=partial(self._at_end, self._reading.seeks + 1),
            )
            self._group_positions = GroupPositions()
            self._group_positions.goes_on(last)
            self._reading.begin(delivery.position, observed)

    def commit(self, cursor: Cursor | str | None = None) -> None:
        """Store a cursor (default: `position`) under the group; block until Kafka has stored it.

        Commit a message's cursor after processing it: a restart then begins with the next message.
        The cursor is stored as the metadata of an offset of the control topic. The commit also
        stores an offset for each log of the interest, so that Kafka's tools show the group's lag.
        Raises `UsageError` for a cursor of another interest.
        """
        with self._lock:
            cursor = self.position if cursor is None else Cursor.of(cursor)
            offsets = self._group_positions.offsets_at(cursor, self._delivery)
            last = self._group_positions.last_of_logs(cursor, self._readers.last.gaps())
            logs = [log_partition(log) for log in self._delivery.logs.values()]
        self._group_cursor.store(cursor, self._control.position, offsets, last, logs)

    def workers(
        self, handler: Handler, *, n: int, keys: KeysOf = own_key, **options: Unpack[WorkOptions]
    ) -> None:
        """Handle messages, n at a time, those of a key in their order; blocks (docs/workers.md)."""
        place = self._driver, self._topic, self._reading.hand_back
        Workers(self, place, handler, n=n, keys=keys, **options).run()

    def close(self) -> None:
        """Release everything, after a call of another thread has ended (by `UsageError`)."""
        with self._user.last_call(self._wake):
            if self._spans is not None:
                self._spans.make()
            self._opened.close()
            self._counter.closed = True

    def _wake(self) -> None:
        self._readers.wake()
        if self._exclusive is not None:
            self._exclusive.end()

    # -- inside -----------------------------------------------------------------------------

    def _read_anew(self) -> None:
        """After a call that was cut off: its readers may have gone past what it never gave."""
        with suppress(Exception):  # what was cut off may not know how to close
            self._clients.close()
        self._open_clients()
        self._seek(self.position)

    def _begin_at(self, start: Where | Callable[[], Where], *, committed: bool) -> None:
        """Begin at the group's cursor, or at `start`."""
        if committed:
            with self._group_cursor.opening():
                stored = self._group_cursor.stored(self._control.position)
                if stored is not None:
                    place = self._driver, self._control.state, self._request
                    gone_on = past_gap(*place, stored, self._group_cursor.logs_at)
                    self._seek(gone_on, anew=True)
                    return self._go_on()
        return self._seek(start() if callable(start) else start, anew=True)

    def _become_active(self) -> None:
        """Begin where the one before has ended, and commit that."""
        self._control.refresh()
        self._begin_anew()
        self.commit()

    def _go_on(self) -> None:
        """Compare the last messages that the group's commit names with what is there now.

        Not those that an operator has accepted as lost: who had them goes on behind.
        """
        known = self._group_cursor.logs_at(self._delivery.logs.values())
        last = {partition: message for partition, (_, message) in known.items()}
        for number, log in self._delivery.logs.items():
            message = last.get(log_partition(log))
            if message is None:
                continue
            if self._delivery.tails.drops(number, message.offset):
                del last[log_partition(log)]
            elif message.has_gap and self._delivery.tails.drops(number, message.passed - 1):
                last[log_partition(log)] = message._replace(passed=0)
        self._readers.last.refuse_others(last)
        self._group_positions.goes_on(last)
        self._delivery.begin_at({log: offset for log, (offset, _) in known.items()})

    def _open_clients(self) -> None:
        self._control, self._readers, self._clients = open_clients(self._driver, self._topic)

    def _at_end(self, seek: int, control: ControlState, end: End) -> bool:
        if seek != self._reading.seeks:  # what an older reading lacks, this one may have had
            return False
        lacks = missing(control, self._request, self._delivery, end)
        return self._reading.all_handed_out and lacks is None

    def _begin(self, delivery: Delivery) -> None:
        """Read for this delivery only. If a topic was recreated, raise before anything changes."""
        topics = {log.topic for log in delivery.logs.values()}
        refuse_changed_topics(self._driver, delivery.plan, topics)
        if delivery.order is not None:
            plan, collector = delivery.plan, delivery.order.collector
            refuse_lost_stream(self._driver, self._control.state, plan.epoch, collector)
        with self._user.change():
            self._readers.begin(delivery)
            self._delivery, delivery.void_too = delivery, self._void_too
            delivery.judges.void = self._void
            self._lookback.close()
            self._counter.begin(delivery)

    def _read(self, timeout: float) -> None:
        answers = self._readers.read(timeout)
        with self._lock:
            try:
                self._readers.feed(self._delivery, answers, self._spans)
            except ProtocolViolation:
                order = self._delivery.order
                if order is None or order.proven:
                    raise
                # The checkpoint does not match the stream: read from the epoch's start instead.
                known = self._control.state, self._request, self._delivery.position
                self._begin(resume(*known, bounds=self._bounds, checkpoints=False))

    def _turn_epoch(self) -> bool:
        """Pass an apparent marker, or begin the next epoch, if the delivery has stopped at either.

        True: delivery continues only after the control topic says more.
        """
        delivery = self._delivery
        if not (delivery.ended or (delivery.order is None and delivery.marker is not None)):
            return False
        self._counter.stopped(delivery, self._clock.monotonic())
        control = self._control.state
        if not delivery.ended:
            return not pass_marker(control, delivery, self._control.refresh)
        self._readers.prove(delivery)
        following = follow(control, self._request, delivery, bounds=self._bounds)
        if following is None:
            return True
        self._readers.refuse_lost_order()
        refuse_other_end(control, delivery.order)
        with self._lock:
            self._begin(following)
        self._counter.resumed(self._clock.monotonic())
        return False
