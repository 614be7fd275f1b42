"""One thread for everything that arrives at sockets: announcements, and answers to direct appends.

A datagram goes to the sink whose token it carries; one with any other token is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from collectors.engine.listener import Listener
from collectors.engine.loops import Loop
from multicast.announcements import Address, token_of
from multicast.drivers.protocol import DirectAppender

_POLL_S = 0.5  # `wake` ends a poll, so this bounds no delay; ten times as long changes nothing
# Under load one turn should serve many datagrams: after a poll that found so many for one sink, the
# thread pauses for 1 ms. Ten times as long would delay every order record by 10 ms; with no pause
# nearly every datagram costs a turn and an order record of its own.
_LOADED_DATAGRAMS_MIN = 4
_LOADED_PAUSE_S = 0.001


class DatagramSink(Protocol):
    """Takes announcements; called by the loop's thread, and must return soon."""

    def on_datagrams(self, datagrams: Sequence[bytes]) -> None:
        """Take datagrams that carry the sink's token."""


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
        """Give a sink an address of its own; it gets the datagrams of that address from now on."""
        address = self._listener.address()
        self._sinks[address.token] = sink
        return address

    def leave(self, address: Address) -> None:
        """Drop the datagrams of this address from now on."""
        self._sinks.pop(address.token, None)

    def close(self) -> None:
        """Close the socket; the loop has ended."""
        self._listener.close()

    def _turn(self) -> None:
        datagrams = self._listener.poll(_POLL_S)
        if self._direct is not None:
            self._direct.receive()
        by_token: dict[bytes, list[bytes]] = {}
        for raw in datagrams:
            token = token_of(raw)
            if token in self._sinks:
                by_token.setdefault(token, []).append(raw)
        for token, group in by_token.items():
            sink = self._sinks.get(token)
            if sink is not None:
                sink.on_datagrams(group)
        if any(len(group) >= _LOADED_DATAGRAMS_MIN for group in by_token.values()):
            self.loop.stopped.wait(_LOADED_PAUSE_S)
