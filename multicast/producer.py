"""Multicast: one append to the log of the destination set, and a receipt for it.

    accepted    stored by all in-sync replicas; the message ID is known
    ordered     its ID stands in the order stream of the collector that decides its log
    route       where a destination set's messages go: its log, or the one that covers it

A receipt is a promise about one message, `Receipts` are about many that were multicast in one call,
which costs less. Messages of one producer to one log keep their order;
between logs there is an order only if the producer waits for `ordered` in between.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple, Self

from multicast.announcer import Announcer, LogAnnouncer
from multicast.control import ControlReader, log_partition
from multicast.drivers import open_driver
from multicast.drivers.protocol import (
    Appended,
    AppendFailed,
    AppendOutcome,
    Driver,
    Headers,
    TopicPartition,
    append_each,
)
from multicast.errors import BufferFull, TimedOut, UndeclaredDestination, UsageError
from multicast.messages import MessageID, covered_header, refuse_names
from multicast.order_follower import OrderFollower
from topology.tree import Log, Plan

_UNKNOWN = -1  # where an offset may come to stand


class Receipt:
    """What became of one multicast. Its methods block, and may be called from any thread."""

    __slots__ = ("_done", "_outcome", "_producer", "_route")

    def __init__(
        self, producer: Producer, route: _Route, done: Callable[[AppendOutcome], None] | None
    ) -> None:
        self._producer = producer
        self._route = route
        self._done = done
        self._outcome: AppendOutcome | None = None

    @property
    def log(self) -> Log:
        """The log that the message goes to."""
        return self._route.log

    @property
    def to(self) -> tuple[str, ...]:
        """The destination set, sorted."""
        return self._route.exact

    @property
    def outcome(self) -> AppendOutcome | None:
        """What Kafka said; None while it has said nothing."""
        return self._outcome

    def accepted(self, timeout: float = 30.0) -> MessageID:
        """Wait until all in-sync replicas hold the message; give its ID.

        Raises `AppendRefused` (it is not in the log), `AppendUnknown` (it may be) or `TimedOut`
        after `timeout` seconds (nothing is known yet; asking again is allowed).
        """
        # The producer and its receipts are one class in parts.
        self._producer._wait(lambda: self._outcome is not None, timeout)  # noqa: SLF001
        if isinstance(self._outcome, Appended):
            return MessageID(self.log.name, self._outcome.offset)
        assert isinstance(self._outcome, AppendFailed)
        raise self._outcome.error

    def ordered(self, timeout: float = 30.0) -> MessageID:
        """Wait until the message has its place in the order; give its ID.

        A log that no collector decides is its own order: there this is `accepted`. Raises as
        `accepted` does; `TimedOut` usually means that no collector is running.
        """
        deadline = time.monotonic() + timeout
        found = self.accepted(timeout)
        self._producer._wait_ordered(found, deadline)  # noqa: SLF001
        return found

    def _settle(self, outcome: AppendOutcome) -> None:
        self._outcome = outcome
        self._producer._settled(self._route, 1)  # noqa: SLF001
        if self._done is not None:
            self._done(outcome)


class Receipts:
    """What became of the messages of one `multicast_all`, in their order; `len` is how many."""

    __slots__ = ("_failed", "_left", "_lock", "_offsets", "_producer", "_route")

    def __init__(self, producer: Producer, route: _Route, size: int) -> None:
        self._producer = producer
        self._route = route
        # Numbers, not an outcome a message: objects that live keep the garbage collector busy.
        self._offsets = array("q", [_UNKNOWN]) * size
        self._failed: dict[int, AppendFailed] = {}
        self._left = size
        self._lock = threading.Lock()

    @property
    def log(self) -> Log:
        """The log that the messages go to."""
        return self._route.log

    @property
    def to(self) -> tuple[str, ...]:
        """The destination set, sorted."""
        return self._route.exact

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def outcomes(self) -> list[AppendOutcome | None]:
        """What Kafka said of each message; None while it has said nothing."""
        return [
            self._failed.get(index) if offset == _UNKNOWN else Appended(offset)
            for index, offset in enumerate(self._offsets)
        ]

    def accepted(self, timeout: float = 30.0) -> list[MessageID]:
        """Wait until each message has its outcome; give their IDs.

        Raises what `Receipt.accepted` does, for the first message that failed (`outcomes` tells
        about each), and `BufferFull` for one that found no room and was not sent.
        """
        self._producer._wait(lambda: not self._left, timeout)  # noqa: SLF001
        if self._failed:
            raise self._failed[min(self._failed)].error
        return [MessageID(self.log.name, offset) for offset in self._offsets]

    def ordered(self, timeout: float = 30.0) -> list[MessageID]:
        """Wait until all messages have their places in the order; give their IDs.

        Raises as `accepted` and `Receipt.ordered` do.
        """
        deadline = time.monotonic() + timeout
        found = self.accepted(timeout)
        if found:
            self._producer._wait_ordered(max(found), deadline)  # noqa: SLF001
        return found

    def _settle(self, first: int, index: int, outcome: AppendOutcome) -> None:
        if isinstance(outcome, Appended):
            self._offsets[first + index] = outcome.offset
        else:
            self._failed[first + index] = outcome
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            unsent = [one for one in self._failed.values() if isinstance(one.error, BufferFull)]
            self._producer._settled(self._route, len(self._offsets) - len(unsent))  # noqa: SLF001


def _pairs(headers: Headers | Mapping[str, bytes]) -> Headers:
    """Give headers as pairs; raises `UsageError` for a pair that is not (text, bytes)."""
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    for pair in pairs:
        match pair:
            case (str(), bytes() | None):
                continue
            case _:
                raise UsageError(
                    f"{pair!r} is not a header; a header is a name (text) and a value (bytes)"
                )
    refuse_names(pairs)
    return pairs


class _Route(NamedTuple):
    """Where messages to the set `exact` go; `header` where it is a strict subset of the log's."""

    log: Log
    partition: TopicPartition
    exact: tuple[str, ...]
    header: tuple[str, bytes] | None
    announced: LogAnnouncer | None


