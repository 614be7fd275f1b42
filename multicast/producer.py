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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Self

from multicast.announcer import Announcer
from multicast.control import ControlReader, log_partition
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
from multicast.receipts import Receipt, Receipts, Route, Settlement
from topology.tree import Log, Plan


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
        self._settlement = Settlement(self._orders)
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
                deadline = deadline or time.monotonic() + self._block_s
                if time.monotonic() >= deadline:
                    raise
                self._settlement.pause()
            else:
                if route.announcer is not None:
                    route.announcer.sent(1)
                return receipt

    def multicast_all(self, payloads: Sequence[bytes | None], *, to: Iterable[str]) -> Receipts:
        """Multicast messages to one set of partitions, in this order; return with their receipts.

        Costs less than a `multicast` of each. Blocks while the buffer is full, for at most
        `block_s` seconds; what found no room by then was not sent, and has `BufferFull` as its
        outcome. Raises `UndeclaredDestination` and `UsageError` as `multicast` does.
        """
        route = self._route(to)
        receipts = Receipts(self._settlement, route, len(payloads))
        started = 0
        deadline = time.monotonic() + self._block_s
        while started < len(payloads):
            rest = payloads[started:] if started else payloads
            done = partial(receipts.settle, started)
            if route.header is None:
                taken = self._appender.append_all(route.partition, rest, done=done)
            else:
                taken = append_each(
                    self._appender, route.partition, rest, headers=[route.header], done=done
                )
            started += taken
            if taken and route.announcer is not None:
                route.announcer.sent(taken)
            if not taken:
                if time.monotonic() >= deadline:
                    break
                self._settlement.pause()
        for index in range(started, len(payloads)):
            error = BufferFull(f"the buffer had no room within {self._block_s:g} s")
            receipts.settle(0, index, AppendFailed(error))
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

    def _route(self, to: Iterable[str]) -> Route:
        if isinstance(to, str):
            raise UsageError(f"a destination set is a set of names, like {{{to!r}}}, not a text")
        wanted = frozenset(to)
        route = self._routes.get(wanted)
        if route is None:
            log = self._cover(wanted)
            exact = tuple(sorted(wanted))
            header = None if exact == log.to else covered_header(log.name, exact)
            announcer = None if self._announcer is None else self._announcer.log(log.name)
            route = Route(log, log_partition(log), exact, header, announcer)
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

    def _orders(self) -> OrderFollower:
        with self._control_lock:
            if self._follower is None:
                self._follower = OrderFollower(self._driver, self._plan.topic)
            return self._follower
