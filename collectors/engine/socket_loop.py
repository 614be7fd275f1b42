"""One thread for what comes over sockets: announcements, and the answers to direct appends.

A datagram is handed to the collector whose token it carries; the others are dropped here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from collectors.engine.listener import Listener
from collectors.engine.loops import Loop
from multicast.announcements import Address, token_of
from multicast.drivers.protocol import DirectAppender

_POLL_S = 0.5
_MANY = 4
_BUSY_S = 0.001


class DatagramSink(Protocol):
    """Who takes announcements; called by the loop's thread, and must return soon."""

    def datagrams_came(self, datagrams: Sequence[bytes]) -> None:
        """Take datagrams that carry its token."""


class SocketLoop:
    """Waits on the listener and on the direct appender at once."""

    def __init__(
        self, host: str, direct: DirectAppender | None, *, failed: Callable[[Exception], None]
    ) -> None:
        self._listener = Listener(host, also=-1 if direct is None else direct.fileno())
        self._direct = direct
        self._sinks: dict[bytes, DatagramSink] = {}
        self.loop = Loop("sockets", self._turn, wake=self._listener.wake, failed=failed)

    def listen(self, sink: DatagramSink) -> Address:
        """Give an address of its own to a sink, which hears from now on."""
        address = self._listener.address()
        self._sinks[address.token] = sink
        return address

    def leave(self, address: Address) -> None:
        """Hear nothing at this address any longer."""
        self._sinks.pop(address.token, None)

    def close(self) -> None:
        """Close the socket; the loop has ended."""
        self._listener.close()

    def _turn(self) -> None:
        datagrams = self._listener.poll(_POLL_S)
        if self._direct is not None:
            self._direct.receive()
        found: dict[bytes, list[bytes]] = {}
        for raw in datagrams:
            token = token_of(raw)
            if token in self._sinks:
                found.setdefault(token, []).append(raw)
        for token, some in found.items():
            sink = self._sinks.get(token)
            if sink is not None:
                sink.datagrams_came(some)
        if any(len(some) >= _MANY for some in found.values()):
            self.loop.stopped.wait(_BUSY_S)