class Producer:
    """Multicasts messages to sets of partitions of one topic. Safe from any thread.

    `bootstrap` are addresses "host:port,…"; `driver` is a driver's name or an open driver (then
    `bootstrap` is not needed). What waits for Kafka is bounded; past that `multicast` blocks. Every
    message has its outcome within `delivery_timeout_s` seconds, and three more where a client has
    to be replaced (docs/hazards.md); any other question to the cluster has its answer, or raises
    `ClusterUnreachable`, within `request_timeout_s`. Without `announce` no collector hears of a
    message before it is stored, so none is ordered early. A message waits
    for others to go with it for at most `linger_ms`: later, and at less cost for each.
    """

    def __init__(
        self,
        bootstrap: str = "",
        *,
        topic: str,
        driver: str | Driver = "librdkafka",
        client: Mapping[str, str] | None = None,
        block_s: float = 30.0,
        delivery_timeout_s: float = 30.0,
        request_timeout_s: float = 10.0,
        announce: bool = True,
        linger_ms: int = 0,
    ) -> None:
        self._block_s = block_s
        self._outcome_came = threading.Condition()
        self._waiting = 0
        self._control_lock = threading.Lock()
        self._follower: OrderFollower | None = None
        self._routes: dict[frozenset[str], _Route] = {}
        self._driver: Driver
        with ExitStack() as opened:
            if isinstance(driver, str):
                self._driver = open_driver(
                    driver,
                    bootstrap,
                    client,
                    request_timeout_s=request_timeout_s,
                    delivery_timeout_s=delivery_timeout_s,
                )
                opened.callback(self._driver.close)
            else:
                self._driver = driver
            self._control = ControlReader(self._driver, topic)
            opened.callback(self._control.close)
            self._plan = self._control.refresh().plan()
            self._looked_at = time.monotonic()
            self._appender = self._driver.appender(linger_ms=linger_ms)
            self._announcer = None
            if announce:
                self._announcer = Announcer(self._driver, topic, self._control.state)
                opened.callback(self._announcer.close)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def plan(self) -> Plan:
        """The plan that destination sets are looked up in."""
        return self._plan

    def multicast(
        self,
        payload: bytes | None,
        *,
        to: Iterable[str],
        key: bytes | None = None,
        headers: Headers | Mapping[str, bytes] = (),
        done: Callable[[AppendOutcome], None] | None = None,
    ) -> Receipt:
        """Multicast a message to a set of partitions; return at once with its receipt.

        Payload, key and headers (pairs, or a mapping) reach every consumer unchanged; header names
        that begin with "amcast." are ours. A set that nobody declared travels in the log of the
        smallest declared superset. Blocks while the buffer is full, for at most `block_s` seconds.
        `done` is called once with what Kafka said, from the driver's thread: it must neither block
        nor raise.

        Raises `UndeclaredDestination` where no declared set covers `to`, `UsageError` for a
        partition that does not exist or for headers that are none, `BufferFull`; after each of
        these nothing was sent.
        """
        pairs = _pairs(headers) if headers else ()
        route = self._route(to)
        receipt = Receipt(self, route, done)
        if route.header is not None:
            pairs = [*pairs, route.header]
        deadline = None
        while True:
            try:
                self._appender.append(
                    route.partition,
                    payload,
                    key=key,
                    headers=pairs,
                    done=receipt._settle,  # noqa: SLF001
                )
            except BufferFull:
                deadline = deadline or time.monotonic() + self._block_s
                if time.monotonic() >= deadline:
                    raise
                self._pause()
            else:
                if route.announced is not None:
                    route.announced.sent(1)
                return receipt

    def multicast_all(self, payloads: Sequence[bytes | None], *, to: Iterable[str]) -> Receipts:
        """Multicast messages to one set of partitions, in this order; return with their receipts.

        Costs less than a `multicast` of each. Blocks while the buffer is full, for at most
        `block_s` seconds; what found no room by then was not sent, and has `BufferFull` as its
        outcome. Raises `UndeclaredDestination` and `UsageError` as `multicast` does.
        """
        route = self._route(to)
        receipts = Receipts(self, route, len(payloads))
        started = 0
        deadline = time.monotonic() + self._block_s
        while started < len(payloads):
            rest = payloads[started:] if started else payloads
            done = partial(receipts._settle, started)  # noqa: SLF001
            if route.header is None:
                taken = self._appender.append_all(route.partition, rest, done=done)
            else:
                taken = append_each(
                    self._appender, route.partition, rest, headers=[route.header], done=done
                )
            started += taken
            if taken and route.announced is not None:
                route.announced.sent(taken)
            if not taken:
                if time.monotonic() >= deadline:
                    break
                self._pause()
        for index in range(started, len(payloads)):
            error = BufferFull(f"the buffer had no room within {self._block_s:g} s")
            receipts._settle(0, index, AppendFailed(error))  # noqa: SLF001
        return receipts

    def flush(self, timeout: float = 30.0) -> None:
        """Wait until every message so far has its outcome; raises `TimedOut`."""
        if not self._appender.flush(timeout):
            raise TimedOut(f"not every message was acknowledged within {timeout:g} s")

    def close(self, timeout: float = 30.0) -> None:
        """Flush for at most that long, then release everything."""
        self._appender.close(timeout)
        if self._follower is not None:
            self._follower.close()
        self._opened.close()

    # -- inside -----------------------------------------------------------------------------

    def _route(self, to: Iterable[str]) -> _Route:
        if isinstance(to, str):
            raise UsageError(f"a destination set is a set of names, like {{{to!r}}}, not a text")
        wanted = frozenset(to)
        route = self._routes.get(wanted)
        if route is None:
            log = self._cover(wanted)
            exact = tuple(sorted(wanted))
            header = None if exact == log.to else covered_header(log.name, exact)
            announced = None if self._announcer is None else self._announcer.log(log.name)
            route = _Route(log, log_partition(log), exact, header, announced)
            self._routes[wanted] = route
        return route

    def _cover(self, wanted: frozenset[str]) -> Log:
        if not wanted:
            raise UsageError("a destination set names at least one partition")
        log = self._plan.cover(wanted) if wanted <= set(self._plan.partitions) else None
        if log is None:
            # What was declared a moment ago stands in the control topic already.
            with self._control_lock:
                if time.monotonic() - self._looked_at > 1.0:
                    self._plan = self._control.refresh().plan()
                    self._looked_at = time.monotonic()
                    self._routes.clear()
            log = self._look_up(wanted)
        if log is None:
            names = ", ".join(f'"{name}"' for name in sorted(wanted))
            raise UndeclaredDestination(
                f"no declared destination set covers {'+'.join(sorted(wanted))}; add [{names}] "
                f"to 'destinations' in the interest file, then run 'amcast topology plan' and "
                f"'amcast topology apply'"
            )
        return log

    def _look_up(self, wanted: frozenset[str]) -> Log | None:
        unknown = sorted(wanted - set(self._plan.partitions))
        if unknown:
            raise UsageError(
                f"partition {unknown[0]} does not exist; topic {self._plan.topic} has "
                f"{', '.join(self._plan.partitions)}"
            )
        return self._plan.cover(wanted)

    def _pause(self) -> None:
        """Let the driver work off some of its buffer; its acknowledgements wake us."""
        with self._outcome_came:
            self._waiting += 1
            self._outcome_came.wait(0.05)
            self._waiting -= 1

    def _settled(self, route: _Route, count: int) -> None:
        """Wake who waits for outcomes: one has come, or the last one of many."""
        if route.announced is not None:
            route.announced.settled(count)
        if self._waiting:
            with self._outcome_came:
                self._outcome_came.notify_all()

    def _wait(self, settled: Callable[[], bool], timeout: float) -> None:
        with self._outcome_came:
            self._waiting += 1
            try:
                # An outcome that came before we were counted is seen here; later ones notify.
                if not self._outcome_came.wait_for(settled, timeout):
                    raise TimedOut(f"no acknowledgement came within {timeout:g} s")
            finally:
                self._waiting -= 1

    def _wait_ordered(self, message: MessageID, deadline: float) -> None:
        left_s = deadline - time.monotonic()
        if not self._orders().wait(message.log, message.offset, left_s):
            raise TimedOut(
                f"message {message} was accepted and is not ordered in time; "
                f"'amcast collectors status' tells whether its collector runs"
            )

    def _orders(self) -> OrderFollower:
        with self._control_lock:
            if self._follower is None:
                self._follower = OrderFollower(self._driver, self._plan.topic)
            return self._follower
