"""A producer's announcements: tells the collector of a log what is on its way, by datagrams.

Whoever appends says `sent` right after an append was started and `settled` when its outcome is
known. A thread of its own follows the control topic: collectors say there where they listen.

Nothing waits for an announcement and nothing is lost without it: a datagram that cannot be sent is
dropped, and of those that follow each other too closely only the first goes out. Counts are
cumulative, so the next one says it all.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import Any

from multicast.announcements import Address, Announcement, Count, encode
from multicast.control import ControlReader, ControlState
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError

_SPACING_S = 0.0002
_CONTROL_EVERY_S = 1.0


class LogAnnouncer:
    """Counts one producer's appends to one log, and announces them. Safe from any thread."""

    __slots__ = (
        "_lock",
        "_number",
        "_place",
        "_producer",
        "_sent",
        "_settled",
        "_socket",
        "_token",
        "_told_at",
    )

    def __init__(self, producer: int) -> None:
        self._producer = producer
        self._lock = threading.Lock()
        self._sent = 0
        self._settled = 0
        self._number = 0  # of the log, in the plan of the collector's epoch
        self._token = b""
        self._socket: socket.socket | None = None
        self._place: tuple[Any, ...] = ()
        self._told_at = 0.0

    def listens(self, number: int, token: bytes, to: socket.socket, place: tuple[Any, ...]) -> None:
        """Announce to that place from now on."""
        with self._lock:
            self._number, self._token, self._socket, self._place = number, token, to, place

    def sent(self, count: int) -> None:
        """Note that so many appends were started, and announce them."""
        with self._lock:
            self._sent += count
            now = time.monotonic()
            if self._socket is None or now - self._told_at < _SPACING_S:
                return
            self._told_at = now
            counts = (Count(self._number, self._sent, self._settled),)
            raw = encode(self._token, Announcement(self._producer, counts))
        with contextlib.suppress(OSError, OverflowError):
            self._socket.sendto(raw, self._place)

    def settled(self, count: int) -> None:
        """Note that the outcome of so many appends is known."""
        with self._lock:
            self._settled += count


class Announcer:
    """Finds for one producer where to announce; a thread of its own follows the control topic."""

    def __init__(self, driver: Driver, topic: str, control: ControlState) -> None:
        self._producer = int.from_bytes(os.urandom(8))
        self._logs: dict[str, LogAnnouncer] = {}
        self._known: dict[str, tuple[int, Address]] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._driver = driver
        self._topic = topic
        self._learn(control)
        self._thread = threading.Thread(target=self._follow, name="amcast-announcer", daemon=True)
        self._thread.start()

    def log(self, name: str) -> LogAnnouncer:
        """Give what counts a log's appends."""
        with self._lock:
            if name not in self._logs:
                self._logs[name] = LogAnnouncer(self._producer)
            return self._logs[name]

    def close(self) -> None:
        """Stop following, and close the sockets."""
        self._stop.set()
        self._thread.join(10)
        for each in self._sockets.values():
            each.close()

    def _follow(self) -> None:
        control: ControlReader | None = None
        try:
            while not self._stop.wait(_CONTROL_EVERY_S):
                with contextlib.suppress(AmcastError):
                    control = control or ControlReader(self._driver, self._topic)
                    self._learn(control.refresh())
        finally:
            if control is not None:
                control.close()

    def _learn(self, state: ControlState) -> None:
        """Take in where collectors listen; of one log's, the newest epoch's is the one."""
        for name, told in sorted(state.addresses.items(), key=lambda one: one[1][0]):
            epoch, address = told
            if self._known.get(name) == told or not 1 <= epoch <= state.epoch:
                continue
            plan = state.plan(epoch)
            if not plan.has_collector(name):
                continue
            # A name that no resolver takes is no OSError in every case.
            with contextlib.suppress(OSError, ValueError, OverflowError):
                opened, place = self._open(address)
                for log in plan.own_logs(name):
                    self.log(log).listens(plan.number(log), address.token, opened, place)
                self._known[name] = told

    def _open(self, address: Address) -> tuple[socket.socket, tuple[Any, ...]]:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_DGRAM
        )[0]
        if family not in self._sockets:
            opened = socket.socket(family, kind, protocol)
            opened.setblocking(False)
            self._sockets[family] = opened
        return self._sockets[family], place
