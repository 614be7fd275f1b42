"""A producer's appends in epochs of version 2: each request carries tickets beside its messages.

    place     of a log: the order stream of its top in the epoch that has begun, with the stream's
              tag and the tickets that this producer owes there. A log without a collector has
              none, nor has any log in an epoch of version 1, or whose plan wants no tickets
    plain     the driver's ordinary appender, until an epoch of version 2 begins; from then on all
              appends go by the joint one, also in later epochs of version 1
    held      appends that start while the plain appender is left: they go to its successor
    sent      of a log: by whose tickets the messages are counted that were sent and have no outcome

Whoever follows the control topic calls `learn`. Until this appender knows of a new epoch, tickets
are void there, and collectors order the messages: that costs time only. So does a ticket that is
lost, which is never sent again, and a producer without the right to write the order topic.

The plain appender is left once all its appends have their outcome, and closed before the joint one
gets its first: it sends nothing any more then, not even what is in doubt. No lock is taken for an
append of the plain appender, as most topics never change the version; an append that comes to it
when it is closed already is refused there, and goes to the joint one.

Invariant: messages of one producer to one log keep their order, also when the appender changes.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from multicast.control import ControlState, log_partition, stream_partition
from multicast.drivers.protocol import (
    CLOSE_TIMEOUT_S,
    Appended,
    Appender,
    AppendFailed,
    AppendOutcome,
    Beside,
    DoneAll,
    Headers,
    JointRecord,
    TopicPartition,
    append_each,
)
from multicast.errors import AccessDenied, AmcastError, BufferFull, UsageError
from multicast.order import anchor
from multicast.tickets.encoding import OwnRecord, encode
from multicast.tickets.producer import TicketBook
from topology.tree import ORDER_VERSION_FIRST

_log = logging.getLogger("amcast.tickets")
# For the outcomes of the plain appender when the first epoch of version 2 begins. If they do not
# come, the next look at the control topic tries again: no message may wait for long. A full buffer
# of 64 MiB is empty in this time at 22 MB/s.
_LEAVE_S = 3.0
# Appends that are held meanwhile; above it the buffer counts as full. A plain choice: so many come
# in a second from a producer that waits for nothing.
_HELD_MAX = 50_000
_HELD_BYTES_MAX = 16 * 1024 * 1024  # a quarter of what may be in flight, so that all have room

Done = Callable[[AppendOutcome], None]


class _Sent(NamedTuple):
    place: TicketPlace | None  # None: no ticket counts them
    number: int


class OpenJoint(Protocol):
    """Opens a joint appender; `Driver.joint_appender` says what it raises."""

    def __call__(self, *, beside: Beside) -> Appender:
        """Open it."""


class TicketPlace(NamedTuple):
    """Where the tickets of a log go: its number in the plan, the stream, its tag, and the book."""

    number: int
    stream: TopicPartition
    tag: bytes
    book: TicketBook


def places_of(
    state: ControlState, epoch: int, known: Mapping[TopicPartition, TicketPlace]
) -> dict[TopicPartition, TicketPlace]:
    """Give the places of all logs in an epoch that has begun, by the logs' Kafka partitions.

    `known` are those of an earlier epoch: a stream that is retained keeps its tag and its book.
    """
    plan = state.plan(epoch)
    if not plan.tickets:
        return {}
    books = {place.tag: place.book for place in known.values()}
    places: dict[TopicPartition, TicketPlace] = {}
    for log in plan.logs:
        top = plan.top(log.name)
        if top is None:
            continue
        began = state.plan(state.first_epoch(epoch, top.name))
        if began.order_version == ORDER_VERSION_FIRST:
            continue
        tag = anchor(began, top.name)
        book = books.setdefault(tag, TicketBook())
        stream = stream_partition(began, top.name)
        places[log_partition(log)] = TicketPlace(began.number(log.name), stream, tag, book)
    return places


def _warn(topic: str, reason: str) -> None:
    _log.warning(
        "this producer writes no tickets to topic %s, so its messages wait for a collector: %s",
        topic,
        reason,
    )


class _Held(NamedTuple):
    partition: TopicPartition
    value: bytes | None
    key: bytes | None
    headers: Headers
    done: Done


class TicketingAppender:
    """An appender of a producer; `multicast.drivers.protocol.Appender` says what its calls do.

    `open_plain` and `open_joint` open the driver's two appenders, with the producer's settings.
    Any thread may call it, but only one at a time calls `learn`, and none does after `close`.
    """

    def __init__(
        self,
        state: ControlState,
        open_plain: Callable[[], Appender],
        open_joint: OpenJoint,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._open_joint = open_joint
        self._topic = state.topic
        self._writer = os.urandom(8)  # the key of tickets, for people
        self._joint: Appender | None = None
        self._plain: Appender | None = None
        self._gate = threading.RLock()  # of `_held`: an append may call `done`, which may append
        self._changed = threading.Condition(self._gate)
        self._held: deque[_Held] | None = None  # while the plain appender is left
        self._held_bytes = 0
        self._closed = False
        self._books = threading.Lock()  # of all books; no append is made with it held
        self._sent: dict[TopicPartition, deque[_Sent]] = {}
        self._epoch = 0  # whose places are known
        self._places: Mapping[TopicPartition, TicketPlace] = {}  # replaced, never changed
        self._denied = False
        self.learn(state)
        if self._joint is None:
            self._plain = open_plain()

    def append(
        self,
        partition: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        done: Done,
    ) -> None:
        """Start an append; the request that contains the message contains a ticket for it."""
        while True:
            plain = self._plain
            if plain is not None:
                try:
                    plain.append(partition, value, key=key, headers=headers, done=done)
                except UsageError:
                    if self._plain is plain:
                        raise
                    continue  # it was left, and closed, meanwhile
                return
            joint = self._joint
            if joint is not None:
                self._append(joint, _Held(partition, value, key, headers, done))
                return
            with self._gate:
                if self._held is not None:
                    self._hold(self._held, _Held(partition, value, key, headers, done))
                    return

    def ready(self, partition: TopicPartition) -> bool:
        """Return whether an append would start now without any wait; one that is held does."""
        current = self._joint or self._plain
        return current is None or current.ready(partition)

    def prepare(self, partition: TopicPartition) -> None:
        """Wait until `ready`, or raise why an append would fail."""
        current = self._joint or self._plain
        if current is not None:
            current.prepare(partition)

    def append_all(
        self,
        partition: TopicPartition,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        done: DoneAll,
    ) -> int:
        """Start appends of these values, in order; return how many were accepted."""
        plain = self._plain
        if plain is not None:
            try:
                return plain.append_all(partition, values, keys=keys, headers=headers, done=done)
            except UsageError:
                if self._plain is plain:
                    raise
        joint = self._joint
        if joint is not None:
            settled = partial(self._settled_all, partition, done)
            return joint.append_all(partition, values, keys=keys, headers=headers, done=settled)
        return append_each(self, partition, values, keys=keys, headers=headers, done=done)

    def flush(self, timeout_s: float) -> bool:
        """Wait until every append so far has its outcome; return False if time ran out."""
        deadline = time.monotonic() + timeout_s
        with self._gate:
            if not self._changed.wait_for(lambda: self._held is None, timeout_s):
                return False
            current = self._joint or self._plain
        assert current is not None, "an appender is left for another one"
        return current.flush(max(0.0, deadline - time.monotonic()))

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush for at most `timeout_s`, then settle the remaining appends."""
        with self._gate:
            self._closed = True
            self._changed.wait_for(lambda: self._held is None, timeout_s + 2 * _LEAVE_S)
            current = self._joint or self._plain
        if current is not None:
            current.close(timeout_s)

    # -- the way of an append ---------------------------------------------------------------------

    def _append(self, joint: Appender, append: _Held) -> None:
        """Start an append of the joint appender."""
        partition, value, key, headers, done = append
        settled = partial(self._settled, partition, done)
        joint.append(partition, value, key=key, headers=headers, done=settled)

    def _hold(self, held: deque[_Held], append: _Held) -> None:
        size = len(append.value or b"") + len(append.key or b"")
        if held and (len(held) >= _HELD_MAX or self._held_bytes + size > _HELD_BYTES_MAX):
            raise BufferFull(
                f"{len(held)} appends wait, because the order records of topic {self._topic} "
                f"change their version; append again."
            )
        held.append(append)
        self._held_bytes += size

    def _leave_plain(self, joint: Appender) -> bool:
        """Have the joint appender get all appends; False if it cannot be done now."""
        plain = self._plain
        if plain is None:
            self._joint = joint
            return True
        with self._gate:
            if self._closed:
                return False
            self._held, self._held_bytes = deque(), 0
            self._plain = None
        is_idle = False
        try:
            is_idle = plain.flush(_LEAVE_S)
            if is_idle:
                plain.close(_LEAVE_S)
        finally:
            with self._gate:
                self._release(None if is_idle else plain, joint)
        return is_idle

    def _release(self, plain: Appender | None, joint: Appender) -> None:
        """Start the held appends, by the plain appender if there is one, which goes on then."""
        while self._held:  # a `done` may add some
            append = self._held.popleft()
            partition, value, key, headers, done = append
            try:
                if plain is None:
                    self._append(joint, append)
                else:
                    plain.append(partition, value, key=key, headers=headers, done=done)
            except Exception as error:  # noqa: BLE001 - else all that follows would wait for ever
                failed = error if isinstance(error, AmcastError) else UsageError(repr(error))
                done(AppendFailed(failed))
        self._held = None
        if plain is None:
            self._joint = joint
        else:
            self._plain = plain
        self._changed.notify_all()

    # -- outcomes, and what goes beside messages; from threads of the joint appender --------------

    def _tickets(self, started: Mapping[TopicPartition, int]) -> list[JointRecord]:
        places = self._places
        due: dict[TopicPartition, tuple[TicketPlace, OwnRecord]] = {}
        with self._books:
            streams: dict[TopicPartition, TicketPlace] = {}
            for partition, count in started.items():
                place = places.get(partition)
                self._sent.setdefault(partition, deque()).append(_Sent(place, count))
                if place is not None:
                    place.book.started(place.number, count, now=self._monotonic())
                    streams[place.stream] = place
            for stream, place in streams.items():
                record = place.book.record_due()
                if record is not None:
                    # The request contains message and ticket: a second ticket overtakes nothing.
                    place.book.ticket_settled()
                    due[stream] = place, record
        return [
            JointRecord(stream, encode(place.tag, record), self._ticket_stored, self._writer)
            for stream, (place, record) in due.items()
        ]

    def _settled(self, partition: TopicPartition, done: Done, outcome: AppendOutcome) -> None:
        self._note(partition, 1, outcome)
        done(outcome)

    def _settled_all(
        self,
        partition: TopicPartition,
        done: DoneAll,
        first: int,
        count: int,
        outcome: AppendOutcome,
    ) -> None:
        self._note(partition, count, outcome)
        done(first, count, outcome)

    def _note(self, partition: TopicPartition, count: int, outcome: AppendOutcome) -> None:
        """Tell the books what became of `count` messages; those stored follow each other.

        Of what was never in a request they know nothing. Outcomes come in the order of the appends.
        """
        if isinstance(outcome, AppendFailed) and not outcome.sent:
            return
        with self._books:
            sent = self._sent.get(partition)
            passed = 0
            while sent and passed < count:
                place, number = sent.popleft()
                taken = min(number, count - passed)
                passed += taken
                if taken < number:
                    sent.appendleft(_Sent(place, number - taken))
                if place is None:
                    continue
                if isinstance(outcome, Appended):
                    place.book.settled(place.number, outcome.offset + passed - 1, taken)
                else:
                    refused, now = outcome.error.definite, self._monotonic()
                    place.book.settled(place.number, None, taken, refused=refused, now=now)

    def _ticket_stored(self, outcome: AppendOutcome) -> None:
        if isinstance(outcome, AppendFailed) and isinstance(outcome.error, AccessDenied):
            self._deny(str(outcome.error))

    def _deny(self, reason: str) -> None:
        if not self._denied:
            self._denied = True
            _warn(self._topic, reason)
        self._places = {}

    # -- the control topic ------------------------------------------------------------------------

    def learn(self, state: ControlState) -> None:
        """Write tickets into the streams of the newest epoch that has begun.

        Blocks for requests to the cluster, for some seconds at most. Raises `AmcastError` if no
        joint appender can be opened; then it may be called again.
        """
        epoch = state.begun_epoch
        if not epoch or epoch == self._epoch or self._denied:
            return
        joint = self._joint
        opened = None
        if joint is None and state.plan(epoch).order_version != ORDER_VERSION_FIRST:
            try:
                joint = opened = self._open_joint(beside=self._tickets)
            except UsageError as error:  # its codec needs a package that librdkafka does not
                self._deny(str(error))
                return
        places = places_of(state, epoch, self._places)
        try:
            self._prepare(joint, places)
        except AccessDenied as error:
            self._deny(str(error))
        else:
            self._places = places
        if opened is not None and (self._denied or not self._leave_plain(opened)):
            self._places = {}
            opened.close()
            return
        self._epoch = epoch

    @staticmethod
    def _prepare(joint: Appender | None, places: Mapping[TopicPartition, TicketPlace]) -> None:
        if joint is None:
            return
        for stream in {place.stream: None for place in places.values()}:
            try:
                joint.prepare(stream)
            except AccessDenied:
                raise
            except AmcastError:
                return  # the brokers are away: the first requests find the leaders
