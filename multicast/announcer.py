"""Counts a producer's appends, and announces them: datagrams to a log's collector.

The producer calls `sent` right after it has started an append, and `settled` when the outcome is
known. Collectors publish their addresses on the control topic; whoever follows it calls `learn`.
In an epoch of version 2 nothing is announced: tickets have the place of announcements.

Nothing waits for an announcement, and nothing is lost without it. A datagram that cannot be sent is
dropped; of those that follow each other within `_SPACING_S` only the first is sent. The counts are
cumulative, so the next datagram makes up for both.

A producer's first append to a log takes up to a second: the client looks up the leader, connects,
and gets its producer ID. A collector takes an announced message that does not come for as long to
be lost, and fills its place with a skip. So until the first outcome of a log is known, datagrams
only introduce the producer (0 sent); the first outcome is announced at once.

The counts serve metrics, too (`multicast/metrics/`), so they are kept where nothing is announced.
How long an append takes is measured for one message of a log at a time: the next one is timed once
the last one has its outcome. So the measurement costs nothing for most messages of a busy log.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from multicast.announcements import Address, Announcement, Count, encode
from multicast.control import ControlState
from multicast.errors import AmcastError
from multicast.metrics.counts import AppendCounts
from multicast.metrics.families import LatencyCounts
from topology.tree import ORDER_VERSION_FIRST

# Between two datagrams of one log: at most 5,000 a second, whatever the message rate. A producer
# with more messages has many in flight, and one datagram announces them all.
_SPACING_S = 0.0002


class LogAnnouncer:
    """Counts one producer's appends to one log, and announces them. Safe from any thread."""

    __slots__ = (
        "_address",
        "_announced_at",
        "_full",
        "_latencies",
        "_lock",
        "_monotonic",
        "_number",
        "_producer",
        "_refused",
        "_sent",
        "_settled",
        "_socket",
        "_timed",
        "_timed_at",
        "_token",
        "_unknown",
    )

    def __init__(self, producer: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._producer = producer
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._sent = 0
        self._settled = 0
        self._refused = 0  # of those settled
        self._unknown = 0
        self._full = 0
        self._latencies = LatencyCounts()
        # The append that is timed: with this many outcomes it has its own. 0: none is timed.
        self._timed = 0
        self._timed_at = 0.0
        self._number = 0  # of the log, in the plan of the collector's epoch
        self._token = b""
        self._socket: socket.socket | None = None
        self._address: tuple[Any, ...] = ()  # as `socket.sendto` takes it
        self._announced_at = 0.0

    def connect(
        self, number: int, token: bytes, to: socket.socket, address: tuple[Any, ...]
    ) -> None:
        """Send announcements to that address from now on, as log number `number`."""
        with self._lock:
            self._number, self._token, self._socket, self._address = number, token, to, address

    def disconnect(self) -> None:
        """Announce nothing from now on."""
        with self._lock:
            self._socket = None

    def sent(self, count: int) -> None:
        """Add appends that were started, and announce them."""
        with self._lock:
            self._sent += count
            now = self._monotonic()
            if count and not self._timed and self._settled < self._sent:
                self._timed, self._timed_at = self._sent, now
            if self._socket is None or now - self._announced_at < _SPACING_S:
                return
            self._announced_at = now
            counts = (Count(self._number, self._sent if self._settled else 0, self._settled),)
            raw = encode(self._token, Announcement(self._producer, counts))
            to, address = self._socket, self._address
        with contextlib.suppress(OSError, OverflowError):
            to.sendto(raw, address)

    def settled(self, count: int, errors: Sequence[AmcastError] = ()) -> None:
        """Add appends whose outcome is known, and the errors among these outcomes.

        The next datagram contains them.

        The first of a log is announced at once: the collector has counted its messages as
        unannounced, and orders nothing early while more of those are stored than announced.
        """
        with self._lock:
            is_first = not self._settled
            self._settled += count
            if errors:
                self._refused += sum(error.definite for error in errors)
                self._unknown += sum(not error.definite for error in errors)
            if self._timed and self._settled >= self._timed:
                if not errors:
                    self._latencies.observe(self._monotonic() - self._timed_at)
                self._timed = 0
            if is_first:
                self._announced_at = 0.0
        if is_first:
            self.sent(0)

    def had_no_room(self) -> None:
        """Count an attempt to append that found the buffer full."""
        with self._lock:
            self._full += 1

    def counts(self) -> AppendCounts:
        """Give all counts of one moment."""
        with self._lock:
            return AppendCounts(
                sent=self._sent,
                settled=self._settled,
                refused=self._refused,
                unknown=self._unknown,
                full=self._full,
                seconds=self._latencies.copy(),
            )


class Announcer:
    """Connects one producer's `LogAnnouncer`s. Before `learn` they only count.

    `monotonic` gives the time.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._producer = int.from_bytes(os.urandom(8))
        self._monotonic = monotonic
        self._logs: dict[str, LogAnnouncer] = {}
        self._known: dict[str, tuple[int, Address]] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._lock = threading.Lock()

    def log(self, name: str) -> LogAnnouncer:
        """Give the announcer of a log."""
        with self._lock:
            if name not in self._logs:
                self._logs[name] = LogAnnouncer(self._producer, self._monotonic)
            return self._logs[name]

    def counts(self) -> dict[str, AppendCounts]:
        """Give the counts of each log that the producer has appended to, or tried to."""
        with self._lock:
            logs = list(self._logs.items())
        counts = {name: log.counts() for name, log in logs}
        return {name: count for name, count in counts.items() if count.sent or count.full}

    def close(self) -> None:
        """Close the sockets; nobody may call `learn` any more."""
        for opened in self._sockets.values():
            opened.close()

    def learn(self, state: ControlState) -> None:
        """Connect logs to published addresses; of two for one log, the newer epoch's wins.

        May look up the name of a host, which blocks. One thread at a time.
        """
        begun = state.begun_epoch
        if begun and state.plan(begun).order_version != ORDER_VERSION_FIRST:
            if self._known:
                self._known.clear()
                with self._lock:
                    logs = list(self._logs.values())
                for log in logs:
                    log.disconnect()
            return
        for name, published in sorted(state.addresses.items(), key=lambda entry: entry[1][0]):
            epoch, address = published
            if self._known.get(name) == published or not 1 <= epoch <= state.epoch:
                continue
            plan = state.plan(epoch)
            if not plan.has_collector(name):
                continue
            # For a malformed host name `getaddrinfo` raises more than `OSError`.
            with contextlib.suppress(OSError, ValueError, OverflowError):
                opened, resolved = self._open(address)
                for own in plan.own_logs(name):
                    self.log(own).connect(plan.number(own), address.token, opened, resolved)
                self._known[name] = published

    def _open(self, address: Address) -> tuple[socket.socket, tuple[Any, ...]]:
        family, kind, protocol, _, resolved = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_DGRAM
        )[0]
        if family not in self._sockets:
            opened = socket.socket(family, kind, protocol)
            opened.setblocking(False)
            self._sockets[family] = opened
        return self._sockets[family], resolved
