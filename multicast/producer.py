"""Multicast: one append to the log of the destination set, and a receipt for it.

    accepted    stored by all in-sync replicas; the message ID is known
    ordered     its ID stands in the order stream of the collector that decides its log

A receipt is a promise about one message. Messages of one producer to one log keep their order;
between logs there is an order only if the producer waits for `ordered` in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Self

from multicast.control import ControlReader, log_partition
from multicast.drivers import open_driver
from multicast.errors import BufferFull, TimedOut, UndeclaredDestination, UsageError
from multicast.log import Appended, AppendFailed, AppendOutcome, Driver, Headers
from multicast.messages import MessageID, covered_header
from multicast.ordered import OrderFollower
from topology.tree import Log, Plan


class Receipt:
    """What became of one multicast. Its methods block, and may be called from any thread."""

    __slots__ = ("_outcome", "_producer", "log", "to")

    def __init__(self, producer: Producer, log: Log, to: tuple[str, ...]) -> None:
        self._producer = producer
        self._outcome: AppendOutcome | None = None
        self.log = log
        self.to = to

    @property
    def outcome(self) -> AppendOutcome | None:
        """What Kafka said; None while it has said nothing."""
        return self._outcome

    def accepted(self, timeout: float = 30.0) -> MessageID:
        """Wait until all in-sync replicas hold the message; give its ID.

        Raises `AppendRefused` (it is not in the log), `AppendUnknown` (it may be) or `TimedOut`
        after `timeout` seconds (nothing is known yet; asking again is allowed).
        """
        self._producer._wait(self, timeout)  # noqa: SLF001 - the two are one class in two parts
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
        follower = self._producer._orders()  # noqa: SLF001
        if not follower.wait(self.log.name, found.offset, deadline - time.monotonic()):
            raise TimedOut(
                f"message {found} was accepted and is not ordered after {timeout:g} s; "
                f"'amcast collectors status' tells whether its collector runs"
            )
        return found


class Producer:
    """Multicasts messages to sets of partitions of one topic. Safe from any thread.

    `bootstrap` are addresses "host:port,…"; `driver` is a driver's name or an open driver (then
    `bootstrap` is not needed). What waits for Kafka is bounded; past that `multicast` blocks. Every
    message has its outcome within `delivery_timeout_s` seconds; any other question to the cluster
    has its answer, or raises `ClusterUnreachable`, within `request_timeout_s`.
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
    ) -> None:
        self._block_s = block_s
        self._settled = threading.Condition()
        self._waiting = 0
        self._control_lock = threading.Lock()
        self._follower: OrderFollower | None = None
        self._covers: dict[frozenset[str], Log] = {}
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
            self._appender = self._driver.appender()
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
        headers: Headers = (),
    ) -> Receipt:
        """Multicast a message to a set of partitions; return at once with its receipt.

        Payload, key and headers reach every consumer unchanged; header names that begin with
        "amcast." are ours. A set that nobody declared travels in the log of the smallest declared
        superset. Blocks while the buffer is full, for at most `block_s` seconds.

        Raises `UndeclaredDestination` where no declared set covers `to`, `UsageError` for a
        partition that does not exist, `BufferFull`; after each of these nothing was sent.
        """
        if isinstance(to, str):
            raise UsageError(f"a destination set is a set of names, like {{{to!r}}}, not a text")
        wanted = frozenset(to)
        log = self._cover(wanted)
        if any(name.startswith("amcast.") for name, _ in headers):
            raise UsageError('header names that begin with "amcast." are reserved')
        exact = tuple(sorted(wanted))
        if exact != log.to:
            headers = [*headers, covered_header(log.name, exact)]
        receipt = Receipt(self, log, exact)

        def done(outcome: AppendOutcome) -> None:
            receipt._outcome = outcome  # noqa: SLF001
            if self._waiting:
                with self._settled:
                    self._settled.notify_all()

        deadline = time.monotonic() + self._block_s
        while True:
            try:
                self._appender.append(
                    log_partition(log), payload, key=key, headers=headers, done=done
                )
            except BufferFull:
                if time.monotonic() >= deadline:
                    raise
                self._pause()
            else:
                return receipt

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

    def _cover(self, wanted: frozenset[str]) -> Log:
        log = self._covers.get(wanted)
        if log is not None:
            return log
        if not wanted:
            raise UsageError("a destination set names at least one partition")
        log = self._look_up(wanted)
        if log is None:
            # A set that was declared a moment ago stands in the control topic already.
            with self._control_lock:
                if time.monotonic() - self._looked_at > 1.0:
                    self._plan = self._control.refresh().plan()
                    self._looked_at = time.monotonic()
                    self._covers.clear()
            log = self._look_up(wanted)
        if log is None:
            names = ", ".join(f'"{name}"' for name in sorted(wanted))
            raise UndeclaredDestination(
                f"no declared destination set covers {'+'.join(sorted(wanted))}; add [{names}] "
                f"to 'destinations' in the interest file, then run 'amcast topology plan' and "
                f"'amcast topology apply'"
            )
        self._covers[wanted] = log
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
        with self._settled:
            self._waiting += 1
            self._settled.wait(0.05)
            self._waiting -= 1

    def _wait(self, receipt: Receipt, timeout: float) -> None:
        with self._settled:
            self._waiting += 1
            try:
                # An outcome that came before we were counted is seen here; later ones notify.
                if not self._settled.wait_for(lambda: receipt.outcome is not None, timeout):
                    raise TimedOut(f"no acknowledgement came within {timeout:g} s")
            finally:
                self._waiting -= 1

    def _orders(self) -> OrderFollower:
        with self._control_lock:
            if self._follower is None:
                self._follower = OrderFollower(self._driver, self._plan.topic)
            return self._follower
