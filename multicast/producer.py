"""Multicast: appends a message to the log of its destination set, and gives a receipt for it.

A receipt stands for one message, `Receipts` for all messages of one `multicast_all`, which costs
less. Messages of one producer to one log keep their order. Between messages to two logs no order is
guaranteed, even if the producer waits for `ordered` between them: the later message may take an
offset that was ordered early, or a collector orders it before it relays its parent's order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Self, TypeVar

from multicast.announcer import Announcer
from multicast.control import ControlReader, log_partition
from multicast.control.reader import REFRESH_S
from multicast.drivers import open_driver
from multicast.drivers.protocol import (
    AppendFailed,
    AppendOutcome,
    Driver,
    Headers,
    append_each,
)
from multicast.errors import BufferFull, TimedOut, UndeclaredDestination, UsageError
from multicast.messages import covered_header, refuse_names
from multicast.order_follower import OrderFollower
from multicast.receipts import FAILOVER_S, OneMessage, Receipt, Receipts, Route, Settlement
from topology.tree import Log, Plan, log_name

# An undeclared destination set makes the producer read the control topic again, at most this often:
# a caller in a loop must not turn each of its mistakes into a request. A set that is declared while
# the producer runs is refused for at most this long.
_PLAN_EVERY_S = 1.0
_Message = TypeVar("_Message", bound=OneMessage)


def _pairs(headers: Headers | Mapping[str, bytes]) -> Headers:
    """Give headers as pairs; raises `UsageError` for a pair that is not (str, bytes)."""
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    for pair in pairs:
        match pair:
            case (str(), bytes() | None):
                continue
            case _:
                raise UsageError(
                    f"{pair!r} is not a header; a header is a name (str) and a value (bytes)"
                )
    refuse_names(pairs)
    return pairs


def _destinations(to: Iterable[str]) -> frozenset[str]:
    """Give a destination set; raises `UsageError` for a str and for an empty set."""
    if isinstance(to, str):
        raise UsageError(f"a destination set is a set of names, like {{{to!r}}}, not a str")
    destinations = frozenset(to)
    if not destinations:
        raise UsageError("a destination set names at least one partition")
    return destinations


class Producer:
    """Multicasts messages to sets of partitions of one topic. Safe from any thread.

    `bootstrap` lists brokers, "host:port,…". `client` holds Kafka's client settings by their names.
    `driver` is a driver's name, or an open driver: that one stays open, and `bootstrap`, `client`
    and the two time-outs do not apply to it. The buffer of unacknowledged messages is bounded;
    while it is full, `multicast` blocks for at most `block_s` seconds. Every message gets its
    outcome within `delivery_timeout_s` seconds, plus three if the Kafka client has to be replaced
    (docs/hazards.md). Every other request to the cluster is answered within `request_timeout_s`
    seconds or raises `ClusterUnreachable`. With `announce` off no collector learns of these
    messages before Kafka has stored them. `linger_ms` is how long a message may wait for others to
    share its request: a larger value adds latency and lowers the cost of each message.
    """

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
        announce: bool = True,
        linger_ms: int = 0,
    ) -> None:
        self._block_s = block_s
        self._settlement = Settlement(self.orders)
        self._control_lock = threading.Lock()
        self._follower: OrderFollower | None = None
        self._routes: dict[frozenset[str], Route] = {}
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
            self._plan_read_at = time.monotonic()
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
        """The plan in which destination sets are looked up: the newest that was read."""
        return self._plan

    def declares(self, to: Iterable[str]) -> bool:
        """Whether exactly this set is declared, so that it has a log of its own.

        Where it is not, a newer plan is looked for, which blocks for one request to the cluster, at
        most once a second. Raises `ClusterUnreachable`.
        """
        name = log_name(to)
        if not self._plan.has_log(name):
            self._read_plan()
        return self._plan.has_log(name)

    def multicast(
        self,
        payload: bytes | None,
        *,
        to: Iterable[str],
        key: bytes | None = None,
        headers: Headers | Mapping[str, bytes] = (),
        done: Callable[[AppendOutcome], None] | None = None,
    ) -> Receipt:
        """Multicast a message to a set of partitions; return its receipt without waiting for Kafka.

        Payload, key and headers (pairs, or a mapping) reach every consumer unchanged; header names
        that begin with "amcast." are reserved. A message to an undeclared set goes to the log of
        the smallest declared superset. Blocks while the buffer is full, for at most `block_s`
        seconds. `done` is called once, with the outcome, in any thread, perhaps before this call
        returns; it must neither block nor raise.

        Raises `UndeclaredDestination` if no declared set covers `to`, `UsageError` for an unknown
        partition or a malformed header, `BufferFull` if the buffer stayed full. After each of these
        nothing was sent.
        """
        pairs = _pairs(headers) if headers else ()
        route = self._route(to)
        receipt = Receipt(self._settlement, route, done)
        if route.header is not None:
            pairs = [*pairs, route.header]
        deadline = None
        while True:
            try:
                self._append(receipt, route, payload, key, pairs)
            except BufferFull:
                deadline = deadline or time.monotonic() + self._block_s
                if time.monotonic() >= deadline:
                    raise
                self._settlement.pause()
            else:
                return receipt

    def multicast_all(self, payloads: Sequence[bytes | None], *, to: Iterable[str]) -> Receipts:
        """Multicast messages to one set of partitions, in this order; return their receipts.

        Costs less than a call of `multicast` for each. Blocks while the buffer is full, for at most
        `block_s` seconds in all. A message that got no room by then was not sent; its outcome is
        `BufferFull`. Raises `UndeclaredDestination` and `UsageError` as `multicast` does.
        """
        route = self._route(to)
        receipts = Receipts(self._settlement, route, len(payloads))
        started = 0
        deadline = time.monotonic() + self._block_s
        while started < len(payloads):
            taken = self.send_some(receipts, started, payloads[started:])
            started += taken
            if not taken:
                if time.monotonic() >= deadline:
                    break
                self._settlement.pause()
        self.drop_rest(receipts, started, f"had no room within {self._block_s:g} s")
        return receipts

    def drop_rest(self, receipts: Receipts, first: int, why: str) -> None:
        """Settle the messages from `first` on as not sent."""
        for index in range(first, len(receipts)):
            error = BufferFull(f"message {index} was not sent: the producer's buffer {why}")
            receipts.settle(0, index, AppendFailed(error))

    # -- for an event loop: `multicast.aio` ------------------------------------------------------

    def start(
        self,
        make: Callable[[Settlement, Route], _Message],
        payload: bytes | None,
        *,
        to: Iterable[str],
        key: bytes | None = None,
        headers: Headers | Mapping[str, bytes] = (),
    ) -> _Message | None:
        """Multicast a message without any wait; return what `make` makes to take the outcome.

        None: nothing was sent, as that would have to wait for the cluster; call `prepare` in a
        thread, then this again. Raises what `multicast` raises, `BufferFull` at once; after each
        error nothing was sent.
        """
        pairs = _pairs(headers) if headers else ()
        route = self._known_route(to)
        if route is None or not self._appender.ready(route.partition):
            return None
        if route.header is not None:
            pairs = [*pairs, route.header]
        message = make(self._settlement, route)
        self._append(message, route, payload, key, pairs)
        return message

    def start_all(
        self,
        payloads: Sequence[bytes | None],
        *,
        to: Iterable[str],
        done: Callable[[], None],
    ) -> Receipts | None:
        """Make the receipts for `send_some`; None as for `start`. `done`: all outcomes are known.

        Raises what `start` raises, but `BufferFull`.
        """
        route = self._known_route(to)
        if route is None or not self._appender.ready(route.partition):
            return None
        return Receipts(self._settlement, route, len(payloads), done)

    def send_some(self, receipts: Receipts, first: int, payloads: Sequence[bytes | None]) -> int:
        """Start appends of these messages, of which `first` is the first, without any wait.

        Returns how many, from the first one on, the buffer had room for.
        """
        route = receipts.route
        done = partial(receipts.settle, first)
        if route.header is None:
            taken = self._appender.append_all(route.partition, payloads, done=done)
        else:
            taken = append_each(
                self._appender, route.partition, payloads, headers=[route.header], done=done
            )
        if taken and route.announcer is not None:
            route.announcer.sent(taken)
        return taken

    def prepare(self, to: Iterable[str]) -> None:
        """Wait until `start` to this set needs no wait, or raise why it would fail.

        Blocks for one request to the cluster, and for 3 s at most until the client is ready.
        """
        self._appender.prepare(self._route(to).partition)

    def orders(self) -> OrderFollower:
        """Give the follower of the order streams; the first call opens it, which blocks."""
        with self._control_lock:
            if self._follower is None:
                self._follower = OrderFollower(self._driver, self._plan.topic)
            return self._follower

    def flush(self, timeout: float = FAILOVER_S) -> None:
        """Wait until every message so far has its outcome.

        Raises `TimedOut` after `timeout` seconds; the missing outcomes may still come.
        """
        if not self._appender.flush(timeout):
            raise TimedOut(f"not every message was acknowledged within {timeout:g} s")

    def close(self, timeout: float = FAILOVER_S) -> None:
        """Flush for at most `timeout` seconds, then release everything."""
        self._appender.close(timeout)
        if self._follower is not None:
            self._follower.close()
        self._opened.close()

    # -- inside -----------------------------------------------------------------------------

    def _append(
        self,
        message: OneMessage,
        route: Route,
        payload: bytes | None,
        key: bytes | None,
        headers: Headers,
    ) -> None:
        """Start one append and announce it; raises `BufferFull` at once."""
        self._appender.append(
            route.partition, payload, key=key, headers=headers, done=message.settle
        )
        if route.announcer is not None:
            route.announcer.sent(1)

    def _route(self, to: Iterable[str]) -> Route:
        destinations = _destinations(to)
        return self._routes.get(destinations) or self._make_route(
            destinations, self._cover(destinations)
        )

    def _known_route(self, to: Iterable[str]) -> Route | None:
        """Give the route of a set that the plan covers; None if a newer plan may have one."""
        destinations = _destinations(to)
        route = self._routes.get(destinations)
        if route is not None:
            return route
        plan = self._plan
        log = plan.cover(destinations) if destinations <= set(plan.partitions) else None
        return None if log is None else self._make_route(destinations, log)

    def _make_route(self, destinations: frozenset[str], log: Log) -> Route:
        exact = tuple(sorted(destinations))
        header = None if exact == log.to else covered_header(log.name, exact)
        announcer = None if self._announcer is None else self._announcer.log(log.name)
        route = Route(log, log_partition(log), exact, header, announcer)
        self._routes[destinations] = route
        return route

    def _cover(self, to: frozenset[str]) -> Log:
        """Find the log that messages to a set go to; read a newer plan if this one has none."""
        log = self._plan.cover(to) if to <= set(self._plan.partitions) else None
        if log is None:
            self._read_plan()
            log = self._look_up(to)
        if log is None:
            names = ", ".join(f'"{name}"' for name in sorted(to))
            raise UndeclaredDestination(
                f"no declared destination set covers {'+'.join(sorted(to))}; add [{names}] "
                f"to 'destinations' in the interest file, then run 'amcast topology plan' and "
                f"'amcast topology apply'"
            )
        return log

    def _read_plan(self) -> None:
        """Read the plan again, which may declare further sets; at most once a second."""
        with self._control_lock:
            if time.monotonic() - self._plan_read_at > _PLAN_EVERY_S:
                self._plan = self._control.refresh().plan()
                self._plan_read_at = time.monotonic()
                self._routes.clear()

    def _look_up(self, to: frozenset[str]) -> Log | None:
        unknown = sorted(to - set(self._plan.partitions))
        if unknown:
            raise UsageError(
                f"partition {unknown[0]} does not exist; topic {self._plan.topic} has "
                f"{', '.join(self._plan.partitions)}"
            )
        return self._plan.cover(to)
