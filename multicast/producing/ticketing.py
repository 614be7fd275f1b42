"""A producer's appends: each request carries tickets beside its messages.

    place     of a log: the order stream of its top in the epoch that has begun, with the stream's
              tag and the tickets that this producer owes there. A log without a collector has
              none, nor has any log before an epoch has begun, or whose plan wants no tickets
    sent      of a log: by whose tickets the messages are counted that were sent and have no outcome

Whoever follows the control topic calls `learn`. Until this appender knows of a new epoch, tickets
are void there, and collectors order the messages: that costs time only. So does a ticket that is
lost, which is never sent again, and a producer without the right to write the order topic.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from multicast.control import ControlState, log_partition, stream_partition
from multicast.drivers.protocol import (
    Appended,
    Appender,
    AppendFailed,
    AppendOutcome,
    Beside,
    JointRecord,
    Settled,
    TopicPartition,
)
from multicast.errors import AccessDenied, AmcastError
from multicast.order.records import OwnRecord, encode
from multicast.producing.ticket_book import TicketBook

_log = logging.getLogger("amcast.tickets")


class _Sent(NamedTuple):
    place: TicketPlace | None  # None: no ticket counts them
    number: int


class OpenAppender(Protocol):
    """Opens an appender; `Driver.appender` says what it raises."""

    def __call__(self, *, beside: Beside, settled: Settled) -> Appender:
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
        tag = state.tag(epoch, top.name)
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


class TicketingAppender:
    """A producer's appender, whose requests with messages contain tickets for them.

    `multicast.drivers.protocol.Appender` says what its calls do: they are the driver's own.
    `open_appender` opens the driver's appender, with the producer's settings. Any thread may call
    it, but only one at a time calls `learn`, and none does after `close`. `writer` is the key of
    its tickets, 8 bytes that no other writer has: by default random ones.
    """

    def __init__(
        self,
        state: ControlState,
        open_appender: OpenAppender,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        writer: bytes | None = None,
    ) -> None:
        self._monotonic = monotonic
        self._topic = state.topic
        self._writer = writer or os.urandom(8)
        self._books = threading.Lock()  # of all books; no append is made with it held
        self._sent: dict[TopicPartition, deque[_Sent]] = {}
        self._epoch = 0  # whose places are known
        self._places: Mapping[TopicPartition, TicketPlace] = {}  # replaced, never changed
        self._denied = False
        appender = open_appender(beside=self._tickets, settled=self._note)
        self.append, self.append_all = appender.append, appender.append_all
        self.ready, self.prepare = appender.ready, appender.prepare
        self.flush, self.close = appender.flush, appender.close
        self.learn(state)

    # -- outcomes, and what goes beside messages; from threads of the appender --------------------

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

        Blocks for requests to the cluster, for some seconds at most.
        """
        epoch = state.begun_epoch
        if not epoch or epoch == self._epoch or self._denied:
            return
        places = places_of(state, epoch, self._places)
        try:
            self._prepare(places)
        except AccessDenied as error:
            self._deny(str(error))
        else:
            self._places = places
        self._epoch = epoch

    def _prepare(self, places: Mapping[TopicPartition, TicketPlace]) -> None:
        for stream in {place.stream: None for place in places.values()}:
            try:
                self.prepare(stream)
            except AccessDenied:
                raise
            except AmcastError:
                return  # the brokers are away: the first requests find the leaders
