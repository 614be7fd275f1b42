"""Multicast: appends a message to the log of its destination set, and gives a receipt for it.

A receipt stands for one message, `Receipts` for all messages of one `multicast_all`, which costs
less. Messages of one producer to one log keep their order. Between messages to two logs no order is
guaranteed, even if the producer waits for `ordered` between them: the later message may take an
offset that was ordered early, or a collector orders it before it relays its parent's order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Self

from multicast.announcer import Announcer
from multicast.control import ControlReader, log_partition
from multicast.control.reader import REFRESH_S
from multicast.drivers import open_driver
from multicast.drivers.clock import clock_of
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
from multicast.receipts import FAILOVER_S, Receipt, Receipts, Route, Settlement
from topology.tree import Log, Plan, log_name

# An undeclared destination set makes the producer read the control topic again, at most this often:
# a caller in a loop must not turn each of its mistakes into a request. A set that is declared while
# the producer runs is refused for at most this long.
_PLAN_EVERY_S = 1.0


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
            self._clock = clock_of(self._driver)
            self._settlement = Settlement(self._orders, self._clock)
            self._control = ControlReader(self._driver, topic)
            opened.callback(self._control.close)
            self._plan = self._control.refresh().plan()
            self._plan_read_at = self._clock.monotonic()
            self._appender = self._driver.appender(linger_ms=linger_ms)
            self._announcer = None
            if announce and self._clock.threads:
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
                self._appender.append(
                    route.partition,
                    payload,
                    key=key,
                    headers=pairs,
                    done=receipt.settle,
                )
            except BufferFull:
                deadline = deadline or self._clock.monotonic() + self._block_s
                if self._clock.monotonic() >= deadline:
                    raise
                self._settlement.pause()
            else:
                if route.announcer is not None:
                    route.announcer.sent(1)
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
        deadline = self._clock.monotonic() + self._block_s
        while started < len(payloads):
            remaining = payloads[started:] if started else payloads
            done = partial(receipts.settle, started)
            if route.header is None:
                taken = self._appender.append_all(route.partition, remaining, done=done)
            else:
                taken = append_each(
                    self._appender, route.partition, remaining, headers=[route.header], done=done
                )
            started += taken
            if taken and route.announcer is not None:
                route.announcer.sent(taken)
            if not taken:
                if self._clock.monotonic() >= deadline:
                    break
                self._settlement.pause()
        for index in range(started, len(payloads)):
            error = BufferFull(f"the producer's buffer had no room within {self._block_s:g} s")
            receipts.settle(0, index, AppendFailed(error))
        return receipts

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

    def _route(self, to: Iterable[str]) -> Route:
        if isinstance(to, str):
            raise UsageError(f"a destination set is a set of names, like {{{to!r}}}, not a str")
        destinations = frozenset(to)
        route = self._routes.get(destinations)
        if route is None:
            log = self._cover(destinations)
            exact = tuple(sorted(destinations))
            header = None if exact == log.to else covered_header(log.name, exact)
            announcer = None if self._announcer is None else self._announcer.log(log.name)
            route = Route(log, log_partition(log), exact, header, announcer)
            self._routes[destinations] = route
        return route

    def _cover(self, to: frozenset[str]) -> Log:
        """Find the log that messages to a set go to; read a newer plan if this one has none."""
        if not to:
            raise UsageError("a destination set names at least one partition")
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
            if self._clock.monotonic() - self._plan_read_at > _PLAN_EVERY_S:
                self._plan = self._control.refresh().plan()
                self._plan_read_at = self._clock.monotonic()
                self._routes.clear()

    def _look_up(self, to: frozenset[str]) -> Log | None:
        unknown = sorted(to - set(self._plan.partitions))
        if unknown:
            raise UsageError(
                f"partition {unknown[0]} does not exist; topic {self._plan.topic} has "
                f"{', '.join(self._plan.partitions)}"
            )
        return self._plan.cover(to)

    def _orders(self) -> OrderFollower:
        with self._control_lock:
            if self._follower is None:
                self._follower = OrderFollower(self._driver, self._plan.topic)
            return self._follower
