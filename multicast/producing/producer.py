"""Multicast: appends a message to the log of its destination set, and gives a receipt for it.

A receipt stands for one message, `Receipts` for all messages of one `multicast_all`, which costs
less. Messages of one producer to one log keep their order. Between messages to two logs an order is
guaranteed to who asks for it only: `own_order.py` says why waiting for `ordered` is not enough.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeVar, overload

from multicast.conditional.condition import Expectation, boundary, reserved_headers
from multicast.conditional.follower import DecisionFollower
from multicast.consuming.tails import LostLogs
from multicast.control import ControlFollower
from multicast.control.reader import REFRESH_S
from multicast.control.topic_identity import RecreatedLogs
from multicast.drivers import open_driver
from multicast.drivers.client_settings import (
    check_client,
    check_linger,
    check_seconds,
    producer_settings,
)
from multicast.drivers.clock import clock_of, seconds
from multicast.drivers.closing import ClosedAtEnd
from multicast.drivers.home_process import HomeProcess
from multicast.drivers.protocol import Appender, AppendOutcome, Driver, Headers
from multicast.errors import AmcastError, BufferFull, TimedOut, UsageError
from multicast.metrics.counts import ProducerCounts
from multicast.producing.append_counts import AppendCounters
from multicast.producing.keyed.calls import (
    NOWHERE,
    Batched,
    addressed,
    batched,
    divided,
    header_pairs,
)
from multicast.producing.keyed.partitioners import Key, Keys, Partitioner, partitioner_named
from multicast.producing.keyed.routes import Routes
from multicast.producing.order_follower import OrderFollower
from multicast.producing.receipts import (
    FAILOVER_S,
    KeyedReceipts,
    OneMessage,
    Receipt,
    Receipts,
    Route,
    Settlement,
)
from multicast.producing.sender import Sender
from multicast.producing.sending_order import After, SendingOrder
from multicast.producing.ticketing import TicketingAppender
from multicast.tracing import spans_of_producer
from topology.tree import Plan

_Message = TypeVar("_Message", bound=OneMessage)


class Producer(ClosedAtEnd):
    """Multicasts messages to sets of partitions of one topic. Safe from any thread.

    `bootstrap` lists brokers, "host:port,…". `client` holds Kafka's client settings by their names
    (docs/operating.md lists them). `driver` is a driver's name, or an open driver: that one stays
    open; `bootstrap`, the two time-outs, and `client` (but for the settings of producers) do not
    apply to it. The buffer of unacknowledged messages is bounded; while it is full, `multicast`
    blocks for at most `block_s` seconds. Every message gets its outcome within about
    `delivery_timeout_s` seconds. Every other request to the cluster is answered within
    `request_timeout_s` seconds or raises `ClusterUnreachable`. With `tickets` off a collector
    orders these messages once Kafka has stored them. `linger_ms` is how long a message may wait for
    others to share its request: a larger value adds latency and lowers the cost of each message; by
    default what `client` says, else 0. `partitioner` says where a key belongs: "murmur2", as Java's
    client and kafka-python do by default, "crc32", as confluent-kafka does, or a function of the
    key and the topic's number of Kafka partitions. `tracing` makes OpenTelemetry's spans of all
    messages, or of a share of them, like 0.01 (docs/tracing.md).

    With `fifo`, all who deliver two messages of this producer deliver first what was sent first: a
    message to another log waits until that is sure. With `through`, a declared set of partitions,
    all messages go to its log, at full speed; consumers of a part of it read and drop the rest
    (docs/own-order.md).

    The constructor reads the plan from the cluster. It raises `UncoveredInterest` if there is none,
    and `TopicChanged` if a topic was recreated after the plan was applied: no consumer delivers
    what is appended there. A producer that is open then notices within seconds, also of what it
    has reported as accepted since: all calls that send or wait for an order raise `TopicChanged`
    until a plan is applied to the new topic, and for good if all topics were recreated (a cluster
    that was wiped): then open another producer.

    Close it, or use it in a `with` block: messages that are not acknowledged when the process ends
    may never be sent, and nobody is told. One that is lost without `close` gives a
    `ResourceWarning`, as an unclosed file does.

    A producer belongs to the process that opened it: open one after a fork. In a forked process its
    calls raise `UsageError`, and `close` does nothing.
    """

    _driver: Driver
    _appender: Appender

    def __init__(
        self,
        bootstrap: str = "",
        *,
        topic: str,
        driver: str | Driver = "librdkafka",
        client: Mapping[str, str] | None = None,
        block_s: float = FAILOVER_S,
        delivery_timeout_s: float = FAILOVER_S,
        request_timeout_s: float = REFRESH_S,
        tickets: bool = True,
        linger_ms: int | None = None,
        partitioner: str | Partitioner = "murmur2",
        tracing: bool | float = False,
        fifo: bool = False,
        through: Iterable[str] | None = None,
    ) -> None:
        spans, partitioner = spans_of_producer(tracing), partitioner_named(partitioner)
        check_client(client or {})
        check_seconds("block_s", block_s, zero=True)
        check_seconds("delivery_timeout_s", delivery_timeout_s)
        check_seconds("request_timeout_s", request_timeout_s)
        check_linger(linger_ms or 0, delivery_timeout_s)
        tuning = producer_settings(client or {})
        self._block_s = block_s
        self._closed = True  # until all is open: a constructor that raises leaves nothing open
        self._home = HomeProcess("producer")
        self._lock = threading.Lock()  # to open the followers
        self._follower: OrderFollower | None = None
        self._decisions: DecisionFollower | None = None
        with ExitStack() as opened:
            if isinstance(driver, str | None):
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
            self._clock = clock_of(self._driver)
            self._settlement = Settlement(self.orders, self.decisions, self._clock)
            self._appends = AppendCounters(self._clock.monotonic)
            self._routes = Routes(self._driver, topic, partitioner, self._appends, through)
            opened.callback(self._routes.close)
            self._order = SendingOrder(
                self._driver, topic, self._settlement, self._routes.newest, fifo=fifo
            )
            if linger_ms is not None or tuning.linger_ms is None:
                tuning = tuning._replace(linger_ms=linger_ms or 0)
            open_appender = partial(self._driver.appender, **tuning._asdict())
            if tickets:
                self._appender = TicketingAppender(
                    self._routes.control,
                    open_appender,
                    monotonic=self._clock.monotonic,
                    writer=self._clock.writer(),
                )
            else:
                self._appender = open_appender()
            self._sender = Sender(self._appender, spans, self._order)
            self._recreated, self._lost = RecreatedLogs(self._driver), LostLogs()
            learners = [self._recreated.learn, self._lost.learn]
            if isinstance(self._appender, TicketingAppender):
                learners.insert(0, self._appender.learn)  # messages wait for what it learns
            self._learning = ControlFollower(self._driver, self._routes.control, learners)
            self._opened = opened.pop_all()
        self._closed = False

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self._home.is_left:
            # No line of a program is to blame: the last reference may go anywhere.
            text = f"unclosed producer of topic {self.plan.topic}"
            warnings.warn(text, ResourceWarning, stacklevel=1, source=self)

    @property
    def plan(self) -> Plan:
        """The plan in which destination sets are looked up: the newest that was read."""
        return self._routes.plan

    def declares(self, to: Iterable[str] | Keys) -> bool:
        """Whether exactly this set is declared, so that it has a log of its own.

        Where it is not, a newer plan is looked for, which blocks for one request to the cluster, at
        most once a second. Raises `ClusterUnreachable`.
        """
        self._check_open()
        return self._routes.declares(to)

    def multicast(
        self,
        payload: bytes | None,
        *,
        to: Iterable[str] | Keys | None = None,
        key: Key | None = None,
        headers: Headers | Mapping[str, bytes] = (),
        tags: Iterable[str] = (),
        expect: Expectation | None = None,
        within: Iterable[str] | None = None,
        after: After | Iterable[After] = (),
        done: Callable[[AppendOutcome], None] | None = None,
    ) -> Receipt:
        """Multicast a message to a set of partitions; return its receipt without waiting for Kafka.

        `to` names the partitions, or keys (`keys("a", "b")`): then the set is that of the keys'
        partitions. Without `to` the message goes to the partition of its `key`. Payload, key and
        headers (pairs, or a mapping) reach every consumer unchanged; header names that begin with
        "amcast." are reserved. The record's key is `key`, else the first of `keys`. A message to an
        undeclared set goes to the log of the smallest declared superset. With `expect`
        (`nothing_after`) it takes effect only if nothing that matches came after a position in the
        log of a declared set that contains `to`, and is stored there. `within`, the partitions of
        that set, stores a message there without a condition. `tags` are what conditions match
        (docs/conditional.md). `after` names receipts, also of other producers, delivered
        messages, IDs, or what a consumer has `seen`: whoever delivers one of them and this message
        delivers this one later. Blocks while
        the buffer is full, and until it is sure to follow, for at most `block_s` seconds each.
        `done` is called once, with the outcome (`Appended`, or `AppendFailed` with the error), in
        any thread, perhaps before this call returns; it must neither block nor raise.

        Raises `UndeclaredDestination` if no declared set covers `to`, `UsageError` for an unknown
        partition or a malformed header, `PartitionsDiffer` if keys have no place because the plan
        and the topic differ, `BufferFull` if the buffer stayed full, `EarlierPending` if what it
        follows was not ordered in time, `EarlierUnknown` if nobody knows whether that is stored (of
        a receipt that failed: its error), `Truncated` if its log has lost it. After each of these
        nothing was sent.
        """
        pairs = header_pairs(headers) if headers else ()
        to, record_key = addressed(to, key)
        route = self._route(to, boundary(within, expect))
        receipt = Receipt(self._settlement, route, done)
        pairs = [*pairs, *reserved_headers(route.log.name, route.header, tags, expect)]
        append = partial(self._sender.append, receipt, route, payload, record_key, pairs)
        if after or self._order.fifo:
            deadline = self._clock.monotonic() + self._block_s
            with self._order.turn(route.log, after, deadline):
                self._append_soon(append)
        else:
            self._append_soon(append)
        return receipt

    def _append_soon(self, append: Callable[[], None]) -> None:
        deadline = None
        while True:
            self._check_open()
            try:
                return append()
            except BufferFull:
                deadline = deadline or self._clock.monotonic() + self._block_s
                if self._clock.monotonic() >= deadline:
                    raise
            self._settlement.pause()

    @overload
    def multicast_all(
        self,
        payloads: Sequence[bytes | None],
        *,
        to: Iterable[str] | Keys,
        keys: Sequence[Key | None] | None = None,
        headers: Sequence[Headers | Mapping[str, bytes]] | None = None,
    ) -> Receipts: ...

    @overload
    def multicast_all(
        self,
        payloads: Sequence[bytes | None],
        *,
        to: None = None,
        keys: Sequence[Key],
        headers: Sequence[Headers | Mapping[str, bytes]] | None = None,
    ) -> KeyedReceipts: ...

    def multicast_all(
        self,
        payloads: Sequence[bytes | None],
        *,
        to: Iterable[str] | Keys | None = None,
        keys: Sequence[Key | None] | None = None,
        headers: Sequence[Headers | Mapping[str, bytes]] | None = None,
    ) -> Receipts | KeyedReceipts:
        """Multicast messages to one set of partitions, in this order; return their receipts.

        `keys` and `headers` hold an entry for each message, as `multicast` takes it. Without `to`
        each message goes to the partition of its key; messages of one partition keep their order.
        Costs less than a call of `multicast` for each, except with headers or to an undeclared set.
        Blocks while the buffer is full, for at most `block_s` seconds in all. A message that got no
        room by then was not sent; its outcome is `BufferFull` (with `fifo` also what `multicast`
        raises, and the same of all that follow). Raises `UndeclaredDestination`, `PartitionsDiffer`
        and `UsageError` as `multicast` does, before anything is sent.
        """
        self._check_open()
        messages = batched(payloads, keys, headers)
        deadline = self._clock.monotonic() + self._block_s
        if to is not None:
            if isinstance(to, Keys) and keys is None:
                messages = messages._replace(keys=[to.values[0]] * len(payloads))
            return self._send_all([(self._route(to), messages)], deadline)[0]
        if messages.keys is None or None in messages.keys:
            raise UsageError(NOWHERE)
        names = self._routes.keys.partitions([key for key in messages.keys if key is not None])
        parts = divided(names, in_order=self._order.fifo)
        routed = [(self._route((name,)), messages.of(indexes)) for name, indexes in parts]
        sent = self._send_all(routed, deadline)
        indexed = [(receipts, indexes) for receipts, (_, indexes) in zip(sent, parts, strict=True)]
        return KeyedReceipts(indexed, self._clock)

    def _send_all(self, parts: list[tuple[Route, Batched]], deadline: float) -> list[Receipts]:
        """Send messages, each part to one log, until `deadline`, in the driver's time.

        Drops the rest of a part, and with `fifo` all that follows.
        """
        sent: list[Receipts] = []
        problem: AmcastError | None = None
        for route, messages in parts:
            receipts = Receipts(self._settlement, route, len(messages.payloads))
            sent.append(receipts)
            started = 0
            try:
                if problem is None:
                    with self._order.turn(route.log, (), deadline):
                        while started < len(receipts):
                            taken = self.send_some(receipts, started, messages.after(started))
                            started += taken
                            if not taken:
                                self._await_room(deadline)
            except AmcastError as error:
                problem = error
            if problem is not None:
                receipts.drop(started, problem)
            if not self._order.fifo:
                problem = None
        return sent

    def _await_room(self, deadline: float) -> None:
        """Wait until there may be room; raises `BufferFull` at `deadline`."""
        if self._clock.monotonic() >= deadline:
            raise BufferFull(f"the producer's buffer had no room within {self._block_s:g} s")
        self._settlement.pause()

    # -- for an event loop: `multicast.aio` ------------------------------------------------------

    def start(
        self,
        make: Callable[[Settlement, Route], _Message],
        payload: bytes | None,
        *,
        to: Iterable[str] | Keys,
        key: bytes | None = None,
        headers: Headers | Mapping[str, bytes] = (),
        tags: Iterable[str] = (),
        expect: Expectation | None = None,
        within: frozenset[str] | None = None,
    ) -> _Message | None:
        """Multicast a message without any wait; return what `make` makes to take the outcome.

        `to` and `key` are what `addressed` gives. None: nothing was sent, as that would have to
        wait for the cluster; call `prepare` in a thread, then this again. Raises what `multicast`
        raises, `BufferFull` at once; after each error nothing was sent.
        """
        self._check_open()
        pairs = header_pairs(headers) if headers else ()
        route = self._routes.known(to, within)
        if route is None or not self._sender.is_ready(route):
            return None
        pairs = [*pairs, *reserved_headers(route.log.name, route.header, tags, expect)]
        message = make(self._settlement, route)
        self._sender.append(message, route, payload, key, pairs)
        return message

    def start_all(
        self, size: int, *, to: Iterable[str] | Keys, done: Callable[[], None]
    ) -> Receipts | None:
        """Make the receipts of `size` messages for `send_some`; None as for `start`.

        `done` is called when all outcomes are known. Raises what `start` raises, but `BufferFull`.
        """
        self._check_open()
        route = self._routes.known(to)
        if route is None or not self._sender.is_ready(route):
            return None
        return Receipts(self._settlement, route, size, done)

    def send_some(self, receipts: Receipts, first: int, messages: Batched) -> int:
        """Start appends of these messages, of which `first` is the first, without any wait.

        Returns how many, from the first one on, the buffer had room for.
        """
        self._check_open()
        return self._sender.append_all(receipts, first, messages.headed(receipts.route.header))

    def prepare(
        self,
        to: Iterable[str] | Keys,
        within: frozenset[str] | None = None,
        after: After | Iterable[After] = (),
    ) -> None:
        """Wait until `start` to this set needs no wait, or raise why it would fail.

        Blocks for one request to the cluster (of a set by keys: three), for 3 s at most until the
        client is ready, and as `multicast` until it is sure to follow.
        """
        route = self._route(to, within)
        self._appender.prepare(route.partition)
        self._order.wait(route.log, after, self._clock.monotonic() + self._block_s)

    def orders(self) -> OrderFollower:
        """Give the follower of the order streams; the first call opens it."""
        self._home.check()
        self._recreated.refuse()
        self._learning.refuse_lost()
        with self._lock:
            if self._follower is None:
                self._check_open()
                self._follower = OrderFollower(self._driver, self.plan.topic)
                self._close_late(self._follower)
            return self._follower

    def decisions(self) -> DecisionFollower:
        """Give the follower of verdicts, who knows all logs; the first call opens it."""
        self._home.check()
        with self._lock:
            if self._decisions is None:
                self._check_open()
                self._decisions = DecisionFollower(self._driver, self._lost)
                self._close_late(self._decisions)
            self._decisions.add(self.plan.logs)
            return self._decisions

    def counts(self) -> ProducerCounts:
        """Count by log the messages sent and their outcomes, since this producer was opened.

        Does not block; from any thread, and after `close`. `multicast.metrics` shows them.
        """
        return ProducerCounts(self.plan.topic, self._appends.counts(), closed=self._closed)

    def flush(self, timeout: float = FAILOVER_S) -> None:
        """Wait until every message so far has its outcome.

        Raises `TimedOut` after `timeout` seconds; the missing outcomes may still come.
        """
        self._home.check()
        if not self._appender.flush(seconds(timeout)):
            raise TimedOut(f"not every message was acknowledged within {timeout:g} s")

    def close(self, timeout: float = FAILOVER_S) -> None:
        """Flush for at most `timeout` seconds, then release everything.

        In a forked process it does nothing.
        """
        if self._home.is_left:
            return
        # Without the lock, which a thread that opens a follower holds: in a signal handler, we do.
        self._closed = True
        self._learning.close()  # first, since it may be about to change the appender
        self._appender.close(timeout)
        for follower in (self._follower, self._decisions):
            if follower is not None:
                follower.close()
        self._opened.close()

    # -- inside -----------------------------------------------------------------------------

    def _close_late(self, follower: OrderFollower | DecisionFollower) -> None:
        """Close a follower that was opened while the producer was closed, and raise."""
        if self._closed:
            follower.close()
            self._check_open()

    def _route(self, to: Iterable[str] | Keys, within: frozenset[str] | None = None) -> Route:
        self._check_open()
        return self._routes.route(to, within)

    def _check_open(self) -> None:
        self._home.check()
        if self._closed:
            raise UsageError("This producer is closed; open another one.")
        self._recreated.refuse()
        self._learning.refuse_lost()
